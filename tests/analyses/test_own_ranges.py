"""Ranges of the program itself beside the modules of the probe."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx import units
from nsysx.model import Summary
from nsysx.pipeline import summarize
from nsysx.render import csv_text, view
from tests import reports
from tests.builder import Report

US, STEPS = reports.US, 8


def _report(*, probe: bool = True) -> Report:
    """Each step: "encode" around forward and backward, "mix" in it around forward's launch; "rare" around the optimizer's
    work in every second step; an epoch around all.
    """
    report = reports.training(STEPS, own=probe)
    main = report.processes[0].thread(100, "python")
    for i in range(STEPS):
        t = 20 * US + i * reports.PERIOD
        main.add_range("encode", t + 14 * US, t + 96 * US)
        main.add_range("mix", t + 17 * US, t + 31 * US, registered=True)
        # What torch's profiler writes is torch's, or stands in the table of operators.
        main.add_range("Optimizer.step#AdamW.step, op_id = 7", t + 110 * US, t + 130 * US)
        main.add_range("my loss, op_id = 9", t + 41 * US, t + 43 * US)
        if i % 2:
            main.add_range("rare", t + 105 * US, t + 135 * US)
    main.add_range("my epoch", 10 * US, (STEPS + 1) * reports.PERIOD)
    return report


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return summarize([_report().write(tmp_path_factory.mktemp("own") / "r.sqlite")], every_table=False)


def test_each_range_has_the_work_that_was_launched_inside_it(summary: Summary) -> None:
    rows = {r["path"]: r for r in summary.rows("own_ranges")}
    scope = summary.steps.scope
    assert scope is not None
    n = scope.steps
    rare = sum(i % 2 for i in range(STEPS)[slice(*(summary.steps.steady or (0, 0)))]) or n // 2
    assert list(rows) == ["encode", "encode / mix", "rare", None], "in order of time; an epoch is no part of a step"
    told = ("steps", "calls", "cpu_ns", "gpu_ns", "self_gpu_ns", "kernels")
    # Backward is launched by a thread of its own, while "encode" is open on the one that drives the steps.
    assert [rows["encode"][c] for c in told] == [n, n, n * 82 * US, n * 400 * US, n * 200 * US, n]
    assert [rows["encode / mix"][c] for c in told] == [n, n, n * 14 * US, n * 200 * US, n * 200 * US, n]
    steps = rows["rare"]["steps"]
    assert abs(steps - rare) <= 1
    assert [rows["rare"][c] for c in told[1:]] == [steps, steps * 30 * US, steps * 110 * US, steps * 110 * US, steps]


def test_the_rows_sum_to_all_gpu_work(summary: Summary) -> None:
    rows, modules = summary.rows("own_ranges"), summary.rows("modules")
    for column in ("self_gpu_ns", "kernels", "wait_ns", "idle_blamed_ns"):
        assert sum(r[column] for r in rows) == sum(m[column] for m in modules), column


def test_figures_are_per_step_in_which_the_range_occurs(summary: Summary) -> None:
    grid = next(g for g in view.build(summary, top=20).grids if g.key == "own_ranges")
    (rare,) = [line for line in grid.rows if line[0].text == "rare"]
    assert units.duration(110 * US) in [cell.text for cell in rare]
    assert "rare" in csv_text.render(summary.tables["own_ranges"])


def test_without_marked_modules_they_are_the_modules(tmp_path: Path) -> None:
    table = summarize([_report(probe=False).write(tmp_path / "r.sqlite")], every_table=False).tables["own_ranges"]
    assert table.rows is None
    assert "rows of the table of modules" in table.reason


def test_a_program_without_ranges_is_told_how_to_write_one(tmp_path: Path) -> None:
    table = summarize([reports.training(4).write(tmp_path / "r.sqlite")], every_table=False).tables["own_ranges"]
    assert table.rows is None
    assert "torch.cuda.nvtx.range" in table.reason


def test_no_range_holds_more_than_all_work_however_deep_they_nest(tmp_path: Path) -> None:
    report = _report()
    main = report.processes[0].thread(100, "python")
    for i in range(STEPS):
        begin = 20 * US + i * reports.PERIOD
        for depth in range(400):
            main.add_range(f"recursion {depth % 7}", begin + 15 * US + depth, begin + 94 * US - depth)
    rows = summarize([report.write(tmp_path / "r.sqlite")], every_table=False).rows("own_ranges")
    work = sum(r["self_gpu_ns"] for r in rows)
    assert max(r["gpu_ns"] for r in rows) <= work
    assert max(r["cpu_ns"] or 0 for r in rows) <= STEPS * 82 * US
    assert any("deeper" in (r["path"] or "") for r in rows)
