"""Tables of values by number."""

from __future__ import annotations

import numpy as np

from nsysx.frames import lookup


def test_totals_are_exact_where_floats_are_not() -> None:
    large = (1 << 53) + 1  # the first whole number that no float holds
    sums = lookup.totals(np.array([0, 2, 0, 2]), np.array([large, 1, 2, large], np.int64), 4)
    assert sums.tolist() == [large + 2, 0, large + 1, 0]
    assert sums.dtype == np.int64
