"""How often a module was called, whoever named it: a row of the table has the count of what it is called after."""

from __future__ import annotations

from pathlib import Path

from nsysx.analyses import modules
from tests import reports
from tests.builder import Report

US = 1_000


def program(*, own: bool = False) -> Report:
    """Six steps of 1 ms: forward with two layers of an attention each, a backward, an operator of emit_nvtx outside."""
    report = Report()
    main = report.process(1).thread(1)
    domain = "nsysx" if own else ""
    for i in range(6):
        t = i * 1_000 * US
        main.add_range(f"step {i}", t, t + 990 * US, domain=domain)
        main.add_range("forward", t + 10 * US, t + 500 * US, domain=domain)
        for k in range(2):
            at = t + (20 + 200 * k) * US
            main.add_range("fc:Linear" if own else f"layer {k}", at, at + 150 * US, domain=domain)
            main.add_range("act:ReLU" if own else "attention", at + 10 * US, at + 100 * US, domain=domain)
            main.launch(at + 20 * US, 5 * US, kernel="k", gpu_start=at + 30 * US, gpu_dur=50 * US)
        main.add_range("backward", t + 510 * US, t + 700 * US, domain=domain)
        main.launch(t + 520 * US, 5 * US, kernel="b", gpu_start=t + 530 * US, gpu_dur=50 * US)
        main.add_range(f"aten::add, seq = {i}", t + 720 * US, t + 760 * US)
        main.launch(t + 730 * US, 5 * US, kernel="a", gpu_start=t + 740 * US, gpu_dur=5 * US)
    return report


def calls(report: Report, folder: Path) -> tuple[dict[str | None, int | None], int]:
    given = reports.gather(report, folder)
    frame = modules.table(given).select("path", "calls")
    return dict(frame.iter_rows()), given.scope.steps


def test_ranges_of_a_stranger_count_under_the_path_that_they_are_nested_in(tmp_path: Path) -> None:
    found, steps = calls(program(), tmp_path)
    assert steps >= 4
    per_step = {"forward": 1, "forward / layer #": 2, "forward / layer # / attention": 2, "backward": 1, "aten::add": 1}
    assert {path: found[path] for path in per_step} == {path: steps * n for path, n in per_step.items()}


def test_modules_of_the_probe_and_the_phases_outside_of_them(tmp_path: Path) -> None:
    found, steps = calls(program(own=True), tmp_path)
    assert (found["fc"], found["act"], found["(backward)"]) == (2 * steps, 2 * steps, steps)
    assert found["(step, outside modules)"] is None


def test_no_range_counts_that_only_has_the_name_of_a_module(tmp_path: Path) -> None:
    report = program(own=True)
    report.processes[0].thread(1).add_range("fc", 3_000 * US, 3_100 * US)
    found, steps = calls(report, tmp_path)
    assert found["fc"] == 2 * steps
