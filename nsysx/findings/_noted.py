"""The lines of an X-ray that hold the CPU while the GPU waits, each with what can be done about it."""

from __future__ import annotations

from pathlib import PurePath

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.catalogue import Call
from nsysx.events.attribute import IN_STEP
from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import flow_of
from nsysx.events.rounds_in_sequence import grows, in_sequence
from nsysx.findings import (
    _copied_weights,
    _late_host_lines,
    _line_causes,
    _line_remedies,
    _looped_parameters,
    _rounds_by_group,
    _same_returned,
)
from nsysx.findings._aside import places_aside
from nsysx.findings._called_in_rounds import calling, in_rounds, with_called
from nsysx.findings._called_together import called_together
from nsysx.findings._case import Case, Fix, Rule, Saving
from nsysx.findings._checked_rounds import is_check
from nsysx.findings._copied_tables import table_of_line
from nsysx.findings._costly_lines import Beside, CostlyLine, lines_beside, with_reads_between
from nsysx.findings._cpu_operators import more_threads
from nsysx.findings._decoded_text import decoded_again
from nsysx.findings._dispatched import dispatched_batches
from nsysx.findings._fields_at_once import fields_at_once
from nsysx.findings._finding_bounds import (
    LOOP_LAUNCHES,
    LOOP_LAUNCHES_IN_MODULE,
    MOST_NOTED_LINES,
)
from nsysx.findings._fix import for_anything
from nsysx.findings._flags_of_ranks import flag_ahead
from nsysx.findings._found import Found
from nsysx.findings._held import guilty
from nsysx.findings._in_calls import in_calls
from nsysx.findings._left_out_calls import guarded, with_whole_calls
from nsysx.findings._lines import OF_MODULE, calls_networks, in_forward, share_of
from nsysx.findings._made_there import for_cpu_data
from nsysx.findings._once import Takes
from nsysx.findings._recurrent_cells import sequence_of
from nsysx.findings._scaled_in_text import in_names_of_program
from nsysx.findings._scanned_loops import or_scan
from nsysx.findings._sent_objects import of_objects
from nsysx.findings._shards_in_words import of_average
from nsysx.findings._values_of_ranks import values_at_once
from nsysx.findings._worth_of_lines import calls_at, worth_of_lines
from nsysx.findings.nsx113_tiny_launches import recurrent
from nsysx.model import Finding, Row
from nsysx.replay.idle_lines import by_line
from nsysx.replay.job_changes import LOADS_KERNEL

_AS_TENSORS = Fix.by_name("tensors-gathered")
#: Phases of a step whose work the weights need; an optimizer may be given the whole step to call (Lightning).
_FOR_WEIGHTS = ("backward", "zero_grad", "clip")
#: What is done about lines that launch much as a loop, whatever it is.
_OF_LOOPS = (*_line_remedies.IN_ONE, _line_remedies.PREALLOCATED)


def found(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for each line that costs 1 % of the step or more, and is not just launching; the costliest first."""
    code = case.profile.code()
    assert code is not None
    noted = by_line(case.profile).filter(pl.col("place") >= 0)
    every, costs = _late_host_lines.idle_of_places(case, code, noted)
    all_idle = _late_host_lines.most_of(case, rule.cause)
    again = _same_returned.made_again(case, rule)
    told_again = frozenset(code.places.row(line_row) for each in again for line_row in each.places)
    rows = {(r["file"], r["line"], r["function"]): r for r in case.typed_rows(lines.ROWS)}
    rows = {site: row for site, row in rows.items() if site not in told_again}
    loads, busy, unneeded = _loads_per_step(case, code), set(guilty(case.profile).tolist()), places_aside(case.profile)
    keep_weights = _copied_weights.functions(case)
    kinds: dict[tuple[object, ...], list[CostlyLine]] = {}
    for line_row, ns in costs.items():
        row = rows.get(code.places.row(line_row))
        if row is None or not case.notable(case.per_step(every[line_row])) or is_check(case.profile, row):
            continue
        launches, text = row["launches"] / case.steps, str(row["text"] or "").partition("  #")[0]
        # What runs at the line that defines a function is all of it as compiled code, and no loop.
        compiled = _line_remedies.defines(text)
        looping = frozenset() if line_row in busy or compiled else _looping(case, code, line_row)
        of_network = OF_MODULE.search(str(row["function"]))  # wrappers of ranks run work of their own there
        for_weights = code.made_at(case.calls, [line_row])["phase"].is_in(_FOR_WEIGHTS).any()
        aside = line_row in unneeded and not of_network and not for_weights
        # Objects go to all ranks as bytes, whose number is exchanged and read first: what holds the host are reads, not code of its own.
        as_objects = row["waits"] >= case.steps and _line_remedies.fix_of(_line_remedies.Seen(text)) == _AS_TENSORS
        if not (line_row in busy or looping or aside or as_objects) or _line_remedies.of_training(text):
            continue
        intercepts = _line_remedies.intercepts(str(row["function"]))
        looping = frozenset() if intercepts else looping  # the operators are the network's, one after the other
        encloses = _line_causes.encloses(case, line_row)
        packages = _line_causes.in_packages(case, code, line_row)
        if encloses and packages.fix is None:
            continue
        # A loop costs what is idle for its launches, too, and so does what need not be done.
        cost = min(case.per_step(every[line_row] if looping or aside else ns), all_idle)
        loop = launches if looping else 0.0  # a line that calls a network makes its launches, but is no loop
        seen = _line_remedies.Seen(text, loads.get(line_row, 0), loop, row["waits"] / case.steps)
        fix = _remedy(case, line_row, row, seen, looping=looping, keep_weights=keep_weights)
        if looping and fix in _OF_LOOPS and _in_sequence(case, code, line_row):
            continue
        below, of_package = packages.file, packages.fix if 2 * packages.share >= 1 else None
        cause = None if encloses else _line_causes.of_line(case, code, line_row, text, below, launches)
        if encloses:
            fix, cost = packages.fix, round(cost * packages.share)
            if not case.notable(cost):
                continue
        elif cause is not None and (fix is None or cause.holds):
            fix = cause.fix
        elif fix is None or (
            fix == _line_remedies.LOGGED
            and of_package == _line_remedies.CALLBACKS
            and not (aside and launches >= LOOP_LAUNCHES)
        ):
            fix = of_package
        if intercepts:
            fix, cause, aside = _line_remedies.PLAIN, None, False
        if (
            aside
            and launches >= 1
            and (fix in (None, _line_remedies.LOGGED) or all(for_anything(way.name) for way in fix.ways))
        ):
            fix = _line_remedies.RARELY
        if fix is None and not looping and of_network and calls_networks(code, line_row):
            continue  # hooks of FSDP, compiled code, and launches: a network's layers cannot move out of the loop
        named = cause if cause is not None and fix is cause.fix else None
        line = CostlyLine(
            line_row, row, cost=cost, seen=seen, looping=looping, fix=fix, aside=aside, below=below, cause=named,
            part=packages.share if encloses else 1.0,
        )  # fmt: skip
        kinds.setdefault(line.kind, []).append(line)
    for key, group in kinds.items():
        kinds[key] = [*group, *Beside(case, code, rows, every, kinds, key).also()]
    together = _rounds_by_group.merged(case, code, rows, every, with_called(case, code, rows, every, kinds))
    kinds = with_whole_calls(case, code, rows, every, with_reads_between(case, code, rows, every, together))
    groups: list[tuple[list[CostlyLine], int | None]] = []
    if (called := called_together(case, code, kinds)) is not None:
        groups.append(([line for key in called.kinds for line in kinds.pop(key)], called.caller))
    groups = [*((group, None) for group in kinds.values()), *groups]
    groups.sort(key=lambda each: -sum(line.cost for line in each[0]))
    findings = [f for group, caller in groups if (f := _one(case, rule, code, group, caller)) is not None]
    return [*(each.finding for each in again), *findings][:MOST_NOTED_LINES]


def _remedy(
    case: Case,
    line_row: int,
    row: lines.CodeLineRow,
    seen: _line_remedies.Seen,
    *,
    looping: frozenset[int],
    keep_weights: frozenset[tuple[str | None, str]],
) -> Fix | None:
    """Return what can be done about a line by what it does, None if that is not known; ``keep_weights``: functions that copy weights."""
    file, line = row["file"], row["line"]
    fix = values_at_once(case.profile, line_row) or decoded_again(case.profile, file, line)
    fix = fix or table_of_line(case, row, calls_at(case, line_row))
    fix = fix or fields_at_once(case, seen.text, calls_at(case, line_row))
    fix = fix or more_threads(case, line_row) or dispatched_batches(case, file, line)
    fix = fix or sequence_of(case, looping) or or_scan(case, row, _line_remedies.fix_of(seen), looping=bool(looping))
    if fix is not None and _line_causes.of_no_parameters(case, line_row, seen.text, fix):
        fix = None
    fix = of_average(case.profile, file, line, of_objects(case.profile, file, line, fix))
    kept = (file, row["function"]) in keep_weights and not row["launches"]
    if fix is not None and for_cpu_data(fix):
        return _copied_weights.made_on_gpu(case, (file, line), fix, calls_at(case, line_row), looping=bool(looping))
    return _copied_weights.ON_GPU if kept else _looped_parameters.in_its_words(case, line_row, fix)


def _one(case: Case, rule: Rule, code: CodeLines, group: list[CostlyLine], caller: int | None) -> Finding | None:
    """Return the finding about lines of one kind, the costliest first; None where the replay shows that they cost little.

    ``caller``: they are of several kinds, and this line (place) calls all of them.
    """
    group = sorted(group, key=lambda line: (line.rounds > 0, -line.cost))
    first, fix, text = group[0], group[0].fix, group[0].seen.text
    calls = frozenset[int]().union(*(line.looping for line in group))
    cost = min(sum(line.cost for line in group), _late_host_lines.most_of(case, rule.cause))
    if (fix is None and calls) or not case.notable(cost):
        return None
    worth, rows = worth_of_lines(case, rule, code, group, calls), [line.row for line in group]
    worth = worth if calls else _late_host_lines.without_on_all_ranks(case, rows, fix, worth)
    idles, idle_time = _late_host_lines.idles_in_words(case, rows, cost)
    if calls and not case.notable(worth.likely_ns or 0):
        return None
    host = max(sum(case.per_step(line.row["host_self_ns"] * line.part) for line in group), cost)
    there = f"{PurePath(str(first.row['file'])).name}:{first.row['line']}"
    quote = f" `{_line_remedies.quoted(text)}`" if text else f" {first.row['function']}"
    called, more = in_rounds(group), ""
    if beside := lines_beside(group):
        more = f" and {units.several(len(beside), 'line')} beside it"
    if called:
        more += f" and {units.several(len(called), 'line')} that it calls"
    hold = "hold" if more else "holds"
    per = f"{case.per} as recorded" if host > case.step_ns else case.per  # more than the whole step without a profiler
    title = f"{there}{quote}{more} {hold} the CPU for {units.duration(host)} {per}; {idles}"
    cut = _line_remedies.quoted(text) != text
    noted = f"The X-ray noted this line{f': {text}' if cut else ''}."
    if beside:
        others = (str(line.row["line"]) for line in beside if case.notable(line.cost))
        noted += f" The same holds for line {' and '.join(others) or beside[0].row['line']}."
    noted += calling(called)
    launches, waits = sum(line.row["launches"] for line in group) / case.steps, sum(line.seen.waits for line in group)
    waiting = f" and waits {waits:.0f} times" if waits >= 1 else ""
    why_not = f" Launches ({launches:.3g} a step) are not why: fewer would not shorten it." if launches >= 1 else ""
    if first.aside:
        why_not = f" It makes {launches:.0f} launches in a step{waiting}, and no gradient needs what it computes."
    detail = (
        f"{noted} As a loop it makes {launches:.0f} launches in a step{waiting}, while {idles}."
        if calls and not first.aside
        else f"{noted} It takes {units.duration(host)} of the host's time {per}, {units.duration(cost)} of that while "
        f"{idle_time}.{why_not}"
    )
    title, detail, fix = in_calls(case, code, group, f"{units.duration(host)} {per}; {idles}", (title, detail, fix))
    if first.cause is not None:
        detail += first.cause.why
    if first.below:
        detail += f" Most of its time is in {first.below}."
    if (loads := sum(line.seen.loads for line in group)) >= 1:
        detail += (
            f" It builds and loads {units.several(round(loads), 'kernel')} {case.per}: sizes are new in each step."
        )
    if fix is not None:
        fix = guarded(code, case, _line_remedies.counted_only(fix, text, str(first.below)), group)
        fix = in_names_of_program(case.profile, first.row["file"], first.row["line"], fix)
    if first.meets and (ahead := flag_ahead([text], [line.seen.text for line in group])) is not None:
        fix = Fix.by_name(ahead)
    loops = list(dict.fromkeys(line.cause.looped for line in group if line.cause is not None and line.cause.looped))
    if fix is not None and loops[1:]:
        fix = fix.but(text=f"{fix.text}. The same for {' and '.join(loops[1:])}")
    evidence: list[Row] = []
    if fix == _line_remedies.DELIVERED and (beat := _line_causes.beat_of(case)) is not None:
        evidence = [{"beat_ns": round(beat)}]
        fix = fix.but(
            text=f"Nothing makes this come sooner: it comes by a clock, every {units.duration(beat)}", condition=""
        )
        worth = Saving(None, "what comes by a clock comes no sooner")
    where = {"file": first.row["file"], "line": first.row["line"]}
    if caller is not None and fix is not None:
        file, number, _ = code.places.row(caller)
        called_at = f"{PurePath(str(file)).name}:{number}"
        title = f"{called_at} calls what holds the CPU for {units.duration(host)} {per}; {idles}"
        detail = f"{called_at} calls all of it in each step: {there}{quote}{more}. {detail}"
        fix = fix.but(text=f"Call this less often, or make it faster: most of its time is at {there}. {fix.text}")
        where = {"file": file, "line": number}
    shares = [share_of(case.profile, line.place) * line.part for line in group]
    takes = Takes(idle=np.clip(np.sum(shares, axis=0), 0.0, 1.0))
    return Found(
        rule,
        title,
        detail,
        worth=worth,
        cost_ns=cost,
        where=where,
        fix=fix or _line_remedies.unnamed(str(first.row["function"]), launches),
        takes=takes,
        evidence=evidence,
    ).as_finding(case)


def _loads_per_step(case: Case, code: CodeLines) -> dict[int, float]:
    """Return place -> how many kernels it loads in a step; calls that only look up what is loaded are none."""
    calls = case.calls.filter(LOADS_KERNEL)["call"].to_numpy()
    line_row, often = np.unique(code.places_of(code.call[calls]), return_counts=True)
    return dict(zip(line_row.tolist(), (often / case.steps).tolist(), strict=True))


def _looping(case: Case, code: CodeLines, line_row: int) -> frozenset[int]:
    """Return the launches that a line makes as a loop: those outside of all modules and phases, and many in one module.

    A line outside of networks that calls one is no loop, nor is one call of a recurrent layer of torch.
    """
    calls = case.calls.filter(case.calls["kind"].is_in(Call.LAUNCHES))
    theirs = code.made_at(calls, [line_row])
    module = theirs["module"].cast(pl.String).fill_null(IN_STEP)
    outside = theirs["phase"].is_null() & (module == IN_STEP)
    often = theirs.select(pl.len().over("module")).to_series() if theirs.height else pl.Series([], dtype=pl.UInt32)
    alone = theirs["call"].filter(outside)
    loop = alone if len(alone) >= LOOP_LAUNCHES * case.steps else alone.clear()
    of_program = np.append(code.own, -1)[code.call[theirs["call"].to_numpy()]]
    within = pl.Series(in_forward(code, of_program), dtype=pl.Boolean)
    of_layer = within & ~outside & (module != IN_STEP) & ~module.is_in(list(recurrent(case)))
    inside = theirs["call"].filter(of_layer & (often >= LOOP_LAUNCHES_IN_MODULE * case.steps))
    return frozenset(loop.to_list()) | frozenset(inside.to_list())


def _in_sequence(case: Case, code: CodeLines, line_row: int) -> bool:
    """Return whether the rounds in which a line runs need one another, and grow no tensor: no single operation can take their place."""
    flow = flow_of(case.profile)
    if flow is None:
        return False
    there = code.places_of(code.at(flow.thread, flow.start_ns)) == line_row
    return in_sequence(flow, there) and not grows(flow, there)
