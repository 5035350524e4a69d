"""What the probe wrote about itself, as the reader uses it: lines of waits, steps that are none, and what profiling cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nsysx import pipeline, units
from nsysx.model import Check, Summary
from tests.builder import Report

PID = 100


def report(steps: int = 8, *, sync: Callable[[Any, int], None] | None = None) -> Report:
    """Steps of 1,000 ns on the CPU, each with a module that launches one kernel."""
    built = Report()
    main = built.process(PID).thread(PID)
    for i in range(steps):
        t = 10_000 + 1000 * i
        main.add_range(f"step {i}", t, t + 1000, domain="nsysx")
        main.add_range("forward Net", t + 10, t + 600, domain="nsysx")
        main.add_range(":Net", t + 20, t + 500, domain="nsysx")
        main.launch(at=t + 100, dur=10, kernel="gemm", gpu_start=t + 200, gpu_dur=700)
        if sync is not None:
            sync(main, t)
    return built


def summarize(built: Report, folder: Path, run: dict[str, Any] | None = None) -> Summary:
    path = built.write(folder / "r.sqlite")
    if run is not None:
        (folder / "r.run.json").write_text(json.dumps(run))
    return pipeline.summarize([path])


def probe(**facts: Any) -> dict[str, Any]:
    return {"probe": [{"pid": PID, "backend": "nvtx", "ranges": {}, "ranges_pushed": 1, "pair_cost_ns": 1, **facts}]}


def check(summary: Summary, name: str) -> Check | None:
    return next((c for c in summary.quality if c.check == name), None)


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_a_step_that_held_nothing_is_left_out(tmp_path: Path) -> None:
    summary = summarize(report(), tmp_path, probe(steps={"empty": [3, 7]}))
    assert [r["number"] for r in summary.steps.rows] == [0, 1, 2, 4, 5, 6]


def test_a_step_that_only_the_exit_ended_is_not_steady(tmp_path: Path) -> None:
    border = summarize(report(3), tmp_path, probe(steps={"last_closed_by": "border"}))
    assert border.steps.steady == (0, 2)
    ended = summarize(report(3), tmp_path, probe(steps={"last_closed_by": "exit"}))
    assert ended.steps.steady == (0, 1)


@pytest.mark.parametrize(("times", "steady"), [(10, (1, 1)), (2, (0, 0))])
def test_the_programs_first_step_is_none_where_a_far_shorter_one_follows(
    times: int, steady: tuple[int, int], tmp_path: Path
) -> None:
    """A program ended in its second step, which an X-ray made longer: the first one loads libraries."""
    built = Report()
    main = built.process(PID).thread(PID)
    for i, (begin, end) in enumerate(pairwise((0, 1000 * times, 1000 * (times + 1)))):
        main.add_range(f"step {i}", begin, end, domain="nsysx")
        main.launch(at=begin + 100, dur=10, kernel="gemm", gpu_start=begin + 200, gpu_dur=700)
    run = probe(steps={"last_closed_by": "exit"}, xray={"steps": [1]})
    assert summarize(built, tmp_path, run).steps.steady == steady


def test_steps_before_ranges_were_taken_back_are_warm_up(tmp_path: Path) -> None:
    summary = summarize(
        report(), tmp_path, probe(steps={"thinned_from": 3}, thinned={"from_step": 3, "level": "marks"})
    )
    assert summary.steps.steady == (3, 6)
    said = check(summary, "cheap modules")
    assert said is not None and "from step 3 on" in said.detail


@pytest.mark.parametrize("steps", [None, 7, {"empty": "x", "thinned_from": "y"}, {"empty": [None, "a"]}])
def test_strange_facts_change_nothing(tmp_path: Path, steps: Any) -> None:
    assert summarize(report(), tmp_path, probe(steps=steps)).steps.steady == (0, 6)


# ---- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("module_ns", "status"), [(10, "ok"), (100, "warn")])
def test_cost_counts_each_kind_by_its_own_price(tmp_path: Path, module_ns: int, status: str) -> None:
    summary = summarize(report(), tmp_path, probe(module_cost_ns=module_ns, backward_mark_cost_ns=5))
    said = check(summary, "probe cost")
    assert said is not None and said.status == status
    # Each step: one module call and two other ranges of 1 ns, in 1,000 ns.
    assert f" {units.share(module_ns + 2, 1000)} of" in said.detail


@pytest.mark.parametrize(("bare_ns", "status", "share"), [(990, "ok", "1.0 %"), (500, "warn", "100 %")])
def test_calibration_is_said(tmp_path: Path, bare_ns: int, status: str, share: str) -> None:
    timing = {"clock": "gpu", "error": None, "steps_ns": {str(i): bare_ns for i in range(8)}}
    said = check(summarize(report(), tmp_path, probe() | {"calibration": timing}), "profiling cost")
    assert said is not None and said.status == status
    assert "without the profiler and" in said.detail and share in said.detail


@pytest.mark.parametrize(
    "timing", [{"error": "no step was seen"}, {"steps_ns": {"99": 1, "x": 2}}, {"steps_ns": None}, {"clock": "cpu"}]
)
def test_calibration_without_a_figure_says_so(tmp_path: Path, timing: dict[str, Any]) -> None:
    said = check(summarize(report(), tmp_path, probe() | {"calibration": timing}), "profiling cost")
    assert said is not None and said.status == "missing"


# ---- lines -----------------------------------------------------------------------------------------------------------


def test_a_mark_of_the_probe_names_the_copy_and_the_wait_that_follow(tmp_path: Path) -> None:
    def item(main: Any, t: int) -> None:
        main.mark("sync /home/me/my train.py:41 training_step", t + 610, domain="nsysx")
        main.memcpy(at=t + 620, dur=10, bytes=4, kind="DtoH", gpu_start=t + 900, gpu_dur=5)
        main.sync(at=t + 640, dur=280)
        # Nobody marked this one: it must not inherit the line.
        main.memcpy(at=t + 930, dur=10, bytes=4, kind="DtoH", gpu_start=t + 950, gpu_dur=5)

    summary = summarize(report(sync=item), tmp_path)
    waits = {(r["api"], r["file"], r["line"]) for r in summary.rows("waits")}
    assert ("cudaStreamSynchronize", "/home/me/my train.py", 41) in waits
    copies = {(r["line"], r["count"]) for r in summary.rows("copy_sites")}
    assert {line for line, _ in copies} == {41, None}
