"""What keeps a report that is large in one way only from costing more than in proportion."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from nsysx.events import layers
from nsysx.frames import lookup
from nsysx.pipeline import summarize
from tests.builder import Report

US = 1_000


def test_ranges_nested_very_deep_have_paths_of_bounded_length(tmp_path: Path) -> None:
    """A recursion: every level has its kernel, and no kernel's time is lost where paths are not continued."""
    deep = 3_000
    report = Report()
    thread = report.process(100).thread(100)
    for i in range(deep):
        thread.add_range(f"layer{i}", i * 100, 10**9 - i * 200)
        thread.launch(10**7 + i * 20 * US, 5 * US, kernel="gemm", gpu_start=10**7 + i * 20 * US + 10 * US, gpu_dur=7)
    summary = summarize([report.write(tmp_path / "r.sqlite")], steps="all")
    rows = summary.tables["modules"].rows
    paths = [row["path"] for row in rows]
    assert len(set(paths)) == len(paths)
    assert max(map(len, paths)) < layers._LONGEST_PATH + 50
    assert sum(path.endswith(layers._DEEPER) for path in paths) == 1
    assert sum(row["self_gpu_ns"] for row in rows) == 7 * deep
    assert rows[0]["forward_gpu_ns"] == 7 * deep


def test_rows_are_parted_by_what_they_belong_to() -> None:
    frame = pl.DataFrame({"a": [1, 2, 1, None, 2], "b": [0, 0, 0, 0, 1], "x": [1, 2, 3, 4, 5]})
    parts = lookup.parted(frame, "a", "b")
    assert {key: part["x"].to_list() for key, part in parts.items()} == {(1, 0): [1, 3], (2, 0): [2], (2, 1): [5]}
    one = frame.filter(pl.col("a") == 1)
    assert lookup.parted(one, "a", "b")[1, 0] is one
    assert lookup.parted(frame.clear(), "a") == {}
