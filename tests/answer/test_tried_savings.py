"""What a replay said that changes save against what they saved when tried: what the interval of an answer is taken from."""

from __future__ import annotations

import json
import statistics

import pytest

from nsysx.answer import choice
from tests.samples import SAMPLES

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
    return choice.LEAST * told["saved"] - error <= tried <= choice.MOST * told["saved"] + error


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


@pytest.mark.parametrize("part", [choice.LEAST, choice.MOST])
def test_the_interval_holds_its_own_headline(part: float) -> None:
    assert choice.LEAST < 1 < choice.MOST and part > 0
