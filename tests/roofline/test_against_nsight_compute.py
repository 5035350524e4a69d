"""Bytes that operators must move, against what Nsight Compute counted in the memory of an H100: GPT-2 in bf16 autocast.

The counters count what reaches the memory. Half of the L2 cache or more of what an operator writes last, or what the one before it wrote,
stays in the cache, and a kernel may read something twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nsysx.roofline.element_types import types_of
from nsysx.roofline.operator_bytes import OperatorCall, bytes_of

COUNTED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "nsight_compute_h100.json").read_text())
CACHE = 50 << 20
#: Above this, what the cache may hold is less than a quarter.
LARGE = 190_000_000


def must_move(row: dict[str, Any]) -> int:
    call = OperatorCall(
        row["operator"], row["sizes"], row["read"] or row["sizes"], types_of(row["kernel"]), row["width"]
    )
    moved = bytes_of(call, row["kernel"])
    assert moved is not None
    return moved


def why_more(row: dict[str, Any]) -> str:
    """Return why a kernel moves more than it must, or than its name says; "" for none."""
    if "softmax" in row["operator"]:
        return "reads its input once for the largest number, once for the sum and once for the result"
    if "LoadWithCast" in row["kernel"]:
        return "converts, and its name does not say from what: a byte is counted"
    if row["operator"] == "aten::mm" and row["sizes"][0][0] > 10 * row["sizes"][1][1]:
        return "reads a factor again for each band of tiles"
    return ""


@pytest.mark.parametrize("row", COUNTED, ids=lambda r: f"{r['operator']}-{r['sizes'][0]}"[6:])
def test_no_operator_must_move_more_than_nsight_compute_saw_it_move(row: dict[str, Any]) -> None:
    moved = must_move(row)
    assert moved - CACHE <= 1.1 * row["dram_bytes"], "beyond the cache, all of it was seen"
    if moved >= LARGE and not why_more(row):
        assert row["dram_bytes"] == pytest.approx(moved, rel=0.1)


def test_enough_of_them_are_far_beyond_the_cache_and_those_that_move_more_have_a_reason() -> None:
    large = [(must_move(r), r["dram_bytes"], why_more(r)) for r in COUNTED if must_move(r) >= LARGE]
    near = [seen / moved for moved, seen, why in large if not why]
    assert len(COUNTED) == 30 and len(near) >= 4 and all(0.9 <= share <= 1.1 for share in near)
    assert all(seen > moved for moved, seen, why in large if why), "what is not near moves more, never less"
