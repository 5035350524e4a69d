"""Stages of a pipeline that are not equally long: what each computes in a step, and what a step takes if they are cut evenly.

With m micro-batches a step takes about what its longest stage computes, and of each other stage one micro-batch (``schedule``). That is so
where hosts launch faster than GPUs compute: else the host that takes longest sets the pace, and a stage that gets more layers gets their
launches, too. Measured on two H200s (1F1B, 8 micro-batches, one GPU for each stage, no profiler):

- 42 and 86 ms of GPU work, hosts 84 and 88 ms: with even stages, 62 and 66 ms, the one host launches half as much again. Three runs: 94.9 to
  114.0, 95.0 to 92.1, 94.9 to 92.2 ms, as fast as hosts happened to be. The longest stage alone would have told 80.
- 54 and 84 ms of GPU work, hosts 109 and 121 ms: 113.5 ms, and 122.8 with even stages.

In both, all messages came at once when both sides had come, both stages computed at the same time, and no kernel was slower beside a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nsysx.judging.judging_bounds import UNEVEN_STAGES_TIMES
from nsysx.judging.rank_waiting import per_step
from nsysx.judging.schedule import Schedule, paced_ns
from nsysx.model import Row


class UnevenStages(NamedTuple):
    """The rank with most work of its own and the one with least, and what each of the stages, in ``rows``, computes in a step (ns).

    ``hosts_ns``: what the host of each takes for a step if it waits for nothing, without tracing; () where that is not known.
    """

    longest: Row
    shortest: Row
    work_ns: tuple[float, ...]
    rows: tuple[Row, ...]
    hosts_ns: tuple[float, ...] = ()

    @property
    def longest_at(self) -> int:
        """The place of the longest stage among them."""
        return max(range(len(self.work_ns)), key=lambda i: (self.work_ns[i], i))

    def step_ns(self, micro_batches: float) -> float:
        """Return what the longest stage computes, and of each other stage one micro-batch, or what a host takes that takes longer (ns)."""
        return paced_ns(self.work_ns, micro_batches, self.hosts_ns)

    def even_step_ns(self, micro_batches: float) -> float:
        """Return the same of stages that share this work equally (ns).

        Work comes with the launches that it has on the longest stage on average: layers move, not a head of few launches.
        """
        stages, mean = len(self.work_ns), sum(self.work_ns) / len(self.work_ns)
        launches = self.hosts_ns[self.longest_at] / max(self.work_ns) if self.hosts_ns else 0.0
        hosts = (host + (mean - work) * launches for host, work in zip(self.hosts_ns, self.work_ns, strict=False))
        return max(mean * (1 + Schedule(stages, micro_batches).of_work), *hosts, 0.0)

    @property
    def paced_by_host(self) -> bool:
        """Whether the host of a stage takes longer than the longest stage computes."""
        return max(self.hosts_ns, default=0.0) > max(self.work_ns)


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
