"""The table of ranks: which one the others wait for, what made it late, and what communication costs each step.

A collective ends on all its ranks at once and begins on each when that rank arrives; ``costs`` tells waiting from transfer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypedDict, TypeVar

from nsysx import units
from nsysx.catalogue import Cause, Late
from nsysx.judging import rank_waiting
from nsysx.model import Row, Table, TableSpec
from nsysx.ranks import behind_columns, job_compared, straggler
from nsysx.ranks import collective_costs as costs_room
from nsysx.ranks.collective_costs import CollectiveCosts, Stretches
from nsysx.ranks.job_compared import JobCompared
from nsysx.ranks.rank_bounds import MOST_RANKS_IN_ORDER, STRAGGLER_SHARE
from nsysx.ranks.rank_record import LEDGER, Rank, number
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "ranks"
TITLE = "Ranks"


class RankRow(TypedDict):
    """One rank over the steps that are steady on all ranks, or over the whole capture."""

    rank: Annotated[
        int, Of("its number in the job if every report or file name gives one; else its place in the order given")
    ]
    report: Annotated[str, Of("report that it is in")]
    process: Annotated[int, Of("process key")]
    pid: Annotated[int, Of("process id")]
    device: Annotated[int, Of("CUDA ordinal inside the process")]
    gpu: Annotated[str, Of("card")]
    host: Annotated[int | None, Of("machine, numbered in order; null if the report does not name it")]
    steps: Annotated[
        int, Of("steps that the sums cover: those that are steady on all ranks; 0 if they cover the whole capture")
    ]
    step_ns: Annotated[int, Of("median steady step on the device", "ns")]
    window_ns: Annotated[int, Of("the steady steps on the device timeline", "ns", sums="row", label="step, mean")]
    compute_ns: Annotated[int, Of("part of window_ns: at least one compute kernel runs", "ns", sums="row")]
    comm_ns: Annotated[
        int, Of("part of window_ns: communication runs and no compute: exposed communication", "ns", sums="row")
    ]
    copy_ns: Annotated[int, Of("part of window_ns: copies run and no kernel", "ns", sums="row")]
    memset_ns: Annotated[int, Of("part of window_ns: nothing but memsets runs", "ns", sums="row")]
    idle_ns: Annotated[int, Of("part of window_ns: nothing runs", "ns", sums="row")]
    hidden_comm_ns: Annotated[int, Of("communication that ran behind compute", "ns", sums="row")]
    idle_causes: Annotated[Mapping[str, int], Of("idle time by cause; sums to idle_ns", "ns")]
    collectives: Annotated[
        int, Of("collectives that begin in the window and are matched with another rank's", sums="row")
    ]
    transfer_ns: Annotated[
        int | None, Of("their shortest time over the ranks, summed; null without a second rank", "ns", sums="row")
    ]
    transfer_usual_ns: Annotated[
        int | None,
        Of(
            "the same with the median of the series and size for each: how much depends on the split; null likewise",
            "ns",
        ),
    ]
    wait_ns: Annotated[
        int | None,
        Of(
            "their other time: waiting for a rank that arrived later; null likewise",
            "ns",
            sums="row",
            label="backlog waited",
        ),
    ]
    exposed_wait_ns: Annotated[
        int | None,
        Of(
            "part of comm_ns in which a matched collective waited; null likewise",
            "ns",
            sums="row",
            label="waits for a rank",
        ),
    ]
    waits_for: Annotated[
        Sequence[Mapping[str, Any]] | None,
        Of(
            "exposed_wait_ns by the rank that came last: rank (null: others, and what no rank is late for), ns, and because, what that "
            "rank spends more time on than the others, null if nothing; they sum to exposed_wait_ns; null likewise"
        ),
    ]
    exposed_transfer_ns: Annotated[
        int | None, Of("part of comm_ns in which a matched collective transferred; null likewise", "ns", sums="row")
    ]
    exposed_unmatched_ns: Annotated[
        int | None,
        Of(
            "the remainder of comm_ns, not matched with any rank; null likewise",
            "ns",
            sums="row",
            label="exposed, on no other rank",
        ),
    ]
    bytes: Annotated[
        int | None,
        Of("messages of the matched collectives whose size NCCL noted; null if it noted none", "bytes", sums="row"),
    ]
    bus_bytes_per_s: Annotated[
        float | None,
        Of(
            "bus bandwidth during their transfer, as nccl-tests define it; null likewise",
            "bytes/s",
            label="bus bandwidth",
        ),
    ]
    by_collective: Annotated[
        Sequence[Mapping[str, Any]] | None, Of("the matched collectives by communicator and kind, longest first")
    ]
    last_share: Annotated[
        float | None,
        Of("part of its matched collectives in which it arrived last, 0 to 1; null likewise", label="comes last"),
    ]
    delay_ns: Annotated[
        int | None,
        Of(
            "waiting of other ranks in collectives in which it arrived last; null likewise",
            "ns",
            sums="row",
            label="makes others wait",
        ),
    ]
    straggler: Annotated[
        bool,
        Of(
            "the rank that makes its peers wait, in step after step, for 1 % of a step or more beyond what processes differ by"
        ),
    ]
    late_ns: Annotated[
        int | None,
        Of("per step: its own time beyond the median of its peers; only for the rank furthest behind, else null", "ns"),
    ]
    late_low_ns: Annotated[
        int | None, Of("lower end of its interval, corrected for the number of ranks; null likewise", "ns")
    ]
    late_high_ns: Annotated[int | None, Of("upper end; null likewise", "ns")]
    late_drift_ns: Annotated[
        int | None, Of("part of late_ns by which two healthy processes may differ; null likewise", "ns")
    ]
    late_cause: Annotated[
        str | None,
        Of("input, host, extra_calls, profiler, compute, clocks, held_clock, shared_gpu or unknown; null likewise"),
    ]
    price_ns: Annotated[
        int | None, Of("per step: what all ranks save if it is like its peers, replayed; null likewise", "ns")
    ]
    price_share: Annotated[
        float | None, Of("part of the excess over equal ranks that price_ns removes, 0 to 1; null likewise")
    ]
    alone_share: Annotated[float | None, Of("part of that excess that this rank alone causes, 0 to 1; null likewise")]
    even_ns: Annotated[
        int | None,
        Of(
            "per step: what all ranks save if their GPU work is the same, replayed; only for a rank that is late in GPU work, else null",
            "ns",
        ),
    ]
    late_by_work: Annotated[
        bool,
        Of(
            "the straggler by its GPU work alone: in the recorded steps tracing hides it, and price_ns and even_ns are bounds"
        ),
    ]
    late_kernels: Annotated[
        Sequence[Mapping[str, Any]] | None,
        Of("the straggler's kernels that take longer than on its peers, per step, and in what they differ; else null"),
    ]
    late_work: Annotated[
        Sequence[Mapping[str, Any]] | None,
        Of(
            "kinds of GPU work in which a straggler in GPU work takes longer: kind, how its kernels differ, ns and others_ns per step, the "
            "line with most of that, and whether it is a call that deals work out; null where not noted, and for other ranks"
        ),
    ]
    late_spread: Annotated[
        str | None,
        Of("in one kind, in every kind alike, in several, or at lines that only it runs; null likewise", codes=True),
    ]
    late_lines: Annotated[
        Sequence[Mapping[str, Any]] | None,
        Of(
            "lines at which the host of a straggler in host code or loading is longer than those of its peers, per step; else null"
        ),
    ]
    replay_error: Annotated[
        float | None, Of("how far the replay of all ranks is off the recorded steps, 0 to 1; null likewise")
    ]
    changed_ns: Annotated[
        Mapping[str, int] | None,
        Of(
            "per step: what all ranks save with a change made on all of them, by the name of its remedy, replayed; null where the ranks "
            "are not replayed together",
            "ns",
        ),
    ]
    turn_wait_ns: Annotated[
        int | None,
        Of(
            "per step: exposed waiting for ranks that have more GPU work in that step, where others have it in turn and that is why ranks "
            "wait; else null",
            "ns",
        ),
    ]
    turn_even_ns: Annotated[
        int | None,
        Of(
            "per step: what all ranks save if they have as much GPU work in each step, replayed where that is possible; null likewise",
            "ns",
        ),
    ]
    lone_work: Annotated[
        Sequence[Mapping[str, Any]] | None,
        Of(
            "evaluations of this rank between steps for which others wait in a collective: start_ns, their longest wait ns, how many "
            "ranks wait, collective, and file and line of it; null if there is none"
        ),
    ]
    late_at_times: Annotated[
        Mapping[str, Any] | None,
        Of(
            "late alone in late_steps of steps: every (or null), ns then, cost_ns of each, cause, even_ns, dealt (or null); null if not"
        ),
    ]
    bubble_ns: Annotated[
        int | None,
        Of(
            "exposed waiting in send and receive, and idle time: the pipeline's bubble; null without messages between two ranks",
            "ns",
        ),
    ]
    late_because: Annotated[
        Mapping[str, int],
        Of(
            "per step: its excess over the median of the other ranks, by part of the breakdown, largest first",
            "ns",
            label="spends more on",
        ),
    ]
    clock_mhz: Annotated[
        float | None,
        Of("mean clock of the GPU's GPCs while it worked; null where it was not sampled", "MHz", label="GPU clock"),
    ]
    most_clock_mhz: Annotated[float | None, Of("the highest that the card has; null likewise", "MHz")]
    clock_correction_ns: Annotated[int | None, Of("added to its clock: collectives end together; null likewise", "ns")]


COLUMNS = columns_of(RankRow)
ROWS: TableOf[RankRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="rows",
    place=240,
    group="rank-tables",
    intro=(
        "The ranks of the job side by side. In a collective all wait for the rank that comes last: make that one faster, and "
        "the others follow. A stage of a pipeline waits for messages, and some of that is its schedule's own bubble."
    ),
    first=names(
        "rank window_ns straggler compute_ns exposed_wait_ns exposed_transfer_ns idle_ns delay_ns last_share "
        "late_because bytes bus_bytes_per_s gpu steps"
    ),
    hide=names("process step_ns idle_causes clock_correction_ns most_clock_mhz by_collective late_by_work"),
)
#: Of many ranks the first rows are those that the others wait for most: a page shows few rows before a button, paper no others.
SHOWN_MANY = replace(SHOWN, intro=f"{SHOWN.intro} The ranks that are waited for most come first.", order=("delay_ns",))


def on_host_ns(row: Row | RankRow) -> int:
    """Return the part of idle_ns of a rank in which its host communicates (ns)."""
    return int((row.get("idle_causes") or {}).get(Cause.HOST_COMM.value, 0))


def _late_because(ranks: Sequence[Rank], late: straggler.Straggler | None) -> list[dict[str, int]]:
    """Return the excess of each rank over the median of its peers per step (ns), largest first, from 1 % of the step on."""
    more = straggler.excesses(ranks, range(len(ranks)))
    if late is not None:
        more |= straggler.excesses(ranks, late.peers)
    floors = [STRAGGLER_SHARE * rank.parts["window_ns"] / max(rank.steps, 1) for rank in ranks]
    return [{k: int(v) for k, v in more[r].items() if v >= floor} for r, floor in enumerate(floors)]


def _bubble(rank: Rank, cost: CollectiveCosts) -> int | None:
    """Return the exposed waiting of a rank in messages between two plus its idle time (ns); None without such messages."""
    pairs = [i for i, a in enumerate(cost.among) if a.between_two and a.inside]
    return costs_room.exposed_in(rank, cost, pairs) + rank.parts["idle_ns"] if pairs else None


def _waits_for(ranks: Sequence[Rank], r: int, parts: Stretches, because: Sequence[Mapping[str, int]]) -> list[Row]:
    """Return for which ranks one waits, and what those spend more time on, most first."""
    return [
        {
            "rank": None if other is None else number(ranks, other),
            "ns": ns,
            "because": None if other is None else next(iter(because[other]), None),
        }
        for other, ns in costs_room.exposed_by(parts, r).items()
    ]


Named = TypeVar("Named", bound=Hashable)


def _in_order(names: Iterable[Named | None]) -> dict[Named, int]:
    """Return name -> number in the order of first appearance: ids and host names themselves are private."""
    return {name: i for i, name in enumerate(dict.fromkeys(n for n in names if n is not None))}


def _by_collective(
    rank: Rank, cost: CollectiveCosts, communicators: Mapping[tuple[str, tuple[int, ...]], int]
) -> list[Row]:
    """Return one row per communicator and kind, longest first; "communicator" numbers them over the job."""
    rows: list[Row] = []
    for key, t in sorted(cost.tallies.items(), key=lambda e: (-e[1].wait_ns - e[1].transfer_ns, e[0])):
        member = rank.members.get(key.communicator)
        rows.append(
            {
                "communicator": communicators.get((key.communicator, key.pair)),
                "ranks": 2 if key.pair else member and member.size,
                "kind": key.kind,
                "calls": t.calls,
                "transfer_ns": t.transfer_ns,
                "wait_ns": t.wait_ns,
                "bytes": t.bytes if t.sized else None,
                "bus_bytes_per_s": t.bandwidth(),
            }
        )
    return rows


def table(compared: JobCompared | None, why_not: str) -> Table:
    """Return one row per rank, in order. With one rank there is nothing to compare: no rows, and the reason."""
    if compared is None:
        return Table(KEY, TITLE, COLUMNS, None, why_not, shown=SHOWN)
    aligned, costs, late, ranks = compared.aligned, compared.costs, compared.late, compared.ranks
    changed, in_some_steps = job_compared.changed(compared), behind_columns.in_some_steps(compared)
    exposed = [costs_room.exposed(rank, cost) for rank, cost in zip(ranks, costs, strict=True)]
    because = _late_because(ranks, late)
    hosts = _in_order(r.host for r in ranks)
    communicators = _in_order((s.communicator, s.pair) if s.communicator else None for r in ranks for s in r.series)
    rows = []
    for r, (rank, cost) in enumerate(zip(ranks, costs, strict=True)):
        whole = cost.whole()
        matched = whole.calls > 0
        waiting, moving, unmatched = exposed[r]
        rows.append(
            {
                "rank": number(ranks, r),
                "report": rank.file,
                **{k: getattr(rank, k) for k in ("process", "pid", "device", "gpu", "steps", "step_ns")},
                "host": None if rank.host is None else hosts[rank.host],
                **{k: rank.parts[k] for k in LEDGER},
                "idle_causes": dict(rank.idle_causes),
                "collectives": whole.calls,
                "transfer_ns": whole.transfer_ns if matched else None,
                "transfer_usual_ns": whole.usual_ns if matched else None,
                "wait_ns": whole.wait_ns if matched else None,
                "exposed_wait_ns": waiting if matched else None,
                "waits_for": _waits_for(ranks, r, compared.stretches[r], because) if matched else None,
                "exposed_transfer_ns": moving if matched else None,
                "exposed_unmatched_ns": unmatched if matched else None,
                "bytes": whole.bytes if whole.sized else None,
                "bus_bytes_per_s": whole.bandwidth(),
                "by_collective": _by_collective(rank, cost, communicators) if matched else None,
                "last_share": cost.last / cost.collectives if cost.collectives else None,
                "delay_ns": cost.delay_ns if cost.collectives else None,
                **behind_columns.of_rank(ranks, late, r),
                "changed_ns": changed.get(r),
                **in_some_steps[r],
                "bubble_ns": _bubble(rank, cost),
                "late_because": because[r],
                "clock_mhz": None if rank.clock is None else round(rank.clock.mhz, 1),
                "most_clock_mhz": None if rank.clock is None else rank.clock.most_mhz,
                "clock_correction_ns": aligned.correction[r] if matched else None,
            }
        )
    shown = SHOWN if len(ranks) <= MOST_RANKS_IN_ORDER else SHOWN_MANY
    return Table(KEY, TITLE, COLUMNS, tuple({c.name: row[c.name] for c in COLUMNS} for row in rows), shown=shown)


def sentence(rows: Sequence[Row], probes: Sequence[Row] = ()) -> str | None:
    """Return a sentence on the straggler, or on why none was looked for, with what the probes tell of that; None if there is none."""
    late = next((r for r in rows if r["straggler"]), None)
    if late is None:
        return rank_waiting.why_not_compared(rows, probes) or None
    return (
        f"rank {late['rank']} is {units.duration(late['late_ns'])} per step behind its peers {Late.named(late['late_cause']).label}; "
        f"if it were like them, the step would be {units.duration(late['price_ns'])} shorter"
    )
