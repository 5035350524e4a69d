"""One rank of a job as a small record, the order of a job's ranks, and their numbers.

Anything that needs all ranks at once works on these records alone, so memory grows with collectives, not with events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nsysx.catalogue import DeviceActivity
from nsysx.events.other_ranks import Modelled
from nsysx.events.sampled_clocks import WorkingClock
from nsysx.frames.intervals import I64
from nsysx.ranks import process_groups
from nsysx.ranks.rank_places import HostLine, Place, WorkPlace
from nsysx.reading import nccl_notes
from nsysx.replay.together import Played

_ALL = slice(None)

LEDGER = ("window_ns", *(activity.column for activity in DeviceActivity), "hidden_comm_ns")
_RANK_FILE = re.compile(r"(?:\b|_)rank[._-]?(\d{1,9})(?!\d)", re.IGNORECASE)


class CollectiveSeries(NamedTuple):
    """Collectives of one kind in one communicator, or else on one stream: the n-th of each rank belong together.

    ``stream`` counts the streams of the rank in the order of their first collective; ``communicator`` is "" if NCCL did not
    note it, and then the kind is only known from the kernel's name (``kernel_kind``). ``pair``: the two ranks that send to
    each other, empty for the whole communicator.
    """

    stream: int
    communicator: str
    kernel_kind: str
    kind: str
    pair: tuple[int, ...] = ()


def _no_spans() -> tuple[I64, I64]:
    return np.empty(0, np.int64), np.empty(0, np.int64)


@dataclass(frozen=True)
class HostCalls:
    """Calls with which a rank communicates on the host, in order of their start, as the collectives of a `Rank`.

    ``idle`` are the stretches [start, end) in which its GPU idles for them.
    """

    series: tuple[CollectiveSeries, ...] = ()
    belongs: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    start_ns: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    end_ns: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    message_bytes: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    idle: tuple[I64, I64] = field(default_factory=_no_spans)


@dataclass(frozen=True)
class LedgerTiles:
    """The ledger of adjacent stretches of a device's time: its steady steps, in order.

    ``usual_ns``: what each usually computes, by its kernels (``usual_work``); None where no other process shares its GPU. ``work``: how
    long the compute kernels of each kind (family) run in each stretch (ns), and ``kernels``: how many; empty for a rank without peers.
    """

    start_ns: I64
    end_ns: I64
    parts: Mapping[str, I64]
    idle_causes: Mapping[str, I64]
    usual_ns: I64 | None = None
    work: Mapping[str, I64] = field(default_factory=dict)
    kernels: Mapping[str, I64] = field(default_factory=dict)

    def only(self, chosen: npt.NDArray[np.bool_]) -> LedgerTiles:
        """Return the chosen stretches."""
        columns = self.parts, self.idle_causes, self.work, self.kernels
        parts, causes, work, kernels = ({k: values[chosen] for k, values in x.items()} for x in columns)
        usual = None if self.usual_ns is None else self.usual_ns[chosen]
        return LedgerTiles(self.start_ns[chosen], self.end_ns[chosen], parts, causes, usual, work, kernels)

    def figures(self, chosen: npt.NDArray[np.bool_] | slice = _ALL) -> dict[str, Any]:
        """Return the fields of a Rank that cover the chosen stretches together, by name."""
        start, end = self.start_ns[chosen], self.end_ns[chosen]
        causes = {name: int(ns[chosen].sum()) for name, ns in self.idle_causes.items()}
        return {
            "steps": len(start),
            "step_ns": int(np.median(end - start)),
            "window": (int(start[0]), int(end[-1])),
            "parts": {name: int(ns[chosen].sum()) for name, ns in self.parts.items()},
            "idle_causes": {name: ns for name, ns in causes.items() if ns},
        }


@dataclass(frozen=True)
class Rank:
    """One rank, small enough to be sent between machines. ``report`` is the number of the report that it comes from.

    ``window``, ``parts`` and ``idle_causes`` cover its steady steps, whose single ledgers are ``tiles``; without steady steps
    they cover the whole capture, ``steps`` is 0 and ``tiles`` is None.

    ``start_ns``, ``end_ns`` and ``message_bytes`` (-1: unknown) hold its collectives in order of their start; ``belongs`` says
    which of ``series`` each is part of, and ``placed`` at which of ``places`` it is launched.
    ``exposed`` are the stretches [start, end) of communication that no compute hides.
    ``number`` is its rank in the job, ``noted`` what NCCL noted: "all", "ranges" without their payload, or "nothing".
    ``kernels`` are the longest of ``kernel_steps`` steady steps of its report: (name, grid, block) -> (executions, ns). ``span`` is the
    time from the first event to the last, since the session's start; ``command`` and ``content_id`` are equal for equal commands and
    captures.
    ``by_communication``, if several reports are read, is its step without tracing at parts of its communication time, and
    ``without_comm`` the same without any, see `no_comm`; ``played`` is the replay of its steps, None where there is none. ``seams``:
    see `Trace`. ``host_lines``: how long its host is at each line in
    one step (ns), empty where no lines were noted. ``calls_of_work``: how many calls it makes in one step that give work to the device or
    wait for it, None where it is not replayed. ``compute_by_place``: how long its compute kernels run in one step (ns), by kind and
    line; ``compute_outside``: below each line, outside of networks. ``evaluations``: its evaluations [start, end) on the CPU. ``groups``:
    the process groups that it is in, empty where they were not noted. ``host_calls``: its calls of MPI, none where they were not recorded.
    ``clock``: at which clock its GPU worked, None where that was not sampled. ``taken_ns``: what another process took of its GPU per step,
    0 where none shows; ``slowed_ns``: how much longer kernels beside its communication take than the same alone, per step.
    """

    report: int
    file: str
    process: int
    pid: int
    device: int
    gpu: str
    host: str | None
    number: int | None
    utc_epoch_ns: int | None
    steps: int
    step_ns: int | None
    window: tuple[int, int]
    parts: Mapping[str, int]
    idle_causes: Mapping[str, int]
    tiles: LedgerTiles | None
    members: Mapping[str, nccl_notes.CommunicatorMember]
    noted: str
    series: tuple[CollectiveSeries, ...]
    belongs: I64
    start_ns: I64
    end_ns: I64
    message_bytes: I64
    exposed: tuple[I64, I64]
    kernels: Mapping[tuple[str, int, int], tuple[int, int]] = field(default_factory=dict)
    span: tuple[int, int] = (0, 0)
    command: str | None = None
    content_id: str = ""
    by_communication: tuple[tuple[float, Modelled], ...] = ()
    without_comm: Modelled | None = None
    played: Played | None = None
    seams: tuple[int, ...] = ()
    host_lines: Mapping[HostLine, int] = field(default_factory=dict)
    calls_of_work: float | None = None
    compute_by_place: Mapping[WorkPlace, float] = field(default_factory=dict)
    compute_outside: Mapping[WorkPlace, float] = field(default_factory=dict)
    evaluations: tuple[I64, I64] = field(default_factory=_no_spans)
    places: tuple[Place, ...] = ()
    placed: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    groups: tuple[process_groups.ProcessGroup, ...] = ()
    host_calls: HostCalls = field(default_factory=HostCalls)
    clock: WorkingClock | None = None
    taken_ns: float = 0.0
    kernel_steps: int | None = None
    slowed_ns: float = 0.0

    @property
    def steps_of_kernels(self) -> int:
        """How many steps ``kernels`` are of: those that it has in common with other ranks may be fewer."""
        return self.steps if self.kernel_steps is None else self.kernel_steps


def file_rank(name: str) -> int | None:
    """Return the rank in a file's name, as `nsysx run --per-rank` writes it; None if there is none."""
    match = _RANK_FILE.search(name)
    return int(match[1]) if match else None


def numbered(ranks: Sequence[Rank]) -> list[Rank]:
    """Return the ranks in the job's order if every one knows its number; else in the order given, without numbers.

    The file's name counts too, as `nsysx run --per-rank` writes it: a shell lists rank10.sqlite before rank2.sqlite.
    """
    named = [file_rank(r.file) for r in ranks]
    for numbers in ([r.number for r in ranks], named):
        if None not in numbers and len(set(numbers)) == len(ranks):
            both = zip(ranks, numbers, strict=True)
            return sorted((replace(r, number=n) for r, n in both), key=lambda r: r.number or 0)
    return [replace(r, number=None) for r in ranks]


def number(ranks: Sequence[Rank], index: int) -> int:
    """Return the number of the rank at ``index``: its own, else its index."""
    announced = ranks[index].number
    return index if announced is None else announced
