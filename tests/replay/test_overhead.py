"""What tracing adds to calls, and calls inside of calls: no time is counted twice."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl

from nsysx.replay import overhead
from tests.replay.test_engine import US, replayed, training


def test_a_flush_delays_the_call_it_lies_in_or_else_the_next_one() -> None:
    calls = pl.DataFrame({"thread": [7, 7, 7], "start_ns": [100, 300, 500], "end_ns": [200, 400, 600]})
    window = SimpleNamespace(calls=calls, start_ns=0, end_ns=1_000)
    flushes = [(50, 60), (320, 340), (410, 440), (610, 650), (980, 1_080)]  # the last one ends outside
    rows = pl.DataFrame(
        {"thread": [7] * 5, "start_ns": [a for a, _ in flushes], "end_ns": [b for _, b in flushes]}
    ).vstack(pl.DataFrame({"thread": [8], "start_ns": [150], "end_ns": [160]}))
    profile = SimpleNamespace(trace=SimpleNamespace(overhead=rows))
    before, inside = np.zeros(4), np.zeros(4)
    assert overhead._flushes(profile, window, before, inside) == 100  # type: ignore[arg-type]
    assert before.tolist() == [10, 0, 30, 40]
    assert inside.tolist() == [0, 20, 0, 0]


def test_a_call_inside_of_another_one_is_no_item_of_its_own(tmp_path: Path) -> None:
    def made(name: str, *, nested: bool) -> tuple[int, int]:
        report = training(malloc=1_000)
        main = report.processes[0].thread(100, "python")
        for row in report.rows["CUPTI_ACTIVITY_KIND_RUNTIME"].copy():
            if nested and row["end"] - row["start"] == 1_000 * US:
                main.call("cudaEventQuery_v3020", row["start"] + 100 * US, 20 * US)
        (tmp_path / name).mkdir()
        given, replay = replayed(report, tmp_path / name)
        assert given.calls.filter(pl.col("name").cast(pl.String).str.starts_with("cudaEventQuery")).height == 6 * nested
        return replay.items, replay.recorded_ns

    assert made("nested", nested=True) == made("plain", nested=False)
