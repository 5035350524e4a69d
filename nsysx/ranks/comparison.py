"""The table of ranks: which one the others wait for, what made it late, and what communication costs each step.

A collective ends on all its ranks together and begins on each when that rank arrives; see ``costs`` for what is waiting and
what is transfer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nsysx import units
from nsysx.model import Column, Row, Table, TableSpec
from nsysx.ranks import costs as costs_room
from nsysx.ranks.collect import LEDGER, Rank, number
from nsysx.ranks.costs import Costs
from nsysx.ranks.match import align, common
from nsysx.ranks.rank_checks import job_size

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
SHOWN = TableSpec(
    covers="rows",
    place=240,
    intro=(
        "The ranks of the job side by side. In a collective all wait for the rank that comes last: make that one faster, the "
        "others follow."
    ),
    first=(
        "rank",
        "window_ns",
        "straggler",
        "compute_ns",
        "exposed_wait_ns",
        "exposed_transfer_ns",
        "idle_ns",
        "delay_ns",
        "last_share",
        "late_because",
        "bytes",
        "bus_bytes_per_s",
        "gpu",
        "steps",
    ),
    hide=("file", "process", "step_ns", "idle_causes", "clock_correction_ns", "by_collective"),
    per_row=(
        "window_ns",
        "compute_ns",
        "comm_ns",
        "copy_ns",
        "memset_ns",
        "idle_ns",
        "hidden_comm_ns",
        "collectives",
        "transfer_ns",
        "wait_ns",
        "exposed_wait_ns",
        "exposed_transfer_ns",
        "exposed_unmatched_ns",
        "bytes",
        "delay_ns",
    ),
    keep="delay_ns",
    picture="ranks",
    labels={"window_ns": "step, mean"},
)

#: A rank is called a straggler when waiting for it takes this share of a step.
_NOTABLE = 0.01


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


def _by_collective(rank: Rank, cost: Costs, communicators: Mapping[str | None, int]) -> list[Row]:
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
        of = f" of {job_size(ranks)}" if job_size(ranks) > 1 else ""
        return Table(
            KEY, TITLE, COLUMNS, None, f"the report holds one rank{of}; give the reports of all ranks", shown=SHOWN
        )
    aligned = align(ranks)
    ranks = aligned.ranks = common(aligned)
    costs = costs_room.costs_of(aligned)
    worst = max(range(len(ranks)), key=lambda r: (costs[r].delay_ns, -r))
    exposed = [costs_room.exposed(rank, cost) for rank, cost in zip(ranks, costs, strict=True)]
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
                **{k: rank.parts[k] for k in LEDGER},
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
    return Table(KEY, TITLE, COLUMNS, tuple({c.name: row[c.name] for c in COLUMNS} for row in rows), shown=SHOWN)


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
