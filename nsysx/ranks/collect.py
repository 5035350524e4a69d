"""Makes the record of each rank in a report: its ledger per step, and one short table of its collectives."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from nsysx import ids
from nsysx.catalogue import DeviceActivity
from nsysx.events import ledger, time_slices
from nsysx.events.profile import Profile
from nsysx.events.sampled_clocks import working_clock
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, StepFunction, coverage
from nsysx.gpus import UNKNOWN_GPU
from nsysx.judging.other_work import others_of_gpu
from nsysx.ranks import host_meetings, process_groups, usual_work, work_at_times
from nsysx.ranks.rank_bounds import MOST_COMPARED_KERNELS, MOST_RANK_DIGITS
from nsysx.ranks.rank_places import Place
from nsysx.ranks.rank_record import LEDGER, CollectiveSeries, LedgerTiles, Rank
from nsysx.reading import nccl_notes
from nsysx.reading.load import Trace


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
        rows = code.places["file", "line"].rows()
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
    ops = ops.filter((ops["start_ns"] >= start) & (ops["start_ns"] < end))
    ns = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    rows = ops.group_by("name", "grid", "block").agg(pl.len(), ns).with_columns(pl.col("name").cast(pl.String))
    rows = rows.sort("ns", "name", "grid", "block", descending=[True, False, False, False]).head(MOST_COMPARED_KERNELS)
    return {(str(n), int(g or 0), int(b or 0)): (int(k), int(t)) for n, g, b, k, t in rows.iter_rows()}


def _compute_kernels(ops: pl.DataFrame) -> pl.DataFrame:
    compute = (ops["cls"] == DeviceActivity.COMPUTE.value) & (ops["op_kind"] == "kernel")
    return ops["process", "device", "family", "name", "grid", "block", "start_ns", "end_ns"].filter(compute)


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
    windows = profile.steps.windows["process", "device", "start_ns", "end_ns"].rows()
    communicators = nccl_notes.members(profile.trace)
    span, noted = _span(profile), _noted_by_nccl(profile.trace)
    devices = Counter(process for process, *_ in windows)
    work = _RankWork.from_profile(profile, alone=alone and len(windows) == 1)
    result = []
    for process, device, start, end in windows:
        key = process, device
        figures, tiles = _ledger(profile, work.steps.get(key, profile.steps.gpu.clear()), key, (start, end))
        if tiles is not None and key in work.kernels:
            tiles = work_at_times.with_work(work.kernels[key], tiles)
            if others_of_gpu(profile, key):
                tiles = replace(tiles, usual_ns=usual_work.usual_ns(work.kernels[key], tiles))
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
                kernel_steps=figures["steps"],
                span=span,
                command=command_key(profile.trace.run.get("command")),
                seams=profile.trace.seams,
                places=places,
                placed=placed,
                groups=process_groups.recorded(profile, process),
                host_calls=host_meetings.host_calls(profile, process, device, tiles),
                clock=working_clock(profile.trace, process, device, figures["window"]),
                taken_ns=0.0 if alone and len(windows) == 1 else _taken(profile, key, figures),
            )
        )
    return tuple(result)


def _taken(profile: Profile, key: tuple[int, int], figures: Mapping[str, Any]) -> float:
    """Return what another process takes of a device in its steady steps (ns a step), 0 where none shows."""
    ops, (begin, end) = profile.attributed.gpu_ops, figures["window"]
    theirs = (
        (ops["process"] == key[0]) & (ops["device"] == key[1]) & (ops["start_ns"] >= begin) & (ops["end_ns"] <= end)
    )
    slices = time_slices.of_ops(ops.filter(theirs))
    return 0.0 if slices is None else slices.taken_ns / max(figures["steps"], 1)


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
        steps = steps.filter((steps["index"] >= steady[0]) & (steps["index"] <= steady[1]))
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
