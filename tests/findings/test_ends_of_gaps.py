"""Which calls end the longest gaps of slow steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from nsysx.findings.nsx109_slow_steps import _ends_of_gaps


def test_gaps_half_as_long_as_the_longest_count_too() -> None:
    """In the slow second step the pieces before op 1 sum to 10, before op 2 to 5, before op 3 to 4; the first step is not slow."""
    idle = pl.DataFrame(
        {"start_ns": [5, 105, 120, 140, 160], "op": [0, 1, 1, 2, 3], "ns": [90, 6, 4, 5, 4]},
        schema_overrides={"op": pl.Int64},
    )
    case: Any = SimpleNamespace(
        idle=idle,
        profile=SimpleNamespace(attributed=SimpleNamespace(gpu_ops=pl.DataFrame({"call": [10, 11, 12, 13]}))),
    )
    tiles = pl.DataFrame({"start_ns": [0, 100]})
    assert _ends_of_gaps(case, tiles, np.array([False, True])) == (11, 12)
