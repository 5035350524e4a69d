"""What limits the step when all ranks are known: the wait for another rank, with what holds that rank up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nsysx import units
from nsysx.catalogue import Late, StepLimit, StepPart, Surplus
from nsysx.judging import late_kinds
from nsysx.judging.judging_bounds import (
    LIMITING_SHARE,
    MOSTLY_WAITING_SHARE,
    MOSTLY_WORK_SHARE,
    NO_NETWORK_PROBLEM_SHARE,
    RANKS_WAIT_MOSTLY_SHARE,
    UNLIKE_STAGES_TIMES,
)
from nsysx.judging.limit_words import pair, short
from nsysx.judging.rank_waiting import gpu_clock, per_step
from nsysx.judging.schedule import Schedule, schedule_of
from nsysx.judging.stages_in_turn import stages_in_turn
from nsysx.judging.uneven_stages import NO_HOSTS, UnevenStages, uneven_stages
from nsysx.model import Row, Scope, Table, Verdict


def of_ranks(
    verdict: Verdict,
    table: Table,
    shown: int | None = None,
    micro_batches: int | None = None,
    hosts_ns: Mapping[int, int] = NO_HOSTS,
    at_once: float | None = None,
    held_at: str = "",
) -> Verdict:
    """Return the verdict with a sentence that names the late rank, if the shown rank waits for it or is the late one.

    ``shown`` is the rank that the Summary shows, None if one report holds them all. ``micro_batches`` are those of a pipeline's step, and
    ``hosts_ns`` is process -> what the host of a stage takes alone, ``at_once`` which share of what could be stages compute at once.
    ``held_at``: where the host is for which others wait, in words.
    """
    rows = table.rows or ()
    late = next((r for r in rows if r["straggler"]), None)
    if verdict.step_ns is None:
        return verdict
    shown_row = _row_of(rows, verdict, shown)
    if late is not None and late.get("late_by_work") and shown_row is not None:
        return replace(verdict, sentence=_of_work(late, rows, verdict), late_rank=late["rank"])
    turns = stages_in_turn(rows, at_once, micro_batches or 1, verdict.step_ns, hosts_ns) if late is None else None
    if turns is not None:
        return replace(verdict, sentence=f"{verdict.sentence} {_of_turns(turns, micro_batches or 1, at_once or 0.0)}")
    uneven = uneven_stages(rows, hosts_ns=hosts_ns) if late is None and verdict.code == StepLimit.COMM else None
    if uneven is not None and not uneven.bound_by_hosts(micro_batches or 1):
        return replace(verdict, sentence=_of_stages(uneven, verdict))
    if late is None and (bubble := _of_schedule(rows, micro_batches, hosts_ns)):
        first = _waits_not_sends(verdict, rows, shown_row, micro_batches, hosts_ns)
        first = first or f"{verdict.sentence}{_mostly_waits(verdict, shown_row)}"
        return replace(verdict, sentence=f"{first} {bubble}")
    if late is None:
        return _in_turn(verdict, rows, shown_row, held_at)
    waiting = shown_row if shown_row is not late else max((r for r in rows if r is not late), key=_waits, default=None)
    if shown_row is None or waiting is None or _waits(waiting) < LIMITING_SHARE * waiting["window_ns"]:
        return verdict
    return replace(verdict, sentence=_sentence(late, waiting, verdict), late_rank=late["rank"])


def _of_work(late: Row, rows: Sequence[Row], verdict: Verdict) -> str:
    """Return a sentence about the rank that has more GPU work than the others, which tracing hides in the recorded steps."""
    peers = [r for r in rows if r is not late]
    least = min(peers, key=lambda r: per_step(r, "compute_ns"))
    more, less = (units.duration(per_step(r, "compute_ns")) for r in (late, least))
    return (
        f"Straggler: rank {late['rank']} computes {more} a step, rank {least['rank']} {less} (as recorded). Without the profiler the "
        f"work of rank {late['rank']} is all of a step of {units.duration(verdict.step_ns or 0)}, and the others wait for it."
        + (f" Its GPU runs at {gpu_clock(late)}." if late["late_cause"] == Late.HELD_CLOCK else "")
        + (" Another process has its GPU in turn." if late["late_cause"] == Late.SHARED_GPU else "")
    )


def _of_stages(stages: UnevenStages, verdict: Verdict) -> str:
    """Return a sentence about stages of a pipeline that are cut unevenly."""
    recorded = " (as recorded)" if verdict.recorded_ns else ""
    longest, shortest = _work_of(stages)
    return (
        f"Uneven pipeline stages: of a step, {longest} of GPU work, {shortest}{recorded}. The others wait for "
        f"rank {stages.longest['rank']} in send and receive; the network is not the problem."
    )


def _of_turns(stages: UnevenStages, micro_batches: int, at_once: float) -> str:
    """Return a sentence about stages of a pipeline that work in turn, with what sets the pace once they do not."""
    longest, shortest = _work_of(stages)
    slowest = max(stages.hosts_ns, default=0.0)
    paced = f": hosts take {stages.hosts_in_words()} to launch it" if slowest >= stages.step_ns(micro_batches) else ""
    return (
        f"The stages take turns: of a step, {longest} of GPU work, {shortest} (as recorded), and {units.share(at_once, 1)} of what could "
        f"overlap does. With several of its {micro_batches} micro-batches in flight a step takes about "
        f"{units.duration(round(stages.step_ns(micro_batches)))}{paced}."
    )


def _work_of(stages: UnevenStages) -> tuple[str, str]:
    """Return what the longest and the shortest stage compute in a step, in words."""
    longest, shortest = (
        f"rank {row['rank']} {units.duration(per_step(row, 'compute_ns'))}" for row in (stages.longest, stages.shortest)
    )
    return longest, shortest


def _of_schedule(rows: Sequence[Row], micro_batches: int | None, hosts_ns: Mapping[int, int] = NO_HOSTS) -> str:
    """Return in sentences what the schedule of a pipeline leaves idle by itself, "" for ranks that are no stages of one.

    Where hosts set the pace, or would with an even cut, that is said.
    """
    schedule = schedule_of(rows, micro_batches)
    if schedule is None:
        return ""
    share, unlike = units.share(schedule.of_step, 1), uneven_stages(rows, UNLIKE_STAGES_TIMES)
    stages = _held_stages(rows, schedule, hosts_ns)
    if stages is not None:
        longest, shortest = _work_of(stages)
        # what lightens the hosts, launches or work that is repeated, the first advice says
        how, then = (
            ("are not equal", ": first less host work, then an even cut")
            if unlike is not None
            else ("wait for hosts", "")
        )
        return (
            f"The stages {how}: of a step, {longest} of GPU work, {shortest} (as recorded), but hosts take {stages.hosts_in_words()} to "
            f"launch it{then}."
        )
    if unlike is not None:
        longest, shortest = _work_of(unlike)
        return (
            f"The stages are not equal: of a step, {longest} of GPU work, {shortest} (as recorded); {schedule.stages} equal ones with "
            f"{micro_batches} micro-batches each idle {share} by their schedule alone."
        )
    return f"{schedule.stages} equal stages with {micro_batches} micro-batches each idle {share} of a step by their schedule alone."


def _held_stages(rows: Sequence[Row], schedule: Schedule, hosts_ns: Mapping[int, int]) -> UnevenStages | None:
    """Return the stages of a pipeline if a host sets their pace, else None."""
    stages = uneven_stages(rows, 0.0, hosts_ns)
    return stages if stages is not None and stages.bound_by_hosts(schedule.micro_batches) else None


def _waits_not_sends(
    verdict: Verdict,
    rows: Sequence[Row],
    shown: Row | None,
    micro_batches: int | None,
    hosts_ns: Mapping[int, int] = NO_HOSTS,
) -> str:
    """Return the sentence on communication that is exposed in a pipeline whose hosts set the pace, "" where transfers take notable time.

    A receive begins before there is anything to receive: the name of the limit is what is waited for.
    """
    schedule = schedule_of(rows, micro_batches)
    sent = None if shown is None else shown.get("exposed_transfer_ns")
    if verdict.code != StepLimit.COMM or shown is None or schedule is None or sent is None:
        return ""
    if _held_stages(rows, schedule, hosts_ns) is None or sent >= NO_NETWORK_PROBLEM_SHARE * shown["window_ns"]:
        return ""
    part, whole = pair((verdict.parts or {}).get(StepPart.COMM.value, 0), verdict.step_ns or 0)
    transfers = units.duration(per_step(shown, "exposed_transfer_ns"))
    return (
        f"Bound by hosts: exposed communication takes {part} of {whole} on rank {shown['rank']}, of which transfers are {transfers} (as "
        "recorded): the rest waits for other stages."
    )


def _mostly_waits(verdict: Verdict, shown: Row | None) -> str:
    """Return in a sentence which part of the exposed communication of a stage is waiting, "" where that is known of less than most."""
    alone = 0 if shown is None else _waits(shown) + (shown.get("exposed_transfer_ns") or 0)
    if shown is None or verdict.code != StepLimit.COMM or _waits(shown) <= RANKS_WAIT_MOSTLY_SHARE * alone:
        return ""
    most: Row = max(shown.get("waits_for") or (), key=lambda part: part["ns"], default={})
    for_it = most.get("ns", 0) > MOSTLY_WAITING_SHARE * _waits(shown)
    whom = f"rank {most['rank']}" if for_it else "other stages"
    return f" {units.share(_waits(shown), alone)} of the exposed communication is waiting for {whom}."


#: How the ledger calls idle time for launches, as an excess of one rank over its peers.
_LAUNCHES = ("idle: host_code", "idle: launch_latency")
_DATA = ("idle: data_loader",)


def wait_for_hosts(rows: Sequence[Row]) -> bool:
    """Return whether the ranks, none of them late always or at times, wait for each other's launches: the late ones idle for their host.

    Ranks that are late in turn are alike in all sums: then each idles for its launches about as long as its peers wait.
    """
    return bool(late_hosts(rows))


def late_hosts(rows: Sequence[Row]) -> list[Row]:
    """Return the ranks, none of them always late, for whose launches the others wait for most of all waiting; [] where they do not."""
    return _late_by(rows, _LAUNCHES)


def wait_for_data(rows: Sequence[Row]) -> list[Row]:
    """Return the ranks, none of them always late, for whose input data the others wait for most of all waiting; [] where they do not."""
    return _late_by(rows, _DATA)


def _late_by(rows: Sequence[Row], causes: Sequence[str]) -> list[Row]:
    """Return the ranks that are late because they idle for such causes, the latest first, if they make most of the delays, else []."""
    if any(r["straggler"] or r.get("late_at_times") or r.get("bubble_ns") is not None for r in rows):
        return []
    longest = max(map(_waits, rows), default=0)

    def by_these(row: Row) -> bool:
        why, idle = row.get("late_because") or {}, row.get("idle_causes") or {}
        if why:
            return str(max(why, key=lambda part: why[part])) in causes
        return bool(
            sum(idle.get(cause.removeprefix("idle: "), 0) for cause in causes) > RANKS_WAIT_MOSTLY_SHARE * longest
        )

    def delay(row: Row) -> int:
        return row.get("delay_ns") or 0

    late = sorted((r for r in rows if delay(r) and by_these(r)), key=delay, reverse=True)
    return late if sum(map(delay, late)) > RANKS_WAIT_MOSTLY_SHARE * sum(map(delay, rows)) else []


def wait_for_work(rows: Sequence[Row]) -> bool:
    """Return whether the ranks wait for GPU work that another one of them has more of in each step."""
    return any(row.get("turn_even_ns") for row in rows)


def stages_wait_for_hosts(rows: Sequence[Row]) -> bool:
    """Return whether stages of a pipeline idle for their own launches about as long as their neighbors wait for them."""
    launching = {cause.removeprefix("idle: ") for cause in _LAUNCHES}
    idle = sum(ns for row in rows for cause, ns in (row.get("idle_causes") or {}).items() if cause in launching)
    return any(r["bubble_ns"] is not None for r in rows) and idle > RANKS_WAIT_MOSTLY_SHARE * sum(map(_waits, rows))


def _in_turn(verdict: Verdict, rows: Sequence[Row], shown: Row | None, held_at: str = "") -> Verdict:
    """Return the verdict of a rank that mostly waits for others, which launch or get their data later or compute longer, with that said.

    Where one of them is late in a few steps alone, it is named.
    """
    work, data = wait_for_work(rows), wait_for_data(rows)
    at_times = next((row for row in rows if row.get("late_at_times") and row is not shown), None)
    if shown is None or verdict.code != StepLimit.COMM or not (work or data or at_times or wait_for_hosts(rows)):
        return verdict
    alone = _waits(shown) + (shown["exposed_transfer_ns"] or 0)
    if at_times is not None:
        for_it = sum(part["ns"] for part in shown["waits_for"] or () if part["rank"] == at_times["rank"])
        if for_it <= RANKS_WAIT_MOSTLY_SHARE * alone:
            return verdict
        more = f" {units.share(for_it, alone)} of the exposed communication is waiting for rank {at_times['rank']}."
        return replace(verdict, sentence=verdict.sentence + more)
    if _waits(shown) <= RANKS_WAIT_MOSTLY_SHARE * alone:
        return verdict
    others = [f"the input data of rank {row['rank']}" for row in data if row is not shown]
    whom = (
        others[0]
        if others
        else "ranks whose input data comes later"
        if data
        else f"ranks whose host launches later{held_at}"
    )
    whom = "ranks with more GPU work in that step" if work else whom
    computing = (verdict.parts or {}).get(StepPart.WORK.value, 0) >= MOSTLY_WORK_SHARE * (verdict.step_ns or 0)
    if not (work or data or computing) and _waits(shown) >= MOSTLY_WAITING_SHARE * alone:
        return replace(verdict, sentence=_of_hosts(verdict, _waits(shown) / alone, held_at))
    more = f" {units.share(_waits(shown), alone)} of the exposed communication is waiting for {whom}."
    return replace(verdict, sentence=verdict.sentence + more)


#: What a GPU waits for its own host in.
_OWN_HOST = (StepPart.HOST, StepPart.LAUNCH, StepPart.SYNC)


def _of_hosts(verdict: Verdict, waiting: float, held_at: str) -> str:
    """Return the sentence about a step whose communication is mostly waiting (a share of it) for the launches of ranks in turn.

    No faster link helps there: what a host does sets the pace.
    """
    parts, step = verdict.parts or {}, verdict.step_ns or 0
    exposed, idle_ns = parts.get(StepPart.COMM.value, 0), sum(parts.get(part.value, 0) for part in _OWN_HOST)
    part, whole = pair(waiting * exposed, step)
    where = f" ({held_at.removeprefix(': ')})" if held_at else ""
    idle = f", and {short(idle_ns)} for its own host" if idle_ns >= NO_NETWORK_PROBLEM_SHARE * step else ""
    return (
        f"Host-bound: the GPU waits {part} of {whole} in collectives for ranks whose host launches later{where}{idle}. Transfers that "
        f"nothing hides take {short((1 - waiting) * exposed)}."
    )


def _row_of(rows: Sequence[Row], verdict: Verdict, shown: int | None) -> Row | None:
    if shown is not None:
        return next((r for r in rows if r["rank"] == shown), None)
    processes = verdict.scope.processes if verdict.scope else ()
    return next((r for r in rows if r["process"] in processes), None)


def _waits(row: Row) -> int:
    """Return how long a rank does nothing but wait for others, over all of its steps (ns)."""
    return row["exposed_wait_ns"] or 0


def _only_in(late: Row) -> str:
    """Return the kind of work that is all that a rank takes longer in, "" where there is no such kind."""
    if late.get("late_spread") == Surplus.LONE:
        return f", at lines that no other rank runs: {late_kinds.of_row(late['late_work'][0])}"
    only = late.get("late_spread") == Surplus.ONE
    return f", all of it in {late_kinds.of_row(late['late_work'][0])}" if only else ""


def _sentence(late: Row, waiting: Row, verdict: Verdict) -> str:
    scope = Scope("steady", (waiting["process"],), steps=waiting["steps"] or 0)
    part, whole = pair(scope.per_step(_waits(waiting)), scope.per_step(waiting["window_ns"]))
    recorded = " (as recorded)" if verdict.recorded_ns else ""
    cause, behind = late["late_cause"], late["late_ns"] or 0
    extra = (late["late_because"] or {}).get(Late.COMPUTE, behind) if cause == Late.COMPUTE else behind
    why = f", which {Late.named(cause).doing.format(short(extra))}{_only_in(late)}" if extra else ""
    transfer = (waiting["exposed_transfer_ns"] or 0) < NO_NETWORK_PROBLEM_SHARE * waiting["window_ns"]
    network = " The network is not the problem." if transfer else ""
    return f"Straggler: rank {waiting['rank']} waits {part} of {whole}{recorded} for rank {late['rank']}{why}.{network}"
