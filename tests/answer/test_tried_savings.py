"""What a replay said that changes save against what they saved when tried: what the interval of an answer is taken from."""

from __future__ import annotations

import json
import statistics

import pytest

from nsysx.advice import Answer
from nsysx.answer.answer_bounds import TRIED_LEAST_POWER, TRIED_MOST_POWER
from tests.samples import DISTINCT, PAIR_NAMES, SAMPLES, Samples

#: Programs before and after a change: the share of the step that the replay said it saves, and that it saved without a profiler.
ROWS = [
    (row["pair"], row["before"]["in_process"], row["bare"]["saved"])
    for row in json.loads((SAMPLES / "pairs.json").read_text())
    if row["before"]["in_process"].get("saved") is not None
]
#: The least error of a replay, in parts of the step.
_REPLAY = 0.05


def _inside(told: dict[str, float], tried: float) -> bool:
    """Return whether a tried saving lies in what is told: the margins, the error of the replay, and that of the step."""
    step = (told["high_ms"] - told["low_ms"]) / (2 * told["step_ms"])
    error = _REPLAY + step
    left = 1 - told["saved"]
    return 1 - left**TRIED_LEAST_POWER - error <= tried <= 1 - left**TRIED_MOST_POWER + error


def test_nine_in_ten_of_what_was_tried_lie_in_what_is_told() -> None:
    assert len(ROWS) >= 20
    out = [name for name, told, tried in ROWS if not _inside(told, tried)]
    assert len(out) <= 0.1 * len(ROWS), out


def test_told_factors_are_neither_too_large_nor_too_small() -> None:
    ratios = [(1 - tried) / (1 - told["saved"]) for _, told, tried in ROWS]
    assert 0.9 <= statistics.median(ratios) <= 1.1


def test_narrower_margins_would_not_hold_them() -> None:
    """Nor would none: the table tells wrong intervals from right ones."""
    out = [name for name, told, tried in ROWS if abs(tried - told["saved"]) > 0.02]
    assert len(out) > 0.1 * len(ROWS)


def test_the_interval_holds_its_own_headline() -> None:
    assert 0 < TRIED_LEAST_POWER < 1 < TRIED_MOST_POWER


#: Programs whose first advice is the change that was tried on them, and the code of the finding that gives it.
ADVISED = {
    "decode": "NSX102", "empty_cache": "NSX104", "graph": "NSX102", "loader": "NSX106", "mask_work": "NSX120", "pageable": "NSX105",
    "stack_graph": "NSX102",
}  # fmt: skip
TRIED = {row["pair"]: 1 / (1 - row["bare"]["saved"]) for row in json.loads((SAMPLES / "pairs.json").read_text())}


def _told(pairs: Samples, name: str) -> Answer:
    answer = pairs.summary(name).answer
    assert answer.do[-1].code == ADVISED[name]
    return answer


@pytest.mark.parametrize("name", ADVISED)
def test_what_was_tried_lies_in_what_the_page_says(pairs: Samples, name: str) -> None:
    least, most = _told(pairs, name).times
    assert least <= TRIED[name] <= most


def test_factors_of_pages_are_neither_too_large_nor_too_small(pairs: Samples) -> None:
    told = [_told(pairs, name) for name in ADVISED]
    ratios = [(a.now_ns or 0) / (a.then_ns or 1) / TRIED[name] for a, name in zip(told, ADVISED, strict=True)]
    assert 0.9 <= statistics.median(ratios) <= 1.1


def _inconsistent(answer: Answer) -> list[str]:
    """Return which bounds of an answer exclude its own headline."""
    now, then = answer.now_ns, answer.then_ns
    if not now or then is None:
        least, most = answer.times or (1.0, 1.0)
        bounds_alone = answer.certainty.level == "unknown" and 1 <= least <= most  # of a step whose length is not known
        return ["a factor without a step"] * (not bounds_alone and bool(answer.times))
    low, high, best = answer.then_low_ns, answer.then_high_ns, answer.best_ns
    least, most = answer.times or (0.0, float("inf"))
    wrong = {
        "low": low is not None and low > then,
        "high": high is not None and high < then,
        "best": best is not None and best > then,
        "least": not answer.bound and least > now / max(then, 1) * 1.001,
        "most": not answer.bound and most < now / max(then, 1) * 0.999,
        "unknown": answer.certainty.level == "unknown",
    }
    return [name for name, is_wrong in wrong.items() if is_wrong]


@pytest.mark.parametrize("name", PAIR_NAMES)
def test_bounds_of_a_page_hold_its_headline(pairs: Samples, name: str) -> None:
    assert not _inconsistent(pairs.summary(name).answer)


@pytest.mark.parametrize("name", DISTINCT)
def test_bounds_of_a_samples_page_hold_its_headline(recorded: Samples, name: str) -> None:
    assert not _inconsistent(recorded.summary(name).answer)
