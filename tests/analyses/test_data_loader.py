"""Waiting for batches: how long, whether the device ran dry, and what was no waiting."""

from __future__ import annotations

from pathlib import Path

from tests.analyses import reason, rows
from tests.builder import Report


def build(wait: int, work: int, count: int = 5) -> Report:
    """Steps of 1 ms: the batch after ``wait``, then one kernel of ``work``."""
    report = Report()
    process = report.process(100)
    main = process.thread(100)
    for step in range(count):
        at = 1_000_000 * step
        main.add_range(f"step {step}", at, at + 990_000)
        main.add_range("dataloader", at + 1_000, at + 1_000 + wait)
        main.launch(at=at + wait + 5_000, dur=5_000, gpu_start=at + wait + 12_000, gpu_dur=work)
    return report


def test_a_device_that_runs_dry_is_starved(tmp_path: Path) -> None:
    found = rows(build(wait=600_000, work=300_000), tmp_path, "data_loader")
    assert [r["index"] for r in found] == [0, 1, 2, 3, 4]
    # Step 1 begins at 1,000,000, its wait at 1,001,000; the kernel of step 0 ended at 912,000.
    assert (found[1]["step_ns"], found[1]["wait_ns"]) == (990_000, 600_000)
    assert (found[1]["gpu_idle_ns"], found[1]["gpu_hidden_ns"], found[1]["verdict"]) == (600_000, 0, "starved")


def test_waiting_behind_a_busy_device_costs_nothing(tmp_path: Path) -> None:
    found = rows(build(wait=100_000, work=990_000), tmp_path, "data_loader")
    # The kernel of step 0 runs from 112,000 to 1,102,000 and so past the wait of step 1.
    assert (found[1]["gpu_idle_ns"], found[1]["gpu_hidden_ns"], found[1]["verdict"]) == (0, 100_000, "hidden")


def test_copies_inside_are_no_loading(tmp_path: Path) -> None:
    report = build(wait=600_000, work=300_000)
    main = report.processes[0].thread(100)
    main.call("cudaHostAlloc_v3020", at=2_100_000, dur=50_000)
    found = rows(report, tmp_path, "data_loader")
    assert (found[2]["wait_ns"], found[2]["api_ns"], found[2]["gpu_idle_ns"]) == (600_000, 50_000, 550_000)


def test_the_pin_thread_is_seen_where_it_is_named(tmp_path: Path) -> None:
    report = build(wait=600_000, work=300_000)
    assert {r["pin_thread_ns"] for r in rows(report, tmp_path, "data_loader")} == {None}
    report.processes[0].thread(103, name="pt_data_pin").call("cudaHostAlloc_v3020", at=2_100_000, dur=50_000)
    found = rows(report, tmp_path, "data_loader")
    assert [r["pin_thread_ns"] for r in found] == [0, 0, 50_000, 0, 0]


def test_without_loading_ranges_it_says_so(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    main.launch(at=0, gpu_start=100)
    assert "no phase range" in reason(report, tmp_path, "data_loader")
    main.add_range("forward", 0, 50)
    assert "where batches come from is unknown" in reason(report, tmp_path, "data_loader")


def test_a_wait_that_two_devices_hide_is_hidden_once(tmp_path: Path) -> None:
    """Both work all through the wait of step 1; the other one alone in a part of that of step 3."""
    report = build(wait=100_000, work=990_000)
    other = report.processes[0].thread(100)
    other.launch(at=990_100, dur=1_000, gpu_start=995_000, gpu_dur=300_000, device=1)
    found = rows(report, tmp_path, "data_loader")
    assert found[1]["wait_ns"] == found[1]["gpu_hidden_ns"] == 100_000
