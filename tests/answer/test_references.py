"""What leads, what it saves, what is drawn and what else is listed, against slow references on random findings and tables."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Any

import pytest

from nsysx.advice import Alternative, BarPart, Condition
from nsysx.analyses import (
    alloc_flushes,
    api_calls,
    gpu_ledger,
    kernel_families,
    kernels,
    lines,
    modules,
    waits,
)
from nsysx.answer import (
    _led_by_replay,
    bars,
    certainty,
    change_savings,
    factors,
    first_action,
    others,
    time_places,
    unstepped,
)
from nsysx.answer.answer_bounds import (
    BOUND_LEADS_TIMES,
    BOUND_OF_ANYTHING_SHARE,
    COMPILER_LEADS_TIMES,
    EXACT_CHANGE_SHARE,
    LEAST_LEADING_SHARE,
    LEAST_REST_NS,
    LITTLE_SAVING_SHARE,
    LONG_WAIT_SHARE,
    MOST_ALSO_FOUND,
    MOST_BARS,
    MOST_CHANGES_BEFORE,
    MOST_NAMED_PARTS,
    MOST_OF_A_RULE,
    MOST_SAVED_SHARE,
    MOST_UNNAMED_SHARE,
    MOSTLY_BUSY_SHARE,
    RECORDED_DIRECTNESS,
    SAME_WORK_SHARE,
    SMALL_PART_SHARE,
    TRIED_LEAST_POWER,
    TRIED_MOST_POWER,
    UNKNOWN_SAVING_COST_SHARE,
    UNPRICED_CAUSE_SHARE,
    WORK_REPEATS_SHARE,
)
from nsysx.catalogue import StepLimit
from nsysx.findings import for_anything, rule_of
from nsysx.model import Finding, Row, Summary
from nsysx.ranks import rank_table
from nsysx.saving import NOTABLE, Saving
from tests.answer.test_factors import job
from tests.answer.test_rules_of_the_answer import MS, found, of_20_ms, with_rows
from tests.random_tables import always, rounds

STEP = 20 * MS
CODES = (
    "NSX101",
    "NSX102",
    "NSX102",
    "NSX113",
    "NSX105",
    "NSX112",
    "NSX113",
    "NSX116",
    "NSX123",
    "NSX126",
    "NSX109",
    "NSX119",
)
CAUSES = (StepLimit.LAUNCH, StepLimit.SYNC, StepLimit.GPU, StepLimit.COPY)


@functools.cache
def limited_by(code: StepLimit) -> Summary:
    """Return the Summary of a step of 20 ms without findings: made once, it takes a hundred times as long as what is asked of it."""
    return of_20_ms(code)


def made_finding(source: random.Random, *, of_launches: bool = False) -> Finding:
    """Return a finding with a saving of any kind, with or without what it needs; ``of_launches``: it is about them or about waits."""
    ms = source.choice((None, None, 0.3, 3, 14) if of_launches else (None, 0.1, 0.3, 2, 3, 6, 9, 14))
    most_ms = None if ms is None else source.choice((None, ms + 1, ms * 1.5))
    needs = source.choice(
        (
            (),
            (),
            (),
            (Condition("a", "violated", "seen", mend=source.choice(("", "mend"))),),
            (Condition("b", "holds", ""),),
        )
    )
    mended = source.choice((None, Saving(round(4 * MS), most_ns=source.choice((None, 5 * MS)))))
    remedies = source.choice(((), ("fused",), ("compile",), ("compile,fused",), ("sync",), ("fused", "sync")))
    return found(
        source.choice(CODES[:4] if of_launches else CODES),
        ms,
        bound=source.random() < 0.4,
        error_ns=source.choice((0, 0, MS // 2, 2 * MS, None)),
        source=source.choice(("", "replay", "replay", "time", "limits", "steps")),
        most_ns=None if most_ms is None else round(most_ms * MS),
        conditions=needs,
        mended=mended,
        paste=source.choice(("", "change()")),
        remedies=tuple(Alternative(n, n) for n in remedies),
        cost_ns_per_step=source.choice((None, 0, MS, 7 * MS, 12 * MS)),
        where=source.choice(({}, {"line": 3, "file": "t.py"}, {"phase": "forward"})),
        unexplained=source.random() < 0.15,
        title=source.choice(("*: slow", "blocks.3 slow", "slow 14", "slow 15")),
        overlaps=source.choice(((), (0,), (0, 1))),
        verdict=source.choice(("found", "found", "found", "clear")),
    )


def made_summary(source: random.Random) -> Summary:
    of_launches = source.random() < 0.4
    made = [made_finding(source, of_launches=of_launches) for _ in range(source.randrange(7))]
    made.sort(key=lambda f: -(f.saving.likely_ns or 0))
    replay = source.choice((None, {"trusted": True}, {"trusted": True}, {"trusted": False}))
    summary = replace(
        limited_by(StepLimit.LAUNCH if of_launches else source.choice(CAUSES)), findings=tuple(made), replay=replay
    )
    return replace(summary, unprofiled=source.choice((None, job().unprofiled)))


def violated(f: Finding) -> bool:
    return any(c.state == "violated" for c in f.conditions)


def alone_ns(f: Finding) -> int | None:
    """What it saves by the replay, with what has to be mended."""
    if violated(f) and f.saving.mended is not None:
        return min(f.saving.mended.likely_ns or 0, STEP)
    return None if f.saving.likely_ns is None else min(f.saving.likely_ns, STEP)


def shows_likely(f: Finding) -> bool:
    if violated(f):
        return f.saving.mended is not None and f.saving.mended.most_ns is not None
    return f.saving.bound and f.saving.source == "replay"


def bounded(f: Finding) -> bool:
    return (f.saving.bound or violated(f)) and not shows_likely(f)


def before_of(summary: Summary, chosen: Finding) -> list[Finding]:
    """Exact changes that come before a bound for the launches of the whole program."""
    if chosen.code != "NSX102" or not chosen.saving.bound:
        return []
    parts = set(chosen.remedies[0].name.split(",")) if chosen.remedies else set()
    told = []
    for f in summary.findings or ():
        ns = f.saving.likely_ns or 0
        if f.verdict != "found" or f is chosen or f.saving.bound or violated(f) or ns < NOTABLE * STEP:
            continue
        if f.remedies and set(f.remedies[0].name.split(",")) <= parts:
            continue
        about = rule_of(f.code).about
        in_model = f.where.get("phase") == "forward"
        if (about == StepLimit.SYNC and ns > (f.saving.error_ns or 0) and not in_model) or (
            about == StepLimit.LAUNCH and f.paste
        ):
            told.append(f)
    return told[:MOST_CHANGES_BEFORE]


def with_before(summary: Summary, chosen: Finding, ns: int | None) -> int | None:
    if ns is None:
        return None
    names = chosen.remedies[0].name.split(",") if chosen.remedies else [""]
    compiles = shows_likely(chosen) and names[0].startswith("compile") and "fused" not in names
    for f in before_of(summary, chosen):
        if compiles or rule_of(f.code).about != rule_of(chosen.code).about:
            ns += f.saving.likely_ns or 0
    return min(ns, STEP)


def test_what_a_change_saves_with_what_comes_before_and_has_to_be_mended() -> None:
    seen = 0
    for source in rounds(150):
        summary = made_summary(source)
        for f in summary.findings or ():
            assert change_savings.changes_before(summary, f) == before_of(summary, f)
            seen += bool(before_of(summary, f))
            assert change_savings.shows_likely_saving(f) == shows_likely(f)
            assert change_savings.is_bound(summary, f) == bounded(f)
            assert change_savings.likely_alone_ns(summary, f) == alone_ns(f)
            assert change_savings.likely_ns(summary, f) == with_before(summary, f, alone_ns(f))
            most = summary.step.saves_at_most_ns(f.saving)
            if violated(f) and f.saving.mended is not None:
                most = f.saving.mended.most_ns or f.saving.mended.likely_ns
            assert change_savings.saving_ns(summary, f) == with_before(summary, f, most)
    assert seen > 10


def margins_of(summary: Summary, f: Finding) -> tuple[int, int] | None:
    """How much less and more it may save: its error, what was tried of the kind, and what is open; no less than nothing."""
    ns, error, of = change_savings.likely_ns(summary, f), f.saving.error_ns or 0, f.saving
    if ns is None or bounded(f):
        return None if of.error_ns is None else (error, error)
    if of.source == "limits":
        return min(error, ns), max(0, (of.most_ns or ns) - ns)
    factor = min(STEP / max(STEP - ns, 1), 1 / (1 - MOST_SAVED_SHARE))
    low, high = (round(STEP - STEP / factor**power) for power in (TRIED_LEAST_POWER, TRIED_MOST_POWER))
    tried = max(0, ns - low), max(0, high - ns)
    if of.source == "replay":
        less, more = tried[0] + error, tried[1] + error
    else:
        less, more = max(tried[0], error), max(tried[1], error)
    most = change_savings.saving_ns(summary, f) if shows_likely(f) else of.most_ns
    if shows_likely(f) or of.most_ns is not None:
        most = most or ns
        left = max(0, most + round(WORK_REPEATS_SHARE * max(0, STEP - most)) - ns)
        says_itself = of.source == "replay" and not of.bound and of.most_ns is not None
        more = max(more, left) if says_itself else min(more, left)
    idles = rule_of(f.code).about in (StepLimit.LAUNCH, StepLimit.SYNC)
    if idles and not of.bound and summary.unprofiled is not None:
        more = min(more, max(0, round(STEP * 0.6) - ns, (of.most_ns or 0) - ns))  # the GPU works 8 of 20 ms
    # None of these changes has work of its own: at least nothing is saved.
    return min(less, ns), more


def test_how_far_off_a_saving_may_be_and_the_step_after_it() -> None:
    for source in rounds(150):
        summary = made_summary(source)
        for f in summary.findings or ():
            margins = margins_of(summary, f)
            assert change_savings.margins_ns(summary, f) == margins
            saving, then = change_savings.saving_ns(summary, f), change_savings.after(summary, f)
            if saving is None:
                assert then == change_savings.After()
            elif bounded(f):
                assert then == change_savings.After(STEP - saving, STEP - saving, STEP)
            else:
                best, told = None, saving
                if shows_likely(f):
                    best, told = STEP - saving, min(saving, change_savings.likely_ns(summary, f) or 0)
                assert (then.ns, then.best_ns) == (STEP - told, best)
                if margins is not None:
                    low = STEP - min(STEP, told + margins[1])
                    assert then.high_ns == STEP - max(0, told - margins[0])
                    assert then.low_ns == (low if best is None else min(STEP - told, max(low, best)))


def factors_of(summary: Summary, f: Finding, ns: int, margins: tuple[int, int] | None) -> tuple[float, ...]:
    real, about = summary.unprofiled, rule_of(f.code).about
    if real is None:
        if f.saving.source not in ("time", "limits") or margins is None:
            return ()
        low, high = max(0, ns - margins[0]), min(ns + margins[1], round(MOST_SAVED_SHARE * STEP))
        return round(STEP / (STEP - low), 3), round(STEP / (STEP - high), 3)
    busy, told = 8 * MS, []
    error = 0 if f.saving.bound else f.saving.error_ns or 0
    less, more = margins or (error, error)
    for step in (10 * MS, 30 * MS, STEP):
        for saved in (max(0, ns - less), ns + more):
            if about == "slow steps":
                told.append(max(1.0, step / max(STEP - saved, (1 - MOST_SAVED_SHARE) * STEP)))
                continue
            of_idle = min(saved, STEP - busy) if about in (StepLimit.LAUNCH, StepLimit.SYNC) else 0
            idle_then = of_idle * max(0, step - busy) / (STEP - busy)
            least = (STEP - min(saved, MOST_SAVED_SHARE * STEP)) * min(1, step / STEP)
            told.append(step / max(step - idle_then - (saved - of_idle), least))
    return round(min(told), 3), round(max(told), 3)


def test_how_many_times_as_fast_a_step_between_bounds_is_then() -> None:
    for source in rounds(120):
        summary, f = made_summary(source), made_finding(source)
        ns, margins = source.choice((MS, 9 * MS, 18 * MS)), source.choice((None, (MS, 2 * MS)))
        assert factors.factor_bounds(summary, f, ns, margins) == pytest.approx(
            factors_of(summary, f, ns, margins), abs=1e-3
        )


# --- what leads -----------------------------------------------------------------------------------------------------------


def names_its_change(f: Finding) -> bool:
    return bool(f.remedies) and not for_anything(f.remedies[0].name)


def for_whatever(f: Finding) -> bool:
    return bool(f.remedies) and not names_its_change(f) and not rule_of(f.code).leads


def leading(summary: Summary, worth: list[Finding]) -> Finding:
    """The one that saves most, or what goes before it: a cause, work of a place, an exact change, the verdict's cause, what names it."""
    causes = [f for f in worth if not (f.unexplained and f.where.get("line"))] or worth
    saves = {id(f): alone_ns(f) or 0 for f in causes}

    def largest(of: list[Finding]) -> Finding:
        return next(f for f in of if saves[id(f)] == max(saves[id(g)] for g in of))

    best = largest(causes)
    much, rule, code = EXACT_CHANGE_SHARE * STEP, rule_of(best.code), summary.verdict.code
    least = saves[id(best)] - (best.saving.error_ns or 0)
    alike = [f for f in causes if f is best or saves[id(f)] >= least]

    def named_before(f: Finding) -> Finding:
        enough = (EXACT_CHANGE_SHARE if f.saving.bound else LEAST_LEADING_SHARE) * STEP
        named = [g for g in causes if rule_of(g.code).leads and names_its_change(g) and not bounded(g)]
        named = [g for g in named if saves[id(g)] >= max(enough, saves[id(f)] / COMPILER_LEADS_TIMES)]
        return f if names_its_change(f) or not named else largest(named)

    chosen = next((named_before(f) for f in alike if rule_of(f.code).leads), None)
    if chosen is None and rule.whole and rule.direct < RECORDED_DIRECTNESS and not best.saving.bound:
        placed = [
            f
            for f in causes
            if rule_of(f.code).direct >= RECORDED_DIRECTNESS
            and saves[id(f)] >= max(much, saves[id(best)] / COMPILER_LEADS_TIMES)
        ]
        chosen = largest(placed) if placed else None
    if chosen is None and best.saving.bound and best.saving.source != "steps":
        exact = [f for f in causes if not bounded(f) and saves[id(f)] >= max(much, saves[id(best)] / BOUND_LEADS_TIMES)]
        exact = [f for f in exact if (rule_of(f.code).leads if shows_likely(best) else f.paste)]
        chosen = named_before(largest(exact)) if exact else None
    if chosen is None and rule.about != code:
        chosen = next((f for f in alike if rule_of(f.code).about == code), None)
    elif chosen is None:
        part = not rule.whole and ((best.saving.bound and not names_its_change(best)) or for_whatever(best))
        whole = [f for f in causes if rule_of(f.code).whole and rule_of(f.code).about == code]
        chosen = next((f for f in whole if part or saves[id(f)] >= least), None)
    chosen = chosen or best
    if for_whatever(chosen):
        named = [
            f
            for f in causes
            if names_its_change(f) and saves[id(f)] >= max(much, saves[id(chosen)] / BOUND_LEADS_TIMES)
        ]
        chosen = largest(named) if named else chosen
    return chosen


def may_save_nothing(summary: Summary, f: Finding) -> bool:
    """A small saving that may be below a hundredth, or whose error nobody knows; one for whatever stands there that may be below 5 %."""
    ns = change_savings.likely_ns(summary, f)
    if not ns or ns < NOTABLE * STEP:
        return False
    if rule_of(f.code).about == StepLimit.GPU and bounded(f) and for_whatever(f) and not f.paste:
        return True
    job = len(summary.typed_rows(rank_table.ROWS)) > 1
    if (
        summary.verdict.code == StepLimit.GPU
        and bounded(f)
        and for_whatever(f)
        and (job or ns < BOUND_OF_ANYTHING_SHARE * STEP)
    ):
        return True
    if job and rule_of(f.code).about == StepLimit.GPU and [way.name for way in f.remedies] == ["compile"]:
        return True
    margins, small = margins_of(summary, f), ns < LEAST_LEADING_SHARE * STEP
    if margins is None or bounded(f) or f.saving.error_ns is None:
        return small
    least = STEP / (STEP - max(0, ns - margins[0]))
    least = min(factors_of(summary, f, ns, margins), default=least)
    fused = rule_of(f.code).about == StepLimit.GPU and bool(f.remedies) and not names_its_change(f)
    if fused or for_whatever(f):
        return least < 1 + LEAST_LEADING_SHARE
    return small and least < 1 + NOTABLE


def test_which_finding_leads() -> None:
    seen: dict[str, int] = {}
    for source in rounds(400):
        summary = made_summary(source)
        ranked = []
        for f in summary.findings or ():
            mends = [c.mend for c in f.conditions if c.state == "violated"]
            if f.verdict == "found" and (not mends or (f.saving.mended is not None and all(mends))):
                ranked.append(f)
        worth = [
            f for f in ranked if (alone_ns(f) or 0) >= LEAST_LEADING_SHARE * STEP and not may_save_nothing(summary, f)
        ]
        priced = summary.replay is not None and summary.replay["trusted"]
        unsaid = [
            f
            for f in ranked
            if f.code == "NSX102" and f.saving.likely_ns is None and 2 * (f.cost_ns_per_step or 0) >= STEP
        ]
        of_cause = [
            f
            for f in ranked
            if rule_of(f.code).about == summary.verdict.code
            and (f.cost_ns_per_step or 0) >= UNPRICED_CAUSE_SHARE * STEP
        ]
        if priced and summary.verdict.code == StepLimit.LAUNCH and unsaid:
            told, why = unsaid[0], "unsaid"
        elif worth:
            told, why = leading(summary, worth), "saves"
        else:
            dearest = max((f.cost_ns_per_step or 0 for f in of_cause), default=0)
            costs = [] if priced else [f for f in of_cause if f.cost_ns_per_step == dearest]
            told, why = (costs[0], "unpriced") if costs else (None, "none")  # type: ignore[assignment]
        assert first_action.first(summary) is told
        for f in summary.findings or ():
            assert first_action.may_save_nothing(summary, f) == may_save_nothing(summary, f)
        seen[why] = seen.get(why, 0) + 1
    assert len(seen) == 4 and min(seen.values()) > 3


def test_which_finding_leads_without_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for source in rounds(150):
        summary = made_summary(source)
        costs = (None, 0, MS, 7 * MS, 12 * MS)
        ranked = [
            replace(found(source.choice((*CODES, "NSX107", "NSX108")), 2), stepless_ns=source.choice(costs))
            for _ in range(4)
        ]
        parts = {"work": source.choice((5, 15)) * MS, "host": 10 * MS}
        steps = replace(summary.steps, source=source.choice(("capture", "capture", "probe")))
        summary = replace(summary, verdict=replace(summary.verdict, parts=parts), steps=steps)
        measuring = source.random() < 0.2
        monkeypatch.setattr(unstepped.subject, "measures", always(measuring))
        reads = [f for f in ranked if f.code == "NSX107"]
        of_kernels = [f for f in ranked if f.code in ("NSX107", "NSX108")]
        whole = sum(parts.values())
        about = [
            f
            for f in ranked
            if rule_of(f.code).about == summary.verdict.code
            and (f.stepless_ns is None or f.stepless_ns >= LEAST_LEADING_SHARE * whole)
        ]
        much = [f for f in ranked if (f.stepless_ns or 0) >= UNPRICED_CAUSE_SHARE * whole]
        told = None
        if steps.source == "capture":
            mostly = parts["work"] >= parts["host"]
            by_cost = [sorted(each, key=lambda f: -(f.stepless_ns or 0)) for each in (about, much)]
            order = [reads, of_kernels] if measuring else [reads, *by_cost, of_kernels if mostly else []]
            told = next((each[0] for each in order if each), None)
        assert unstepped.first(summary, ranked) is told
        seen.add(None if told is None else told.code)
    assert len(seen) > 4


# --- what else was found --------------------------------------------------------------------------------------------------


def test_what_else_was_found_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in rounds(150):
        summary = made_summary(source)
        findings = summary.findings or ()
        measuring = source.random() < 0.3
        monkeypatch.setattr(others.subject, "measures", always(measuring))
        chosen = source.choice([f for f in findings if f.verdict == "found"] or [None])  # type: ignore[list-item]
        do = first_action.to_do(summary, chosen) if chosen is not None else ()
        told: dict[Any, list[Any]] = {}
        for i, f in enumerate(findings):
            ns = None if f.saving.likely_ns is None else min(f.saving.likely_ns, STEP)
            if f.verdict != "found" or i in {a.finding for a in do} or f.unexplained:
                continue
            if measuring and rule_of(f.code).about in (StepLimit.LAUNCH, StepLimit.SYNC):
                continue
            at_line = chosen is not None and f.where.get("line") == chosen.where.get("line") == 3
            if f.code == "NSX123" and at_line and any(findings[n] is chosen for n in f.overlaps):
                continue
            if ns is None and (f.cost_ns_per_step or 0) < UNKNOWN_SAVING_COST_SHARE * STEP:
                continue
            if ns is not None and (ns < NOTABLE * STEP or ns < (f.saving.error_ns or 0)):
                continue
            kind = (f.code, "slow" if f.title.startswith("slow") else f.title)
            told.setdefault(kind, [i, f.code, ns])
        listed: list[Any] = []
        for line in sorted(told.values(), key=lambda x: -(x[2] or 0)):
            if sum(x[1] == line[1] for x in listed) < MOST_OF_A_RULE:
                listed.append(line)
        listed = listed[:MOST_ALSO_FOUND]
        also = others.also(summary, chosen, do)
        assert [[a.finding, a.code, a.saving_ns] for a in also] == listed
        named = [*(a.finding for a in do if a.finding is not None), *(x[0] for x in listed)]
        for a in also:
            earlier = named[: named.index(a.finding)]
            assert set(a.overlaps) == {findings[n].code for n in earlier if n in findings[a.finding].overlaps}


def test_what_to_do_begins_with_what_comes_before_and_has_to_be_mended() -> None:
    for source in rounds(100):
        summary = made_summary(source)
        for f in summary.findings or ():
            *first, last = first_action.to_do(summary, f)
            before, mends = before_of(summary, f), [c for c in f.conditions if c.state == "violated"]
            assert [a.code for a in first] == [b.code for b in before] + [f.code] * len(mends)
            assert (last.code, last.paste, last.conditions) == (
                f.code,
                f.paste,
                tuple(c for c in f.conditions if c.state != "violated"),
            )
            alone = f.saving.likely_ns if shows_likely(f) else f.saving.most_ns or f.saving.likely_ns
            if not violated(f):
                expected = summary.step.saves_at_most_ns(f.saving) if not shows_likely(f) else alone
                assert last.saving_ns == expected
            else:
                assert last.saving_ns is None


# --- tables ---------------------------------------------------------------------------------------------------------------


def test_the_longest_wait_that_was_replayed() -> None:
    for source in rounds():
        summary = limited_by(StepLimit.SYNC)
        table = [
            {
                "api": f"a{i}",
                "module": None,
                "total_ns": source.choice((None, 1, 5, 90)),
                "saving_ns": source.choice((None, 0, 10, 90)),
                "moves_to": None,
            }
            for i in range(4)
        ]
        ledger = [{"process": p, "device": 0, "window_ns": w, "busy_ns": 1} for p, w in ((1, 100), (1, 60), (2, 9_000))]
        summary = with_rows(with_rows(summary, waits.KEY, table), gpu_ledger.KEY, ledger)
        found_wait = others.longest_wait(summary)
        of = [r for r in table if r["saving_ns"] is not None]
        longest = max((r["total_ns"] or 0 for r in of), default=0)
        if not of or longest < LONG_WAIT_SHARE * 100:
            assert found_wait is None
            continue
        row = next(r for r in of if (r["total_ns"] or 0) == longest)
        assert found_wait is not None
        per = summary.tables[waits.KEY].scope
        assert per is not None and (found_wait.api, found_wait.ns) == (row["api"], per.per_step(longest))
        assert found_wait.little == (row["saving_ns"] < LITTLE_SAVING_SHARE * longest)


def test_a_bar_of_the_largest_sums() -> None:
    names = ["a", "b", "c", "d", "e", "f", "g", "other", "copies"]
    for source in rounds(80):
        sums = [(n, float(source.choice((0, 1, 30, 200, 200)))) for n in source.sample(names, source.randrange(10))]
        bar = bars._bar_of_largest(sums, "by", "rest")
        total = sum(ns for _, ns in sums)
        named = sorted((e for e in sums if e[0] != "other"), key=lambda e: -e[1])[:MOST_NAMED_PARTS]
        top = [e for e in named if e[1] >= SMALL_PART_SHARE * total]
        left = total - sum(ns for _, ns in top)
        if not total or not top or left > MOST_UNNAMED_SHARE * total:
            assert bar is None
            continue
        assert bar is not None and bar.total_ns == total == sum(p.ns for p in bar.parts)
        assert [(p.label, p.ns) for p in bar.parts] == [*top, *([("rest", left)] if left > LEAST_REST_NS else [])]
        assert len({p.kind for p in bar.parts}) == len(bar.parts)
        assert all((p.kind == bars._KNOWN["copies"]) == (p.label == "copies") for p in bar.parts)


def test_small_parts_are_one_where_there_are_two() -> None:
    for source in rounds(80):
        parts = [
            BarPart(f"p{i}", float(source.choice((0, 1, 1, 40, 300))), "k", source.random() < 0.5) for i in range(6)
        ]
        total = sum(p.ns for p in parts)
        small = [p for p in parts if 0 < p.ns < SMALL_PART_SHARE * total]
        large = [p for p in parts if p.ns and p.ns >= SMALL_PART_SHARE * total]
        told = bars.merged(parts, total)
        assert sum(p.ns for p in told) == total
        assert list(told[: len(large)]) == large
        if len(small) < 2:
            assert list(told[len(large) :]) == small
        else:
            assert [(p.label, p.ns, p.idle) for p in told[len(large) :]] == [
                ("other", sum(p.ns for p in small), all(p.idle for p in small))
            ]


def rank_row(source: random.Random, number: int) -> Row:
    parts = {k: source.choice((0, 100, 900)) for k in ("compute_ns", "copy_ns", "memset_ns", "comm_ns", "idle_ns")}
    wait = source.choice((None, 0, parts["comm_ns"] // 2, parts["comm_ns"]))
    transfer = source.choice((None, 0, parts["comm_ns"] - (wait or 0)))
    return {
        "rank": number,
        "steps": 2,
        "process": number,
        "exposed_wait_ns": wait,
        "exposed_transfer_ns": transfer,
        **parts,
        "window_ns": sum(parts.values()),
    }


def test_a_bar_for_each_rank_or_for_those_that_differ_most() -> None:
    for source in rounds():
        count = source.choice((2, 4, MOST_BARS, MOST_BARS + 5))
        table = [rank_row(source, i) for i in range(count)]
        late = source.choice((None, table[-1], table[0]))
        summary = with_rows(limited_by(StepLimit.COMM), rank_table.KEY, table)
        made = bars._rank_bars(summary, late)  # type: ignore[arg-type]
        shown = [int(b.label.split()[1]) for b in made]
        if count <= MOST_BARS:
            assert shown == list(range(count))
        elif late is not None:
            assert shown == [*[r["rank"] for r in table if r is not late][: MOST_BARS - 1], late["rank"]]
        else:
            by_wait = sorted(table, key=lambda r: r["exposed_wait_ns"] or 0)
            ends = {r["rank"] for r in by_wait[: MOST_BARS // 2] + by_wait[-MOST_BARS // 2 :]}
            assert shown == sorted(ends)
        for bar, number in zip(made, shown, strict=True):
            row = table[number]
            assert bar.total_ns == row["window_ns"] / 2 == pytest.approx(sum(p.ns for p in bar.parts))
            waiting = sum(p.ns for p in bar.parts if p.label.startswith("waiting"))
            if (row["exposed_wait_ns"] or 0) >= SMALL_PART_SHARE * row["window_ns"]:
                assert waiting == (row["exposed_wait_ns"] or 0) / 2
            for p in bar.parts:
                if p.label.startswith("waiting"):
                    assert p.label == (
                        "waiting for others" if late is None or row is late else f"waiting for rank {late['rank']}"
                    )


def test_modules_with_gpu_work_repeated_ones_as_one() -> None:
    for source in rounds():
        paths = ("blocks.0.a", "blocks.1.a", "head", None, "blocks.0")
        table = [{"path": p, "cls": "C", "self_gpu_ns": source.choice((0, 0, 20, 50))} for p in source.sample(paths, 4)]
        summary = with_rows(limited_by(StepLimit.GPU), modules.KEY, table)
        sums: dict[str, list[Row]] = {}
        for r in table:
            if r["self_gpu_ns"]:
                name = str(r["path"] or bars.NO_MODULE).replace("blocks.0", "blocks.*").replace("blocks.1", "blocks.*")
                sums.setdefault(name, []).append(r)
        per = bars.each(summary)
        told = [(per(sum(r["self_gpu_ns"] for r in of)), of) for of in sums.values()]
        assert [(ns, of) for _, ns, of in bars.module_sums(summary)] == sorted(told, key=lambda x: -x[0])


def test_work_by_kind_or_by_kernel_where_most_is_of_no_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    limited_by(StepLimit.GPU)
    monkeypatch.setattr(bars, "_kernel_bar", always("by kernel"))
    monkeypatch.setattr(bars, "_bar_of_largest", lambda sums, *_: sums)
    monkeypatch.setattr(bars, "_to_shown", always(3.0))
    for source in rounds():
        table = [{"family": f, "total_ns": source.choice((0, 5, 30))} for f in ("gemm", "other", "reduce")]
        summary = with_rows(limited_by(StepLimit.GPU), kernel_families.KEY, table)
        unknown, whole = table[1]["total_ns"], sum(int(str(r["total_ns"])) for r in table)
        made: Any = bars._family_bar(summary)
        if 2 * int(str(unknown)) > whole:
            assert made == "by kernel"
        else:
            per = bars.each(summary)
            assert [ns for _, ns in made] == [per(int(str(r["total_ns"]))) * 3 for r in table]


def test_the_usual_step_and_the_one_that_flushes_cost_most() -> None:
    for source in rounds(80):
        steps = [
            {
                "index": i,
                "steady": source.random() < 0.8,
                "gpu_ns": source.choice((None, 100, 130, 170)),
                "gpu_idle_ns": source.choice((None, 10, 60)),
            }
            for i in range(6)
        ]
        table = [
            {"step": source.choice((None, *range(8))), "idle_caused_ns": source.choice((None, 5, 20, 90))}
            for _ in range(5)
        ]
        summary = with_rows(limited_by(StepLimit.ALLOC), alloc_flushes.KEY, table)
        summary = replace(summary, steps=replace(summary.steps, rows=tuple(steps)))
        known = {s["index"]: s for s in steps if s["steady"] and s["gpu_ns"]}
        lost: dict[Any, int] = {}
        for r in table:
            if r["step"] in known:
                lost[r["step"]] = lost.get(r["step"], 0) + (r["idle_caused_ns"] or 0)
        usual = sorted(int(str(s["gpu_ns"])) for i, s in known.items() if i not in lost)
        made = bars._flush_bars(summary)
        if not lost or not usual:
            assert made == ()
            continue
        worst = max(lost, key=lambda i: lost[i])
        assert [b.label for b in made] == ["a usual step", f"step {worst}"]
        assert [b.total_ns for b in made] == [usual[len(usual) // 2], known[worst]["gpu_ns"]]
        assert all(sum(p.ns for p in b.parts) == b.total_ns for b in made)
        idle = min(lost[worst], int(str(known[worst]["gpu_idle_ns"] or 0)))
        assert sum(p.ns for p in made[1].parts if p.label == "allocator calls") == idle
        assert not any(p.label == "allocator calls" for p in made[0].parts)


def test_where_most_of_the_time_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for source in rounds(120):
        measuring = source.random() < 0.1
        monkeypatch.setattr(time_places.subject, "measures", always(measuring))
        line: Row = source.choice(({}, {"file": "t.py", "line": 7}))
        of_modules = [
            {"path": source.choice((None, "a / a / b", "m")), "self_gpu_ns": source.choice((None, 0, 7))}
            for _ in range(2)
        ]
        of_kernels = [{"name": f"k{i}", "total_ns": source.choice((1, 5))} for i in range(source.choice((0, 2)))]
        of_calls = [
            {"name": f"c{i}", "calls": 2, "total_ns": source.choice((1, 5))} for i in range(source.choice((0, 2)))
        ]
        text = source.choice((None, "y = net(x)", "y = net(x)", "def forward(self, x):"))
        of_lines = [
            {"file": "t.py", "line": source.choice((None, i)), "gpu_self_ns": source.choice((0, 1, 4)), "text": text}
            for i in range(source.choice((0, 0, 5)))
        ]
        summary = limited_by(StepLimit.GPU)
        summary = replace(summary, verdict=replace(summary.verdict, line=line))
        of_each = {modules.KEY: of_modules, kernels.KEY: of_kernels, api_calls.KEY: of_calls, lines.KEY: of_lines}
        for key, table in of_each.items():
            summary = with_rows(summary, key, table)
        told: Row = {}
        launched = {r["line"]: r["gpu_self_ns"] for r in of_lines[::-1] if r["line"] is not None}
        much = max(launched.values(), default=0)
        if measuring:
            pass
        elif line:
            told = {**line}
        elif text != "def forward(self, x):" and much and 4 * much >= sum(r["gpu_self_ns"] for r in of_lines):
            told = {"file": "t.py", "line": min(n for n, ns in launched.items() if ns == much)}
        else:
            inside = max(of_modules, key=lambda r: int(str(r["self_gpu_ns"] or 0)))
            if inside["path"] and inside["self_gpu_ns"]:
                told["module"] = {"a / a / b": "a / b", "m": "m"}[str(inside["path"])]
            for table, words in ((of_kernels, "the kernel {}"), (of_calls, "{}, 2 calls")):
                if table and "near" not in told:
                    told["near"] = words.format(max(table, key=lambda r: int(str(r["total_ns"])))["name"])
        where = time_places.of_most(summary)
        assert where == told
        seen |= {*where}
    assert seen == {"file", "line", "module", "near"}


def test_how_sure_the_cause_is_in_steps_that_were_not_profiled() -> None:
    for source in rounds(80):
        code = source.choice((StepLimit.LAUNCH, StepLimit.GPU, StepLimit.COMM))
        summary = job()
        real = summary.unprofiled
        assert real is not None
        busy_ns, more = source.choice((5, 15.5, 19.5)) * MS, source.choice(("", " But: clocks"))
        low, high = source.choice(((20, 20), (16, 30)))
        real = replace(real, gpu_busy_ns=round(busy_ns), low_ns=low * MS, high_ns=high * MS)
        summary = replace(summary, unprofiled=real, verdict=replace(summary.verdict, code=code.value))
        lengths = [source.choice((100, 110, 400)) for _ in range(8)]
        is_set, seen = source.random() < 0.3, source.random() < 0.3
        share, steady = (*certainty._share_of(summary, None), "40 %"), [{"gpu_ns": ns} for ns in lengths]
        sure = certainty._of_all_steps(summary, steady, share, more, is_set=is_set, seen_in_settings=seen)
        least, most = busy_ns / (high * MS), min(busy_ns / (low * MS), 1)
        assert ("whose lengths and perhaps work differ" in sure.reason) == (_spread(lengths) > 3)
        level = "likely" if more or _spread(lengths) > 3 else "certain"
        if code == StepLimit.LAUNCH:
            level = (
                ("likely" if seen else "unknown") if most >= 0.95 else "likely" if most >= MOSTLY_BUSY_SHARE else level
            )
        elif code == StepLimit.COMM:
            level = level if is_set else "likely"
        elif least < MOSTLY_BUSY_SHARE:
            level = "likely"
        assert sure.level == level and sure.reason.endswith(f".{more}")


def _spread(lengths: list[int]) -> float:
    """Return the last tenth over the first, between the two nearest where there is no such step."""
    of = sorted(lengths)

    def at(share: float) -> float:
        place = share * (len(of) - 1)
        low = int(place)
        return of[low] + (place - low) * (of[min(low + 1, len(of) - 1)] - of[low])

    return at(0.9) / at(0.1)


def test_a_bound_that_leaves_next_to_nothing_gives_way_to_the_replay() -> None:
    made = limited_by(StepLimit.LAUNCH).answer
    assert made is not None
    seen = 0
    for source in rounds(80):
        then, alone = source.choice((None, MS, 2 * MS, 5 * MS)), source.choice((None, 10 * MS))
        bound, times = source.random() < 0.8, source.choice(((), (1.5, 4.0)))
        given = replace(made, now_ns=STEP, then_ns=then, replayed_ns=alone, bound=bound, times=times)
        whole = source.random() < 0.5
        found = _led_by_replay(given, whole=whole)
        if then is None or alone is None or not bound or 10 * then >= STEP:
            assert found is given
            continue
        seen += 1
        if not whole and times:
            assert (found.then_ns, found.best_ns, found.times, found.bound) == (alone, then, times, False)
            continue
        assert (found.then_ns, found.then_low_ns, found.then_high_ns, found.times) == (alone, None, None, ())
        assert (found.bound, found.replayed_ns, found.worth) == (True, None, "at best")
    assert seen > 5


def test_the_work_of_a_module_with_masks_by_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "_to_shown", always(2.0))
    seen = set()
    for source in rounds(80):
        froms, each = ("nonzero", "where", "", None), (None, 0, 40, 300)
        evidence = tuple({"from": source.choice(froms), "total_ns": source.choice(each)} for _ in range(4))
        cost = source.choice((None, 300, 900))
        first = found(
            "NSX120",
            1,
            where={"module": source.choice(("loss", "loss", None))},
            cost_ns_per_step=cost,
            evidence=evidence,
        )
        whole = source.choice((None, 300.0, 302.0, 600.0, 900.0))
        monkeypatch.setattr(
            bars, "module_sums", always([("other", 900.0, []), *([("loss", whole, [])] if whole else [])])
        )
        sums: dict[Any, int] = {}
        for r in evidence:
            if r["from"] and r["total_ns"]:
                sums[r["from"]] = sums.get(r["from"], 0) + 2 * int(str(r["total_ns"]))
        bar = bars._opened(limited_by(StepLimit.GPU), first)
        if not first.where["module"] or not cost or not sums or sum(sums.values()) > 2 * cost + 1:
            assert bar is None
            continue
        assert bar is not None and bar.total_ns == 2 * cost == pytest.approx(sum(p.ns for p in bar.parts))
        all_of_it = whole is not None and abs(whole - cost) <= SAME_WORK_SHARE * whole
        assert bar.label == ("loss" if all_of_it else "masks in loss")
        seen.add(bar.label)
        for operation, ns in sums.items():
            if ns >= SMALL_PART_SHARE * bar.total_ns:
                assert [p.ns for p in bar.parts if p.label == operation] == [ns]
    assert len(seen) == 2
