"""NSX111 straggler: one rank arrives last at the collectives in step after step, and all others wait for it.

What it means
    A collective ends when its last rank has arrived. The time that the others spend in it until then is waiting, not transfer;
    faster links change nothing. A rank is named only when its own time per step, without its waiting, exceeds the median of
    its peers in step after step, and by more than two healthy processes differ in host code; a rank that is late
    in host code also has to come last in an earlier window, where there is one. The saving comes from a replay of all ranks
    together, in which this rank takes no longer than its peers. A rank that is late in a few steps alone, because it saves in each
    tenth, say, is named with these; one that evaluates between steps while all others wait, with what they gain by sharing that.

In the trace
    The same NCCL kernel is long on all ranks but one.

Bad
    sampler = RandomSampler(data)                      # rank 3 gets the long sequences
    if rank == 0: evaluate(model)                      # all others wait in the next collective

Good
    sampler = DistributedSampler(data, shuffle=True)   # and batches of equal length on every rank

Harmless when
    A different rank is last in each step: that is noise, and fewer collectives reduce it. In a pipeline the stages wait for
    each other by nature: that is the bubble, which more micro-batches shrink.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from nsysx import units
from nsysx.catalogue import Late, StepPart, Surplus
from nsysx.findings import _late_at_times, _late_rank_lines, _loop_worth
from nsysx.findings._case import Case, Fix, Rule, Saving
from nsysx.findings._dispatched import read_by_one_rank
from nsysx.findings._even_attention import in_parts
from nsysx.findings._finding_bounds import MOST_SHARE, RANK_WORK_LEADS_SHARE
from nsysx.findings._lone_averages import kept_on_gpu, with_all_that_goes
from nsysx.findings._lone_updates import updated_by_one
from nsysx.findings._long_step_lines import line_of_one_rank
from nsysx.findings._owned_updates import owned_unevenly
from nsysx.findings._rank_rows import profile_of, rank_rows, straggler_of
from nsysx.findings._roles_in_turn import in_turn
from nsysx.findings._shares_of_ranks import without_sampler
from nsysx.findings._uneven_experts import placed_by_load
from nsysx.findings._uneven_tables import placed_by_cost
from nsysx.findings._zigzag_parts import in_names_of_lines
from nsysx.judging import late_kinds, rank_waiting
from nsysx.judging.other_work import FASTER_ALONE, others_of_gpu
from nsysx.model import Finding, Row, Table
from nsysx.replay.engine import Withheld, unprofiled_of
from nsysx.step_time import Unprofiled

RULE = Rule("NSX111", "straggler", "Straggler rank", cause=(StepPart.COMM,), about="late rank", same_time=("NSX110",))
_NO_FIX = Fix("")
_EQUAL_ATTENTION = Fix.by_name("equal-attention")


def check(case: Case) -> list[Finding]:
    """Return what the table of ranks says of the steps, see ``of_ranks``, and what one rank does alone between them."""
    if in_turn(case.profile) is not None:  # each rank has work of its own kind, and waits for the other's
        return case.clear(RULE, "the ranks do work of their own kind, and wait for each other in turn")
    late, alone = of_ranks(case.ranks), _evaluating_alone(case)
    late = _late_at_times.in_its_steps(case, late)
    late = _beside_each_other(case, with_all_that_goes(case, kept_on_gpu(case, late)))
    placed = placed_by_cost(case, late) or placed_by_load(case, late)
    placed = placed or owned_unevenly(case, late) or updated_by_one(case, late)
    late = placed or read_by_one_rank(case, late) or without_sampler(case, late)
    if late.fix == _EQUAL_ATTENTION.text:
        late = in_names_of_lines(case, _EQUAL_ATTENTION, late)
    if late.verdict == "found":
        return alone if alone and _late_by_evaluations(case) else [late, *alone]
    return [*alone, *_late_at_times.findings_of(case, RULE)] or [late]


def _beside_each_other(case: Case, late: Finding) -> Finding:
    """Return a finding about a rank with more GPU work as a bound where ranks share a GPU: one computes faster while the other waits.

    Tried with two ranks on one H200 (MPS), one of which had 17 ms more: replayed evenly 9.2 of 97 ms, 1.8 of them measured.
    """
    row = straggler_of(case)
    if row is None or row["even_ns"] is None or late.saving.likely_ns is None or not others_of_gpu(case.profile):
        return late
    why = f"{FASTER_ALONE}; {late.saving.confidence}"
    return replace(late, saving=replace(late.saving, bound=True, confidence=why))


def _late_by_evaluations(case: Case) -> bool:
    """Return whether most of what a straggler is late by are its own evaluations, for which the others wait."""
    late = straggler_of(case)
    if late is None:
        return False
    evaluates_ns = sum(each["ns"] for each in late["lone_work"] or ())
    return bool(evaluates_ns >= MOST_SHARE * late["late_ns"] * max(late["steps"], 1))


def _evaluating_alone(case: Case) -> list[Finding]:
    """Return a finding about the rank that evaluates between steps while others wait, for each one that does.

    Its own steps hold nothing of it, and the step behind it is that much longer on the others: what it costs is how much longer its step
    is with what runs between steps, as its process measured; where it did not, as often as it was recorded.
    """
    rows = rank_rows(case)
    findings = []
    for row in rows:
        times = row.get("lone_work") or ()
        if not times:
            continue
        real = _unprofiled_of(case, row["process"])
        between = 0 if real is None or real.loop_ns is None else max(real.loop_ns - real.step_ns, 0)
        longest = max(times, key=lambda t: t["ns"])
        collective = {k: longest[k] for k in ("file", "line") if longest[k]}
        waiting = units.several(longest["ranks"], "rank")
        steps = max(int((case.profile.steps.gpu["process"] == case.process).sum()), 1)
        each = sum(t["ns"] for t in times) / steps
        less, shared = each * (1 - 1 / len(rows)), None
        leads = less >= RANK_WORK_LEADS_SHARE * (case.step_ns + each)
        size = (
            f"as recorded it runs {units.several(len(times), 'time')} in {steps} steps, {units.duration(each)} for each of them: shared by "
            f"{len(rows)} ranks {units.duration(less)} of that go; how often it runs else was not timed"
        )
        if between and real is not None and real.loop_ns is not None:
            then = real.loop_ns - round(between * (1 - 1 / len(rows)))
            leads = real.loop_ns - then >= RANK_WORK_LEADS_SHARE * real.loop_ns
            shared = _loop_worth.of_loop(real, real.loop_ns - then)
            size = f"{_loop_worth.in_words(real, real.loop_ns - then)}, where {len(rows)} ranks share it"
        findings.append(
            _answer(
                "found",
                f"Rank {row['rank']} alone evaluates between steps, for {units.duration(longest['ns'])}; {waiting} more "
                f"wait{'s' if longest['ranks'] == 1 else ''} for it",
                f"Others wait in {longest['collective']} until rank {row['rank']} comes from its evaluation. No step holds it"
                + (f"; spread over all, it takes {units.duration(between)} of a step." if between else "."),
                cost_ns=between or None,
                saving=Saving(None, size),
                fix=Fix.by_name("shared-evaluation"),
                where={**(line_of_one_rank(case, row["process"]) or collective), "near": f"rank {row['rank']}"},
                evidence=(
                    {"part": "evaluation of one rank", "waits_ns": longest["ns"], "leads": leads, **(shared or {})},
                ),
            )
        )
    return findings


def _unprofiled_of(case: Case, process: int) -> Unprofiled | None:
    """Return the step of a rank without tracing, None where it is not known."""
    profile = profile_of(case, process)
    real = None if profile is None else unprofiled_of(profile)
    return None if isinstance(real, Withheld) else real


def of_ranks(table: Table | None) -> Finding:
    """Return whether the ranks wait for one of them for 1 % of the step or more, by the table that compares all ranks."""
    if table is None or table.rows is None:
        reason = (table.reason if table else "") or "the report holds one rank"
        return _answer("cannot_tell", RULE.title, reason, fix=Fix("nsysx report RANK0.sqlite RANK1.sqlite ..."))
    matched = [r for r in table.rows if r["wait_ns"] is not None]
    late = next((r for r in table.rows if r["straggler"]), None)
    if len(matched) < 2 and late is None:  # where ranks meet on the host alone, no collective is seen
        fix = Fix("Capture the same steps on every rank")
        return _answer("cannot_tell", RULE.title, "no collective is seen on two ranks", fix=fix)
    if late is None:
        return _no_straggler(table.rows)
    cause = Late.named(late["late_cause"])
    if late["late_by_work"] and cause is Late.COMPUTE:
        return _more_work(late)
    detail = (
        f"Its own time exceeds the median of its peers by {units.duration(late['late_ns'])} per step "
        f"({units.duration(late['late_low_ns'])} to {units.duration(late['late_high_ns'])}), mostly {cause.label}. "
        f"If this rank were like its peers, {units.share(late['price_share'], 1)} of what unequal ranks cost would be gone; if it were "
        f"the only late one, {units.share(late['alone_share'], 1)} would remain."
    )
    if cause is Late.HELD_CLOCK:
        detail += f" {_clocks(late, table.rows)}"
    if late["late_drift_ns"]:
        detail += f" Two healthy processes may differ by {units.duration(late['late_drift_ns'])} anyway."
    even_ns = late["even_ns"]
    if even_ns is not None:
        detail += (
            f" Spread evenly over the ranks, the work saves {units.duration(even_ns)} per step; if the extra work can go, "
            f"{units.duration(late['price_ns'])}."
        )
    why = list((late["late_because"] or {}).items())
    line = _late_rank_lines.holds(late)
    if line is not None:
        detail += f" {_late_rank_lines.line_in_words(line)} takes {_late_rank_lines.line_by_ranks(line)}."
    detail += _kinds_in_words(late)
    fix = _more_of(late, cause) if line is None else _late_rank_lines.fix_of(line, late)
    saving = Saving(
        late["price_ns"] if even_ns is None else even_ns,
        f"all ranks replayed together, {units.share(late['replay_error'], 1)} off the recorded steps",
        bound=late["late_by_work"],
        source="replay",
    )
    if fix == _EQUAL_ATTENTION and even_ns is not None:
        saving = in_parts(saving, late, table.rows)
    return _answer(
        "found",
        f"Rank {late['rank']} takes {units.duration(late['late_ns'])} per step longer than its peers, which wait for it"
        + (f": its GPU runs at {rank_waiting.gpu_clock(late)}" if cause is Late.HELD_CLOCK else "")
        + (": another process has its GPU in turn" if cause is Late.SHARED_GPU else ""),
        detail,
        cost_ns=late["late_ns"],
        saving=saving,
        fix=fix,
        where=_place(late, line),
        evidence=(
            *({"part": part.replace("_", " "), "more than others_ns": ns} for part, ns in why[:5]),
            *_kinds(late),
            *_kernels(late),
            *_late_rank_lines.lines_as_evidence(late),
        ),
    )


def _clocks(late: Row, rows: Sequence[Row]) -> str:
    """Return a sentence on the clock of a rank's GPU beside those of the others."""
    there = [r["clock_mhz"] for r in rows if r is not late and r["clock_mhz"] is not None]
    span = f"{min(there):.0f}" + (f" to {max(there):.0f}" if max(there) - min(there) >= 1 else "")
    return f"Its GPU worked at {rank_waiting.gpu_clock(late)}, the others at {span} MHz."


def _place(late: Row, line: Row | None) -> Row:
    """Return where a rank is late: at the line that holds its host, or that launches the one kind of work it has more of."""
    held = _one_kind(late) if line is None else line
    return {"near": f"rank {late['rank']}"} | (
        {"file": held["file"], "line": held["line"]} if held and held["file"] else {}
    )


def _one_kind(late: Row) -> Row | None:
    """Return the kind of work that a rank has more of, where it has as much of all others as its peers; else None."""
    return dict(late["late_work"][0]) if late["late_spread"] in (Surplus.ONE, Surplus.LONE) else None


def _kinds_in_words(late: Row) -> str:
    """Return a sentence about the kinds of work that a rank has more of, "" where those were not noted."""
    if not late["late_work"] or late["late_spread"] is None:
        return ""
    first = late["late_work"][0]
    there = f"{late_kinds.of_row(first)} ({units.duration(first['ns'])} per step and {units.duration(first['others_ns'])} on its peers)"
    if late["late_spread"] == Surplus.LONE:
        lines = [f"{late_kinds.of_row(kind)} ({units.duration(kind['ns'])} per step)" for kind in late["late_work"]]
        return f" None of that runs on its peers, which have as much of all else: {', '.join(lines)}."
    if late["late_spread"] == Surplus.ONE:
        return f" All that is in {there}; every other kind of work takes as long as theirs."
    if late["late_spread"] == Surplus.EVERY:
        return f" All kinds of its work take longer by a like share: it has more data. The largest part is in {there}."
    return f" The largest part of its GPU work that takes longer is in {there}."


def _more_of(late: Row, cause: Late) -> Fix:
    """Return what to do about a rank that is late for this cause, by the kind of work that it has more of."""
    kind = _one_kind(late) if cause is Late.COMPUTE else None
    if kind is None:
        return _FIXES[cause]
    if late["late_spread"] == Surplus.LONE:
        line = _late_rank_lines.line_in_words({**kind, "lines": 1})
        return Fix(
            f"Only rank {late['rank']} runs {line}: do it less often, share it between the ranks, or take it out of the step"
        )
    if kind["kind"] == "attention":
        return _EQUAL_ATTENTION
    if kind.get("dealt"):
        return Fix.by_name(
            "dealt-by-cost",
            text=f"Deal out by cost, not by number, what each rank computes here: rank {late['rank']} has more "
            f"{late_kinds.of_family(kind)} ({units.duration(kind['ns'] - kind['others_ns'])} a step), and as much of all else as its peers",
        )
    who = f"rank {late['rank']} has more of it, and as much of everything else as its peers"
    return Fix(f"Give every rank the same amount of {late_kinds.of_row(kind)}: {who}")


def _kinds(late: Row) -> tuple[Row, ...]:
    """Return in which kinds of work a straggler takes longer, as evidence."""
    return tuple(
        {"work": late_kinds.with_kernels(kind), "in a step_ns": kind["ns"], "on its peers_ns": kind["others_ns"]}
        for kind in late["late_work"] or ()
    )


def _more_work(late: Row) -> Finding:
    """Return the finding about a rank whose GPU work alone is longer than that of its peers, where tracing hides it."""
    even = units.duration(late["even_ns"])
    return _answer(
        "found",
        f"Rank {late['rank']} has {units.duration(late['late_ns'])} more GPU work per step than its peers, which wait for it",
        f"By its GPU work alone it is behind the median of its peers by {units.duration(late['late_ns'])} per step "
        f"({units.duration(late['late_low_ns'])} to {units.duration(late['late_high_ns'])}), and that work takes as long as a step without "
        "the profiler. In the recorded steps tracing slows the hosts and hides it. Spread evenly over the ranks, the work saves up to "
        f"{even} per step: less where host code takes longer than the work that is left.{_kinds_in_words(late)}",
        cost_ns=late["late_ns"],
        saving=Saving(
            late["even_ns"],
            f"all ranks replayed together, {units.share(late['replay_error'], 1)} off the recorded steps",
            bound=True,
            source="replay",
        ),
        fix=_more_of(late, Late.COMPUTE),
        where=_place(late, None),
        evidence=(*_kinds(late), *_kernels(late)),
    )


def _kernels(late: Row) -> tuple[Row, ...]:
    """Return in which kernels the work of a straggler differs, as evidence."""
    return tuple(
        {
            "kernel": k["kernel"],
            "in what": k["how"],
            "in a step_ns": k["ns"],
            "on its peers_ns": k["others_ns"],
        }
        for k in late["late_kernels"] or ()
    )


#: What to do about a straggler.
_FIXES: dict[Late, Fix] = {
    Late.INPUT: Fix(
        "Give it the same workers, prefetch and storage as the other ranks, and samples no longer than theirs: its data loading "
        "is slow (NSX106)"
    ),
    Late.HOST: Fix(
        "Find what slows the CPU of this rank: other processes on its cores, cores far from its GPU, garbage collection, logging "
        "or saving on this rank only"
    ),
    Late.CALLS: Fix(
        "Make the calls that only this rank makes less often, or together: values read in each step (.item(), norms, metrics), logging, "
        "saving"
    ),
    Late.PROFILER: Fix("Capture again with less tracing: the profiler itself holds this rank up"),
    Late.COMPUTE: Fix.by_name("equal-work"),
    Late.CLOCKS: Fix("Check clocks, power and temperature of its GPU: nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE"),
    Late.HELD_CLOCK: Fix.by_name("cool-gpu"),
    Late.SHARED_GPU: Fix.by_name("own-gpu"),
    Late.UNKNOWN: Fix("Capture more steps of all ranks"),
}


def _no_straggler(rows: Sequence[Row]) -> Finding:
    """Return that there is no straggler, with the pipeline's bubble and a delay too small to count, where there are any."""
    behind = next((r for r in rows if r["late_ns"] is not None), None)
    detail = f"{rank_waiting.sentence(rows)}."
    if behind is not None:
        detail += (
            f" Rank {behind['rank']} is behind by {units.duration(behind['late_ns'])}, no more than the host code of two "
            "healthy processes may differ, above all under a profiler."
        )
    if any(r["bubble_ns"] is not None for r in rows):
        detail += " More micro-batches shrink the bubble."
    return _answer("clear", RULE.title, detail)


def _answer(
    verdict: Literal["found", "clear", "cannot_tell"],
    title: str,
    detail: str,
    *,
    cost_ns: int | None = None,
    saving: Saving | None = None,
    fix: Fix = _NO_FIX,
    where: Row | None = None,
    evidence: tuple[Row, ...] = (),
) -> Finding:
    finding = Finding(
        RULE.code,
        RULE.slug,
        verdict=verdict,
        title=title,
        detail=detail,
        where=where or {},
        cost_ns_per_step=cost_ns,
        saving=saving or Saving(),
        fix="",
        evidence=evidence,
    )
    return fix.into(finding)
