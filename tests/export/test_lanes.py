"""Slices of one row: those that nest share a lane, and one that begins where another ends does, too."""

from __future__ import annotations

import numpy as np

from nsysx.export.lanes import assign


def lanes(*spans: tuple[int, int]) -> list[int]:
    start, end = (np.array([span[i] for span in spans], np.int64) for i in range(2))
    return assign(start, end).tolist()


def test_a_slice_that_begins_where_another_ends_needs_no_lane_of_its_own() -> None:
    assert lanes((0, 10), (5, 15), (10, 20), (15, 30)) == [0, 1, 0, 1]
    assert lanes((0, 10), (5, 15), (9, 20)) == [0, 1, 2]
