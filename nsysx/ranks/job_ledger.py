"""Where the time of a job goes: the steps of each rank and of all, in parts that sum to them, with who is waited for and why.

A rank that waits for another has less to do between two collectives than that one: in a step of equal length, what one waits longer is
what the other spends more time on. So waiting is divided in the ratio of these excesses; what exceeds them is waiting in turn, for
which no part of a step is longer on the late rank. Communication by the place that launches it: ``communication_places``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from nsysx.catalogue import Cause, DeviceActivity, Late
from nsysx.judging import late_kinds
from nsysx.model import Table, TableSpec
from nsysx.ranks import collective_costs as costs_room
from nsysx.ranks import late_lines, late_work, straggler, uneven
from nsysx.ranks.collective_costs import MOVES, UNMATCHED, WAITS, Stretches
from nsysx.ranks.job_compared import JobCompared, Takers
from nsysx.ranks.rank_bounds import MOST_LEDGER_RANKS
from nsysx.ranks.rank_record import Rank, number
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "job_ledger"
TITLE = "Where the time of the job goes"

#: What tells communication on the host, in which the GPU idles, from that on the GPU.
ON_HOST = " on the host"

#: What a rank that waits in turn is waiting for.
IN_TURN = "in turn"


class JobPartRow(TypedDict):
    """A part of the steps of one rank, or of all together."""

    rank: Annotated[int | None, Of("number of the rank; null for the sum over all ranks")]
    steps: Annotated[int, Of("steps that time_ns covers, over all ranks for their sum; 0: the whole capture")]
    part: Annotated[
        str,
        Of(
            "what the rank does: computes, copies, idles, transfers, waits, or communicates unmatched; the last three end with "
            "on the host where it is MPI, in whose calls the GPU idles"
        ),
    ]
    waits_for: Annotated[
        int | None, Of("of waiting: the rank that came last; null for several ranks, for nobody, and for other parts")
    ]
    cause: Annotated[
        str | None,
        Of(
            "of idle time its cause; of waiting what that rank spends more time on (input, host, profiler, compute), or in turn, "
            "where it spends more on nothing; else null",
            codes=True,
        ),
    ]
    detail: Annotated[
        str | None,
        Of(
            "of waiting: the kind of GPU work, or the line of Python, at which that rank is longer; null where none stands out"
        ),
    ]
    group: Annotated[
        str | None,
        Of(
            "of transfer and waiting: the process group by its name in the program (see communication_places), else the ranks that take "
            "part; null for other parts, and where collectives are on no other rank"
        ),
    ]
    time_ns: Annotated[int, Of("time; over the rows of a rank its window_ns", "ns", sums="row", label="time")]
    share: Annotated[float, Of("part of the rank's window, 0 to 1")]


COLUMNS = columns_of(JobPartRow)
ROWS: TableOf[JobPartRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="rows",
    place=241,
    group="rank-tables",
    intro=(
        "The steps of each rank in parts that sum to them. A wait names the rank that came last, and what that rank spends more time on."
    ),
    first=names("rank part time_ns share waits_for cause detail group steps"),
    unknown="all",
    keep="time_ns",
)


#: What tells the rows of a rank apart.
_ROW_KEY = ("part", "waits_for", "cause", "detail", "group")


class Why(NamedTuple):
    """A cause of waiting, the kernels or the line that it is by, and how much of the waiting it stands for (ns).

    The cause is None where it is not known which rank is waited for.
    """

    cause: str | None
    detail: str | None
    ns: int


def _shared(total: int, weights: Sequence[float]) -> list[int]:
    """Return whole parts of a total in the ratio of weights, which sum to it: the largest remainders are rounded up."""
    whole = sum(weights)
    exact = [total * weight / whole for weight in weights]
    parts = [int(x) for x in exact]
    for i in sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))[: total - sum(parts)]:
        parts[i] += 1
    return parts


def _excesses(late: Rank, waiting: Rank) -> list[tuple[str, str | None, float]]:
    """Return cause, detail and time (ns per step) of what a rank spends more time on than one that waits for it."""
    here, there = straggler.per_step(late), straggler.per_step(waiting)
    more = {part: here.get(part, 0.0) - there.get(part, 0.0) for part in here | there}
    rows: list[tuple[str, str | None, float]] = []
    for cause, parts in straggler.CAUSES.items():
        ns = sum(more.get(part, 0.0) for part in parts)
        if ns <= 0:
            continue
        details = _work(late, waiting) if cause is Late.COMPUTE else _lines(late, waiting)
        left = ns
        for name, of_detail in details if cause in (Late.COMPUTE, Late.HOST, Late.INPUT) else ():
            part_ns = min(of_detail, left)
            if part_ns > 0:
                rows.append((cause.value, name, part_ns))
                left -= part_ns
        if left > 0:
            rows.append((cause.value, None, left))
    return rows


def _work(late: Rank, waiting: Rank) -> list[tuple[str, float]]:
    """Return in which kinds of work a rank takes longer than another, and by how much per step (ns), the most first.

    Where those were not noted, in what way its kernels differ.
    """
    kinds = late_work.rows_per_step(late_work.kinds(late, [waiting]))
    if kinds:
        return [(late_kinds.with_kernels(kind), kind["ns"] - kind["others_ns"]) for kind in kinds]
    sums: dict[str, float] = {}
    for differs in uneven.differences(late, [waiting]):
        words = f"kernels {differs.how}"
        sums[words] = sums.get(words, 0.0) + differs.ns - differs.ns_there
    return sorted(sums.items(), key=lambda e: (-e[1], e[0]))


def _lines(late: Rank, waiting: Rank) -> list[tuple[str, float]]:
    """Return the lines that are a rank's own, and by how much per step (ns) it is longer there, the most first."""
    rows = late_lines.longer(late, [waiting])
    return [(f"{PurePath(row.line.file).name}:{row.line.line}", row.more) for row in rows if row.own]


def why(late: Rank, waiting: Rank, ns: int) -> list[Why]:
    """Return what waiting of so many ns for a rank is due to, most first; the parts sum to it."""
    rows = _excesses(late, waiting)
    excess = sum(each for *_, each in rows) * max(waiting.steps, 1)
    due = min(ns, round(excess))
    parts = _shared(due, [each for *_, each in rows]) if due else []
    told = [Why(cause, detail, part) for (cause, detail, _), part in zip(rows, parts, strict=False) if part]
    rest = [Why(IN_TURN, None, ns - due)] if ns > due else []
    return [*sorted(told, key=lambda w: (-w.ns, w.cause or "", w.detail or "")), *rest]


def _by_group(parts: Stretches, groups: Sequence[str | None], which: npt.NDArray[np.bool_]) -> dict[str | None, int]:
    """Return group -> time of the chosen stretches in its collectives (ns), the most first."""
    sums: dict[str | None, int] = {}
    for group, ns in zip(groups, np.where(which, parts.ns, 0).tolist(), strict=True):
        if ns:
            sums[group] = sums.get(group, 0) + ns
    return dict(sorted(sums.items(), key=lambda e: (-e[1], e[0] or "")))


def _parts(compared: JobCompared, r: int, parts: Stretches) -> list[dict[str, Any]]:
    """Return the rows of one rank, without its number.

    Waiting for a rank in several groups is divided by cause, and each cause by group: nothing tells which cause is of which group.
    """
    ranks, rank = compared.ranks, compared.ranks[r]
    rows: list[dict[str, Any]] = []

    def add(part: str, ns: int, cause: str | None = None, **about: Any) -> None:
        if ns:
            rows.append(dict.fromkeys(_ROW_KEY) | {"part": part, "cause": cause, **about, "time_ns": ns})

    add("computes", rank.parts[DeviceActivity.COMPUTE.column])
    add("copies", rank.parts[DeviceActivity.COPY.column] + rank.parts[DeviceActivity.MEMSET.column])
    on_host = None if compared.on_host is None else compared.on_host.parts[r]
    for what, of_what, takers in (("", parts, compared.takers), (ON_HOST, on_host, compared.takers_on_host)):
        if of_what is None:
            continue
        taken = {row: takers.get((r, row), Takers()).words for row in np.unique(of_what.row).tolist()}
        groups = [taken[row] for row in of_what.row.tolist()]
        for group, ns in _by_group(of_what, groups, of_what.state == MOVES).items():
            add(f"transfers{what}", ns, group=group)
        by_rank = costs_room.exposed_by(of_what, r)
        named = [late for late in by_rank if late is not None]
        for late, ns in by_rank.items():
            of_late = ~np.isin(of_what.late, named) if late is None else of_what.late == late
            of_group = _by_group(of_what, groups, of_late & (of_what.state == WAITS))
            for each in [Why(None, None, ns)] if late is None else why(ranks[late], rank, ns):
                waits_for = None if late is None else number(ranks, late)
                for group, part_ns in zip(of_group, _shared(each.ns, list(of_group.values())), strict=True):
                    add(f"waits{what}", part_ns, each.cause, waits_for=waits_for, detail=each.detail, group=group)
        add(f"communicates unmatched{what}", int(of_what.ns[of_what.state == UNMATCHED].sum()))
    divided = 0 if on_host is None else int(on_host.ns.sum())
    idle = {cause: ns - divided * (cause == Cause.HOST_COMM) for cause, ns in rank.idle_causes.items()}
    for cause, ns in sorted(idle.items(), key=lambda e: (-e[1], e[0])):
        add("idles", ns, cause)
    add("idles", rank.parts["idle_ns"] - sum(rank.idle_causes.values()))
    return rows


def _of_all(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the sums of the rows of all ranks, those of the part that takes most first: few of them are seen at first."""
    sums: dict[tuple[Any, ...], int] = {}
    of_parts: dict[str, int] = {}
    for row in rows:
        key = tuple(row[name] for name in _ROW_KEY)
        sums[key] = sums.get(key, 0) + row["time_ns"]
        of_parts[row["part"]] = of_parts.get(row["part"], 0) + row["time_ns"]
    listed = sorted(sums.items(), key=lambda e: (-of_parts[e[0][0]], e[0][0], -e[1]))
    return [dict(zip(_ROW_KEY, key, strict=True)) | {"time_ns": ns} for key, ns in listed]


def chosen(ranks: Sequence[Rank], waits_ns: Sequence[int]) -> list[int]:
    """Return the places of the ranks that have rows of their own: of many those that wait least and longest."""
    if len(ranks) <= MOST_LEDGER_RANKS:
        return list(range(len(ranks)))
    order = sorted(range(len(ranks)), key=lambda r: (waits_ns[r], r))
    return sorted(order[: MOST_LEDGER_RANKS // 2] + order[-MOST_LEDGER_RANKS // 2 :])


def table(compared: JobCompared | None, reason: str) -> Table:
    """Return the parts of the steps of all ranks together, and of each. Without a second rank no rows, and the reason."""
    if compared is None:
        return Table(KEY, TITLE, COLUMNS, None, reason, shown=SHOWN)
    ranks, parts = compared.ranks, compared.stretches
    of_each = [_parts(compared, r, of_rank) for r, of_rank in enumerate(parts)]
    whole = sum(rank.parts["window_ns"] for rank in ranks)
    rows = [
        {"rank": None, "steps": sum(rank.steps for rank in ranks), **row, "share": _share(row["time_ns"], whole)}
        for row in _of_all([row for of_rank in of_each for row in of_rank])
    ]
    for r in chosen(ranks, [int(p.ns[p.state == WAITS].sum()) for p in parts]):
        window = ranks[r].parts["window_ns"]
        rows += [
            {"rank": number(ranks, r), "steps": ranks[r].steps, **row, "share": _share(row["time_ns"], window)}
            for row in of_each[r]
        ]
    return Table(KEY, TITLE, COLUMNS, tuple({c.name: row[c.name] for c in COLUMNS} for row in rows), shown=SHOWN)


def _share(ns: int, whole: int) -> float:
    return round(ns / whole, 6) if whole else 0.0
