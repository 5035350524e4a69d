"""What was tried on the program decides before anything that is predicted."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from nsysx import answer
from nsysx.advice import Alternative, Tried
from nsysx.answer import change_savings, first_action, measured
from nsysx.model import Finding, Summary
from nsysx.render import html_page, markdown
from tests.samples import NAMES, PAIR_NAMES, Samples

#: Advises torch.compile first; the optimizer's loop is another finding.
PROGRAM = "tiny_stack"


@pytest.fixture
def summary(recorded: Samples) -> Summary:
    return recorded.summary(PROGRAM)


@pytest.fixture
def first(summary: Summary) -> Finding:
    found = first_action.first(summary)
    assert found is not None and found.paste
    return found


def trial(verdict: Any, ratio: float | None, code: str, paste: str, name: str = "it", **more: Any) -> Tried:
    """Return a change of a step of 10 ms that was tried, its interval 1 % to both sides."""
    then, low, high = (None if ratio is None else round(1e7 * ratio * off) for off in (1.0, 0.99, 1.01))
    given: dict[str, Any] = {"reason": "", "place": "", "other_results": False, "paste": paste, **more}
    return Tried(name, verdict, 10_000_000, then, low, high, (code,), **given)


def with_trials(summary: Summary, *trials: Tried) -> Summary:
    return answer.answered(replace(summary, tried=trials))


@pytest.mark.parametrize(("verdict", "ratio"), [("slower", 1.2), ("same", 1.0), ("fails", None)])
def test_what_did_not_help_is_not_advised(summary: Summary, first: Finding, verdict: str, ratio: float | None) -> None:
    trials = [trial(verdict, ratio, first.code, "", remedy.name) for remedy in first.remedies]
    told = with_trials(summary, *trials).answer
    assert first.paste not in [a.paste for a in told.do]
    assert not any((summary.findings or ())[a.finding] is first for a in told.also)


def test_of_alternatives_the_one_that_did_not_help_goes_and_the_others_stay(summary: Summary, first: Finding) -> None:
    assert len(first.remedies) > 1
    for gone in first.remedies:
        after = with_trials(summary, trial("slower", 1.2, first.code, "", gone.name))
        (finding,) = (f for f in after.findings or () if (f.code, f.title) == (first.code, first.title))
        left = [remedy for remedy in finding.remedies if not remedy.refuted]
        assert left == [r for r in first.remedies if not gone.parts <= r.parts]
        assert left and all(remedy.text.removeprefix(_lead(left)) in finding.fix for remedy in left)
        assert finding.paste == next((remedy.paste for remedy in left if remedy.paste), "")


def _lead(left: list[Alternative]) -> str:
    return left[0].text[: left[0].text.find(": ") + 2] if ": " in left[0].text else ""


def test_a_name_that_was_tried_in_vain_is_advised_nowhere(recorded: Samples, pairs: Samples) -> None:
    """Of all samples, each remedy in turn, and all at once."""
    seen = set()
    for samples, names in ((recorded, NAMES), (pairs, PAIR_NAMES)):
        for name in names:
            summary = samples.summary(name)
            every = {r.name for f in summary.findings or () for r in f.remedies}
            for gone in [{one} for one in sorted(every)] + [every]:
                after = with_trials(summary, *(trial("slower", 1.2, "NSX000", "", one) for one in gone))
                named = {n for a in after.answer.do if a.finding is not None for n in _advised(after, a.finding)}
                named |= {n for also in after.answer.also for n in _advised(after, also.finding)}
                assert named.isdisjoint(gone), (name, gone)
                pastes = {r.paste for f in after.findings or () for r in f.remedies if not r.refuted}
                assert all(a.paste in pastes or _of_words(a.paste, pastes) for a in after.answer.do if a.paste)
            seen |= every
    assert {"tf32", "autocast-bf16", "loader-workers-8", "compile-reduce-overhead"} <= seen


def _advised(summary: Summary, finding: int) -> set[str]:
    return {r.name for r in (summary.findings or ())[finding].remedies if not r.refuted}


def _of_words(paste: str, pastes: set[str]) -> bool:
    """Return whether code holds the lines of remedies, one below the other with their labels."""
    code = re.sub(r" *#.*", "", paste)
    return all(any(line in re.sub(r" *#.*", "", other) for other in pastes) for line in code.splitlines())


def test_a_part_that_made_it_slower_refutes_the_whole_one_that_changed_nothing_does_not(summary: Summary) -> None:
    both = Alternative("autocast-bf16,channels-last", "both")

    def refuted(*trials: Tried) -> bool:
        return measured.refuted(replace(summary, tried=trials), both)

    assert refuted(trial("slower", 1.2, "", "", "channels-last"))
    assert not refuted(trial("same", 1.0, "", "", "channels-last"))
    assert refuted(trial("same", 1.0, "", "", "channels-last,autocast-bf16"))
    assert not refuted(trial("slower", 1.2, "", "", "tf32"))
    assert not refuted(trial("slower", 1.2, "", "", "tf32,autocast-bf16,channels-last"))
    assert not refuted(trial("slower", 1.2, "", "", "channels-last"), trial("faster", 0.9, "", "", both.name))


@pytest.mark.parametrize("verdict", ["cannot_tell", "does_not_apply"])
def test_what_is_not_known_changes_nothing(summary: Summary, first: Finding, verdict: str) -> None:
    assert with_trials(summary, trial(verdict, None, first.code, first.paste)).answer == summary.answer


def test_another_change_of_the_same_finding_refutes_nothing(summary: Summary, first: Finding) -> None:
    other = trial("slower", 1.2, first.code, first.paste, "another")
    assert with_trials(summary, other).answer == summary.answer


def test_what_helped_most_is_advised_with_what_it_gave(summary: Summary, first: Finding) -> None:
    less = trial("faster", 0.8, first.code, "torch.first()")
    most = trial(
        "faster", 0.5, first.code, "torch.second(fused=True)", does="the second way", place="/home/me/train.py:31"
    )
    cheat = trial("faster", 0.1, first.code, "torch.third()", other_results=True)
    shown = with_trials(summary, less, most, cheat)
    told, now = shown.answer, summary.step.shown_ns
    assert now is not None and told.then_ns == round(0.5 * now)
    assert told.then_low_ns == round(0.495 * now) and told.then_high_ns == round(0.505 * now)
    (done,) = told.do
    assert (done.text, done.paste, done.code) == ("The second way", "torch.second(fused=True)", first.code)
    assert done.saving_ns == now - told.then_ns and not told.bound
    assert told.certainty.level == "certain" and "10.00 ms to 5.00 ms a step" in told.certainty.reason
    for text in (markdown.render(shown), html_page.render(shown)):
        assert "The second way" in text and "/home/me" not in text


def test_a_finding_that_was_not_tried_and_promises_more_stays_first(summary: Summary, first: Finding) -> None:
    saving = change_savings.saving_ns(summary, first)
    now = summary.step.shown_ns
    assert saving is not None and now is not None
    little, much = 1 - saving / now / 2, max(0.01, 1 - 2 * saving / now)
    assert with_trials(summary, trial("faster", little, "NSX000", "torch.x()")).answer == summary.answer
    assert with_trials(summary, trial("faster", much, "NSX000", "torch.x()")).answer.do[0].paste == "torch.x()"


@pytest.mark.parametrize("lacks", ["now_ns", "low_ns", "high_ns"])
def test_a_trial_without_its_interval_changes_no_answer(summary: Summary, first: Finding, lacks: str) -> None:
    """Each of its times is needed: the step of the report is scaled by all of them."""
    won = replace(trial("faster", 0.5, first.code, "x()"), **{lacks: None})
    predicted = answer.decide(summary)
    assert measured.with_measured_change(predicted, won, first, 0) is predicted
    whole = replace(won, **{lacks: getattr(trial("faster", 0.5, first.code, "x()"), lacks)})
    assert measured.with_measured_change(predicted, whole, first, 0) is not predicted
    assert measured.with_measured_change(replace(predicted, now_ns=None), whole, first, 0).now_ns is None
