"""The roofline sums to the step, by operator, line, module, family and reason; nothing is faster than its limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx import units
from nsysx.analyses.helpers import limits_of_work
from nsysx.events import work_operators
from nsysx.pipeline import summarize
from tests.analyses.test_operators import GEMM, Torch, summary, table
from tests.findings import US, Program
from tests.samples import unpack

RECORDINGS = Path(__file__).parent.parent / "roofline"
ADD = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>, std::array<char *, (unsigned long)3>>(T2)"
#: 64 Mi numbers of FP32: a sum reads 512 MiB and writes 256 MiB, far more than any cache.
LARGE = "[64, 1024, 1024]"
MOVED = 3 * 64 * 1024 * 1024 * 4


def body(program: Program, number: int) -> None:
    assert isinstance(program, Torch)
    with program.range("forward"), program.range("net:Net"):
        with program.range("net.1:Linear"), program.op("aten::addmm", "[[4096], [4096, 4096], [4096, 4096], [], []]"):
            program.launch(400, GEMM)
        with program.range("net.2:Add"), program.op("aten::add", f"[{LARGE}, {LARGE}, []]"):
            program.launch(1000, ADD)
        with program.op("aten::unique2", "[[100]]"):
            program.launch(50, "void cub::DeviceRadixSort<float>(T)")
        program.launch(30, "triton_mine")


def rows_of(found: Any, by: str) -> dict[str | None, dict[str, Any]]:
    return {r["name"]: r for r in table(found, "roofline") if r["by"] == by}


def sums(found: Any) -> dict[str, Any]:
    """Return the row of the step, which all kinds of rows add up to, and in which nothing is faster than its limit."""
    rows = table(found, "roofline")
    (step,) = rows_of(found, "step").values()
    parts = [step["limit_ns"] or 0, step["could_go_ns"] or 0, step["unknown_ns"]]
    assert step["gpu_ns"] == sum(parts) and min(parts) >= 0
    for by in ("roof", "operator", "line", "module", "family"):
        for column in ("gpu_ns", "unknown_ns", "kernels", "backward_ns", "counters_ns"):
            assert sum(r[column] for r in rows if r["by"] == by) == step[column], (by, column)
    assert sum(r["gpu_ns"] for r in rows if r["by"] == "not known") == step["unknown_ns"]
    assert all(0 <= r["could_go_ns"] <= r["gpu_ns"] - r["unknown_ns"] for r in rows if r["could_go_ns"] is not None)
    return step


@pytest.mark.parametrize("name", ["gcn_h100", "large_h100"])
def test_rooflines_of_recordings_sum_to_their_steps(tmp_path: Path, name: str) -> None:
    """A graph network with its gradients and optimizer, and operators on 1 GB and more with the device's counters."""
    step = sums(summarize([unpack(name, tmp_path, RECORDINGS)], every_table=False))
    assert 0.4 < step["limit_share"] <= 1 and step["unknown_ns"] < 0.1 * step["gpu_ns"]


def test_every_kind_of_rows_sums_to_the_step(tmp_path: Path) -> None:
    found = summary(Torch().steps(body), tmp_path)
    step = sums(found)
    assert step["gpu_ns"] == sum(r["self_gpu_ns"] for r in table(found, "modules"))
    unknown = rows_of(found, "not known")
    scope = found.tables["roofline"].scope
    assert scope is not None and scope.steps
    assert {name: r["gpu_ns"] for name, r in unknown.items()} == {
        limits_of_work.NO_FORMULA: scope.steps * 50 * US,
        "no operator launched it": scope.steps * 30 * US,
    }
    assert step["unknown_ns"] == scope.steps * 80 * US


def test_limits_are_products_and_memory_of_the_device(tmp_path: Path) -> None:
    found = summary(Torch().steps(body), tmp_path)
    scope = found.tables["roofline"].scope
    assert scope is not None and scope.steps
    of = rows_of(found, "operator")
    product, add = of["addmm"], of["add"]
    assert product["flops"] == scope.steps * 2 * 4096**3
    assert (product["roof"], product["number_format"]) == ("products", "bf16")
    # An H200 multiplies bfloat16 at 788 TFLOP/s.
    assert product["limit_ns"] == pytest.approx(scope.steps * 2 * 4096**3 / 788e12 * 1e9, rel=1e-6)
    assert product["tflops"] == pytest.approx(2 * 4096**3 / 400e-6 / 1e12)
    assert add["moved_bytes"] == scope.steps * MOVED and add["roof"] == "memory"
    assert add["bytes_per_s"] == pytest.approx(MOVED / 1e-3)
    assert MOVED / 4.8e12 < add["limit_ns"] / scope.steps / 1e9 < MOVED / 4.2e12
    (step,) = rows_of(found, "step").values()
    assert "bf16 788 TFLOP/s (measured on a device of this name)" in step["rates"]


def test_each_kind_of_gpu_in_a_report_has_limits_of_its_own(tmp_path: Path) -> None:
    """A process on a T4 beside the one that is shown: the limits are those of the GPU that a process uses, whatever its number."""
    program = Torch()
    small = {
        "memoryBandwidth": 320_000_000_000,
        "smCount": 40,
        "computeMajor": 7,
        "computeMinor": 5,
        "l2CacheSize": 4_194_304,
    }
    program.report.gpu(1, "Tesla T4", pids=[(200, 0)], **small)
    other = program.report.process(200).thread(200)
    for number in range(20):
        other.launch(at=number * 100_000, kernel=ADD, gpu_start=number * 100_000 + 5_000, gpu_dur=20_000)
    found = summary(program.steps(body), tmp_path)
    step = sums(found)
    assert "bf16 788 TFLOP/s" in step["rates"] and "4.30 TB/s" in step["rates"], step["rates"]
    (tmp_path / "alone").mkdir()
    alone = sums(summary(Torch().steps(body), tmp_path / "alone"))
    assert {k: v for k, v in step.items() if v != alone[k]} == {}


def test_gradients_stand_with_their_operator_and_modules_with_their_like(tmp_path: Path) -> None:
    def both(program: Program, number: int) -> None:
        body(program, number)
        assert isinstance(program, Torch)
        with (
            program.op("AddmmBackward0", "[[4096, 4096]]"),
            program.op("aten::mm", "[[4096, 4096], [4096, 4096]]"),
        ):
            program.launch(500, GEMM)

    found = summary(Torch().steps(both), tmp_path)
    scope = found.tables["roofline"].scope
    assert scope is not None and scope.steps
    row = rows_of(found, "operator")["addmm"]
    assert (row["gpu_ns"], row["backward_ns"]) == (scope.steps * 900 * US, scope.steps * 500 * US)
    assert "mm" not in rows_of(found, "operator")
    assert "net.*" in rows_of(found, "module")


def test_what_is_faster_than_its_sizes_allow_is_not_known(tmp_path: Path) -> None:
    def fast(program: Program, number: int) -> None:
        assert isinstance(program, Torch)
        with program.range("forward"), program.op("aten::add", f"[{LARGE}, {LARGE}, []]"):
            program.launch(20, ADD)

    found = summary(Torch().steps(fast), tmp_path)
    row = rows_of(found, "operator")["add"]
    assert (row["limit_ns"], row["could_go_ns"], row["why_not"]) == (None, None, limits_of_work.TOO_FAST)


def test_a_report_without_operators_has_no_roofline_and_says_what_records_it(tmp_path: Path) -> None:
    def plain(program: Program, number: int) -> None:
        with program.range("forward"):
            program.launch(20, ADD)

    found = summary(Torch().steps(plain), tmp_path)
    assert found.tables["roofline"].rows is None
    assert "operator" in found.tables["roofline"].reason


def test_a_kernel_of_triton_must_move_what_its_tensors_hold_unless_it_multiplies(tmp_path: Path) -> None:
    held = 1 << 30

    def launches(program: Program, number: int) -> None:
        assert isinstance(program, Torch)
        with program.op(f"triton::mine#{held}", "[[1024, 262144]]"):
            program.launch(4000, "mine")
        with program.op("triton::product#products", "[[4096, 4096]]"):
            program.launch(300, "product")
        with program.op(f"triton::part#{held}", "[[1024, 262144]]"):
            program.launch(20, "part")

    found = summary(Torch().steps(launches), tmp_path)
    scope, of = found.tables["roofline"].scope, rows_of(found, "operator")
    assert scope is not None and scope.steps
    assert of["mine"]["moved_bytes"] == held * scope.steps and of["mine"]["roof"] == "memory"
    assert of["mine"]["limit_ns"] + of["mine"]["could_go_ns"] == of["mine"]["gpu_ns"] == scope.steps * 4000 * US
    assert (of["product"]["limit_ns"], of["product"]["why_not"]) == (None, work_operators.MULTIPLIES)
    assert (of["part"]["limit_ns"], of["part"]["why_not"]) == (None, limits_of_work.TOO_FAST)
    (far,) = (f for f in found.findings or () if f.code == "NSX128")
    assert far.verdict == "found" and far.where["near"] == "the kernel mine"
    assert "its tensors hold 1.0 GiB for each launch" in far.detail
    assert far.saving_ns_per_step == pytest.approx(of["mine"]["could_go_ns"] / scope.steps, rel=0.02)
    assert f"at {units.share(of['mine']['limit_share'], 1)} of the memory bandwidth" in far.title
