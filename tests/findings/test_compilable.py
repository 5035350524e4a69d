"""Advice fits the program: torch.compile where it exists (Python with PyTorch 2.0 or later, as far as is known), numpy in Python only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builder import Report
from tests.findings import said_of

US = 1_000
NOW, IN_2022 = 1_795_228_332_660_273_255, 1_655_000_000_000_000_000
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int, T1, T2)"


def launch_bound(*, process: str = "python3", utc_ns: int = NOW, kernel: str = ADD) -> Report:
    """Return 12 steps of 60 short kernels, each launched when the one before is done."""
    report = Report(utc_epoch_ns=utc_ns)
    main = report.process(100, name=process).thread(100)
    at = 0
    for i in range(12):
        begin = at
        for k in range(60):
            main.launch(at=at, dur=8 * US, kernel=f"{kernel} {k}", gpu_start=at + 9 * US, gpu_dur=2 * US)
            at += 30 * US
        main.add_range(f"step {i}", begin, at - US)
    return report


def advice(folder: Path, report: Report, torch: str = "") -> str:
    path = report.write(folder / "r.sqlite")
    if torch:
        (folder / "r.run.json").write_text(
            json.dumps({"schema": "nsysx.run/1", "probe": [{"pid": 100, "torch": torch}]})
        )
    return " ".join(f"{f.fix} {f.paste}" for f in said_of(path) if f.verdict == "found")


def test_a_program_of_today_may_compile(tmp_path: Path) -> None:
    assert "torch.compile" in advice(tmp_path, launch_bound())


@pytest.mark.parametrize(
    ("report", "torch"),
    [
        (launch_bound(process="trainer"), ""),  # PyTorch from C++
        (launch_bound(kernel="my_kernel"), ""),  # no PyTorch
        (launch_bound(utc_ns=IN_2022), ""),  # before PyTorch 2.0
        (launch_bound(), "1.13.1+cu117"),
    ],
)
def test_no_program_is_told_to_compile_that_cannot(tmp_path: Path, report: Report, torch: str) -> None:
    told = advice(tmp_path, report, torch)
    assert "torch.compile" not in told
    assert "CUDA graph" in told


def test_the_version_that_the_probe_noted_counts_more_than_the_clock(tmp_path: Path) -> None:
    assert "torch.compile" in advice(tmp_path, launch_bound(utc_ns=IN_2022), "2.1.0")


@pytest.mark.parametrize(("process", "numpy"), [("python3", True), ("clover_leaf", False)])
def test_a_program_without_python_hears_nothing_of_numpy(tmp_path: Path, process: str, numpy: bool) -> None:
    report = Report()
    main = report.process(100, name=process).thread(100)
    for i in range(8):
        at = i * 1_000 * US
        main.launch(at=at, dur=5 * US, kernel="advec<double>", gpu_start=at + 9 * US, gpu_dur=900 * US)
        main.sync(at=at + 10 * US, dur=905 * US)
        main.add_range(f"step {i}", at, at + 999 * US)
    told = advice(tmp_path, report)
    assert "float32" in told and ("numpy" in told) is numpy
