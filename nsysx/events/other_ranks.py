"""What reports of other ranks of the same job say about the shown one, where each rank has a report of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Modelled:
    """A step without tracing (ns): likely, at least, at most; ``by_step`` is number of a step -> its length, where that is known."""

    step_ns: int
    low_ns: int
    high_ns: int
    by_step: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class OtherRanks:
    """``waiting_ns``: GPU op -> how long that collective waits for another rank (ns), for all ranks of the report.

    ``alone``: the steps of the ranks of the other reports, as they would be if those never waited; None if one cannot be replayed.
    ``without_comm``: the same without any communication, of those that can be replayed; ``low_ns`` is their GPU work.
    """

    waiting_ns: Mapping[int, int]
    alone: tuple[Modelled, ...] | None
    without_comm: tuple[Modelled, ...] = ()
