"""What is left to the device's limits bounds what is promised of work that stays as it is."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from nsysx.findings._roof_room import within_roofs
from nsysx.pipeline import ReadingOptions, gather
from nsysx.replay.engine import RemoveOps, ScaleOps
from tests.analyses.test_operators import summary
from tests.answer.test_near_limits import of


@pytest.mark.parametrize(("add_us", "left"), [(200, 0.89), (1500, 0.5)])
def test_kernels_near_their_roof_get_no_further_than_it(tmp_path: Path, add_us: float, left: float) -> None:
    """Products at 92 % of the peak; additions at 89 % of the bandwidth, or far from it."""
    summary(of(190, add_us), tmp_path)
    profile = gather(next(tmp_path.glob("*.sqlite")), ReadingOptions())
    ops = profile.steady_ops.select("op", pl.col("name").cast(pl.String), ns=pl.col("end_ns") - pl.col("start_ns"))
    everything = frozenset(ops["op"].to_list())
    parts = within_roofs(profile, [ScaleOps(everything, 0.5)])
    factor = {op: part.factor for part in parts if isinstance(part, ScaleOps) for op in part.ops}
    assert set(factor) == everything
    adds = ops.filter(pl.col("name").str.contains("add", literal=True) | (pl.col("ns") > 195_000))["op"].to_list()
    assert {round(factor[op], 2) for op in adds} == {left}
    assert {round(factor[op], 2) for op in everything.difference(adds)} == {0.92}
    less = (ScaleOps(everything, 0.5, less_work=True), RemoveOps(everything))
    assert within_roofs(profile, less) == less, "fewer operations or bytes have another limit"
    assert within_roofs(profile, [ScaleOps(everything, 0.95)]) == (ScaleOps(everything, 0.95),)
