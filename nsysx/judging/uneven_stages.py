"""Stages of a pipeline that are not equally long: what each computes in a step, and what a step takes if they are cut evenly.

With m micro-batches a step takes about what its longest stage computes, and of each other stage one micro-batch (``schedule``). That is so
where hosts launch faster than GPUs compute: else the host that takes longest sets the pace, and layers come with their
launches.
Measured on two H200s (1F1B, 8 micro-batches, a GPU for each stage) without a profiler; hosts by the replay:

- 42 and 86 ms of GPU work, hosts 84 and 88 ms. Even stages have 62 and 66 ms, and one host launches half as much again. Three runs: 94.9 to
  114.0, 95.0 to 92.1, 94.9 to 92.2 ms, by how fast hosts happened to be; by the longest stage it were 80.
- 54 and 84 ms of GPU work, hosts 109 and 121 ms: 113.5 ms, and 122.8 with even stages.

In the recordings both stages compute at the same time, messages take 0.03 ms once both sides are there, and layers take as long with either
cut: with even stages the GPU idles between the launches of its own host, in every micro-batch, and the other stage waits for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nsysx import units
from nsysx.judging.judging_bounds import HELD_BY_HOSTS_SHARE, UNEVEN_STAGES_TIMES
from nsysx.judging.rank_waiting import per_step
from nsysx.judging.schedule import Schedule, paced_ns
from nsysx.model import Row

#: Nothing is known of any host.
NO_HOSTS: Mapping[int, int] = {}


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

    def held_by_hosts(self, micro_batches: float) -> bool:
        """Return whether steps of stages that have as much work each would be hardly shorter, for a host launches that for longer."""
        then = self.even_step_ns(micro_batches)
        hardly = then > (1 - HELD_BY_HOSTS_SHARE) * self.step_ns(micro_batches)
        return hardly and then > self._replace(hosts_ns=()).even_step_ns(micro_batches)

    def bound_by_hosts(self, micro_batches: float) -> bool:
        """Return whether that is so, and a host takes longer now, too, than the longest stage computes: else that stage sets the pace."""
        return self.held_by_hosts(micro_batches) and max(self.hosts_ns, default=0.0) >= max(self.work_ns)

    def hosts_in_words(self) -> str:
        """Return how long the host of each stage takes for its launches, as "84.17 ms on rank 0, 88.23 ms on rank 1"."""
        pairs = zip(self.rows, self.hosts_ns, strict=False)
        return ", ".join(f"{units.duration(round(ns))} on rank {row['rank']}" for row, ns in pairs)


def uneven_stages(
    rows: Sequence[Row], times: float = UNEVEN_STAGES_TIMES, hosts_ns: Mapping[int, int] = NO_HOSTS
) -> UnevenStages | None:
    """Return the stages of a pipeline whose longest one has so many times the GPU work that they have on average; None without such.

    ``hosts_ns``: process -> what its host takes alone.
    """
    stages = [row for row in rows if row.get("bubble_ns") is not None]
    if len(stages) < 2 or any(row["straggler"] for row in rows):
        return None
    work = tuple(per_step(row, "compute_ns") for row in stages)
    if max(work) * len(work) < times * sum(work) or not sum(work):
        return None
    order = sorted(range(len(work)), key=lambda i: work[i])
    hosts = tuple(float(hosts_ns[row["process"]]) for row in stages if row.get("process") in hosts_ns)
    hosts = hosts if len(hosts) == len(stages) else ()
    return UnevenStages(stages[order[-1]], stages[order[0]], work, tuple(stages), hosts)
