"""Many ranks of one job: which one the others wait for, what made it late, and what communication costs each step.

Each rank is reduced on its own to a ``Rank``: its ledger, and one short table of its collectives. What needs all ranks at once
works on those alone, so memory here does not grow with events.

A collective ends on all its ranks together and begins on each when that rank arrives. Of the n-th collective of its kind, the
shortest kernel is what the *transfer* takes; what a kernel takes longer is *waiting* for the rank that arrived last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from nsysx import ledger, units
from nsysx.facts import Facts
from nsysx.intervals import I64, StepFunction, coverage, overlay
from nsysx.model import Check, Column, Row, Table

KEY = "ranks"
TITLE = "Ranks"
COLUMNS = (
    Column("rank", "Int64", "", "order of files, then of processes and devices in a file"),
    Column("report", "String", "", "report that holds it"),
    Column("process", "Int64", "", "process key"),
    Column("pid", "Int64", "", "process id"),
    Column("device", "Int64", "", "CUDA ordinal inside the process"),
    Column("gpu", "String", "", "card"),
    Column("steps", "Int64", "", "steady steps that the sums are over"),
    Column("step_ns", "Int64", "ns", "median steady step on the device"),
    Column("window_ns", "Int64", "ns", "the steady steps on the device timeline"),
    Column("compute_ns", "Int64", "ns", "of it: at least one compute kernel runs"),
    Column("comm_ns", "Int64", "ns", "of it: only communication (or copies) runs: exposed communication"),
    Column("copy_ns", "Int64", "ns", "of it: only copies run"),
    Column("memset_ns", "Int64", "ns", "of it: only memsets run"),
    Column("idle_ns", "Int64", "ns", "of it: nothing runs"),
    Column("hidden_comm_ns", "Int64", "ns", "communication that ran behind compute"),
    Column("idle_causes", "Object", "ns", "idle time by cause; sums to idle_ns"),
    Column("collectives", "Int64", "", "collectives in the window that another rank has too"),
    Column("transfer_ns", "Int64", "ns", "their shortest time over the ranks, summed; null without a second rank"),
    Column("wait_ns", "Int64", "ns", "the rest of their time: waiting for a rank that arrived later; null likewise"),
    Column("exposed_wait_ns", "Int64", "ns", "part of comm_ns in which a matched collective waited; null likewise"),
    Column(
        "exposed_transfer_ns", "Int64", "ns", "part of comm_ns in which a matched collective transferred; null likewise"
    ),
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

_LEDGER = ("window_ns", "compute_ns", "comm_ns", "copy_ns", "memset_ns", "idle_ns", "hidden_comm_ns")
#: What a collective is, by kernel name: ``ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`` -> AllReduce.
_KIND = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|AllToAll\w*|Broadcast|Bcast|Reduce|SendRecv|Gather|Scatter)", re.IGNORECASE
)
#: Ranks take part in one collective when their kernels for it run at the same time; this share of a sequence has to.
_TOGETHER = 0.8
#: The clocks of one host agree better than this; more is worth a word.
_CLOCKS_NS = 1_000_000
#: A rank is called a straggler when waiting for it takes this share of a step.
_NOTABLE = 0.01


@dataclass(frozen=True)
class Rank:
    """One rank, small enough to be sent between machines. ``report`` is the number of the report that it comes from.

    ``start_ns`` and ``end_ns`` hold its collectives in order of their start, ``sequence`` which (stream, kind) each belongs to:
    an index into ``sequences``. ``exposed`` are the stretches [start, end) of communication that no compute hides.
    """

    report: int
    file: str
    process: int
    pid: int
    device: int
    gpu: str
    utc_epoch_ns: int | None
    steps: int
    step_ns: int | None
    window: tuple[int, int]
    parts: Mapping[str, int]
    idle_causes: Mapping[str, int]
    sequences: tuple[tuple[int, str], ...]
    sequence: I64
    start_ns: I64
    end_ns: I64
    exposed: tuple[I64, I64]


def kind_of(kernel: str) -> str:
    """Return what kind of collective a communication kernel is, its own name where that does not say."""
    match = _KIND.search(kernel)
    return match[1].lower() if match else re.split(r"[<(]", kernel, maxsplit=1)[0]


def _collectives(facts: Facts, process: int, device: int) -> tuple[tuple[tuple[int, str], ...], I64, I64, I64]:
    """Return (sequences, sequence, start_ns, end_ns) of a device; streams are numbered in the order of their first use."""
    ops = facts.attributed.gpu_ops
    mine = (ops["cls"] == "comm") & (ops["process"] == process) & (ops["device"] == device)
    ops = ops.select("stream", "name", "start_ns", "end_ns").filter(mine).with_columns(pl.col("name").cast(pl.String))
    stream_order = {s: i for i, s in enumerate(ops["stream"].unique(maintain_order=True))}
    sequences: dict[tuple[int, str], int] = {}
    known = ops.select("stream", "name").unique(maintain_order=True)
    numbers = [sequences.setdefault((stream_order[s], kind_of(n)), len(sequences)) for s, n in known.iter_rows()]
    known = known.with_columns(pl.Series("sequence", numbers, dtype=pl.Int64))
    sequence = ops.join(known, on=["stream", "name"], how="left", maintain_order="left")["sequence"].to_numpy()
    return tuple(sequences), sequence, ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()


def records(facts: Facts) -> tuple[Rank, ...]:
    """Return the ranks of a report: each (process, device) that worked in the steady steps."""
    result = []
    cards = {(g.process, g.device): g for g in facts.trace.capture.gpus}
    comm, compute = 1 << ledger.CLASSES.index("comm"), 1 << ledger.CLASSES.index("compute")
    for process, device, start, end in facts.steps.windows.select(
        "process", "device", "start_ns", "end_ns"
    ).iter_rows():
        activity = facts.ledgers.activity[process, device]
        parts = ledger.gpu_parts(activity, np.array([start]), np.array([end]))
        steps = facts.steps.gpu.filter((pl.col("process") == process) & (pl.col("device") == device))
        if facts.steps.steady and not facts.steps.whole:
            steps = steps.filter(pl.col("index").is_between(*facts.steps.steady))
        lengths = steps["end_ns"] - steps["start_ns"]
        inside = activity.clip(start, end)
        shown = ((inside.labels & comm) > 0) & ((inside.labels & compute) == 0)
        alone = coverage([(inside.times[:-1][shown], inside.times[1:][shown])])
        card = cards.get((process, device))
        median = lengths.median()
        result.append(
            Rank(
                0,
                facts.trace.path.name,
                process,
                process & 0xFFFFFF,
                device,
                card.name if card else "unknown GPU",
                facts.trace.capture.utc_epoch_ns,
                steps.height,
                int(median) if isinstance(median, (int, float)) else None,
                (start, end),
                {k: int(parts[k][0]) for k in _LEDGER},
                ledger.idle_in(facts.ledgers.idle, process, device, start, end),
                *_collectives(facts, process, device),
                (alone.times[:-1][alone.labels > 0], alone.times[1:][alone.labels > 0]),
            )
        )
    return tuple(result)


@dataclass
class _Aligned:
    """The collectives of all ranks on one clock. ``offset[r]`` is what has to be added to the times of rank r."""

    ranks: Sequence[Rank]
    offset: list[int]
    correction: list[int | None]
    #: (rank -> rows of its collectives), one entry per group of ranks that run a sequence together; same length for all.
    groups: list[dict[int, I64]] = field(default_factory=list)


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


def _rows(rank: Rank) -> dict[tuple[int, str], I64]:
    return {key: np.flatnonzero(rank.sequence == i) for i, key in enumerate(rank.sequences)}


def align(ranks: Sequence[Rank]) -> _Aligned:
    """Put all ranks on the clock of the first and match their collectives.

    Session starts align the clocks of the reports roughly; then the median difference between the ends of matched collectives,
    which end together, is taken off. The ranks of one report share its clock.
    """
    known = [r.utc_epoch_ns for r in ranks if r.utc_epoch_ns is not None]
    offset = [0 if r.utc_epoch_ns is None else r.utc_epoch_ns - known[0] for r in ranks]
    aligned = _Aligned(ranks, offset, [None] * len(ranks))
    rows = [_rows(r) for r in ranks]
    _correct_clocks(aligned, rows)
    for key in sorted({k for own in rows for k in own}):
        groups: list[dict[int, I64]] = []
        for r in range(len(ranks)):
            if key in rows[r]:
                _join_group(aligned, groups, r, rows[r][key])
        aligned.groups += [group for group in groups if len(group) > 1]
    return aligned


def _correct_clocks(aligned: _Aligned, rows: list[dict[tuple[int, str], I64]]) -> None:
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


def _correction(
    aligned: _Aligned, rows: list[dict[tuple[int, str], I64]], r: int, other: int, overlapping: bool
) -> int | None:
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


def _join_group(aligned: _Aligned, groups: list[dict[int, I64]], r: int, mine: I64) -> None:
    """Add rank r to the group whose kernels run at the same time as its own, else begin a group."""
    start, end = _times(aligned, r, mine)
    for group in groups:
        leader = next(iter(group))
        lead_start, lead_end = _times(aligned, leader, group[leader])
        i, j = _pairs(lead_end, end)
        if len(i) and np.mean((lead_start[i] < end[j]) & (start[j] < lead_end[i])) >= _TOGETHER:
            for member in group:
                group[member] = group[member][i]
            group[r] = mine[j]
            return
    groups.append({r: mine})


@dataclass
class _Costs:
    """What the matched collectives of a rank cost in its window."""

    collectives: int = 0
    transfer_ns: int = 0
    wait_ns: int = 0
    last: int = 0
    delay_ns: int = 0
    waiting: list[tuple[I64, I64]] = field(default_factory=list)
    moving: list[tuple[I64, I64]] = field(default_factory=list)


def _in_window(rank: Rank, rows: I64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    start = rank.start_ns[rows]
    return np.asarray((start >= rank.window[0]) & (start < rank.window[1]), np.bool_)


def _costs(aligned: _Aligned) -> list[_Costs]:
    costs = [_Costs() for _ in aligned.ranks]
    for group in aligned.groups:
        members = list(group)
        # Only collectives that lie in the steady steps of every rank are compared.
        inside = np.logical_and.reduce([_in_window(aligned.ranks[r], rows) for r, rows in group.items()])
        if not inside.any():
            continue
        start = np.stack([aligned.ranks[r].start_ns[group[r]][inside] for r in members])
        end = np.stack([aligned.ranks[r].end_ns[group[r]][inside] for r in members])
        length = end - start
        transfer = length.min(axis=0)
        waited = length - transfer
        arrival = start + np.array([aligned.offset[r] for r in members])[:, None]
        last = arrival.argmax(axis=0)
        for i, r in enumerate(members):
            mine = costs[r]
            mine.collectives += start.shape[1]
            mine.transfer_ns += int(transfer.sum())
            mine.wait_ns += int(waited[i].sum())
            mine.last += int((last == i).sum())
            mine.delay_ns += int(waited[:, last == i].sum() - waited[i, last == i].sum())
            mine.waiting.append((start[i], end[i] - transfer))
            mine.moving.append((end[i] - transfer, end[i]))
    return costs


def _exposed(rank: Rank, costs: _Costs) -> tuple[int, int]:
    """Return exposed communication of the window in which matched collectives waited, and in which they transferred (ns)."""
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
    return int(span[waiting].sum()), int(span[moving].sum())


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


def table(ranks: Sequence[Rank], reason: str = "the report holds one rank; give the reports of all ranks") -> Table:
    """Return one row per rank, in order. With one rank there is nothing to compare: no rows, and why."""
    if len(ranks) < 2:
        return Table(KEY, TITLE, COLUMNS, None, reason)
    aligned = align(ranks)
    costs = _costs(aligned)
    worst = max(range(len(ranks)), key=lambda r: (costs[r].delay_ns, -r))
    exposed = [_exposed(rank, cost) if cost.collectives else (0, 0) for rank, cost in zip(ranks, costs, strict=True)]
    others = [i for i in range(len(ranks)) if i != worst]
    notable = sum(exposed[i][0] for i in others) > _NOTABLE * sum(ranks[i].parts["window_ns"] for i in others)
    rows = []
    for r, (rank, cost) in enumerate(zip(ranks, costs, strict=True)):
        matched = cost.collectives > 0
        waiting, moving = exposed[r]
        rows.append(
            {
                "rank": r,
                "report": rank.file,
                **{k: getattr(rank, k) for k in ("process", "pid", "device", "gpu", "steps", "step_ns")},
                **{k: rank.parts[k] for k in _LEDGER},
                "idle_causes": dict(rank.idle_causes),
                "collectives": cost.collectives,
                "transfer_ns": cost.transfer_ns if matched else None,
                "wait_ns": cost.wait_ns if matched else None,
                "exposed_wait_ns": waiting if matched else None,
                "exposed_transfer_ns": moving if matched else None,
                "last_share": cost.last / cost.collectives if matched else None,
                "delay_ns": cost.delay_ns if matched else None,
                "straggler": notable and r == worst,
                "late_because": _late_because(ranks, r),
                "clock_correction_ns": aligned.correction[r] if matched else None,
            }
        )
    return Table(KEY, TITLE, COLUMNS, tuple({c.name: row[c.name] for c in COLUMNS} for row in rows))


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
        listed = ", ".join(map(str, without[:8]))
        found.append(Check("collectives", "warn", f"rank {listed} has no collective that another rank has too"))
    else:
        found.append(Check("collectives", "ok", f"matched over {len(rows)} ranks"))
    held = {len(r.start_ns) for r in ranks}
    if len(held) > 1:
        detail = (
            f"the ranks hold {min(held)} to {max(held)} collectives: captures of different length, or ranks that differ"
        )
        found.append(Check("rank lengths", "warn", detail, "capture the same steps on every rank: --steps A:B"))
    counts = {r.steps for r in ranks}
    if len(counts) > 1:
        found.append(Check("rank steps", "warn", f"the ranks hold {min(counts)} to {max(counts)} steady steps"))
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
