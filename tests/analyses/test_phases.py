"""Device time by phase: every busy instant has one phase, that of the work that began last."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nsysx.analyses.phases import _busy

#: (start, length, phase) of GPU ops on a few streams.
OPS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=14)


@given(OPS)
def test_of_work_that_runs_at_once_the_one_that_began_last_has_the_instant(ops: list[tuple[int, int, int]]) -> None:
    ops.sort(key=lambda op: (op[0], -op[1]))  # of equal begins the shorter one began last
    expected = [0, 0, 0]
    for t in range(80):
        running = [phase for start, length, phase in ops if start <= t < start + length]
        if running:
            expected[running[-1]] += 1
    start, length, phase = (np.array(column, np.int64) for column in zip(*ops, strict=True))
    assert _busy(start, start + length, phase, 3).tolist() == expected


def test_two_streams_of_other_phases_cost_no_more_than_their_blocks() -> None:
    """The time of the whole is conserved for many ops whose ends do not nest."""
    dice = random.Random(7)
    start = np.arange(0, 200_000, 10)
    end = start + np.array([dice.randrange(5, 35) for _ in start])
    phase = np.array([i // 100 % 2 for i in range(len(start))])
    found = _busy(start, end, phase, 2)
    reach = np.maximum.accumulate(end)
    idle = np.maximum(start[1:] - reach[:-1], 0).sum()
    assert found.sum() == reach[-1] - start[0] - idle
    assert (found > 0).all()
