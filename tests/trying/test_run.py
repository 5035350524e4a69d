"""What the record of one run says."""

from __future__ import annotations

import math

import pytest

from nsysx.trying import run


def test_the_step_of_a_run_is_the_median_of_the_means_of_equal_blocks() -> None:
    def step(lengths: list[float], warm: int = 3) -> float:
        numbered = {str(number): ns for number, ns in enumerate(lengths)}
        return run.step_of({"warm": warm, "steps": len(lengths), "steps_ns": numbered})

    cold, blocks = [9e9] * 3, run._BLOCKS
    lengths = [10.0 * i * i + j for i in range(blocks) for j in (0, 4)]  # blocks of two, whose means are 2, 12, 42, ...
    assert step([*cold, *lengths]) == pytest.approx(10 * (blocks // 2) ** 2 + 2)
    assert step([*cold, 7e9, *lengths]) == step([*cold, *lengths]), (
        "what does not fill a block is left out at the front"
    )
    assert step([*cold, 5.0, 1.0, 3.0]) == 3.0, "too few for blocks: the median"
    assert math.isnan(step(cold))
