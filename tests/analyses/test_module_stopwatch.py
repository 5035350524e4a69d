"""Four ways of timing a module of several kernels."""

from __future__ import annotations

from pathlib import Path

from tests.analyses import reason, rows
from tests.builder import Report


def build(*, sync_before: bool, sync_after: bool, repeats: int = 4) -> Report:
    """Earlier work of 200 us, then a module: 60 us on the CPU, three kernels of 30 us launched 20 us apart."""
    report = Report()
    main = report.process(100).thread(100)
    for i in range(repeats):
        at = 1_000_000 * (i + 1)
        main.launch(at=at, dur=4_000, kernel="earlier", gpu_start=at + 6_000, gpu_dur=200_000)
        clock = at + 10_000
        if sync_before:
            main.sync("cudaDeviceSynchronize_v3020", at=at + 5_000, dur=204_000)
            clock = at + 210_000
        main.add_range("block:Block", clock, clock + 60_000)
        free = max(at + 206_000, clock)
        for k in range(3):
            launch = clock + 5_000 + 20_000 * k
            start = max(launch + 6_000, free)
            main.launch(at=launch, dur=4_000, kernel="part", gpu_start=start, gpu_dur=30_000)
            free = start + 30_000
        if sync_after:
            main.sync("cudaDeviceSynchronize_v3020", at=clock + 61_000, dur=free + 3_000 - clock - 61_000)
    return report


def test_each_way(tmp_path: Path) -> None:
    # Alone: the first kernel begins 11 us into the range, then 90 us of work: 101 us. Behind 196 us of others: 286 us.
    for before, after, way, reading in (
        (True, True, "both", 104_000),
        (True, False, "before", 60_000),
        (False, True, "after", 196_000 + 90_000 + 3_000),
        (False, False, "none", 60_000),
    ):
        (row,) = rows(build(sync_before=before, sync_after=after), tmp_path, "module_stopwatch")
        assert (row["name"], row["calls"], row["kernels_each"]) == ("block", 4, 3)
        assert (row["range_ns"], row["api_ns"], row["work_ns"]) == (60_000, 12_000, 90_000)
        assert (row[f"{way}_ns"], row[f"{way}_from"]) == (reading, "measured"), way


def test_composed_readings_agree_with_measured_ones(tmp_path: Path) -> None:
    (row,) = rows(build(sync_before=True, sync_after=True), tmp_path, "module_stopwatch")
    assert row["alone_ns"] == row["event_idle_ns"] == 101_000
    assert row["event_queued_ns"] == row["benchmark_ns"] == 90_000
    # Without synchronize before: never recorded, and what would have stood in the queue is not known.
    assert (row["after_ns"], row["after_from"]) == (None, None)
    assert (row["none_ns"], row["none_from"]) == (60_000, "composed")
    (row,) = rows(build(sync_before=False, sync_after=True), tmp_path, "module_stopwatch")
    assert (row["both_ns"], row["both_from"]) == (104_000, "composed")


def test_modules_that_wait_inside_are_left_out(tmp_path: Path) -> None:
    report = build(sync_before=False, sync_after=False)
    main = report.processes[0].thread(100)
    for i in range(4):
        main.sync(at=1_000_000 * (i + 1) + 10_000 + 30_000, dur=2_000)
    assert rows(report, tmp_path, "module_stopwatch") == []


def test_whole_models_are_left_out(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for i in range(5):
        at = 1_000_000 * i
        main.add_range("net:Net", at, at + 900_000)
        for k in range(70):
            main.launch(at=at + 10_000 * k, dur=4_000, gpu_start=at + 10_000 * k + 5_000, gpu_dur=1_000)
    assert rows(report, tmp_path, "module_stopwatch") == []


def test_without_ranges_it_says_so(tmp_path: Path) -> None:
    report = Report()
    report.process(100).thread(100).launch(at=0, gpu_start=100)
    assert "no NVTX range" in reason(report, tmp_path, "module_stopwatch")
