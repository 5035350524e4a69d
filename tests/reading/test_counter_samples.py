"""Values of the GPU's counters as shares and clocks."""

from __future__ import annotations

import polars as pl
import pytest

from nsysx.reading import counter_samples

SHARE = next(name for name in counter_samples.COLUMNS if name != "clock_hz")
KEYS = {0x100: "clock_hz", 0x200: SHARE}


@pytest.mark.parametrize(
    ("column", "value", "read"),
    [
        ("clock_hz", 1_980, 1_980_000_000),  # megahertz after all
        ("clock_hz", 1_980_000_000, 1_980_000_000),
        ("clock_hz", 0, None),
        (SHARE, 37, pytest.approx(0.37)),
        (SHARE, 0, 0.0),
        (SHARE, 103, 1.0),  # rounding gives slightly more than 100 %
        (SHARE, 4_000, None),
    ],
)
def test_a_value_is_a_share_or_a_clock_or_nothing(column: str, value: int, read: float | None) -> None:
    key = next(k for k, name in KEYS.items() if name == column)
    [row] = counter_samples._sampled(pl.DataFrame({"time_ns": [5], "key": [key], "value": [value]}), KEYS).to_dicts()
    assert (row["time_ns"], row["gpu"], row[column]) == (5, 0, read)
