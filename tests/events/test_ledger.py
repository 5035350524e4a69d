"""Idle time by window and cause, against a count of every single nanosecond."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from nsysx.catalogue import Cause
from nsysx.events import ledger

CAUSES = tuple(Cause)


def idle_pieces(seed: int) -> pl.DataFrame:
    """Return pieces of two devices that lie between 0 and 400 ns and do not overlap on either."""
    chosen = np.random.default_rng(seed)
    rows = []
    for device in (0, 1):
        times = np.unique(chosen.integers(0, 400, 60))
        for start, end in zip(times[:-1:2].tolist(), times[1::2].tolist(), strict=False):
            rows.append((7, device, start, end, int(chosen.integers(0, len(CAUSES)))))
    columns = ["process", "device", "start_ns", "end_ns", "cause"]
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.Int64), orient="row").sample(
        fraction=1, shuffle=True, seed=seed
    )


@pytest.mark.parametrize("seed", range(20))
def test_idle_time_of_windows(seed: int) -> None:
    idle = idle_pieces(seed)
    borders = np.unique(np.random.default_rng(seed + 100).integers(20, 380, 9))
    start, end = (borders[:-1], borders[1:]) if seed % 2 else (borders[:-1:2], borders[1::2][: len(borders[:-1:2])])
    found = ledger.idle_parts(idle.filter(pl.col("device") == 1), start, end)
    for i, name in enumerate(CAUSES):
        pieces = idle.filter((pl.col("device") == 1) & (pl.col("cause") == i)).select("start_ns", "end_ns").rows()
        spent = {t for a, b in pieces for t in range(a, b)}
        expected = [sum(t in spent for t in range(a, b)) for a, b in zip(start.tolist(), end.tolist(), strict=True)]
        assert found.get(name, np.zeros(len(start))).tolist() == expected
        assert any(expected) == (name in found)


def test_no_windows_and_no_pieces() -> None:
    none = np.empty(0, np.int64)
    assert ledger.idle_parts(idle_pieces(1), none, none) == {}
    assert ledger.idle_parts(idle_pieces(1).clear(), np.array([0]), np.array([9])) == {}
