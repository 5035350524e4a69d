"""What nsysx predicts of programs whose change was measured, blind or after a fault was planted.

``tried_programs.json`` has a row for each. ``before_ms`` and ``after_ms``: both sides in one process, or in the processes of one job,
blocks in turn, on an H100; from "basket" on on an H200, as their recordings are but that of "estuary". From "orchard" on on an H100 again;
"drone" was measured on another GPU than it was recorded on, which works for 5 % of its step. Others of its set, whose GPU sets their step
before or after the change, are none of these rows for that reason.
``predicted``: what the page of a recording of the unchanged program says of this change, ``scripts/tried_table`` renews it; null where
no finding advises the change with a size. The recordings themselves are too large to stand here. A step of the recording may be another
than that of the measurement (a token or an answer), or was run by another host: only factors are compared.

``mended``: the prediction was made after the measurement was known, by rules that were written or mended with it. These rows are counted
apart. Of the rows from "kernels" to "checkpointed" three lay inside as first told; of those from "chess" on five were advised with a
size at first, "support" and "sneakers" inside, "lander", "errand" and "soap" outside. Other rows were mended so in part before that was
noted: the table is no blind score.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from nsysx.answer.answer_bounds import TRIED_MOST_POWER, WIDER_MOST_POWERS

EVERY = json.loads((Path(__file__).parent / "tried_programs.json").read_text())
ROWS = [row for row in EVERY if not row.get("mended")]
MENDED = [row for row in EVERY if row.get("mended") and row["predicted"] is not None]
PREDICTED = [row for row in ROWS if row["predicted"] is not None]
#: Where the measured factor lies outside, and why. The aim is one row in ten at most.
OUTSIDE = {
    "ensemble": "the host was half as fast where it was measured",
    "sentiment": "the host was slower where it was measured",
    "depth": "convolutions that determinism slows down are not counted (told before `WIDER_MOST_POWERS`)",
    "nowcast": "the host copied more slowly where it was measured: 77.3 ms told as 65.5; the steps after it differ by 7 %",
    "estuary": "recorded on another GPU than it was measured on, and fewer bytes were sent, of which the advice says nothing",
    "juggle": "numpy was slower where it was measured: 1.86 told at most, 1.90 measured",
}


#: The same of programs that rules were mended with. "lander" (1.36 measured) is told as up to 2.2 times as fast, which is no interval.
OUTSIDE_MENDED = {
    "meeting": "the host was slower where it was recorded: 1.50 ms told and 1.46 measured, of steps of 17.4 and 11.0 ms",
    "lidar": "the host takes longer for the repeated calls than its replay knows: 1.086 measured, told as 1.085 at most",
    "movies": "products of a CSR matrix take less time than those that the step had, and its host far less than its replay leaves",
    "pallet": "what writes the weights back in another function goes with the change and is not counted",
}


def _measured(row: dict[str, Any]) -> float:
    return float(row["before_ms"] / row["after_ms"])


def test_measured_changes_lie_in_what_is_predicted() -> None:
    """The aim is 90 %; 56 of 62 lie inside (90 %). Rows outside are named with the reason: none is forgotten or added."""
    out = [
        row["program"]
        for row in PREDICTED
        if not row["predicted"]["least"] <= _measured(row) <= row["predicted"]["most"]
    ]
    assert sorted(out) == sorted(OUTSIDE)
    assert len(PREDICTED) >= 62 and len(out) <= 6


def test_programs_that_rules_were_mended_with_lie_in_what_is_predicted() -> None:
    out = [
        row["program"] for row in MENDED if not row["predicted"]["least"] <= _measured(row) <= row["predicted"]["most"]
    ]
    assert sorted(out) == sorted(OUTSIDE_MENDED) and len(MENDED) >= 62


def test_most_measured_changes_are_advised_with_a_size() -> None:
    assert len(PREDICTED) >= 0.8 * len(ROWS)


def test_what_is_likely_is_neither_too_large_nor_too_small() -> None:
    likely = [row for row in PREDICTED if row["predicted"]["likely"] is not None]
    ratios = [row["predicted"]["likely"] / _measured(row) for row in likely]
    assert 0.9 <= statistics.median(ratios) <= 1.1, sorted(ratios)


@pytest.mark.parametrize("row", PREDICTED, ids=[row["program"] for row in PREDICTED])
def test_an_interval_holds_its_own_headline(row: dict[str, Any]) -> None:
    predicted = row["predicted"]
    assert predicted["least"] <= (predicted["likely"] or predicted["most"]) <= predicted["most"]


def test_intervals_name_the_factor_within_two_times() -> None:
    """So the table tells wrong intervals from right ones: one of a tenth around what is likely would not hold them."""
    assert statistics.median(row["predicted"]["most"] / row["predicted"]["least"] for row in PREDICTED) <= 2
    near = [
        row
        for row in PREDICTED
        if row["predicted"]["likely"] and abs(_measured(row) / row["predicted"]["likely"] - 1) <= 0.1
    ]
    assert len(near) < 0.9 * len(PREDICTED)


@pytest.mark.parametrize("remedy", WIDER_MOST_POWERS)
def test_remedies_with_wider_intervals_gained_more_than_the_usual_one_holds(remedy: str) -> None:
    """Each program on which one was tried did, and the wider interval holds them: evidence, not caution."""
    tried = [row for row in EVERY if row["change"] == remedy and row["predicted"] is not None]
    assert len(tried) >= 2
    for row in tried:
        power = math.log(_measured(row)) / math.log(row["predicted"]["likely"])
        assert TRIED_MOST_POWER < power <= WIDER_MOST_POWERS[remedy], row["program"]
