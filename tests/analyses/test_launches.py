"""Launches: what they cost the CPU, and whether the device waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyses import rows
from tests.builder import Report

PARTS = ("usual_ns", "first_call_ns", "queue_full_ns", "slow_ns")


def test_launches_behind_a_busy_device_are_free(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for i in range(40):
        main.launch(at=10_000 * i, dur=5_000, gpu_start=20_000 + 100_000 * i, gpu_dur=100_000)
    (row,) = rows(report, tmp_path, "launches")
    assert (row["launches"], row["gpu_ops"], row["total_ns"], row["usual_ns"]) == (40, 40, 200_000, 200_000)
    assert (row["idle_launch_ns"], row["idle_host_ns"], row["verdict"]) == (0, 0, "free")
    # Launch i finds all that was launched before still in the queue, but what ended: one op each 100 us.
    assert row["pending_median"] == pytest.approx(18, abs=1)


def test_launches_that_the_device_waits_for_are_critical(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for i in range(40):
        main.launch(at=100_000 * i, dur=5_000, gpu_start=100_000 * i + 8_000, gpu_dur=10_000)
    (row,) = rows(report, tmp_path, "launches")
    # 39 gaps of 90 us: 8 us of each after the launch began, the rest in Python.
    assert row["idle_launch_ns"] == 39 * 8_000
    assert row["idle_host_ns"] == 39 * 82_000
    assert row["verdict"] == "critical"
    assert row["idle_share"] == pytest.approx(39 * 90_000 / (39 * 100_000 + 10_000), rel=1e-3)


def test_a_full_queue_is_not_a_slow_launch(tmp_path: Path) -> None:
    report = Report("3.25.0")
    main = report.process(100).thread(100)
    for i in range(20):
        at = 1_000_000 * i
        main.launch(at=at, dur=5_000, gpu_start=10_000 + 1_500_000 * i, gpu_dur=1_500_000)
        blocked = main.launch(at=at + 10_000, dur=900_000, gpu_start=None)
        main.overhead(blocked, at + 12_000, 890_000, kind=8)
    main.launch(at=30_000_000, dur=400_000, gpu_start=31_000_000, gpu_dur=100)
    (row,) = rows(report, tmp_path, "launches")
    assert (row["queue_full_calls"], row["queue_full_ns"]) == (20, 20 * 890_000)
    assert (row["slow_calls"], row["slow_ns"]) == (1, 400_000)
    assert sum(row[p] for p in PARTS) == row["total_ns"]


def test_launches_per_step(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for step in range(6):
        at = 1_000_000 * step
        for i in range(3):
            main.launch(at=at + 20_000 * i, dur=5_000, gpu_start=at + 20_000 * i + 8_000, gpu_dur=10_000)
        main.add_range(f"step {step}", at, at + 900_000)
    (row,) = rows(report, tmp_path, "launches")
    assert row["launches_per_step"] == 3


def test_what_is_paid_once_is_not_slow(tmp_path: Path) -> None:
    report = Report()
    main = report.process(100).thread(100)
    for i in range(20):
        dur = 900_000 if i == 0 else 5_000
        main.launch(at=1_000_000 * i, dur=dur, gpu_start=1_000_000 * i + dur + 3_000, gpu_dur=10_000)
    (row,) = rows(report, tmp_path, "launches")
    assert (row["first_call_ns"], row["slow_ns"], row["usual_ns"]) == (895_000, 0, 100_000)
