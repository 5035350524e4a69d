"""The first-call bill: what is paid once, by rule and as measured, and the same seconds in the table by API function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analyses import reason, rows, summary
from tests.builder import Report


def by_name(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in found}


def training(steps: int = 6, *, first_launch: int = 50_000, longer: int = 0, schema: str = "3.20.3") -> Report:
    """A few steps of two kernels each; the first launch of ``gemm`` loads its code, step 0 is ``longer`` in Python."""
    report = Report(schema)
    main = report.process(100).thread(100)
    main.call("cudaMalloc_v3020", at=1_000, dur=2_000)
    main.call("cudaMalloc_v3020", at=4_000, dur=3_000)
    main.call("cuLibraryLoadData", at=10_000, dur=700_000)
    for step in range(steps):
        at = 1_000_000 + 1_000_000 * step + (longer if step else 0)
        slow = first_launch if step == 0 else 5_000
        main.launch(at=at, dur=slow, kernel="gemm", gpu_start=at + slow + 1_000, gpu_dur=100_000)
        add = at + slow + 10_000
        main.launch(at=add, dur=4_000, kernel="add", gpu_start=at + slow + 200_000, gpu_dur=50_000)
        main.add_range(f"step {step}", at - 1_000, at + 600_000 + (slow - 5_000) + (0 if step else longer))
    return report


def test_first_call_counts_above_the_median_of_the_later_ones(tmp_path: Path) -> None:
    bill = by_name(rows(training(), tmp_path, "first_calls"))
    gemm = bill["gemm"]
    assert (gemm["what"], gemm["api"], gemm["calls"]) == ("kernel", "cudaLaunchKernel", 6)
    assert (gemm["first_ns"], gemm["later_median_ns"], gemm["one_time_ns"]) == (50_000, 5_000, 45_000)
    assert gemm["evidence"] == "above median"
    assert "add" not in bill  # its first launch costs what the later ones do


def test_loading_and_filling_caches_count_in_full(tmp_path: Path) -> None:
    bill = by_name(rows(training(), tmp_path, "first_calls"))
    assert bill["cuLibraryLoadData"]["one_time_ns"] == 700_000
    assert bill["cuLibraryLoadData"]["what"] == "library"
    # Two allocations before the first steady step, none in it.
    assert bill["cudaMalloc"]["one_time_ns"] == 5_000
    assert bill["cudaMalloc"]["evidence"] == "in full"


def test_longer_warm_up_outside_calls_is_a_row_of_its_own(tmp_path: Path) -> None:
    found = summary(training(longer=300_000), tmp_path)
    assert found.steps.rows[0]["warmup"]
    host = next(r for r in found.rows("first_calls") if r["what"] == "host")
    # Step 0 is 345 us longer than the others, 45 us of which its first launch took.
    assert host["one_time_ns"] == 300_000
    assert sum(r["one_time_ns"] for r in found.rows("first_calls")) == 45_000 + 700_000 + 5_000 + 300_000


def test_overhead_rows_are_a_union_and_say_how_much_was_loading(tmp_path: Path) -> None:
    report = Report("3.25.0")
    main = report.process(100).thread(100)
    first = main.launch(at=1_000, dur=10_000, kernel="gemm", gpu_start=12_000)
    main.overhead(first, 1_500, 4_000, kind=6)
    main.overhead(first, 3_500, 4_000, kind=6)  # 1,500 to 7,500 together
    main.overhead(first, 8_000, 500, kind=7)
    main.overhead(first, 8_500, 400, kind=3)  # a buffer flush is no loading
    for i in range(1, 6):
        main.launch(at=20_000 * i, dur=1_000, kernel="gemm", gpu_start=20_000 * i + 2_000)
    (gemm,) = rows(report, tmp_path, "first_calls")
    assert gemm["loading_ns"] == 6_500
    assert gemm["one_time_ns"] == 9_000  # the first call shows more than the loading
    assert gemm["evidence"] == "above median"


def test_without_overhead_rows_loading_is_not_zero_but_unknown(tmp_path: Path) -> None:
    assert all(r["loading_ns"] is None for r in rows(training(), tmp_path, "first_calls"))


def test_waiting_and_the_profiler_are_no_first_call(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    main.launch(at=0, dur=100, kernel="k", gpu_start=200, gpu_dur=50_000)
    main.sync("cudaDeviceSynchronize_v3020", at=1_000, dur=51_000)  # the kernel ends at 50,200
    main.profiler_overhead(51_000, 500)
    for i in range(3):
        main.sync("cudaDeviceSynchronize_v3020", at=60_000 + 1_000 * i, dur=300)
    found = summary(report, tmp_path)
    sync = by_name([dict(r) for r in found.rows("first_calls")])["cudaDeviceSynchronize"]
    # 51,000 = 49,200 backlog + 500 profiler + 1,300; the others take 300.
    assert (sync["first_ns"], sync["one_time_ns"]) == (1_300, 1_000)
    line = by_name([dict(r) for r in found.rows("api_bill")])["cudaDeviceSynchronize"]
    # Without steps nothing is known to come back.
    assert (line["waiting_ns"], line["profiler_ns"], line["one_time_ns"]) == (49_200, 500, None)


def test_a_launch_that_met_a_full_queue_is_no_first_call(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for i in range(1_000):
        main.launch(at=1_000 * i, dur=500, kernel="long", gpu_start=2_000_000 + 3_000 * i, gpu_dur=3_000)
    blocked = main.launch(at=1_000_000, dur=900_000, kernel="new", gpu_start=5_100_000, gpu_dur=100)
    assert blocked.end < 2_000_000
    found = summary(report, tmp_path)
    assert not [r for r in found.rows("first_calls") if r["name"] == "new"]
    bill = next(r for r in found.rows("api_bill") if r["name"] == "cudaLaunchKernel")
    assert (bill["waiting_ns"], bill["self_ns"] - bill["waiting_ns"]) == (899_500, 1_001 * 500)
    assert bill["repeated_ns"] is None
    (line,) = found.rows("launches")
    assert (line["queue_full_calls"], line["queue_full_ns"]) == (1, 899_500)


@pytest.mark.parametrize("schema", ["3.20.3", "3.25.0"])
def test_every_api_nanosecond_is_in_one_part(tmp_path: Path, schema: str) -> None:
    found = summary(training(schema=schema), tmp_path)
    parts = ("waiting_ns", "profiler_ns", "one_time_ns", "repeated_ns")
    for row in found.rows("api_bill"):
        assert sum(row[p] for p in parts) == row["self_ns"]
        assert min(row[p] for p in parts) >= 0
    bill = [r for r in found.rows("first_calls") if r["what"] != "host"]
    assert sum(r["one_time_ns"] for r in bill) == sum(r["one_time_ns"] for r in found.rows("api_bill"))
    assert sum(r["share"] for r in found.rows("api_bill")) == pytest.approx(1)


def test_many_kernels_are_cut_but_the_sum_is_whole(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for i in range(100):
        main.launch(at=100_000 * i, dur=10_000 + i, kernel=f"k{i}", gpu_start=100_000 * i + 20_000)
        main.launch(at=100_000 * i + 40_000, dur=1_000, kernel=f"k{i}", gpu_start=100_000 * i + 50_000)
    found = rows(report, tmp_path, "first_calls")
    assert len(found) == 61
    assert found[-1]["what"] == "rest"
    assert sum(r["one_time_ns"] for r in found) == sum(9_000 + i for i in range(100))


def test_without_api_calls_it_says_so(tmp_path: Path) -> None:
    report = Report()
    report.process(100).kernel("k", 100, 50)
    for key in ("first_calls", "api_bill", "launches", "allocator", "alloc_flushes"):
        assert "no CUDA API call was recorded" in reason(report, tmp_path, key)


def test_processes_share_a_bill_and_are_judged_apart(tmp_path: Path) -> None:
    """Each process pays its own first call; the row of the bill holds the calls of both."""
    report = Report()
    for number, (pid, first) in enumerate(((100, 9_000), (200, 50_000))):
        main = report.process(pid).thread(pid)
        for i, dur in enumerate((first, 1_000, 2_000, 3_000)):
            at = 100_000 * i + 10_000 * number
            main.launch(at=at, dur=dur, kernel="gemm", gpu_start=at + dur + 1_000, gpu_dur=100)
    (row,) = rows(report, tmp_path, "first_calls")
    assert (row["calls"], row["first_ns"], row["later_median_ns"]) == (8, 9_000, 2_000.0)
    assert row["one_time_ns"] == 9_000 - 2_000 + 50_000 - 2_000


def test_a_kernel_that_ran_once_is_held_against_later_launches_of_others(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for i, (kernel, dur) in enumerate((("a", 9_000), ("a", 1_000), ("a", 3_000), ("once", 7_000))):
        main.launch(at=100_000 * i, dur=dur, kernel=kernel, gpu_start=100_000 * i + 20_000, gpu_dur=100)
    bill = by_name(rows(report, tmp_path, "first_calls"))
    assert (bill["a"]["one_time_ns"], bill["once"]["one_time_ns"]) == (7_000, 5_000)


def test_where_every_launch_is_another_kernel_the_cheapest_later_one_counts(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for i, dur in enumerate((9_000, 5_000, 4_000)):
        main.launch(at=100_000 * i, dur=dur, kernel=f"k{i}", gpu_start=100_000 * i + 20_000, gpu_dur=100)
    bill = by_name(rows(report, tmp_path, "first_calls"))
    assert {name: row["one_time_ns"] for name, row in bill.items()} == {"k0": 5_000, "k1": 1_000}


def test_overhead_of_many_calls_stays_with_each(tmp_path: Path) -> None:
    """Rows that reach out of their call are cut, and calls of two processes with one id are told apart."""
    report = Report("3.25.0")
    for pid in (100, 200):
        main = report.process(pid).thread(pid)
        for i in range(3):
            at = 100_000 * i + pid
            call = main.launch(at=at, dur=10_000, kernel=f"k{i}", gpu_start=at + 20_000, gpu_dur=100)
            main.overhead(call, at - 500, 1_500 + 100 * i, kind=6)
            main.overhead(call, at + 9_500, 5_000, kind=7)
    bill = by_name(rows(report, tmp_path, "first_calls"))
    # Of the first row 1,000 + 100 i lie inside, of the second 500; in each of two processes.
    assert {n: r["loading_ns"] for n, r in bill.items()} == {f"k{i}": 2 * (1_500 + 100 * i) for i in range(3)}


def test_the_profiler_counts_in_each_call_that_it_overlaps(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    main.call("cudaMalloc_v3020", at=1_000, dur=10_000)
    main.call("cuMemAlloc", at=2_000, dur=5_000)  # inside the first
    main.call("cudaEventCreate_v3020", at=20_000, dur=1_000)
    main.call("cudaEventQuery_v3020", at=30_000, dur=1_000)
    for at in (500, 8_000, 20_500, 25_000):
        main.profiler_overhead(at, 1_000)
    bill = by_name(rows(report, tmp_path, "api_bill"))
    found = {name: row["profiler_ns"] for name, row in bill.items()}
    assert found == {"cudaMalloc": 1_500, "cuMemAlloc": 0, "cudaEventCreate": 500, "cudaEventQuery": 0}


def test_one_allocation_in_a_steady_step_makes_no_warm_up_come_back(tmp_path: Path) -> None:
    """200 allocations of 100 us fill the cache before the steps; of ten steady steps one allocates once more."""
    found = []
    for steady in (0, 1):
        report = Report()
        report.gpu(pids=[(100, 0)])
        main = report.process(100).thread(100)
        for i in range(200):
            main.call("cudaMalloc_v3020", 1_000_000 + 200_000 * i, 100_000)
        for i in range(12):
            t = 50_000_000 + 1_000_000 * i
            main.add_range(f"step {i}", t, t + 900_000, domain="nsysx")
            main.launch(at=t + 1_000, dur=5_000, kernel="k", gpu_start=t + 10_000, gpu_dur=800_000)
            if steady and i == 5:
                main.call("cudaMalloc_v3020", t + 20_000, 100_000)
        bill = by_name([dict(r) for r in summary(report, tmp_path).rows("api_bill")])["cudaMalloc"]
        found.append((bill["one_time_ns"], bill["repeated_ns"]))
    assert found == [(20_000_000, 0), (20_000_000, 100_000)]
