"""Spread of kernel times: each reason where it is the true one, and no reason where there is none."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.analyses import reason, rows
from tests.builder import Report

MIB = 1 << 20


class Line:
    """One stream of kernels, each right behind the other."""

    def __init__(self) -> None:
        self.report = Report()
        self.report.gpu(pids=[(100, 0)])
        self.main = self.report.process(100).thread(100)
        self.call, self.at = 0, 1_000_000

    def run(self, kernel: str, dur: int, *, stream: int = 7) -> int:
        """Launch a kernel that starts when the one before ends; return its start."""
        start = self.at
        self.main.launch(at=self.call, dur=10, kernel=kernel, gpu_start=start, gpu_dur=dur, stream=stream)
        self.call += 20
        self.at += dur
        return start

    def copy(self, bytes: int, dur: int) -> None:
        """Copy inside the device."""
        self.main.memcpy(at=self.call, dur=10, kind="DtoD", bytes=bytes, gpu_start=self.at, gpu_dur=dur)
        self.call += 20
        self.at += dur


def verdict(line: Line, folder: Path, name: str = "k") -> dict[str, Any]:
    return next(r for r in rows(line.report, folder, "kernel_spread") if r["name"] == name)


def noise(of: int, seed: int, share: float = 0.01) -> int:
    return round(of * (1 + share * random.Random(seed).uniform(-1, 1)))


def test_equal_times_are_steady(tmp_path: Path) -> None:
    line = Line()
    for i in range(20):
        line.run("k", noise(10_000, i))
    row = verdict(line, tmp_path)
    assert (row["verdict"], row["count"]) == ("steady", 20)
    assert row["spread"] < 0.03
    assert (row["grid"], row["block"], row["registers"], row["shared_bytes"]) == ("1056x1x1", "128x1x1", 32, 0)


def test_a_slow_first_execution(tmp_path: Path) -> None:
    line = Line()
    for i in range(30):
        line.run("k", 90_000 if i == 0 else noise(10_000, i))
    row = verdict(line, tmp_path)
    assert (row["verdict"], row["first_ns"]) == ("first_call", 90_000)


def test_a_few_executions_prove_no_first_call(tmp_path: Path) -> None:
    line = Line()
    for i in range(6):
        line.run("k", 90_000 if i == 0 else noise(10_000, i))
    assert verdict(line, tmp_path)["verdict"] == "cannot_tell"


def test_a_cold_cache(tmp_path: Path) -> None:
    line = Line()
    for i in range(40):
        # The L2 of the card holds 60 MiB; a copy inside the device touches twice its bytes.
        if i % 2:
            line.copy(40 * MIB, 20_000)
        line.run("k", noise(13_000 if i % 2 else 8_000, i))
    row = verdict(line, tmp_path)
    assert row["verdict"] == "cold_l2", row["detail"]
    assert "13.0 us (20)" in row["detail"]


def test_a_cold_cache_makes_no_kernel_seven_times_as_long(tmp_path: Path) -> None:
    line = Line()
    for i in range(40):
        if i % 2:
            line.copy(40 * MIB, 20_000)
        line.run("k", noise(56_000 if i % 2 else 8_000, i))
    assert verdict(line, tmp_path)["verdict"] == "cannot_tell", "inputs of other sizes do"


def test_a_copy_that_fits_the_cache_makes_nothing_cold(tmp_path: Path) -> None:
    line = Line()
    for i in range(40):
        if i % 2:
            line.copy(10 * MIB, 20_000)
        line.run("k", noise(13_000 if i % 2 else 8_000, i))
    assert verdict(line, tmp_path)["verdict"] == "cannot_tell"


def test_other_work_at_the_same_time(tmp_path: Path) -> None:
    line = Line()
    for i in range(40):
        slow = i % 3 == 0
        start = line.run("k", noise(20_000 if slow else 10_000, i))
        if slow:
            line.main.launch(at=line.call, dur=10, kernel="nccl", gpu_start=start + 1_000, gpu_dur=15_000, stream=20)
            line.call += 20
    row = verdict(line, tmp_path)
    assert row["verdict"] == "concurrent", row["detail"]


def test_call_sites_that_differ(tmp_path: Path) -> None:
    line = Line()
    for i in range(40):
        site = i % 2
        line.main.add_range(f"layers.{site}:Linear", line.call - 2, line.call + 15)
        line.run("k", noise(20_000 if site else 10_000, i))
    row = verdict(line, tmp_path)
    assert row["verdict"] == "data", row["detail"]
    assert "2 modules" in row["detail"]


def test_two_reasons_at_once_cannot_be_told_apart(tmp_path: Path) -> None:
    line = Line()
    for i in range(40):
        site = i % 2
        if site:
            line.copy(40 * MIB, 20_000)
        line.main.add_range(f"layers.{site}:Linear", line.call - 2, line.call + 15)
        line.run("k", noise(20_000 if site else 10_000, i))
    row = verdict(line, tmp_path)
    assert row["verdict"] == "cannot_tell"
    assert row["detail"] in {"cold_l2 or data", "data or cold_l2"}


@pytest.mark.parametrize(
    ("kernel", "verdict_of_it"), [("k", "clock"), ("ncclDevKernel_AllGather_RING_LL", "cannot_tell")]
)
def test_all_kernels_slow_at_the_same_time(kernel: str, verdict_of_it: str, tmp_path: Path) -> None:
    """How long a collective takes depends on its message and on the other ranks, whatever the clock does."""
    line = Line()
    names = [kernel, "a", "b", "c", "d", "e"]
    for i in range(600):
        slow = 1.5 if (i // 100) % 2 else 1.0
        line.run(names[i % 6], noise(round(10_000 * slow), i))
    row = verdict(line, tmp_path, kernel)
    assert row["verdict"] == verdict_of_it, row["detail"]


def test_noise_has_no_reason(tmp_path: Path) -> None:
    for seed in range(5):
        line = Line()
        for i in range(60):
            if i % 2:
                line.copy(40 * MIB, 20_000)
            line.main.add_range(f"layers.{i % 3}:Linear", line.call - 2, line.call + 15)
            line.run("k", noise(10_000, 1_000 * seed + i, share=0.5))
        assert verdict(line, tmp_path)["verdict"] == "cannot_tell"


def test_shapes_are_told_apart(tmp_path: Path) -> None:
    line = Line()
    for i in range(20):
        line.run("k", 20_000 if i % 2 else 10_000)
        line.report.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1].update(
            gridX=7, gridY=65_535, gridZ=2, blockZ=64, registersPerThread=255, staticSharedMemory=1_024,
            dynamicSharedMemory=231_424,
        ) if i % 2 else None  # fmt: skip
    found = [r for r in rows(line.report, tmp_path, "kernel_spread") if r["name"] == "k"]
    assert [r["verdict"] for r in found] == ["steady", "steady"]
    assert found[0] | {"grid": "7x65535x2", "block": "128x1x64", "registers": 255, "shared_bytes": 232_448} == found[0]


def test_the_sum_is_all_kernel_time(tmp_path: Path) -> None:
    line = Line()
    for i in range(70):
        for _ in range(3):
            line.run(f"k{i}", 1_000 + i)
    found = rows(line.report, tmp_path, "kernel_spread")
    assert len(found) == 51
    assert sum(r["total_ns"] for r in found) == sum(3 * (1_000 + i) for i in range(70))
    assert sum(r["count"] for r in found) == 210


def test_shapes_that_were_not_recorded_are_unknown(tmp_path: Path) -> None:
    line = Line()
    for _ in range(5):
        line.run("k", 10_000)
    line.report.drop("CUPTI_ACTIVITY_KIND_KERNEL", "gridZ")
    row = verdict(line, tmp_path)
    assert (row["grid"], row["block"], row["registers"]) == (None, None, None)


@pytest.mark.parametrize("value", [-1, 2**40, None])
def test_shapes_without_sense_do_no_harm(tmp_path: Path, value: int | None) -> None:
    line = Line()
    for _ in range(5):
        line.run("k", 10_000)
    if value is None:
        line.report.null("CUPTI_ACTIVITY_KIND_KERNEL", "blockX")
    else:
        line.report.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["blockX"] = value
    found = rows(line.report, tmp_path, "kernel_spread")
    assert sum(r["count"] for r in found) == 5


def test_without_kernels_it_says_so(tmp_path: Path) -> None:
    report = Report()
    report.process(100).thread(100).call("cudaMalloc_v3020", at=0, dur=10)
    assert "no kernel was recorded" in reason(report, tmp_path, "kernel_spread")


def test_a_sampled_clock_says_it_itself(tmp_path: Path) -> None:
    line = Line()
    times, mhz = [], []
    for i in range(60):
        slow = i >= 30
        # One kernel only: there are no others that could slow down with it.
        times.append(1_795_228_332_660_273_255 + line.at)
        mhz.append(990 + i if slow else 1_980 - i)
        line.run("k", noise(20_000 if slow else 10_000, i))
    run = {"clocks": {"devices": [{"device": 0, "utc_ns": times, "sm_mhz": mhz}]}}
    (tmp_path / "r.run.json").write_text(json.dumps(run))
    row = verdict(line, tmp_path)
    assert row["verdict"] == "clock", row["detail"]
    assert "SM clock 1020 to 1980 MHz" in row["detail"]


@pytest.mark.parametrize("clocks", [None, [], {"devices": [None]}, {"devices": [{"utc_ns": ["x"], "sm_mhz": 3}]}])
def test_samples_without_sense_do_no_harm(tmp_path: Path, clocks: object) -> None:
    line = Line()
    for i in range(60):
        line.run("k", noise(20_000 if i >= 30 else 10_000, i))
    (tmp_path / "r.run.json").write_text(json.dumps({"clocks": clocks}))
    assert verdict(line, tmp_path)["verdict"] == "cannot_tell"
