"""NSX123, Python lines that the GPU waits for; and what NSX114 says where stacks were sampled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.findings import US, Program, healthy

LINE = "/home/me/train.py:12 augment"
MAIN = "/home/me/train.py:40 main"
ADAM = "/opt/venv/lib/python3.12/site-packages/torch/optim/adam.py:300 _single_tensor_adam"


def planted(program: Program, number: int) -> None:
    """A step with 2 ms of Python before the only work, while the GPU idles."""
    program.python(2_000, LINE, MAIN)
    with program.range("forward"), program.range("net:Net"):
        program.launch(500)
    program.sync()


def test_the_line_its_cost_and_what_comes_next(tmp_path: Path) -> None:
    finding = Program().steps(planted, 12).finding(tmp_path, "NSX123")
    assert finding.verdict == "found"
    assert finding.where == {"module": "net", "phase": "forward", "file": "/home/me/train.py", "line": 12}
    assert finding.cost_ns_per_step == pytest.approx(2_000 * US, rel=0.1)
    assert finding.title.startswith("train.py:12 augment runs before work in net while the GPU idles: ")
    assert "Move this work out of the loop" in finding.fix


def test_each_line_has_its_own_cost_and_interval(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        program.python(500, "/home/me/train.py:30 log", MAIN)
        program.launch(500)
        program.sync()
        planted(program, number)

    first, second = Program().steps(body, 12).findings(tmp_path, "NSX123")
    assert (first.where["line"], second.where["line"]) == (12, 30)
    assert first.cost_ns_per_step == pytest.approx(2_000 * US, rel=0.1)
    assert second.cost_ns_per_step == pytest.approx(500 * US, rel=0.15)
    assert "95 % interval" in second.detail


def test_it_saves_at_most_the_idle_time_that_it_explains(tmp_path: Path) -> None:
    finding = Program().steps(planted, 12).finding(tmp_path, "NSX123")
    assert finding.saving.bound
    assert finding.saving_ns_per_step == finding.cost_ns_per_step
    assert finding.saving.bound


def test_what_tracing_added_is_not_the_lines(tmp_path: Path) -> None:
    """A line that launches in a loop: as recorded it idles longer than it would without the profiler."""

    def body(program: Program, number: int) -> None:
        for _ in range(40):
            program.python(50, LINE)
            program.launch(1)
        program.sync()

    program = Program().steps(body, 12)
    summary = program.summary(tmp_path)
    assert summary.unprofiled and summary.findings and summary.steps.scope
    (finding,) = [f for f in summary.findings if f.code == "NSX123"]
    recorded = sum(r["idle_ns"] for r in summary.rows("host_lines") if r["line"] == 12) / summary.steps.scope.steps  # type: ignore[union-attr]
    assert finding.cost_ns_per_step is not None
    assert 0 < finding.cost_ns_per_step <= recorded
    assert finding.cost_ns_per_step < summary.unprofiled.step_ns


def test_the_fix_fits_what_runs_below_the_line(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        program.python(2_000, ADAM, MAIN)
        program.launch(500)
        program.sync()

    finding = Program().steps(body, 12).finding(tmp_path, "NSX123")
    assert "fused=True" in finding.fix
    assert "torch/optim/adam.py:_single_tensor_adam" in finding.detail
    assert finding.where["line"] == 40


def test_behind_a_busy_gpu_a_line_costs_nothing(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        program.launch(3_000)
        program.python(2_000, LINE)
        program.launch(3_000)

    assert Program().steps(body, 12).finding(tmp_path, "NSX123").verdict == "clear"


def test_few_samples_name_no_line(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        healthy(program, number)
        if number == 3:
            program.python(300, LINE)

    assert Program().steps(body, 12).finding(tmp_path, "NSX123").verdict == "clear"


def test_nothing_sampled_says_what_would_record_it(tmp_path: Path) -> None:
    finding = Program().steps(healthy).finding(tmp_path, "NSX123")
    assert finding.verdict == "cannot_tell"
    assert "nsys profile --python-sampling=true" in finding.detail


def stalled(program: Program, number: int) -> None:
    """Many quick launches, and one pause of 2 ms before the last."""
    for _ in range(20):
        program.launch(5)
    program.python(2_000, LINE, MAIN)
    program.launch(500)
    program.sync()


def test_a_stall_has_the_name_of_its_line(tmp_path: Path) -> None:
    finding = Program().steps(stalled, 12).finding(tmp_path, "NSX114")
    assert finding.verdict == "found"
    assert "train.py:12 augment" in finding.detail
    assert "nsysx run" not in finding.fix


def test_a_stall_without_samples_says_how_to_name_it(tmp_path: Path) -> None:
    program = Program().steps(stalled, 12)
    program.report.rows["NVTX_EVENTS"] = [r for r in program.report.rows["NVTX_EVENTS"] if r["eventType"] != 34]
    finding = program.finding(tmp_path, "NSX114")
    assert "(nsysx run)" in finding.fix
    assert "py-spy" not in finding.fix


def test_a_slow_loader_has_the_name_of_its_line(tmp_path: Path) -> None:
    site = "/opt/venv/lib/python3.12/site-packages"
    fetch = f"{site}/torch/utils/data/_utils/fetch.py:54 fetch"

    def body(program: Program, number: int) -> None:
        with program.range("data"):
            program.python(3_000, f"{site}/PIL/ImageFile.py:300 load", "/home/me/data.py:9 __getitem__", fetch, MAIN)
            program.python(1_000, "/home/me/data.py:12 augment", fetch, MAIN)
        program.launch(50)
        program.sync()

    program = Program().steps(body, 12)
    finding = program.finding(tmp_path, "NSX106")
    assert "The loader spends 75 % of its time at data.py:9 __getitem__, in PIL/ImageFile.py:load (" in finding.detail
    lines = program.summary(tmp_path).rows("host_lines")
    assert sum(r["loader_idle_ns"] for r in lines if r["line"] == 9) > 0
