"""Where a session lies in time, whatever single rows say."""

from __future__ import annotations

import polars as pl

from nsysx.reading import placing
from nsysx.reading.reading_bounds import LONGEST_RANGE_NS


def test_only_rows_further_apart_than_a_session_lasts_need_a_center() -> None:
    near = {"kernel": pl.DataFrame({"start_ns": [100, 200, 300], "end_ns": [150, 250, 350]})}
    assert placing.center(near) is None
    assert placing.center({"kernel": near["kernel"].clear()}) is None
    far = pl.DataFrame({"time_ns": [0, LONGEST_RANGE_NS + 1_000]})
    assert placing.center({**near, "mark": far}) == 200, "the middle of the longest table"
