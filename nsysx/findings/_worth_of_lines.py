"""What it is worth to change lines that an X-ray noted: by a replay of their launches as one, without them, or by the time they hold up."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.catalogue import Call, StepPart
from nsysx.events.code_lines import CodeLines
from nsysx.findings import (
    _line_remedies,
    _needs,
    _rounds_by_group,
)
from nsysx.findings._case import Case, Rule, Saving, calls_of, ops_of
from nsysx.findings._costly_lines import CostlyLine
from nsysx.findings._exposed_transfer import communication, longer_wait_ns
from nsysx.findings._fields_at_once import NAME as FIELDS
from nsysx.findings._fields_at_once import left_of
from nsysx.findings._finding_bounds import (
    LINE_MAY_STAY_SHARE,
    OPERATORS_MAY_STAY_SHARE,
    STALL_NS,
)
from nsysx.findings._once import edits_without
from nsysx.replay.engine import Edit, Fuse, RemoveOps, RemoveWaits


def calls_at(case: Case, line_row: int) -> pl.Series:
    """Return the calls that a line (row of places) makes."""
    code = case.profile.code()
    return case.calls["call"].clear() if code is None else code.made_at(case.calls, [line_row])["call"]


def worth_of_lines(case: Case, rule: Rule, code: CodeLines, group: list[CostlyLine], calls: frozenset[int]) -> Saving:
    """Return what lines of one kind save: by a replay of their launches as one where they loop, else the idle time while they run."""
    idle = case.taken_by(part for part in StepPart if part.idle)
    gone = any(line.meets for line in group) or (group[0].aside and group[0].fix in _line_remedies.LEFT_OUT)
    if gone and (left := _without(case, code, group, idle)) is not None:
        return left
    alone = min(sum(line.cost for line in group if not (line.looping or line.rounds)), case.step_ns)
    if not calls and group[0].cause is not None and group[0].cause.beside:
        beside = units.duration(min(alone, case.step_ns - alone))
        return case.bound(
            alone,
            f"the time the GPU idles while this line runs; one thread that runs ahead saves {beside} of it at most",
        )
    if not calls and (group[0].fix is None or group[0].fix in _line_remedies.OPEN):
        return case.bound(alone, "the time the GPU idles while this line runs; what of it can go is not known")
    if not calls and group[0].fix == _line_remedies.PLAIN:
        return _without_interception(case, code, group, alone)
    if not calls and group[0].fix is not None and FIELDS in [way.name for way in group[0].fix.ways]:
        less_ns = round(alone * (1 - left_of(case, calls_at(case, group[0].place))))
        why = "the time the GPU idles while this line runs, less what a copy for each field leaves of it"
        return Saving(less_ns, why, error_ns=round(LINE_MAY_STAY_SHARE * less_ns), most_ns=alone, source="time")
    if not calls:
        why = "the time the GPU idles while this line runs"
        return Saving(alone, why, error_ns=round(LINE_MAY_STAY_SHARE * alone), most_ns=max(alone, idle), source="time")
    # In one call for all of it neither the sizes are read back nor does anything wait in between. What the loop calls runs for one round.
    of_loop = [line.place for line in group if line.looping and not line.rounds]
    reads = case.ops.filter(case.ops["op_kind"] == "memcpy", case.ops["name"] == "DtoH", case.ops["call"].is_not_null())
    between = calls_of(code.made_at(case.calls, of_loop))
    goes = pl.col("call").is_in(list(calls | between))
    places = [line.place for line in group if line.looping]
    reads = code.made_at(reads, places).filter(goes)
    waits = code.made_at(case.profile.once(_needs.waits), places).filter(goes)
    edits: list[Edit] = [RemoveWaits(calls_of(waits))] if waits.height else []
    edits += [RemoveOps(ops_of(reads))] if reads.height else []
    edits += [Fuse(calls | between)]
    worth = case.worth(*edits, cause=(*rule.cause, StepPart.WORK))
    worth = _rounds_by_group.worth(case, code, group, worth, edits)
    if waits.height and worth.likely_ns is not None:
        # Where nothing of it waits the CPU runs ahead: at best no launch of the step comes late, and the kernels of the loop are one.
        theirs = case.ops.filter(pl.col("call").is_in(list(calls | between)))
        all_idle = idle + case.per_step(float((theirs["end_ns"] - theirs["start_ns"]).sum()))
        worth = replace(worth, most_ns=max(worth.likely_ns, worth.most_ns or 0, min(all_idle, case.step_ns)))
    if worth.likely_ns is None or not alone:
        return worth
    return replace(worth, likely_ns=min(worth.likely_ns + alone, max(worth.likely_ns, case.taken_by(rule.cause))))


def _without_interception(case: Case, code: CodeLines, group: list[CostlyLine], alone: int) -> Saving:
    """Return what it saves if operators do not pass through Python: their launches stay, as far apart as those elsewhere in the step."""
    places = [line.place for line in group]
    launches = case.calls.filter(case.calls["kind"].is_in(Call.LAUNCHES))
    theirs = code.made_at(launches.filter(launches["phase"].fill_null("") != "backward"), places)  # that has no Python
    apart = pl.col("end_ns") - pl.col("end_ns").shift(1).over("thread")
    elsewhere = case.calls.select("call", "kind", apart_ns=apart).join(theirs.select("call"), on="call", how="anti")
    close = elsewhere.filter(pl.col("kind").is_in(Call.LAUNCHES), pl.col("apart_ns") < STALL_NS)["apart_ns"].to_numpy()
    host = sum(line.row["host_self_ns"] for line in group)
    if not len(close) or not host:
        return case.bound(alone, "the time the GPU idles while this line runs; what of it can go is not known")
    goes = round(alone * max(0.0, 1 - float(close.mean()) * theirs.height / host))
    why = "the time the GPU idles while this line runs, less what launches elsewhere take for as many"
    return Saving(goes, why, error_ns=round(OPERATORS_MAY_STAY_SHARE * alone), most_ns=alone, source="time")


def _without(case: Case, code: CodeLines, group: list[CostlyLine], idle: int) -> Saving | None:
    """Return what it saves if lines are not there: their calls, waits and GPU work, and the host code at them; None without a replay."""
    calls = code.made_at(case.calls, [line.place for line in group])
    worth = case.worth(*edits_without(calls, case.ops))
    if not calls.height or worth.likely_ns is None:
        return None
    # Host code after the last call at such a line comes before a call elsewhere.
    called = set(code.places_of(code.call[calls["call"].to_numpy()]).tolist())
    silent = sum(line.cost for line in group if line.place not in called)
    likely = min(worth.likely_ns + silent, max(worth.likely_ns, idle), case.step_ns)
    # What goes is idle time and what the lines have on the GPU, collectives with their waits: the replay's error may be on either side.
    gone = case.ops.filter(case.ops["call"].is_in(calls["call"].implode()).fill_null(value=False))
    goes = idle + case.per_step(int((gone["end_ns"] - gone["start_ns"]).sum()))
    most = max(likely, min(likely + (worth.error_ns or 0), goes, case.step_ns))
    theirs = communication(case)["call"].is_in(calls["call"].implode()).fill_null(value=False)
    if later := longer_wait_ns(case, theirs.to_numpy()):
        why = (
            f"{worth.confidence}; {units.duration(later)} of waiting for a later rank comes back in the next collective"
        )
        return replace(worth, likely_ns=max(likely - later, 0), most_ns=most, confidence=why)
    if not group[0].meets or any(line.row["waits"] for line in group):
        return replace(worth, likely_ns=likely, most_ns=None if group[0].meets else round(most))
    # The others wait for this rank while its host is there, in collectives on the GPU: no idle time holds that, and the replay of one rank
    # keeps what the others are late by. At most the whole of it goes, as recorded.
    most = min(sum(case.per_step(line.row["host_self_ns"] * line.part) for line in group), case.step_ns)
    return replace(worth, likely_ns=likely, most_ns=max(most, likely))
