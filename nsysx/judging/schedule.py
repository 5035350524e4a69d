"""What the schedule of a pipeline leaves idle by itself: one formula for every rule and sentence about a bubble.

``s`` stages that take equally long, without interleaving, compute ``m`` micro-batches in the time of ``m + s - 1``, as in "GPipe"
(arXiv 1811.06965).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nsysx.model import Row


class Schedule(NamedTuple):
    """Stages of a pipeline, and the micro-batches of a step."""

    stages: int
    micro_batches: float

    @property
    def of_step(self) -> float:
        """How long each stage idles, as a share of the step."""
        return (self.stages - 1) / (self.micro_batches + self.stages - 1)

    @property
    def of_work(self) -> float:
        """How long each stage idles, as a share of what it computes."""
        return (self.stages - 1) / self.micro_batches


def schedule_of(rows: Sequence[Row], micro_batches: int | None) -> Schedule | None:
    """Return the schedule of ranks that are all stages of a pipeline and have two micro-batches or more in a step; else None."""
    if len(rows) < 2 or any(row.get("bubble_ns") is None for row in rows) or (micro_batches or 0) < 2:
        return None
    return Schedule(len(rows), float(micro_batches or 0))


def paced_ns(work_ns: Sequence[float], micro_batches: float, hosts_ns: Sequence[float] = ()) -> float:
    """Return what a step takes of stages that compute so much in it: the longest one, and of each other one micro-batch (ns).

    ``hosts_ns``: what the host of each takes to launch it; no step is shorter. Hosts run ahead over micro-batches and steps, so the
    bubble adds nothing to theirs.
    """
    longest = max(work_ns)
    return max(longest + (sum(work_ns) - longest) / micro_batches, *hosts_ns, 0.0)
