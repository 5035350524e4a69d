"""Tables of values by number."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.frames import lookup


def test_totals_are_exact_where_floats_are_not() -> None:
    large = (1 << 53) + 1  # the first whole number that no float holds
    sums = lookup.totals(np.array([0, 2, 0, 2]), np.array([large, 1, 2, large], np.int64), 4)
    assert sums.tolist() == [large + 2, 0, large + 1, 0]
    assert sums.dtype == np.int64


def test_rows_with_a_value_are_those_of_a_filter_and_no_copy_where_all_have_it() -> None:
    frame = pl.DataFrame(
        {"process": [7, 7, 7], "device": [0, 1, None]}, schema={"process": pl.Int64, "device": pl.Int64}
    )
    assert lookup.having(frame, process=7) is frame
    assert lookup.having(frame, process=7, device=1).rows() == [(7, 1)]
    assert lookup.having(frame, process=8).height == 0
    assert lookup.having(frame.clear(), process=7).height == 0


def test_parts_are_the_rows_of_each_combination_in_their_order_and_no_copy_where_there_is_one() -> None:
    frame = pl.DataFrame({"process": [7, 8, 7, None], "device": [0, 0, 1, 0], "row": [0, 1, 2, 3]})
    rows = {key: part["row"].to_list() for key, part in lookup.parted(frame, "process", "device").items()}
    assert rows == {(7, 0): [0], (8, 0): [1], (7, 1): [2]}
    alike = frame.with_columns(process=pl.lit(7), device=pl.lit(1))
    [(key, part)] = lookup.parted(alike, "process", "device").items()
    assert key == (7, 1) and part is alike
    assert lookup.parted(frame.clear(), "process") == {}
