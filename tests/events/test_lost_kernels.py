"""Steps at the end of a recording whose kernels were lost: they are left out and counted, and the whole ones are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from nsysx.events import attribute, correlate, lost_kernels, nvtx_ranges
from nsysx.pipeline import summarize
from nsysx.reading.load import load
from tests.builder import Report

US, MS = 1000, 1_000_000
#: A step keeps the host for 4 ms and the GPU for 14; so many kernels.
HOST, GPU, KERNELS = 4 * MS, 14 * MS, 7


def full_queue(recorded: float, count: int = 24, *, graphs: bool = False, start: int = 0) -> Report:
    """Return steps that the host launches ahead of the GPU, of which the first ``recorded`` steps' kernels are in the report."""
    report = Report()
    main = report.process(100).thread(100, "python")
    ends = round(recorded * KERNELS)
    for i in range(count):
        at = start + i * HOST
        main.add_range(f"step {i}", at, at + HOST - 50 * US, domain="nsysx")
        for k in range(KERNELS):
            number = i * KERNELS + k
            begin = start + 50 * US + number * (GPU // KERNELS) if number < ends else None
            api = "cudaGraphLaunch_v10000" if graphs else "cudaLaunchKernel_v7000"
            main.launch(at + 20 * US + k * 500 * US, 10 * US, api=api, gpu_start=begin, gpu_dur=GPU // KERNELS - US)
    main.call("cudaStreamSynchronize_v3020", start + count * HOST, 10 * US)
    return report


def summary_of(report: Report, folder: Path, probe: dict[str, Any] | None = None) -> Any:
    path = report.write(folder / "r.sqlite")
    if probe is not None:
        (folder / "r.run.json").write_text(json.dumps({"schema": "nsysx.run/1", "probe": [{"pid": 100, **probe}]}))
    return summarize([path], every_table=False)


def check(summary: Any, name: str = "launches without kernel") -> Any:
    return next((c for c in summary.quality if c.check == name), None)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("recorded", [12, 12.5, 9 + 1 / 7])
def test_the_steps_whose_kernels_are_whole_are_used(tmp_path: Path, recorded: float, graphs: bool) -> None:
    """14 ms a step on the GPU and 4 on the host: the report once showed 4 ms, and no GPU work in the steady steps."""
    summary = summary_of(full_queue(recorded, graphs=graphs), tmp_path)
    whole = int(recorded)
    steps = summary.steps
    assert steps.count == whole + 1 and steps.gpu_mean_ns == pytest.approx(GPU, rel=0.01)
    steady = [r for r in steps.rows if r["steady"]]
    assert whole - 4 <= len(steady) <= whole and all(r["gpu_ns"] == pytest.approx(GPU, rel=0.01) for r in steady)
    assert summary.verdict.code == "gpu_bound"
    said = check(summary)
    missing, lost = 24 * KERNELS - round(recorded * KERNELS), 24 - whole
    assert said.detail == (
        f"the work of {missing} of {24 * KERNELS} launches is not in the report, because nsys dropped what the GPU had not done when "
        f"a recording ended: {lost} steps with such launches are left out"
    )
    assert said.doubt == "numbers" and "waits for the GPU before a recording ends" in said.fix
    assert f"({lost} have lost some)" in check(summary, "steps").detail


def test_a_wait_that_did_not_suffice_is_told(tmp_path: Path) -> None:
    waits = [{"ns": 3 * MS, "rested": True, "beside": False}, {"ns": 10_000 * MS, "rested": False, "beside": False}]
    summary = summary_of(full_queue(12), tmp_path, {"device_waits": waits})
    assert "had not done when a recording ended, after 10.00 s of waiting for it: 12 steps" in check(summary).detail
    assert "--steps A:B" in check(summary).fix


def test_a_step_that_the_probe_timed_stands_there_without_any_gpu_work(tmp_path: Path) -> None:
    bare = {"count": 40, "median_ns": 13_830 * US, "low_ns": 13_800 * US, "high_ns": 13_900 * US, "clock": "gpu"}
    summary = summary_of(full_queue(0), tmp_path, {"unrecorded_steps": bare})
    assert summary.verdict.sentence.endswith("Unprofiled step time: 13.83 ms.")
    assert (
        summary_of(full_queue(24), tmp_path, {"unrecorded_steps": bare}).verdict.sentence.count("the probe timed") == 0
    )


def cut(report: Report, folder: Path, *seams: int) -> tuple[list[int], dict[int, int]]:
    trace = load(report.write(folder / "r.sqlite"))
    named = nvtx_ranges.read(trace)
    calls = attribute.attribute(trace, correlate.correlate(trace), named).api_calls
    steps = named.ranges.filter(pl.col("kind") == "step").select("process", "start_ns", "end_ns")
    kept, counts = lost_kernels.whole(steps, calls, seams)
    return np.searchsorted(steps["start_ns"].sort().to_numpy(), kept["start_ns"].to_numpy()).tolist(), counts


def test_each_part_of_a_capture_loses_the_steps_at_its_own_end(tmp_path: Path) -> None:
    """Between the parts nothing was recorded; the first one has lost the kernels of its steps 5 to 7, the second one those from 12 on."""
    report = Report()
    main = report.process(100).thread(100)
    for i in range(16):
        main.add_range(f"step {i}", i * HOST, (i + 1) * HOST - US, domain="nsysx")
        for k in range(3):
            worked = i < 5 or 8 <= i < 12
            main.launch(i * HOST + 20 * US + k * 50 * US, 10 * US, gpu_start=i * HOST + k * MS if worked else None)
    kept, counts = cut(report, tmp_path, 8 * HOST - 10)
    assert kept == [*range(6), *range(8, 13)] and list(counts.values()) == [3 + 4]
    assert cut(report, tmp_path)[0] == list(range(13))  # in one part, only what lies at its end is lost


def test_launches_without_work_that_are_not_lost_at_the_end(tmp_path: Path) -> None:
    """Each step captures launches into a graph, or has a launch of nothing; a single last step has lost something."""
    report = Report()
    main = report.process(100).thread(100)
    for i in range(10):
        at = i * HOST
        main.add_range(f"step {i}", at, at + HOST - US, domain="nsysx")
        main.launch(at + 20 * US, 10 * US, gpu_start=at + 40 * US)
        main.launch(at + 60 * US, 10 * US)
        if i > 6:
            main.call("cudaStreamBeginCapture_v10000", at + 100 * US, US)
            main.launch(at + 120 * US, 10 * US)
            main.call("cudaStreamEndCapture_v10000", at + 140 * US, US)
        if i > 3:
            main.launch(
                at + 200 * US, 10 * US, api="cudaGraphLaunch_v10000"
            )  # this nsys records no work of graphs at all
    main.launch(9 * HOST + 300 * US, 10 * US)
    assert cut(report, tmp_path) == (list(range(10)), {})
