"""Memory calls, flushes of the cache, and memory over time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyses import reason, rows, summary
from tests.builder import Report, Thread

MIB = 1 << 20


def steps(report: Report, count: int = 6) -> Thread:
    """Steps of one kernel each, 1 ms apart."""
    main = report.process(100).thread(100)
    for step in range(count):
        at = 1_000_000 * step
        main.launch(at=at + 10_000, dur=5_000, gpu_start=at + 20_000, gpu_dur=500_000)
        main.add_range(f"step {step}", at, at + 900_000)
    return main


def flush(main: Thread, at: int, frees: int, *, bytes: int | None = None) -> None:
    """Give ``frees`` segments back and ask again, as PyTorch's allocator does."""
    process = main.process
    for i in range(frees):
        call = main.call("cudaFree_v3020", at=at + 30_000 * i, dur=25_000)
        if bytes:
            process.memory(at + 30_000 * i, bytes, free=True, address=i + 1, correlation=call.correlation)
    call = main.call("cudaMalloc_v3020", at=at + 30_000 * frees, dur=50_000)
    if bytes:
        process.memory(at + 30_000 * frees, 3 * bytes, address=99, correlation=call.correlation)


def test_a_run_of_frees_and_a_retry_is_a_flush(tmp_path: Path) -> None:
    report = Report()
    main = steps(report)
    flush(main, 3_100_000, 3, bytes=2 * MIB)
    (row,) = rows(report, tmp_path, "alloc_flushes")
    assert (row["step"], row["steady"], row["frees"]) == (3, True, 3)
    assert (row["start_ns"], row["duration_ns"]) == (3_100_000, 140_000)
    assert (row["freed_bytes"], row["retry_bytes"]) == (6 * MIB, 6 * MIB)


def test_bytes_that_were_not_recorded_are_unknown(tmp_path: Path) -> None:
    report = Report()
    flush(steps(report), 3_100_000, 3)
    (row,) = rows(report, tmp_path, "alloc_flushes")
    assert (row["freed_bytes"], row["retry_bytes"]) == (None, None)
    assert {r["bytes"] for r in rows(report, tmp_path, "allocator")} == {None}


def test_what_only_looks_like_a_flush(tmp_path: Path) -> None:
    report = Report()
    main = steps(report)
    # empty_cache(), then Python, then an allocation.
    main.call("cudaFree_v3020", at=1_100_000, dur=25_000)
    main.call("cudaMalloc_v3020", at=1_300_000, dur=50_000)
    # A free of nothing wakes the driver.
    main.call("cudaFree_v3020", at=2_100_000, dur=2_000)
    main.call("cudaMalloc_v3020", at=2_120_000, dur=50_000)
    # cuBLAS sets itself up.
    main.call("cudaFree_v3020", at=3_100_000, dur=25_000)
    main.call("cudaMalloc_v3020", at=3_126_000, dur=5_000)
    main.call("cudaEventCreateWithFlags_v3020", at=3_132_000, dur=300)
    # A launch in between.
    main.call("cudaFree_v3020", at=4_100_000, dur=25_000)
    main.launch(at=4_126_000, dur=5_000, gpu_start=4_600_000)
    main.call("cudaMalloc_v3020", at=4_132_000, dur=50_000)
    # Another thread allocates.
    main.call("cudaFree_v3020", at=4_700_000, dur=25_000)
    main.process.thread(101).call("cudaMalloc_v3020", at=4_726_000, dur=50_000)
    assert rows(report, tmp_path, "alloc_flushes") == []


def test_two_flushes_in_a_row_are_two(tmp_path: Path) -> None:
    report = Report()
    main = steps(report)
    flush(main, 3_100_000, 2)
    flush(main, 3_215_000, 1)
    assert [r["frees"] for r in rows(report, tmp_path, "alloc_flushes")] == [2, 1]


def test_calls_of_the_allocator_in_between_do_not_hide_a_flush(tmp_path: Path) -> None:
    report = Report()
    main = steps(report)
    main.call("cudaFree_v3020", at=3_100_000, dur=25_000)
    main.call("cudaEventQuery_v3020", at=3_126_000, dur=300)
    main.call("cudaFree_v3020", at=3_127_000, dur=25_000)
    main.call("cudaMalloc_v3020", at=3_153_000, dur=50_000)
    assert [r["frees"] for r in rows(report, tmp_path, "alloc_flushes")] == [2]


def test_memory_calls_of_steady_steps_by_place(tmp_path: Path) -> None:
    report = Report()
    main = steps(report)
    main.add_range("layers.0:Linear", 3_050_000, 3_400_000)
    flush(main, 3_100_000, 3, bytes=2 * MIB)
    main.call("cudaHostAlloc_v3020", at=2_600_000, dur=70_000)
    found = {(r["api"], r["module"]): r for r in rows(report, tmp_path, "allocator")}
    free = found["cudaFree", "layers.0"]
    assert (free["calls"], free["steps"], free["total_ns"], free["in_flushes"]) == (3, 1, 75_000, 3)
    assert free["bytes"] == 6 * MIB
    assert "expandable_segments" in free["advice"]
    host = next(r for r in found.values() if r["api"] == "cudaHostAlloc")
    assert (host["kind"], host["total_ns"], host["in_flushes"]) == ("host_alloc", 70_000, 0)
    assert "pinned" in host["advice"]


def test_steady_steps_without_memory_calls_have_no_rows(tmp_path: Path) -> None:
    report = Report()
    main = steps(report)
    main.call("cudaMalloc_v3020", at=-50_000, dur=10_000)
    assert rows(report, tmp_path, "allocator") == []


def test_memory_over_time_adds_up(tmp_path: Path) -> None:
    report = Report()
    process = steps(report).process
    for i in range(1_000):
        process.memory(1_000 * i, 2 * MIB, address=i)
        if i % 2:
            process.memory(1_000 * i + 500, 2 * MIB, free=True, address=i)
    process.memory(10, 64, kind=1)
    found = rows(report, tmp_path, "memory")
    device = [r for r in found if r["kind"] == "device"]
    assert len(device) <= 300
    assert [r["kind"] for r in found if r["kind"] != "device"] == ["pinned"]
    before = 0
    for row in device:
        assert row["bytes"] == before + row["allocated_bytes"] - row["freed_bytes"]
        assert row["peak_bytes"] >= max(before, row["bytes"]) - 2 * MIB
        before = row["bytes"]
    assert device[-1]["bytes"] == 500 * 2 * MIB
    assert sum(r["allocations"] for r in device) == 1_000


def test_memory_that_was_not_recorded_names_the_flag(tmp_path: Path) -> None:
    report = Report()
    steps(report)
    assert "--memory" in reason(report, tmp_path, "memory")
    found = summary(report, tmp_path)
    assert found.to_json()["memory"] is None


@pytest.mark.parametrize(("steps", "grew"), [(4, False), (8, True)])
def test_a_cache_that_grew_is_only_told_where_most_steps_allocate_nothing(
    tmp_path: Path, steps: int, grew: bool
) -> None:
    """Two of the steps allocate: of four that says nothing, of eight the cache grew for a new largest shape."""
    report = Report()
    main = report.process(100).thread(100)
    for i in range(steps):
        at = 1_000_000 * i
        main.add_range(f"step {i}", at, at + 900_000)
        if i in (2, 3):
            main.call("cudaMalloc_v3020", at + 100_000, 50_000)
        main.launch(at=at + 200_000, dur=5_000, gpu_start=at + 210_000, gpu_dur=500_000)
    found = [r for r in rows(report, tmp_path, "allocator", steps=f"0:{steps}") if r["kind"] == "alloc"]
    assert [("largest shape" in r["advice"]) for r in found] == [grew]
