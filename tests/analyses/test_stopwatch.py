"""Four ways of timing one operation: measured where the program took them, else put together from their parts."""

from __future__ import annotations

from pathlib import Path

from tests.analyses import reason, rows
from tests.builder import Report, Thread


def body(report: Report, way: str, *, repeats: int = 5, kernel: int = 17_000) -> Thread:
    """Earlier work of 100 us, then the operation: host 7 us, launch 4 us, kernel 17 us, synchronize returns 3 us later."""
    main = report.process(100).thread(100)
    for i in range(repeats):
        at = 1_000_000 * (i + 1)
        main.launch(at=at, dur=4_000, kernel="void at::native::gemm", gpu_start=at + 6_000, gpu_dur=100_000)
        done = at + 106_000
        clock = at + 4_000
        if way in ("both", "before"):
            main.sync("cudaDeviceSynchronize_v3020", at=at + 10_000, dur=done + 3_000 - at - 10_000)
            clock = done + 3_000
        main.launch(
            at=clock + 7_000, dur=4_000, kernel="mine", gpu_start=max(done + 1_000, clock + 13_000), gpu_dur=kernel
        )
        finish = max(done + 1_000, clock + 13_000) + kernel
        if way in ("both", "after"):
            main.sync("cudaDeviceSynchronize_v3020", at=clock + 16_000, dur=finish + 3_000 - clock - 16_000)
    return main


def test_each_way_is_measured_where_it_was_taken(tmp_path: Path) -> None:
    expected = {
        "both": 13_000 + 17_000 + 3_000,
        "before": 11_000,
        # From the return of the earlier launch: 102,000 until the earlier work is done, 1,000, 17,000 and 3,000.
        "after": 102_000 + 1_000 + 17_000 + 3_000,
        "none": 11_000,
    }
    for way, reading in expected.items():
        report = Report()
        body(report, way)
        mine = rows(report, tmp_path, "stopwatch")[0]
        assert mine["name"] == "mine"
        assert mine["custom"]
        assert (mine[f"{way}_ns"], mine[f"{way}_from"]) == (reading, "measured"), way


def test_ways_that_were_not_taken_are_composed(tmp_path: Path) -> None:
    report = Report()
    body(report, "both")
    mine, gemm = rows(report, tmp_path, "stopwatch")
    assert not gemm["custom"]
    assert (mine["host_ns"], mine["api_ns"], mine["latency_ns"]) == (7_000, 4_000, 2_000)
    assert (mine["kernel_ns"], mine["sync_return_ns"], mine["queue_ns"]) == (17_000, 3_000, None)
    # Every call before was a synchronize, so the reading "before" is measured too.
    assert (mine["before_ns"], mine["before_from"]) == (11_000, "measured")
    assert (mine["none_ns"], mine["none_from"]) == (11_000, "composed")
    # It never stood behind other work, so how long it would wait there is not known.
    assert (mine["after_ns"], mine["after_from"]) == (None, None)
    assert (mine["event_idle_ns"], mine["event_queued_ns"], mine["benchmark_ns"]) == (30_000, 17_000, 17_000)


def test_a_launch_bound_operation_is_what_the_benchmark_reads(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for i in range(5):
        main.launch(at=20_000 * i, dur=4_000, kernel="tiny", gpu_start=20_000 * i + 6_000, gpu_dur=1_000)
    (tiny,) = rows(report, tmp_path, "stopwatch")
    assert (tiny["host_ns"], tiny["benchmark_ns"]) == (16_000, 20_000)
    # No synchronize anywhere: how long it takes to return is not known.
    assert (tiny["both_ns"], tiny["sync_return_ns"]) == (None, None)


def test_two_launches_are_no_measurement(tmp_path: Path) -> None:
    report = Report()
    body(report, "both", repeats=2)
    assert rows(report, tmp_path, "stopwatch") == []


def test_without_kernels_it_says_so(tmp_path: Path) -> None:
    report = Report()
    report.process(100).thread(100).call("cudaMalloc_v3020", at=0, dur=10)
    assert "not both recorded" in reason(report, tmp_path, "stopwatch")
