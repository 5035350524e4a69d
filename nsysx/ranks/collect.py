"""One rank of a job as a small record: its ledger per step, and one short table of its collectives.

Anything that needs all ranks at once works on these records alone, so memory grows with collectives, not with events.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import ids
from nsysx.catalogue import DeviceActivity
from nsysx.events import ledger
from nsysx.events.other_ranks import Modelled
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, StepFunction, coverage
from nsysx.model import UNKNOWN_GPU
from nsysx.ranks import process_groups
from nsysx.ranks.rank_bounds import MOST_COMPARED_KERNELS, MOST_RANK_DIGITS
from nsysx.ranks.rank_places import HostLine, Place, WorkPlace
from nsysx.reading import nccl_notes
from nsysx.reading.load import Trace
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


@dataclass(frozen=True)
class LedgerTiles:
    """The ledger of adjacent stretches of a device's time: its steady steps, in order."""

    start_ns: I64
    end_ns: I64
    parts: Mapping[str, I64]
    idle_causes: Mapping[str, I64]

    def only(self, chosen: npt.NDArray[np.bool_]) -> LedgerTiles:
        """Return the chosen stretches."""
        parts, causes = ({k: ns[chosen] for k, ns in x.items()} for x in (self.parts, self.idle_causes))
        return LedgerTiles(self.start_ns[chosen], self.end_ns[chosen], parts, causes)

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
    ``kernels`` are the longest of the steady steps: (name, grid, block) -> (executions, ns). ``span`` is the time from the
    first event to the last, since the session's start; ``command`` and ``content_id`` are equal for equal commands and captures.
    ``by_communication``, if several reports are read, is its step without tracing at parts of its communication time, and
    ``without_comm`` the same without any, see `no_comm`; ``played`` is the replay of its steps, None where there is none. ``seams``:
    see `Trace`. ``host_lines``: how long its host is at each line in
    one step (ns), empty where no lines were noted. ``calls_of_work``: how many calls it makes in one step that give work to the device or
    wait for it, None where it is not replayed. ``compute_by_place``: how long its compute kernels run in one step (ns), by kind and
    line. ``evaluations``: its evaluations [start, end) on the CPU. ``groups``: the process
    groups that it is in, empty where they were not noted.
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
    evaluations: tuple[I64, I64] = field(default_factory=lambda: (np.empty(0, np.int64), np.empty(0, np.int64)))
    places: tuple[Place, ...] = ()
    placed: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    groups: tuple[process_groups.ProcessGroup, ...] = ()


def _collectives(
    profile: Profile, ops: pl.DataFrame, members: Mapping[str, nccl_notes.CommunicatorMember]
) -> tuple[tuple[CollectiveSeries, ...], I64, I64, I64, I64]:
    """Return (series, belongs, start_ns, end_ns, message_bytes) of the communication of a device."""
    streams = {s: i for i, s in enumerate(ops["stream"].unique(maintain_order=True))}
    series: dict[CollectiveSeries, int] = {}
    groups: dict[tuple[int, str, nccl_notes.Message], int] = {}  # a program sends the same few messages again and again
    belongs, sizes = [], []
    messages = nccl_notes.messages(profile.trace, ops, members)
    for row in zip(ops["stream"].to_list(), ops["name"].cast(pl.String).to_list(), messages, strict=True):
        if row not in groups:
            stream, name, message = row
            key = CollectiveSeries(
                streams[stream], message.communicator, nccl_notes.kind_of(name), message.kind, message.pair
            )
            groups[row] = series.setdefault(key, len(series))
        belongs.append(groups[row])
        sizes.append(-1 if row[2].bytes is None else row[2].bytes)
    numbers = np.array(belongs, np.int64), np.array(sizes, np.int64)
    return tuple(series), numbers[0], ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy(), numbers[1]


def _places(profile: Profile, ops: pl.DataFrame) -> tuple[tuple[Place, ...], I64]:
    """Return the places at which collectives are launched, and the number of that of each."""
    code = profile.code()
    phase, module = (ops[c].cast(pl.String).to_list() for c in ("phase", "module"))
    where: list[tuple[str | None, int | None]] = [(None, None)] * ops.height
    if code is not None and ops.height:
        rows = code.places.select("file", "line").rows()
        lines_of_ops = code.places_of(code.op[ops["op"].to_numpy()]).tolist()
        where = [rows[row] if row >= 0 else (None, None) for row in lines_of_ops]
    numbers: dict[Place, int] = {}
    placed = [
        numbers.setdefault(Place(p, m, file, line), len(numbers))
        for p, m, (file, line) in zip(phase, module, where, strict=True)
    ]
    return tuple(numbers), np.array(placed, np.int64)


def _span(profile: Profile) -> tuple[int, int]:
    """Return when the first event of a report begins and the last one ends (ns)."""
    frames = [f for f in (profile.attributed.api_calls, profile.attributed.gpu_ops) if f.height]
    if not frames:
        return 0, 0
    return min(int(f["start_ns"].to_numpy().min()) for f in frames), max(
        int(f["end_ns"].to_numpy().max()) for f in frames
    )


_RANK_WORDS = re.compile(r"-*\w*rank\w*(=.*)?|\d+|.*:\d+", re.IGNORECASE)


def command_key(words: object) -> str | None:
    """Return a hash of a command, without words that differ from rank to rank; None if the command is unknown."""
    if not isinstance(words, list) or not words:
        return None
    kept = [str(w) for w in words if not _RANK_WORDS.fullmatch(str(w))]
    return hashlib.sha256("\0".join(kept).encode(errors="replace")).hexdigest()[:16]


def _kernels(ops: pl.DataFrame, start: int, end: int) -> dict[tuple[str, int, int], tuple[int, int]]:
    """Return a device's longest compute kernels in the steady window: (name, grid, block) -> (executions, ns)."""
    ops = ops.filter((pl.col("start_ns") >= start) & (pl.col("start_ns") < end))
    ns = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    rows = ops.group_by("name", "grid", "block").agg(pl.len(), ns).with_columns(pl.col("name").cast(pl.String))
    rows = rows.sort("ns", "name", "grid", "block", descending=[True, False, False, False]).head(MOST_COMPARED_KERNELS)
    return {(str(n), int(g or 0), int(b or 0)): (int(k), int(t)) for n, g, b, k, t in rows.iter_rows()}


def _compute_kernels(ops: pl.DataFrame) -> pl.DataFrame:
    compute = (ops["cls"] == DeviceActivity.COMPUTE.value) & (ops["op_kind"] == "kernel")
    return ops.select("process", "device", "name", "grid", "block", "start_ns", "end_ns").filter(compute)


def _number(trace: Trace, process: int, members: Mapping[str, nccl_notes.CommunicatorMember]) -> int | None:
    """Return which rank of the job a process is: by the probe, else by its place in the largest communicator."""
    seen = [p.get("rank") for p in ids.records_of(trace.capture.probe, process)]
    if seen and isinstance(seen[0], str) and seen[0].isdecimal() and len(seen[0]) < MOST_RANK_DIGITS:
        return int(seen[0])
    sized = [(m.size, m.rank) for m in members.values() if m.size is not None and m.rank is not None]
    most = max((size for size, _ in sized), default=0)
    numbers = {rank for size, rank in sized if size == most}
    return numbers.pop() if len(numbers) == 1 and most > 1 else None


def processes(trace: Trace) -> dict[int, int]:
    """Return number -> process of a report, only those with GPU work, numbered as by ``numbered``."""
    working = sorted({g.process for g in trace.capture.gpus}) or [p["process"] for p in trace.capture.processes]
    members = nccl_notes.members(trace)
    numbers = {_number(trace, p, members.get(p, {})): p for p in working}
    if None in numbers or len(numbers) < len(working):
        return dict(enumerate(working))
    return {n: numbers[n] for n in sorted(n for n in numbers if n is not None)}


@dataclass(frozen=True)
class _RankWork:
    """The GPU steps, communication and compute kernels of a report by (process, device)."""

    steps: Mapping[tuple[int, ...], pl.DataFrame]
    communication: Mapping[tuple[int, ...], pl.DataFrame]
    no_communication: pl.DataFrame
    kernels: Mapping[tuple[int, ...], pl.DataFrame]

    @classmethod
    def from_profile(cls, profile: Profile, *, alone: bool) -> _RankWork:
        ops = profile.attributed.gpu_ops
        communication = ops.select(
            "op",
            "process",
            "device",
            "stream",
            "name",
            "start_ns",
            "end_ns",
            "thread",
            "call_start_ns",
            "phase",
            "module",
        ).filter(ops["cls"] == DeviceActivity.COMM.value)
        steps, of_device = (lookup.parted(f, "process", "device") for f in (profile.steps.gpu, communication))
        kernels = {} if alone else lookup.parted(_compute_kernels(ops), "process", "device")
        return cls(steps, of_device, communication.clear(), kernels)


def records(profile: Profile, *, alone: bool = False) -> tuple[Rank, ...]:
    """Return the ranks of a report: each (process, device) that worked in the steady steps.

    ``alone``: no other report is of its job, so that a single rank is compared with none and its kernels are not gathered.
    """
    cards = {(g.process, g.device): g.name for g in profile.trace.capture.gpus}
    windows = profile.steps.windows.select("process", "device", "start_ns", "end_ns").rows()
    communicators = nccl_notes.members(profile.trace)
    span, noted = _span(profile), _noted_by_nccl(profile.trace)
    devices = Counter(process for process, *_ in windows)
    work = _RankWork.from_profile(profile, alone=alone and len(windows) == 1)
    result = []
    for process, device, start, end in windows:
        key = process, device
        figures, tiles = _ledger(profile, work.steps.get(key, profile.steps.gpu.clear()), key, (start, end))
        members = communicators.get(process, {})
        communication = work.communication.get(key, work.no_communication)
        series, belongs, start_ns, end_ns, message_bytes = _collectives(profile, communication, members)
        places, placed = _places(profile, communication)
        # A process that drives several devices is one NCCL rank per device, and none of them has the process's number.
        only = devices[process] == 1
        result.append(
            Rank(
                report=0,
                file=profile.trace.path.name,
                process=process,
                pid=ids.pid_of(process),
                device=device,
                gpu=cards.get((process, device), UNKNOWN_GPU),
                host=profile.trace.host,
                content_id=profile.trace.capture.content_id,
                number=_number(profile.trace, process, members) if only else None,
                utc_epoch_ns=profile.trace.capture.utc_epoch_ns,
                **figures,
                tiles=tiles,
                members=members,
                noted=noted,
                series=series,
                belongs=belongs,
                start_ns=start_ns,
                end_ns=end_ns,
                message_bytes=message_bytes,
                exposed=_exposed(profile.ledgers.activity[process, device].clip(start, end), tiles),
                kernels=_kernels(work.kernels[key], start, end) if key in work.kernels else {},
                span=span,
                command=command_key(profile.trace.run.get("command")),
                seams=profile.trace.seams,
                places=places,
                placed=placed,
                groups=process_groups.recorded(profile, process),
            )
        )
    return tuple(result)


def _noted_by_nccl(trace: Trace) -> str:
    """Return what NCCL noted: "all", "ranges" without their payload, or "nothing"."""
    if trace.nccl is None:
        return "nothing"
    return "all" if trace.nccl["communicator"].null_count() < trace.nccl.height else "ranges"


def _ledger(
    profile: Profile, steps: pl.DataFrame, key: tuple[int, int], window: tuple[int, int]
) -> tuple[dict[str, Any], LedgerTiles | None]:
    """Return the fields of a Rank over a device's steady steps, and their tiles; without any, over the window, and None."""
    steady = profile.steps.steady if not profile.steps.whole else None
    if steady:
        steps = steps.filter(pl.col("index").is_between(*steady))
        begin, finish = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    else:
        begin, finish = np.array([window[0]]), np.array([window[1]])
    parts = ledger.gpu_parts(profile.ledgers.activity[key], begin, finish)
    causes = ledger.idle_parts(profile.ledgers.idle_of(*key), begin, finish)
    tiles = LedgerTiles(begin, finish, {k: parts[k] for k in LEDGER}, causes)
    figures = tiles.figures()
    if steady:
        return figures, tiles
    median = (steps["end_ns"] - steps["start_ns"]).median()
    # The window is then no number of steps, so nothing may be divided by one.
    return figures | {"steps": 0, "step_ns": int(median) if isinstance(median, (int, float)) else None}, None


def _exposed(activity: StepFunction, tiles: LedgerTiles | None) -> tuple[I64, I64]:
    """Return the stretches [start, end) of communication that no compute hides, in steps where there are some: as in the ledger."""
    comm, compute = (1 << ledger.CLASSES.index(name) for name in (DeviceActivity.COMM, DeviceActivity.COMPUTE))
    shown = ((activity.labels & comm) > 0) & ((activity.labels & compute) == 0)
    sets = [(activity.times[:-1][shown], activity.times[1:][shown])]
    sets += [] if tiles is None else [(tiles.start_ns, tiles.end_ns)]
    alone = coverage(sets)
    everywhere = alone.labels == (1 << len(sets)) - 1
    return alone.times[:-1][everywhere], alone.times[1:][everywhere]


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
