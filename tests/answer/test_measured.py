"""What was tried on the program decides before anything that is predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nsysx import answer
from nsysx.advice import Tried
from nsysx.answer import choice, measured, step_time
from nsysx.model import Finding, Summary
from nsysx.render import html_page, markdown
from tests.samples import Samples

#: Advises torch.compile first; the optimizer's loop is another finding.
PROGRAM = "tiny_stack"


@pytest.fixture
def summary(recorded: Samples) -> Summary:
    return recorded.summary(PROGRAM)


@pytest.fixture
def first(summary: Summary) -> Finding:
    found = choice.first(summary)
    assert found is not None and found.paste
    return found


def trial(verdict: Any, ratio: float | None, code: str, paste: str, **more: Any) -> Tried:
    """Return a change of a step of 10 ms that was tried, its interval 1 % to both sides."""
    then, low, high = (None if ratio is None else round(1e7 * ratio * off) for off in (1.0, 0.99, 1.01))
    given: dict[str, Any] = {"reason": "", "place": "", "other_results": False, "paste": paste, **more}
    return Tried("it", verdict, 10_000_000, then, low, high, (code,), **given)


def with_trials(summary: Summary, *trials: Tried) -> Summary:
    return answer.answered(replace(summary, tried=trials))


@pytest.mark.parametrize(("verdict", "ratio"), [("slower", 1.2), ("same", 1.0), ("fails", None)])
def test_what_did_not_help_is_not_advised(summary: Summary, first: Finding, verdict: str, ratio: float | None) -> None:
    told = with_trials(summary, trial(verdict, ratio, first.code, first.paste)).answer
    assert first.paste not in [a.paste for a in told.do]
    assert not any((summary.findings or ())[a.finding] is first for a in told.also)


@pytest.mark.parametrize("verdict", ["cannot_tell", "does_not_apply"])
def test_what_is_not_known_changes_nothing(summary: Summary, first: Finding, verdict: str) -> None:
    assert with_trials(summary, trial(verdict, None, first.code, first.paste)).answer == summary.answer


def test_another_change_of_the_same_finding_refutes_nothing(summary: Summary, first: Finding) -> None:
    other = trial("slower", 1.2, first.code, "optimizer = torch.optim.SGD(params, momentum=0.5)")
    assert with_trials(summary, other).answer == summary.answer


def test_lines_are_the_same_whatever_the_variables_are_called(summary: Summary) -> None:
    one = replace(
        (summary.findings or ())[0], code="NSX102", paste='net = torch.compile(net, mode="reduce-overhead")  # once'
    )
    same = trial("slower", 1.1, "NSX102", 'model = torch.compile(model, mode="reduce-overhead")')
    plain = replace(same, paste="model = torch.compile(model)")
    assert measured.refuted(replace(summary, tried=(same,)), one)
    assert not measured.refuted(replace(summary, tried=(plain,)), one)
    assert not measured.refuted(replace(summary, tried=(same, replace(same, verdict="faster"))), one)


def test_what_helped_most_is_advised_with_what_it_gave(summary: Summary, first: Finding) -> None:
    less = trial("faster", 0.8, first.code, "torch.first()")
    most = trial(
        "faster", 0.5, first.code, "torch.second(fused=True)", does="the second way", place="/home/me/train.py:31"
    )
    cheat = trial("faster", 0.1, first.code, "torch.third()", other_results=True)
    shown = with_trials(summary, less, most, cheat)
    told, now = shown.answer, step_time.step_ns(summary)
    assert now is not None and told.then_ns == round(0.5 * now)
    assert told.then_low_ns == round(0.495 * now) and told.then_high_ns == round(0.505 * now)
    (done,) = told.do
    assert (done.text, done.paste, done.code) == ("The second way", "torch.second(fused=True)", first.code)
    assert done.saving_ns == now - told.then_ns and not told.bound
    assert told.certainty.level == "certain" and "10.00 ms to 5.00 ms a step" in told.certainty.reason
    for text in (markdown.render(shown), html_page.render(shown)):
        assert "The second way" in text and "/home/me" not in text


def test_a_finding_that_was_not_tried_and_promises_more_stays_first(summary: Summary, first: Finding) -> None:
    saving = choice.saving_ns(summary, first)
    now = step_time.step_ns(summary)
    assert saving is not None and now is not None
    little, much = 1 - saving / now / 2, max(0.01, 1 - 2 * saving / now)
    assert with_trials(summary, trial("faster", little, "NSX000", "torch.x()")).answer == summary.answer
    assert with_trials(summary, trial("faster", much, "NSX000", "torch.x()")).answer.do[0].paste == "torch.x()"
