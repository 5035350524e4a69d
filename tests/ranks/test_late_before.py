"""Whether a rank was late in an earlier window, too: its settled half decides, in which start-up is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysx.ranks.straggler import _late_before


@pytest.mark.parametrize(("late", "expected"), [(1, True), (0, False)])
def test_the_settled_half_of_the_earlier_window_decides(late: int, expected: bool) -> None:
    """Of 40 collectives rank 0 comes last in the first 20, while it warms up; then ``late`` does."""
    start = np.stack([np.arange(40) * 1_000, np.arange(40) * 1_000])
    start[0, :20] += 100
    start[late, 20:] += 100
    ranks = [SimpleNamespace(seams=[10**6], start_ns=start[r]) for r in range(2)]
    rows = {0: np.arange(40), 1: np.arange(40)}
    aligned: Any = SimpleNamespace(ranks=ranks, offset=[0, 0], groups=[(SimpleNamespace(kind="allreduce"), rows)])
    assert _late_before(aligned, (0, 1), 1) is expected
