"""Many ranks of one job: which one the others wait for, what made it late, and what communication costs each step.

Each rank is reduced on its own to a ``Rank``: its ledger, and one short table of its collectives. What needs all ranks at once
works on those alone, so memory here grows with collectives, not with events.

A collective ends on all its ranks together and begins on each when that rank arrives. Of the n-th collective of its kind and
communicator, the shortest kernel is what the *transfer* takes; what a kernel takes longer is *waiting* for the rank that
arrived last. Exposed communication is exposed waiting, exposed transfer and what has no counterpart, exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import units
from nsysx.events import ledger
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64, StepFunction, coverage, overlay
from nsysx.model import Check, Column, Row, Table
from nsysx.reading import nccl_notes
from nsysx.reading.load import Trace

KEY = "ranks"
TITLE = "Ranks"
COLUMNS = (
    Column(
        "rank",
        "Int64",
        "",
        "its number in the job, where every report or its file name says it; else its place in the order given",
    ),
    Column("report", "String", "", "report that holds it"),
    Column("process", "Int64", "", "process key"),
    Column("pid", "Int64", "", "process id"),
    Column("device", "Int64", "", "CUDA ordinal inside the process"),
    Column("gpu", "String", "", "card"),
    Column("host", "Int64", "", "machine, numbered in order; null where a report does not name it"),
    Column("steps", "Int64", "", "steps that the sums are over: those that are steady on all ranks"),
    Column("step_ns", "Int64", "ns", "median steady step on the device"),
    Column("window_ns", "Int64", "ns", "the steady steps on the device timeline"),
    Column("compute_ns", "Int64", "ns", "of it: at least one compute kernel runs"),
    Column("comm_ns", "Int64", "ns", "of it: only communication (or copies) runs: exposed communication"),
    Column("copy_ns", "Int64", "ns", "of it: only copies run"),
    Column("memset_ns", "Int64", "ns", "of it: only memsets run"),
    Column("idle_ns", "Int64", "ns", "of it: nothing runs"),
    Column("hidden_comm_ns", "Int64", "ns", "communication that ran behind compute"),
    Column("idle_causes", "Object", "ns", "idle time by cause; sums to idle_ns"),
    Column("collectives", "Int64", "", "collectives that begin in the window and that another rank has too"),
    Column("transfer_ns", "Int64", "ns", "their shortest time over the ranks, summed; null without a second rank"),
    Column("wait_ns", "Int64", "ns", "the rest of their time: waiting for a rank that arrived later; null likewise"),
    Column("exposed_wait_ns", "Int64", "ns", "part of comm_ns in which a matched collective waited; null likewise"),
    Column(
        "exposed_transfer_ns", "Int64", "ns", "part of comm_ns in which a matched collective transferred; null likewise"
    ),
    Column("exposed_unmatched_ns", "Int64", "ns", "rest of comm_ns: no other rank has this collective; null likewise"),
    Column(
        "bytes", "Int64", "bytes", "messages of the matched collectives whose size NCCL noted; null where none has one"
    ),
    Column(
        "bus_bytes_per_s",
        "Float64",
        "bytes/s",
        "what a link carried during their transfer, as nccl-tests count; null likewise",
    ),
    Column("by_collective", "Object", "", "the matched collectives by communicator and kind, longest first"),
    Column(
        "last_share", "Float64", "", "part of its matched collectives to which it arrived last, 0 to 1; null likewise"
    ),
    Column(
        "delay_ns", "Int64", "ns", "waiting of other ranks in collectives to which this one arrived last; null likewise"
    ),
    Column("straggler", "Boolean", "", "the rank that the others wait for most, when that is 1 % of a step or more"),
    Column(
        "late_because",
        "Object",
        "ns",
        "per step: what it spends more of than the median of the other ranks, by part of the ledger, largest first",
    ),
    Column("clock_correction_ns", "Int64", "ns", "added to its clock so that collectives end together; null likewise"),
)

_ALL = slice(None)

#: communicator or "", else the stream's number, and the kind
Key = tuple[str, int, str]

_LEDGER = ("window_ns", "compute_ns", "comm_ns", "copy_ns", "memset_ns", "idle_ns", "hidden_comm_ns")
_RANK_FILE = re.compile(r"(?:\b|_)rank[._-]?(\d{1,9})(?!\d)", re.IGNORECASE)
#: Ranks take part in one collective when their kernels for it run at the same time; this share of a sequence has to.
_TOGETHER = 0.8
#: The clocks of one host agree better than this; more is worth a word.
_CLOCKS_NS = 1_000_000
#: A rank is called a straggler when waiting for it takes this share of a step.
_NOTABLE = 0.01


class Series(NamedTuple):
    """Collectives of which the n-th belong together over ranks: of one kind, in one communicator or else on one stream.

    ``stream`` counts the streams of the rank in the order of their first collective; ``communicator`` is "" where NCCL did not
    note it, and then ``kernel_kind``, what the kernel's name says, is all that is known of the kind.
    """

    stream: int
    communicator: str
    kernel_kind: str
    kind: str


@dataclass(frozen=True)
class Tiles:
    """The ledger of stretches of a device's time that lie edge to edge: its steady steps, in order."""

    start_ns: I64
    end_ns: I64
    parts: Mapping[str, I64]
    idle_causes: Mapping[str, I64]

    def figures(self, chosen: npt.NDArray[np.bool_] | slice = _ALL) -> dict[str, Any]:
        """Return what a Rank says of the chosen stretches together, by the names of its fields."""
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

    ``window``, ``parts`` and ``idle_causes`` are of its steady steps, whose single ledgers are ``tiles``; without steady steps
    they are of the whole capture, and ``tiles`` is None.

    ``start_ns``, ``end_ns`` and ``message_bytes`` (-1: not known) hold its collectives in order of their start, ``belongs`` which
    of ``series`` each is of. ``exposed`` are the stretches [start, end) of communication that no compute hides. ``number`` is
    its rank in the job, ``noted`` what NCCL noted: "all", "ranges" without their payload, or "nothing".
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
    tiles: Tiles | None
    members: Mapping[str, nccl_notes.Member]
    noted: str
    series: tuple[Series, ...]
    belongs: I64
    start_ns: I64
    end_ns: I64
    message_bytes: I64
    exposed: tuple[I64, I64]


def _collectives(
    profile: Profile, process: int, device: int, members: Mapping[str, nccl_notes.Member]
) -> tuple[tuple[Series, ...], I64, I64, I64, I64]:
    """Return (series, belongs, start_ns, end_ns, message_bytes) of a device."""
    ops = profile.attributed.gpu_ops.filter(
        (pl.col("process") == process) & (pl.col("device") == device) & (pl.col("cls") == "comm")
    ).select("stream", "name", "start_ns", "end_ns", "thread", "call_start_ns")
    streams = {s: i for i, s in enumerate(ops["stream"].unique(maintain_order=True))}
    series: dict[Series, int] = {}
    belongs, sizes = [], []
    messages = nccl_notes.messages(profile.trace, ops, members)
    for stream, name, message in zip(ops["stream"], ops["name"].cast(pl.String), messages, strict=True):
        key = Series(streams[stream], message.communicator, nccl_notes.kind_of(name), message.kind)
        belongs.append(series.setdefault(key, len(series)))
        sizes.append(-1 if message.bytes is None else message.bytes)
    numbers = np.array(belongs, np.int64), np.array(sizes, np.int64)
    return tuple(series), numbers[0], ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy(), numbers[1]


def _number(trace: Trace, process: int, members: Mapping[str, nccl_notes.Member]) -> int | None:
    """Return which rank of the job a process is: what the probe saw, else its place in the largest communicator."""
    seen = [p.get("rank") for p in trace.capture.probe if p.get("pid") == process & 0xFFFFFF]
    if seen and isinstance(seen[0], str) and seen[0].isdecimal() and len(seen[0]) < 10:
        return int(seen[0])
    sized = [(m.size, m.rank) for m in members.values() if m.size is not None and m.rank is not None]
    most = max((size for size, _ in sized), default=0)
    found = {rank for size, rank in sized if size == most}
    return found.pop() if len(found) == 1 and most > 1 else None


def processes(trace: Trace) -> dict[int, int]:
    """Return number -> process of a report, those with GPU work only, numbered as ``numbered`` does."""
    working = sorted({g.process for g in trace.capture.gpus}) or [p["process"] for p in trace.capture.processes]
    members = nccl_notes.members(trace)
    known = {_number(trace, p, members.get(p, {})): p for p in working}
    if None in known or len(known) < len(working):
        return dict(enumerate(working))
    return {n: known[n] for n in sorted(n for n in known if n is not None)}


def records(profile: Profile) -> tuple[Rank, ...]:
    """Return the ranks of a report: each (process, device) that worked in the steady steps."""
    result = []
    cards = {(g.process, g.device): g for g in profile.trace.capture.gpus}
    comm, compute = 1 << ledger.CLASSES.index("comm"), 1 << ledger.CLASSES.index("compute")
    windows = profile.steps.windows.select("process", "device", "start_ns", "end_ns").rows()
    members = nccl_notes.members(profile.trace)
    said = profile.trace.nccl
    noted = "nothing" if said is None else "all" if said["communicator"].null_count() < said.height else "ranges"
    for process, device, start, end in windows:
        activity = profile.ledgers.activity[process, device]
        steps = profile.steps.gpu.filter((pl.col("process") == process) & (pl.col("device") == device))
        steady = profile.steps.steady if not profile.steps.whole else None
        if steady:
            steps = steps.filter(pl.col("index").is_between(*steady))
            begin, finish = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
        else:
            begin, finish = np.array([start]), np.array([end])
        parts = ledger.gpu_parts(activity, begin, finish)
        causes = ledger.idle_parts(profile.ledgers.idle, process, device, begin, finish)
        tiles = Tiles(begin, finish, {k: parts[k] for k in _LEDGER}, causes)
        figures = tiles.figures()
        if not steady:
            median = (steps["end_ns"] - steps["start_ns"]).median()
            figures |= {"steps": steps.height, "step_ns": int(median) if isinstance(median, (int, float)) else None}
        inside = activity.clip(start, end)
        shown = ((inside.labels & comm) > 0) & ((inside.labels & compute) == 0)
        alone = coverage([(inside.times[:-1][shown], inside.times[1:][shown])])
        card = cards.get((process, device))
        own = members.get(process, {})
        series, belongs, start_ns, end_ns, message_bytes = _collectives(profile, process, device, own)
        # A process that drives several devices is one rank of NCCL per device, and none of them has the process's number.
        only = sum(p == process for p, *_ in windows) == 1
        result.append(
            Rank(
                report=0,
                file=profile.trace.path.name,
                process=process,
                pid=process & 0xFFFFFF,
                device=device,
                gpu=card.name if card else "unknown GPU",
                host=profile.trace.host,
                number=_number(profile.trace, process, own) if only else None,
                utc_epoch_ns=profile.trace.capture.utc_epoch_ns,
                **figures,
                tiles=tiles if steady else None,
                members=own,
                noted=noted,
                series=series,
                belongs=belongs,
                start_ns=start_ns,
                end_ns=end_ns,
                message_bytes=message_bytes,
                exposed=(alone.times[:-1][alone.labels > 0], alone.times[1:][alone.labels > 0]),
            )
        )
    return tuple(result)


def numbered(ranks: Sequence[Rank]) -> list[Rank]:
    """Return the ranks as the job counts them, where every one says which it is; else as they come, without a number.

    A report of one rank says it by the name of its file too, as `nsysx run --per-rank` writes it. A shell lists rank10.sqlite
    before rank2.sqlite.
    """
    named = [m and int(m[1]) for m in (_RANK_FILE.search(r.file) for r in ranks)]
    for numbers in ([r.number for r in ranks], named):
        if None not in numbers and len(set(numbers)) == len(ranks):
            both = zip(ranks, numbers, strict=True)
            return sorted((replace(r, number=n) for r, n in both), key=lambda r: r.number or 0)
    return [replace(r, number=None) for r in ranks]


def number(ranks: Sequence[Rank], place: int) -> int:
    """Return what the rank at ``place`` is called."""
    known = ranks[place].number
    return place if known is None else known


@dataclass
class _Aligned:
    """The collectives of all ranks on one clock. ``offset[r]`` is what has to be added to the times of rank r."""

    ranks: Sequence[Rank]
    offset: list[int]
    correction: list[int | None]
    #: One entry per group of ranks that run a series together: what the series is, and rank -> rows, as many for each.
    groups: list[tuple[Key, dict[int, I64]]] = field(default_factory=list)


def _shift(a: I64, b: I64) -> int:
    """Return the index in ``b`` of the collective that is the first of ``a`` (negative: it is missing there).

    Of two captures of one job one may have begun or ended earlier. Where both hold as many, they are the same; else those
    belong together whose ends are nearest in time.
    """
    if len(a) == len(b):
        return 0
    best, found = None, 0
    low, high = min(0, len(b) - len(a)), max(0, len(b) - len(a))
    tried = range(low, high + 1)
    if len(tried) > 256:  # more than that many missing: let time say where to look
        near = int(np.searchsorted(b, a[0])) if len(b) else 0
        tried = range(max(low, near - 128), min(high, near + 128) + 1)
    for shift in tried:
        i, j = max(0, -shift), max(0, shift)
        n = min(len(a) - i, len(b) - j)
        if n <= 0:
            continue
        apart = float(np.median(np.abs(a[i : i + n] - b[j : j + n])))
        if best is None or apart < best:
            best, found = apart, shift
    return found


def _pairs(end_a: I64, end_b: I64) -> tuple[I64, I64]:
    """Return the positions in both sequences that are the same collectives, by the ends of all."""
    shift = _shift(end_a, end_b)
    i, j = max(0, -shift), max(0, shift)
    both = np.arange(max(0, min(len(end_a) - i, len(end_b) - j)))
    return both + i, both + j


def _times(aligned: _Aligned, r: int, rows: I64) -> tuple[I64, I64]:
    """Return start and end of collectives of rank r on the common clock."""
    rank, offset = aligned.ranks[r], aligned.offset[r]
    return rank.start_ns[rows] + offset, rank.end_ns[rows] + offset


def _rows(rank: Rank, *, named: bool) -> dict[Key, I64]:
    """Return the rows of each series, by communicator where it is known and ``named``, else by stream."""
    found: dict[Key, list[int]] = {}
    for i, s in enumerate(rank.series):
        key = (s.communicator, 0, s.kind) if named and s.communicator else ("", s.stream, s.kernel_kind)
        found.setdefault(key, []).append(i)
    return {key: np.flatnonzero(np.isin(rank.belongs, which)) for key, which in found.items()}


def align(ranks: Sequence[Rank]) -> _Aligned:
    """Put all ranks on the clock of the first and match their collectives.

    Session starts align the clocks of the reports roughly; then the median difference between the ends of matched collectives,
    which end together, is taken off. The ranks of one report share its clock.
    """
    known = [r.utc_epoch_ns for r in ranks if r.utc_epoch_ns is not None]
    offset = [0 if r.utc_epoch_ns is None else r.utc_epoch_ns - known[0] for r in ranks]
    aligned = _Aligned(ranks, offset, [None] * len(ranks))
    # Where one rank's export is without NCCL's notes, the streams of all have to do.
    named = all(any(s.communicator for s in r.series) for r in ranks if r.series)
    rows = [_rows(r, named=named) for r in ranks]
    _correct_clocks(aligned, rows)
    for key in sorted({k for own in rows for k in own}):
        groups: list[dict[int, I64]] = []
        for r in range(len(ranks)):
            if key in rows[r]:
                # NCCL itself says that these are one series. Of messages between two it says so only where the two are known.
                sure = bool(key[0]) and (key[2] != "sendrecv" or " " in key[0])
                _join_group(aligned, groups, r, rows[r][key], sure=sure)
        aligned.groups += [(key, group) for group in groups if len(group) > 1]
    return aligned


def _correct_clocks(aligned: _Aligned, rows: list[dict[Key, I64]]) -> None:
    """Refine the clock of each report by collectives that it shares with one whose clock is settled.

    What already overlaps by the session starts is the same collective, and its end is the finer clock. A report that overlaps
    with none of the others at all has a clock that is wrong by more; then the order of its collectives has to do. One that
    overlaps only with others that wait too (another communicator) keeps its session start.
    """
    reports: dict[int, list[int]] = {}
    for r, rank in enumerate(aligned.ranks):
        reports.setdefault(rank.report, []).append(r)
    waiting = list(reports.values())
    settled: list[int] = []

    def settle(members: list[int], correction: int) -> None:
        waiting.remove(members)
        settled.extend(members)
        for r in members:
            aligned.offset[r] += correction
            aligned.correction[r] = correction

    def fit(members: list[int], others: Sequence[int], *, overlapping: bool) -> int | None:
        found = ((r, o) for o in others for r in members)
        return next((c for r, o in found if (c := _correction(aligned, rows, r, o, overlapping)) is not None), None)

    if waiting:
        settle(waiting[0], 0)
    while waiting:
        for members in list(waiting):
            if (correction := fit(members, settled, overlapping=True)) is not None:
                settle(members, correction)
                break
        else:
            members = waiting[0]
            others = [r for other in waiting[1:] for r in other]
            if fit(members, others, overlapping=True) is not None:
                settle(members, 0)
            else:
                settle(members, fit(members, settled, overlapping=False) or 0)


def _correction(aligned: _Aligned, rows: list[dict[Key, I64]], r: int, other: int, overlapping: bool) -> int | None:
    """Return what to add to the times of rank r so that its collectives end with those of ``other``, None if they do not.

    ``overlapping`` asks that they run at the same time as it is; else that they end together once corrected.
    """
    shared = [k for k in rows[r] if k in rows[other]]
    if not shared:
        return None
    key = max(shared, key=lambda k: (min(len(rows[r][k]), len(rows[other][k])), k))
    mine, theirs = rows[r][key], rows[other][key]
    (start, end), (other_start, other_end) = _times(aligned, r, mine), _times(aligned, other, theirs)
    i, j = _pairs(end, other_end)
    if not len(i):
        return None
    apart = other_end[j] - end[i]
    correction = int(np.median(apart))
    if overlapping:
        together = (start[i] < other_end[j]) & (other_start[j] < end[i])
        return correction if np.mean(together) >= _TOGETHER else None
    usual = max(float(np.median(end - start)), 50_000.0)
    return correction if np.median(np.abs(apart - correction)) <= usual else None


def _join_group(aligned: _Aligned, groups: list[dict[int, I64]], r: int, mine: I64, *, sure: bool) -> None:
    """Add rank r to the group whose kernels run at the same time as its own, else begin a group.

    ``sure``: it is known that they are the same. A broadcast's root may be done before the others begin.
    """
    start, end = _times(aligned, r, mine)
    for group in groups:
        leader = next(iter(group))
        lead_start, lead_end = _times(aligned, leader, group[leader])
        i, j = _pairs(lead_end, end)
        together = (lead_start[i] < end[j]) & (start[j] < lead_end[i])
        if len(i) and ((sure and len(end) == len(lead_end)) or np.mean(together) >= _TOGETHER):
            for member in group:
                group[member] = group[member][i]
            group[r] = mine[j]
            return
    groups.append({r: mine})


def _common(aligned: _Aligned) -> list[Rank]:
    """Return the ranks with their figures over the steps that are steady on all of them.

    Reports are judged one by one, and where one calls a longer warm-up step steady its rank would look slower than the rest. A
    step is common when its middle lies in the steady time of every rank. Where there is none, each keeps its own.
    """
    ranks = aligned.ranks
    starts = [r.window[0] + offset for r, offset in zip(ranks, aligned.offset, strict=True)]
    ends = [r.window[1] + offset for r, offset in zip(ranks, aligned.offset, strict=True)]
    low, high = max(starts), min(ends)
    shortest = min(r.parts["window_ns"] // max(r.steps, 1) for r in ranks)
    if len({r.steps for r in ranks}) == 1 and low - min(starts) < shortest:
        return list(ranks)  # the same steps, perhaps one rank after the other as in a pipeline
    found = []
    for rank, offset in zip(ranks, aligned.offset, strict=True):
        if rank.tiles is None:
            return list(ranks)
        middle = rank.tiles.start_ns + (rank.tiles.end_ns - rank.tiles.start_ns) // 2 + offset
        inside = (middle >= low) & (middle < high)
        if not inside.any():
            return list(ranks)
        found.append(replace(rank, **rank.tiles.figures(inside)))
    return found


@dataclass
class _Tally:
    """Matched collectives of one series in the window of one rank. ``sized``: those of which NCCL noted the bytes."""

    calls: int = 0
    transfer_ns: int = 0
    wait_ns: int = 0
    sized: int = 0
    bytes: int = 0
    bus_bytes: float = 0.0
    bus_ns: int = 0

    def bandwidth(self) -> float | None:
        return round(self.bus_bytes / self.bus_ns * 1e9, 1) if self.bus_ns and self.bus_bytes else None


@dataclass
class _Costs:
    """What the matched collectives of a rank cost in its window."""

    tallies: dict[Key, _Tally] = field(default_factory=dict)
    last: int = 0
    delay_ns: int = 0
    waiting: list[tuple[I64, I64]] = field(default_factory=list)
    moving: list[tuple[I64, I64]] = field(default_factory=list)

    def whole(self) -> _Tally:
        tallies = list(self.tallies.values())
        return _Tally(*(sum(getattr(t, f.name) for t in tallies) for f in fields(_Tally)))


def _costs(aligned: _Aligned) -> list[_Costs]:
    costs = [_Costs() for _ in aligned.ranks]
    for key, group in aligned.groups:
        members = list(group)
        ranks = [aligned.ranks[r] for r in members]
        start = np.stack([rank.start_ns[group[r]] for r, rank in zip(members, ranks, strict=True)])
        end = np.stack([rank.end_ns[group[r]] for r, rank in zip(members, ranks, strict=True)])
        length = end - start
        transfer = length.min(axis=0)
        waited = length - transfer
        last = (start + np.array([aligned.offset[r] for r in members])[:, None]).argmax(axis=0)
        for i, (r, rank) in enumerate(zip(members, ranks, strict=True)):
            mine = costs[r]
            mine.waiting.append((start[i], end[i] - transfer))
            mine.moving.append((end[i] - transfer, end[i]))
            inside = (start[i] >= rank.window[0]) & (start[i] < rank.window[1])
            if not inside.any():
                continue
            mine.last += int((last[inside] == i).sum())
            for other, late in zip(members, range(len(members)), strict=True):
                if late != i:
                    costs[other].delay_ns += int(waited[i][inside & (last == late)].sum())
            tally = mine.tallies.setdefault(key, _Tally())
            tally.calls += int(inside.sum())
            tally.transfer_ns += int(transfer[inside].sum())
            tally.wait_ns += int(waited[i][inside].sum())
            size = rank.members[key[0]].size if key[0] in rank.members else None
            message = rank.message_bytes[group[r]]
            known = inside & (message >= 0)
            tally.sized += int(known.sum())
            tally.bytes += int(message[known].sum())
            if (carried := nccl_notes.bus_bytes(key[2], size, int(message[known].sum()))) is not None:
                tally.bus_bytes += carried
                tally.bus_ns += int(transfer[known].sum())
    return costs


def _exposed(rank: Rank, costs: _Costs) -> tuple[int, int, int]:
    """Return exposed communication of the window in which matched collectives waited, transferred, and the rest (ns)."""
    sets = [
        tuple(np.concatenate([pair[i] for pair in pairs] or [np.empty(0, np.int64)]) for i in range(2))
        for pairs in (costs.waiting, costs.moving)
    ]
    what = coverage([(sets[0][0], sets[0][1]), (sets[1][0], sets[1][1])])
    shown: StepFunction = coverage([rank.exposed])
    times, (label, alone) = overlay([what, shown], *rank.window)
    span = np.diff(times) * (alone > 0)
    moving = (label > 0) & ((label & 2) > 0)
    waiting = (label > 0) & ~moving
    return int(span[waiting].sum()), int(span[moving].sum()), int(span[label <= 0].sum())


def _per_step(rank: Rank) -> dict[str, float]:
    """Return what a rank does per step apart from communication: the ledger, idle time by cause."""
    named = {k.removesuffix("_ns"): rank.parts[k] for k in ("compute_ns", "copy_ns", "memset_ns")}
    named |= {f"idle: {cause}": ns for cause, ns in rank.idle_causes.items()}
    return {k: v / max(rank.steps, 1) for k, v in named.items()}


def _late_because(ranks: Sequence[Rank], r: int) -> dict[str, int]:
    """Return by how much a rank exceeds the median of the others per step (ns), largest first; what is below 1 % left out."""
    own = _per_step(ranks[r])
    others = [_per_step(x) for i, x in enumerate(ranks) if i != r]
    more = {k: own.get(k, 0.0) - float(np.median([o.get(k, 0.0) for o in others])) for k in own}
    floor = _NOTABLE * ranks[r].parts["window_ns"] / max(ranks[r].steps, 1)
    return {k: int(v) for k, v in sorted(more.items(), key=lambda item: -item[1]) if v >= floor}


def _in_order(names: Iterable[str | None]) -> dict[str | None, int]:
    """Return name -> number in the order of first appearance: ids and hosts themselves are nobody's business."""
    return {name: i for i, name in enumerate(dict.fromkeys(n for n in names if n is not None))}


def _by_collective(rank: Rank, cost: _Costs, communicators: Mapping[str | None, int]) -> list[Row]:
    """Return one row per communicator and kind, what takes longest first; "communicator" counts them over the job."""
    rows: list[Row] = []
    for (communicator, _, kind), t in sorted(
        cost.tallies.items(), key=lambda e: (-e[1].wait_ns - e[1].transfer_ns, e[0])
    ):
        member = rank.members.get(communicator.partition(" ")[0])
        rows.append(
            {
                "communicator": communicators.get(communicator or None),
                "ranks": member.size if member and " " not in communicator else 2 if " " in communicator else None,
                "kind": kind,
                "calls": t.calls,
                "transfer_ns": t.transfer_ns,
                "wait_ns": t.wait_ns,
                "bytes": t.bytes if t.sized else None,
                "bus_bytes_per_s": t.bandwidth(),
            }
        )
    return rows


def table(ranks: Sequence[Rank]) -> Table:
    """Return one row per rank, in order. With one rank there is nothing to compare: no rows, and why."""
    if len(ranks) < 2:
        of = f" of {_job_size(ranks)}" if _job_size(ranks) > 1 else ""
        return Table(KEY, TITLE, COLUMNS, None, f"the report holds one rank{of}; give the reports of all ranks")
    aligned = align(ranks)
    ranks = aligned.ranks = _common(aligned)
    costs = _costs(aligned)
    worst = max(range(len(ranks)), key=lambda r: (costs[r].delay_ns, -r))
    exposed = [_exposed(rank, cost) for rank, cost in zip(ranks, costs, strict=True)]
    others = [i for i in range(len(ranks)) if i != worst]
    notable = sum(exposed[i][0] for i in others) > _NOTABLE * sum(ranks[i].parts["window_ns"] for i in others)
    hosts = _in_order(r.host for r in ranks)
    communicators = _in_order(s.communicator or None for rank in ranks for s in rank.series)
    rows = []
    for r, (rank, cost) in enumerate(zip(ranks, costs, strict=True)):
        whole = cost.whole()
        matched = whole.calls > 0
        waiting, moving, rest = exposed[r]
        rows.append(
            {
                "rank": number(ranks, r),
                "report": rank.file,
                **{k: getattr(rank, k) for k in ("process", "pid", "device", "gpu", "steps", "step_ns")},
                "host": hosts.get(rank.host),
                **{k: rank.parts[k] for k in _LEDGER},
                "idle_causes": dict(rank.idle_causes),
                "collectives": whole.calls,
                "transfer_ns": whole.transfer_ns if matched else None,
                "wait_ns": whole.wait_ns if matched else None,
                "exposed_wait_ns": waiting if matched else None,
                "exposed_transfer_ns": moving if matched else None,
                "exposed_unmatched_ns": rest if matched else None,
                "bytes": whole.bytes if whole.sized else None,
                "bus_bytes_per_s": whole.bandwidth(),
                "by_collective": _by_collective(rank, cost, communicators) if matched else None,
                "last_share": cost.last / whole.calls if matched else None,
                "delay_ns": cost.delay_ns if matched else None,
                "straggler": notable and matched and r == worst,
                "late_because": _late_because(ranks, r),
                "clock_correction_ns": aligned.correction[r] if matched else None,
            }
        )
    return Table(KEY, TITLE, COLUMNS, tuple({c.name: row[c.name] for c in COLUMNS} for row in rows))


def _messages_checks(ranks: Sequence[Rank]) -> list[Check]:
    """Return whether NCCL's own notes are there: communicators and bytes."""
    silent = [(number(ranks, i), r) for i, r in enumerate(ranks) if len(r.start_ns) and r.noted != "all"]
    if not any(len(r.start_ns) for r in ranks):
        return []
    if not silent:
        detail = "communicators and message sizes as NCCL notes them"
        used = {(i, x.communicator.partition(" ")[0]) for i, r in enumerate(ranks) for x in r.series if x.communicator}
        if all(c in ranks[i].members and ranks[i].members[c].size is not None for i, c in used):
            return [Check("nccl messages", "ok", detail)]
        fix = "capture from the start for the bus bandwidth, or the end: communicators say their size there"
        return [Check("nccl messages", "ok", f"{detail}, but not how many ranks every communicator has", fix)]
    whose = f"rank {_listed([n for n, _ in silent])}"
    if any(r.noted == "ranges" for _, r in silent):
        fix = "export with --include-json=true, as nsysx run does"
        detail = f"{whose}: the export is without the payload of NCCL's ranges; collectives are matched by stream"
    else:
        fix = "capture with --trace=cuda,nvtx, as nsysx run does"
        detail = f"{whose}: no NVTX ranges of NCCL; collectives are matched by stream, their bytes are not known"
    return [Check("nccl messages", "missing", detail, fix)]


def _job_size(ranks: Sequence[Rank]) -> int:
    """Return the size of the largest communicator, 0 where NCCL noted none."""
    return max((m.size for r in ranks for m in r.members.values() if m.size is not None), default=0)


def _presence_checks(ranks: Sequence[Rank]) -> list[Check]:
    """Return what is to be said of ranks that are not here, and of ranks on other machines."""
    found = []
    size = _job_size(ranks)
    if size > len(ranks):
        missing = sorted(set(range(size)) - {r.number for r in ranks if r.number is not None})
        which = f"; missing: {_listed(missing)}" if len(missing) == size - len(ranks) else ""
        detail = (
            f"{len(ranks)} of {size} ranks are here{which}. What all of them wait for a missing one counts as transfer"
        )
        found.append(Check("rank count", "warn", detail, "give the reports of all ranks"))
    hosts = len({r.host for r in ranks if r.host is not None})
    if hosts > 1:
        found.append(
            Check("rank hosts", "ok", f"the ranks ran on {hosts} machines; their clocks are aligned by collectives")
        )
    return found


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


def checks(ranks: Sequence[Rank], rows: Sequence[Row]) -> list[Check]:
    """Return what can be said about how well the ranks fit together."""
    if len(ranks) < 2:
        return []
    found = []
    without = [r["rank"] for r in rows if not r["collectives"]]
    if len(without) == len(rows):
        detail = "no collective is matched over ranks: transfer, waiting and the straggler are not known"
        fix = "" if any(len(r.start_ns) for r in ranks) else "the steady steps hold no NCCL kernel"
        found.append(Check("collectives", "missing", detail, fix))
    elif without:
        found.append(
            Check("collectives", "warn", f"rank {_listed(without)} has no collective that another rank has too")
        )
    else:
        found.append(Check("collectives", "ok", f"matched over {len(rows)} ranks"))
    found += _messages_checks(ranks) + _presence_checks(ranks)
    held = {len(r.start_ns) for r in ranks}
    if len(held) > 1:
        detail = (
            f"the ranks hold {min(held)} to {max(held)} collectives: captures of different length, or ranks that differ"
        )
        found.append(Check("rank lengths", "warn", detail, "capture the same steps on every rank: --steps A:B"))
    counts, own = {r["steps"] for r in rows}, {r.steps for r in ranks}  # what is compared, and what each has alone
    if len(counts) > 1:
        found.append(Check("rank steps", "warn", f"the ranks hold {min(counts)} to {max(counts)} steady steps"))
    elif counts != own:
        detail = (
            f"compared over the {min(counts)} steps that are steady on all of them; alone they have up to {max(own)}"
        )
        found.append(Check("rank steps", "ok", detail))
    far = max((abs(r["clock_correction_ns"] or 0) for r in rows), default=0)
    if any(r.utc_epoch_ns is None for r in ranks) and len({r.report for r in ranks}) > 1:
        found.append(Check("rank clocks", "warn", "a report does not say when its session began: collectives align it"))
    elif far > _CLOCKS_NS:
        detail = f"clocks of the ranks differ by up to {far / 1e6:.1f} ms (other hosts, or clocks that drift); collectives align them"
        found.append(Check("rank clocks", "warn", detail))
    return found


def sentence(rows: Sequence[Row]) -> str | None:
    """Return the straggler in one sentence, None when no rank is waited for."""
    late = next((r for r in rows if r["straggler"]), None)
    if late is None:
        return None
    others = [r for r in rows if not r["straggler"] and r["exposed_wait_ns"] is not None]
    waited = max((r["exposed_wait_ns"] // max(r["steps"], 1) for r in others), default=0)
    why = next(iter(late["late_because"].items()), None)
    because = f"; it spends {units.duration(why[1])} more per step in {why[0]} than the others" if why else ""
    return (
        f"rank {late['rank']} arrives last at {late['last_share']:.0%} of its collectives, which costs another rank up to "
        f"{units.duration(waited)} per step that no compute hides{because}"
    )
