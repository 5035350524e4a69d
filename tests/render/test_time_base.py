"""Every figure of a page is in one time: the step, what a change saves of it, what is left, and what the same thing costs."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from nsysx import units
from nsysx.answer import change_savings
from nsysx.model import Finding, Summary
from nsysx.pipeline import ReadingOptions, gather
from nsysx.render import answer_text, answer_words, brief, first_screen
from nsysx.replay import requested_edits, tracing_costs
from nsysx.replay.engine import Replay, replay_of
from tests.render.factory import changed
from tests.samples import DISTINCT, RECORDED_COSTS, Samples

#: Sums of parts that were rounded to whole nanoseconds.
_ROUNDED = 20


def _found(summary: Summary) -> list[Finding]:
    return [f for f in summary.findings or () if f.verdict == "found"]


def _ns(text: str) -> list[float]:
    """Return the times that a text names, each as much larger as its last digit may hide."""
    found = re.findall(r"(?<![\w.])(\d+(?:\.(\d+))?) (ns|us|ms|s)\b", text)
    unit = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
    return [(float(number) + 0.5 * 10.0 ** -len(digits)) * unit[u] for number, digits, u in found]


@pytest.mark.parametrize("name", DISTINCT)
def test_the_step_is_the_one_that_savings_are_of(name: str, recorded: Samples) -> None:
    summary = recorded.summary(name)
    now, real = summary.step.shown_ns, summary.unprofiled
    if now is None or real is None:
        return
    if summary.step.as_recorded:  # rank by rank, and so is the saving
        assert now == summary.steps.gpu_mean_ns
        assert answer_words.build(summary).code == "NSX111"
    else:
        # A modelled step is that of the replayed steps: the shown one is as much longer as the steady steps were, as recorded.
        recorded_ns = summary.steps.gpu_mean_ns or real.recorded_ns
        replayed = real.measured_steps or abs(recorded_ns - real.recorded_ns) <= 1
        shown = real.step_ns if replayed else real.step_ns * recorded_ns / real.recorded_ns
        assert abs(now - shown) <= _ROUNDED
        assert abs(sum(summary.verdict.parts.values()) - shown) <= _ROUNDED


@pytest.mark.parametrize("name", DISTINCT)
def test_what_is_left_is_the_step_less_the_saving(name: str, recorded: Samples) -> None:
    """And the card, the finding, the line for Slack and the JSON say the same."""
    summary = recorded.summary(name)
    said = answer_words.build(summary)
    if said.now_ns is None or said.then_ns is None:
        return
    chosen = next(f for f in _found(summary) if f.code == said.code)
    assert summary.step.saves_ns(chosen.saving) == chosen.saving_ns_per_step, "never scaled where all is in one time"
    saving = (
        summary.step.saves_ns(chosen.saving)
        if change_savings.shows_likely_saving(chosen)
        else summary.step.saves_at_most_ns(chosen.saving)
    )
    if len(summary.answer.do) > 1:
        saving = change_savings.likely_ns(summary, chosen)
    assert saving is not None
    assert summary.answer.best_ns is None or summary.answer.best_ns <= said.then_ns
    assert said.then_ns == said.now_ns - saving
    shown = f"{units.duration(said.now_ns)} → {units.duration(said.now_ns - saving)}"
    screen = first_screen.build(summary)
    assert (screen.now, screen.then) == tuple(shown.split(" → "))
    assert shown in answer_text.worth_text(said)
    assert said.bound or units.duration(saving) in said.worth
    told = json.loads(brief.answer_json(summary))
    assert (told["step"]["now_ns"], told["after"]["step_ns"]) == (said.now_ns, said.then_ns)
    assert told["causes"][0]["saving"]["likely_ns"] == saving


@pytest.mark.parametrize("name", DISTINCT)
def test_no_saving_is_above_its_cost_or_the_step(name: str, recorded: Samples) -> None:
    """Nor above what the title names, by more than the saving may be off."""
    summary = recorded.summary(name)
    now = summary.step.shown_ns
    for finding in _found(summary):
        saving = summary.step.saves_ns(finding.saving)
        if saving is None or now is None:
            continue
        assert saving <= now, finding.title
        assert finding.cost_ns_per_step is not None, finding.title
        assert saving <= finding.cost_ns_per_step <= now + _ROUNDED, (finding.title, saving)
        named = _ns(finding.title)
        off = 0 if finding.saving.bound else finding.saving.error_ns or 0
        assert not named or saving <= sum(named) + off, (finding.title, saving)


def test_the_loader_costs_in_the_picture_what_it_costs_in_the_finding_and_whatif_says_nearly_the_same(
    recorded: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "masked_slow_loader"
    summary = recorded.summary(name)
    finding = next(f for f in _found(summary) if f.code == "NSX106")
    said = answer_words.build(summary)
    waits = next(p.ns for p in said.bars[0].parts if p.label == "waiting for input data")
    assert units.duration(waits) in finding.title
    monkeypatch.setattr(tracing_costs, "ASSUMED", RECORDED_COSTS)
    profile = gather(recorded.report(name), ReadingOptions())
    replay = replay_of(profile)
    assert isinstance(replay, Replay)
    told = replay.saving(
        *(edit for _, edit in requested_edits.edits(profile, requested_edits.Changes(free_loader=True)))
    )
    # The page promises no more than the idle time that it shows; the replay alone saves a fifth of a percent more.
    assert told.saving_ns == pytest.approx(finding.saving_ns_per_step, rel=0.005)
    assert finding.saving_ns_per_step <= told.saving_ns
    assert told.step_ns == pytest.approx(said.then_ns, rel=0.005)
    assert replay.real_ns == pytest.approx(said.now_ns, rel=0.001)


def test_work_by_module_and_by_kind_is_the_work_of_the_step_above(recorded: Samples) -> None:
    """Of varlen fewer steps are replayed than are steady, and no two are alike."""
    step, *others = answer_words.build(recorded.summary("varlen")).bars
    busy = sum(p.ns for p in step.parts if not p.idle and p.label != "other")
    assert [b.label for b in others] == ["by module", "by kind of work"]
    for bar in others:
        assert 0 <= bar.total_ns - busy <= sum(p.ns for p in step.parts if p.label == "other")
        assert abs(sum(p.ns for p in bar.parts) - bar.total_ns) <= 1


def test_of_savings_that_cannot_be_told_apart_the_cause_that_is_named_goes_first(recorded: Samples) -> None:
    summary = recorded.summary("masked_slow_loader")
    loader = next(f for f in _found(summary) if f.code == "NSX106")
    above = replace(
        loader, code="NSX105", saving=replace(loader.saving, likely_ns=(loader.saving_ns_per_step or 0) + 1000)
    )
    close = changed(summary, findings=(above, loader))
    assert answer_words.build(close).code == "NSX106"
    far = replace(
        above,
        saving=replace(above.saving, likely_ns=(above.saving_ns_per_step or 0) + 2 * (loader.saving.error_ns or 0)),
    )
    assert answer_words.build(changed(summary, findings=(far, loader))).code == "NSX105"
