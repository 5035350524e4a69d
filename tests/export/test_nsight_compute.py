"""The Nsight Compute command names the kernels from which most could go, and the launches of one steady step."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx import pipeline
from nsysx.errors import NsysxError
from nsysx.events.profile import NotRecorded
from nsysx.export import nsight_compute, nsight_compute_report
from nsysx.export.nsight_compute import ChosenKernel
from tests.analyses.test_operators import GEMM, Torch
from tests.analyses.test_roofline import ADD, body


def kernel(name: str, per_step: int = 3, could_go_ns: float = 1.0, mangled: str = "") -> ChosenKernel:
    return ChosenKernel(name, mangled or name, per_step, 10 * per_step, 2e6, could_go_ns, "memory")


def gathered(folder: Path, step: Any = body) -> Any:
    return pipeline.gather(Torch().steps(step).report.write(folder / "r.sqlite"), pipeline.ReadingOptions())


def test_kernels_are_those_from_which_most_could_go(tmp_path: Path) -> None:
    kernels = nsight_compute.chosen(gathered(tmp_path), {GEMM: "mangled"}, 3)
    # 1000 us of which 187 are the limit, 400 of which 174; of the others nothing is known.
    assert [k.name for k in kernels] == [ADD, GEMM, "void cub::DeviceRadixSort<float>(T)"]
    assert [k.per_step for k in kernels] == [1, 1, 1]
    assert [k.roof for k in kernels] == ["memory", "products", None]
    assert kernels[0].gpu_ns == 1_000_000 and 0.75e6 < kernels[0].could_go_ns < 0.85e6
    assert kernels[1].mangled == "mangled"


def test_the_command_profiles_one_step_of_them() -> None:
    kernels = [kernel("_Z1aPf", 3), kernel("b$c", 4)]
    words = nsight_compute.command(kernels, ["python", "train.py", "--name", "a b"], "out.ncu-rep")
    assert words[0] == "ncu" and words[-4:] == ["python", "train.py", "--name", "a b"]
    assert "--launch-skip=70" in words and "--launch-count=7" in words
    (pattern,) = (w.removeprefix("--kernel-name=regex:") for w in words if w.startswith("--kernel-name="))
    assert re.fullmatch(pattern, "_Z1aPf") and re.fullmatch(pattern, "b$c") and not re.fullmatch(pattern, "_Z1aPfx")
    assert "--section=MemoryWorkloadAnalysis" in words and "--section=ComputeWorkloadAnalysis" not in words
    pasted = "\n".join(nsight_compute.quoted(words))
    assert shlex.split(pasted.replace("\\\n", " ")) == words


def test_kernels_of_many_launches_have_a_run_of_their_own() -> None:
    kernels = [kernel("a", 147), kernel("b", 40), kernel("c", 30), kernel("d", 20)]
    runs = nsight_compute.in_runs(kernels)
    assert [[k.name for k in run] for run in runs] == [["a"], ["b", "d"], ["c"]]
    assert f"--launch-count={nsight_compute.MOST_LAUNCHES}" in nsight_compute.command(runs[0], ["p"], "o")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float>(T3 *)", "cunn_SoftMaxForward"),
        ("colnorm", "colnorm"),
        ("std::enable_if<!T7, void>::type internal::gemvx::kernel<int>(T13)", "enable_if"),
        ("kernel(float *)", "kernel"),
    ],
)
def test_names_without_templates(name: str, short: str) -> None:
    assert nsight_compute.function_name(name) == short


class Metric(SimpleNamespace):
    def as_double(self) -> float:
        return float(self.number)


class Action(SimpleNamespace):
    def metric_by_name(self, name: str) -> Metric | None:
        return Metric(number=self.metrics[name]) if name in self.metrics else None

    def metric_names(self) -> list[str]:
        return list(self.metrics)

    def name(self, base: int) -> str:
        return self.names[base]


STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def installed(monkeypatch: pytest.MonkeyPatch, actions: list[Action]) -> None:
    class Range(SimpleNamespace):
        def num_actions(self) -> int:
            return len(actions)

        def action_by_idx(self, index: int) -> Action:
            return actions[index]

    class Report(SimpleNamespace):
        def num_ranges(self) -> int:
            return 1

        def range_by_idx(self, _index: int) -> Range:
            return Range()

    package: Any = SimpleNamespace(
        load_report=lambda _path: Report(), IAction=SimpleNamespace(NameBase_DEMANGLED=0, NameBase_MANGLED=1)
    )
    monkeypatch.setitem(sys.modules, "ncu_report", package)


def action(name: str, **metrics: float) -> Action:
    return Action(names=[f"void {name}(float *)", name], metrics=metrics)


def test_what_was_measured_stands_beside_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "r.ncu-rep"
    report.write_bytes(b"")
    metrics = {
        "gpu__time_duration.sum": 1_700_000.0,
        "dram__bytes_read.sum": 4e8,
        "dram__bytes_write.sum": 2e8,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 62.0,
        STALL.format("long_scoreboard"): 30.0,
        STALL.format("barrier"): 2.0,
    }
    installed(monkeypatch, [action("_Z7colnormPf", **metrics), action("other")])
    (launch, other) = nsight_compute_report.launches(report)
    assert (launch.ns, launch.dram_bytes, launch.occupancy, launch.stall) == (1.7e6, 6e8, 0.62, "for the memory")
    assert (other.ns, other.dram_bytes, other.stall) == (None, None, None)
    first, second = nsight_compute_report.lines([kernel("_Z7colnormPf"), kernel("absent")], [launch, other])
    assert first == "_Z7colnormPf"
    assert "1 launch of 3 a step" in second and "1.70 ms" in second and "warps wait mostly for the memory" in second


def test_a_report_of_another_program_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "r.ncu-rep"
    report.write_bytes(b"")
    installed(monkeypatch, [action("other")])
    with pytest.raises(NsysxError, match="of another program"):
        nsight_compute_report.lines([kernel("mine")], nsight_compute_report.launches(report))


def test_without_the_package_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(NsysxError, match="ncu-report reads it"):
        nsight_compute_report.launches(tmp_path / "r.ncu-rep")


def test_a_program_without_steps_has_no_launches_of_one(tmp_path: Path) -> None:
    program = Torch()
    program.launch(20, ADD)
    program.sync()
    profile = pipeline.gather(program.report.write(tmp_path / "r.sqlite"), pipeline.ReadingOptions())
    with pytest.raises(NotRecorded):
        nsight_compute.chosen(profile, {}, 5)
