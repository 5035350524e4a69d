"""Where the time of a job goes: the steps of each rank and of all, in parts that sum to them, with who is waited for and why.

A rank that waits for another has less to do between two collectives than that one: in a step of equal length, what one waits longer is
what the other spends more time on. So waiting is divided in the ratio of these excesses; what exceeds them is waiting in turn, for
which no part of a step is longer on the late rank. Communication by the place that launches it: ``communication_places``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, NamedTuple, TypedDict

from nsysx.catalogue import DeviceActivity, Late
from nsysx.model import Table, TableSpec
from nsysx.ranks import collective_costs as costs_room
from nsysx.ranks import late_lines, straggler, uneven
from nsysx.ranks.collect import Rank, number
from nsysx.ranks.collective_costs import MOVES, UNMATCHED, WAITS, Stretches
from nsysx.ranks.job_compared import JobCompared
from nsysx.ranks.rank_bounds import MOST_LEDGER_RANKS
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "job_ledger"
TITLE = "Where the time of the job goes"

#: What a rank that waits in turn is waiting for.
IN_TURN = "in turn"


class JobPartRow(TypedDict):
    """A part of the steps of one rank, or of all together."""

    rank: Annotated[int | None, Of("number of the rank; null for the sum over all ranks")]
    steps: Annotated[int, Of("steps that time_ns covers, over all ranks for their sum; 0: the whole capture")]
    part: Annotated[str, Of("what the rank does: computes, copies, idles, transfers, waits, or communicates unmatched")]
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
        Of("of waiting: kernels, or the line of Python, at which that rank is longer; null where none stands out"),
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
    first=names("rank part time_ns share waits_for cause detail steps"),
    keep="time_ns",
)


class Why(NamedTuple):
    """A cause of waiting, the kernels or the line that it is by, and how much of the waiting it stands for (ns)."""

    cause: str
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
        details = _kernels(late, waiting) if cause is Late.COMPUTE else _lines(late, waiting)
        left = ns
        for name, of_detail in details if cause in (Late.COMPUTE, Late.HOST, Late.INPUT) else ():
            part_ns = min(of_detail, left)
            if part_ns > 0:
                rows.append((cause.value, name, part_ns))
                left -= part_ns
        if left > 0:
            rows.append((cause.value, None, left))
    return rows


def _kernels(late: Rank, waiting: Rank) -> list[tuple[str, float]]:
    """Return in what way kernels of a rank take longer than on another, and by how much per step (ns), the most first."""
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
    return [*sorted(told, key=lambda w: (-w.ns, w.cause, w.detail or "")), *rest]


def _parts(ranks: Sequence[Rank], r: int, parts: Stretches) -> list[dict[str, Any]]:
    """Return the rows of one rank, without its number."""
    rank = ranks[r]
    rows: list[dict[str, Any]] = []

    def add(
        part: str, ns: int, waits_for: int | None = None, cause: str | None = None, detail: str | None = None
    ) -> None:
        if ns:
            rows.append({"part": part, "waits_for": waits_for, "cause": cause, "detail": detail, "time_ns": ns})

    add("computes", rank.parts[DeviceActivity.COMPUTE.column])
    add("copies", rank.parts[DeviceActivity.COPY.column] + rank.parts[DeviceActivity.MEMSET.column])
    add("transfers", int(parts.ns[parts.state == MOVES].sum()))
    for late, ns in costs_room.exposed_by(parts, r).items():
        if late is None:
            add("waits", ns)
            continue
        for each in why(ranks[late], rank, ns):
            add("waits", each.ns, number(ranks, late), each.cause, each.detail)
    add("communicates unmatched", int(parts.ns[parts.state == UNMATCHED].sum()))
    for cause, ns in sorted(rank.idle_causes.items(), key=lambda e: (-e[1], e[0])):
        add("idles", ns, cause=cause)
    add("idles", rank.parts["idle_ns"] - sum(rank.idle_causes.values()))
    return rows


def _of_all(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the sums of the rows of all ranks, in the order in which their parts first appear."""
    sums: dict[tuple[Any, ...], int] = {}
    for row in rows:
        key = (row["part"], row["waits_for"], row["cause"], row["detail"])
        sums[key] = sums.get(key, 0) + row["time_ns"]
    order = {part: i for i, part in enumerate(dict.fromkeys(row["part"] for row in rows))}
    listed = sorted(sums.items(), key=lambda e: (order[e[0][0]], -e[1]))
    return [
        dict(zip(("part", "waits_for", "cause", "detail"), key, strict=True)) | {"time_ns": ns} for key, ns in listed
    ]


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
    ranks = compared.ranks
    parts = [costs_room.stretches(rank, cost) for rank, cost in zip(ranks, compared.costs, strict=True)]
    of_each = [_parts(ranks, r, of_rank) for r, of_rank in enumerate(parts)]
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
