"""Stages of a pipeline that are not equally long: what each computes in a step, and what a step takes if they are cut evenly.

With m micro-batches a step takes about what its longest stage computes, and of each other stage one micro-batch (``schedule``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nsysx.judging.judging_bounds import UNEVEN_STAGES_TIMES
from nsysx.judging.rank_waiting import per_step
from nsysx.judging.schedule import Schedule, paced_ns
from nsysx.model import Row


class UnevenStages(NamedTuple):
    """The rank with most work of its own and the one with least, and what each of the stages, in ``rows``, computes in a step (ns)."""

    longest: Row
    shortest: Row
    work_ns: tuple[float, ...]
    rows: tuple[Row, ...]

    @property
    def longest_at(self) -> int:
        """The place of the longest stage among them."""
        return max(range(len(self.work_ns)), key=lambda i: (self.work_ns[i], i))

    def step_ns(self, micro_batches: float) -> float:
        """Return what the longest stage computes, and of each other stage one micro-batch (ns)."""
        return paced_ns(self.work_ns, micro_batches)

    def even_step_ns(self, micro_batches: float) -> float:
        """Return the same of stages that share this work equally (ns)."""
        stages = len(self.work_ns)
        return sum(self.work_ns) / stages * (1 + Schedule(stages, micro_batches).of_work)


def uneven_stages(rows: Sequence[Row], times: float = UNEVEN_STAGES_TIMES) -> UnevenStages | None:
    """Return the stages of a pipeline whose longest one has so many times the GPU work that they have on average; None without such."""
    stages = [row for row in rows if row.get("bubble_ns") is not None]
    if len(stages) < 2 or any(row["straggler"] for row in rows):
        return None
    work = tuple(per_step(row, "compute_ns") for row in stages)
    if max(work) * len(work) < times * sum(work) or not sum(work):
        return None
    order = sorted(range(len(work)), key=lambda i: work[i])
    return UnevenStages(stages[order[-1]], stages[order[0]], work, tuple(stages))
