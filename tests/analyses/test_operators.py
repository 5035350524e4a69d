"""Operators between modules and kernels: what belongs to which, FLOPs per time, the measured peak, MFU; nothing is lost."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nsysx.model import Summary
from tests.analyses import reason
from tests.builder import Report
from tests.findings import US, Program

GEMM = "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT"
ATTENTION = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7"


class Torch(Program):
    """A program that writes its operators as torch does."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = itertools.count(1)

    @contextmanager
    def op(self, name: str, sizes: str = "", made: str = "", seq: int | None = None) -> Iterator[int]:
        number = next(self.ids)
        text = name + (f", seq = {seq}" if seq is not None else "") + f", op_id = {number}"
        text += f", sizes = {sizes}" if sizes else ""
        text += f", input_op_ids = {made}" if made else ""
        begin = self.t
        yield number
        self.main.add_range(text, begin, self.t)


def linear(program: Torch) -> None:
    """2 x 1000 x 1000 x 1000 operations in 100 us: 20 TFLOP/s."""
    with program.op("aten::linear", "[[1000, 1000], [1000, 1000], [1000]]"):
        with program.op("aten::t", "[[1000, 1000]]"):
            program.host(1)
        with program.op("aten::addmm", "[[1000], [1000, 1000], [1000, 1000], [], []]"):
            program.launch(100, GEMM)


def body(program: Program, number: int) -> None:
    assert isinstance(program, Torch)
    with program.range("forward"), program.range("net:Net"):
        with program.range("net.fc:Linear"):
            linear(program)
            linear(program)
        with program.range("net.slow:Linear"), program.op("aten::addmm", "[[500], [1000, 1000], [1000, 500], [], []]"):
            program.launch(100, GEMM)
        with program.range("net.act:ReLU"), program.op("aten::relu", "[[1000, 1000]]"):
            program.launch(30, "elementwise")
        program.launch(10, "by itself")
        with program.op("aten::item"):
            program.host(1)
            with program.op("aten::_local_scalar_dense"):
                program.sync()


def summary(program: Program, folder: Path) -> Summary:
    return program.summary(folder)


def table(found: Summary, key: str) -> list[dict[str, Any]]:
    rows = found.tables[key].rows
    assert rows is not None, found.tables[key].reason
    return [dict(r) for r in rows]


def test_rows_between_module_and_kernel_sum_to_all_gpu_time(tmp_path: Path) -> None:
    found = summary(Torch().steps(body), tmp_path)
    steps = found.tables["operators"].scope
    assert steps is not None and steps.steps
    n = steps.steps
    rows = {(r["name"], r["module"]): r for r in table(found, "operators")}
    fc, slow = rows["aten::addmm", "net.fc"], rows["aten::addmm", "net.slow"]
    assert (fc["calls"], fc["kernels"], fc["gpu_ns"]) == (2 * n, 2 * n, 2 * n * 100 * US)
    assert fc["flops"] == 2 * n * 2 * 1000**3
    assert (fc["tflops"], fc["peak_share"]) == (pytest.approx(20), pytest.approx(1))
    assert (slow["tflops"], slow["peak_share"]) == (pytest.approx(10), pytest.approx(0.5))
    assert (fc["caller"], fc["number_format"], fc["kernel"]) == ("aten::linear", "bf16", GEMM)
    assert fc["shapes"] == "1000, 1000x1000, 1000x1000"
    relu = rows["aten::relu", "net.act"]
    assert (relu["flops"], relu["why_not"], relu["tflops"]) == (None, None, None)
    assert rows[None, "net"]["gpu_ns"] == n * 10 * US, "work outside of operators is a row of its own"
    wait = rows["aten::_local_scalar_dense", "net"]
    assert wait["waits"] == n and wait["wait_ns"] > 0 and wait["gpu_ns"] == 0
    modules = sum(r["self_gpu_ns"] for r in table(found, "modules"))
    assert sum(r["gpu_ns"] for r in rows.values()) == modules
    flops = table(found, "flops")
    assert next(r for r in flops if r["by"] == "step")["gpu_ns"] == modules
    assert next(c for c in found.quality if c.check == "operator cost").status == "warn", "each step paid for them"


def test_mfu_is_of_the_measured_peak_and_the_step_without_profiler(tmp_path: Path) -> None:
    found = summary(Torch().steps(body), tmp_path)
    step = next(r for r in table(found, "flops") if r["by"] == "step")
    assert found.unprofiled is not None
    assert (step["step_ns"], step["step_from"]) == (found.unprofiled.step_ns, found.unprofiled.source)
    # Per step 5 G operations, at 20 TFLOP/s 250 us.
    assert step["mfu"] == pytest.approx(250 * US / step["step_ns"])
    assert (step["counted"], step["tflops"]) == (1.0, pytest.approx(5e9 / 300e-6 / 1e12))
    assert step["peak"] == "bf16 20 (fastest product of this report)"
    modules = {r["name"]: r for r in table(found, "flops") if r["by"] == "module"}
    assert modules["net.slow"]["peak_share"] == pytest.approx(0.5)
    assert "net.act" not in modules, "it multiplies nothing"


def test_the_peak_that_calibrate_measured_on_this_gpu_counts(tmp_path: Path) -> None:
    def told(gpu: str) -> dict[str, Any]:
        profile = {"gpu": gpu, "products": {"bf16": 80e12, "odd": "fast", "tf32": -1}}
        (tmp_path / "r.run.json").write_text(json.dumps({"schema": "nsysx.run/1", "machine_profile": profile}))
        return next(r for r in table(summary(Torch().steps(body), tmp_path), "flops") if r["by"] == "step")

    step = told("NVIDIA H200")
    assert step["peak"] == "bf16 80 (nsysx calibrate)"
    assert step["mfu"] == pytest.approx(5e9 / 80e12 / (step["step_ns"] / 1e9))
    assert told("another GPU")["peak"] == "bf16 20 (fastest product of this report)"


def test_products_without_a_known_number_leave_the_mfu_open(tmp_path: Path) -> None:
    def more(program: Program, number: int) -> None:
        body(program, number)
        assert isinstance(program, Torch)
        with program.op("flash_attn::_flash_attn_varlen_forward", "[[9, 8, 64], [9, 8, 64], [9, 8, 64]]"):
            program.launch(100, "flash_fwd_kernel")

    step = next(r for r in table(summary(Torch().steps(more), tmp_path), "flops") if r["by"] == "step")
    assert step["mfu"] is None and step["counted"] == pytest.approx(0.75)
    assert step["why_not"] == "operations are counted for only 75 % of the time of kernels that multiply"


def test_a_sparse_product_is_not_counted_by_the_sizes_that_its_zeros_fill(tmp_path: Path) -> None:
    """A graph of 750,000 nodes would compute 58,000 TFLOP/s; torch calls its product by the name of a dense one."""

    def more(program: Program, number: int) -> None:
        body(program, number)
        assert isinstance(program, Torch)
        sizes = "[[750000, 128], [750000, 750000], [750000, 128], [], []]"
        with program.range("net:Net"), program.op("aten::addmm", sizes):
            program.launch(2500, "void cusparse::csrmm_alg2_kernel<float>()")

    found = summary(Torch().steps(more), tmp_path)
    sparse = next(r for r in table(found, "operators") if r["module"] == "net" and r["name"] == "aten::addmm")
    assert (sparse["flops"], sparse["tflops"]) == (None, None)
    assert sparse["why_not"] == "how full its sparse factor is was not recorded"
    step = next(r for r in table(found, "flops") if r["by"] == "step")
    assert step["tflops"] == pytest.approx(5e9 / 300e-6 / 1e12), "products that are counted, as without it"


def test_a_recomputed_forward_counts_for_the_gpu_and_not_for_the_model(tmp_path: Path) -> None:
    def again(program: Program, number: int) -> None:
        assert isinstance(program, Torch)
        with program.range("forward"), program.range("net.fc:Linear"):
            linear(program)
        with program.range("backward"), program.range("net.fc:Linear recompute"):
            linear(program)

    step = next(r for r in table(summary(Torch().steps(again), tmp_path), "flops") if r["by"] == "step")
    assert step["again_flops"] * 2 == step["flops"]
    assert step["mfu"] == pytest.approx(100 * US / step["step_ns"])


@pytest.mark.parametrize(("took_us", "share"), [(100, 0.5), (50, 1), (40, 0.625), (20, 1)])
def test_attention_of_16_bits_is_held_against_the_peak_of_16_bits(tmp_path: Path, took_us: int, share: float) -> None:
    """In full it takes 50 us at the peak: what took less has a causal mask, and is held against half. No share is above 1."""

    def attends(program: Program, number: int) -> None:
        assert isinstance(program, Torch)
        linear(program)
        qkv = ", ".join(["[1, 10, 500, 100]"] * 3)
        with program.op("aten::_scaled_dot_product_cudnn_attention", f"[{qkv}, [], []]"):
            program.launch(took_us, ATTENTION)

    found = summary(Torch().steps(attends), tmp_path)
    one = next(r for r in table(found, "operators") if "attention" in str(r["name"]))
    assert one["number_format"] == "16 bits" and one["peak_share"] == pytest.approx(share)
    step = next(r for r in table(found, "flops") if r["by"] == "step")
    asked_us = 100 + (50 if took_us >= 50 else 25)
    assert step["peak_share"] == pytest.approx(min(asked_us / (100 + took_us), 1))
    assert step["mfu"] == pytest.approx(150 * US / step["step_ns"]), "the model asks for all of it"


def test_a_convolution_gets_the_size_of_its_result_from_who_takes_it(tmp_path: Path) -> None:
    def convolves(program: Program, number: int) -> None:
        assert isinstance(program, Torch)
        sizes = "[[8, 3, 30, 30], [16, 3, 3, 3], [16], [], [], [], [], [], []]"
        none = ", ".join(["(0,-1)"] * 9)
        with program.op("aten::conv2d", sizes, f"[{none}]", seq=number) as outer:
            program.host(1)
            with program.op("aten::convolution", sizes, f"[{none}]", seq=number):
                program.host(1)
                with program.op("aten::cudnn_convolution", sizes):
                    program.launch(100, "sm90_xmma_fprop_implicit_gemm_bf16bf16")
        with program.op("aten::relu", "[[8, 16, 28, 28]]", f"[({outer},0)]"):
            program.launch(10, "elementwise")
        with program.op("aten::convolution_backward", "[[8, 16, 28, 28], [8, 3, 30, 30], [16, 3, 3, 3], []]") as back:
            program.launch(100, "sm90_xmma_wgrad_implicit_gemm_bf16bf16")
        with program.op("torch::autograd::AccumulateGrad", "[[16, 3, 3, 3]]", f"[({back},1)]"):
            program.host(1)

    found = table(summary(Torch().steps(convolves), tmp_path), "operators")
    rows = {r["name"]: r for r in found}
    one = 2 * 8 * 16 * 28 * 28 * 3 * 3 * 3
    assert rows["aten::convolution"]["flops"] == one * rows["aten::convolution"]["calls"], "one, not three nested ones"
    backward = rows["aten::convolution_backward"]
    assert backward["flops"] == one * backward["calls"], "nobody took a gradient of its input: none was made"


def test_a_product_of_a_dtensor_counts_the_operations_of_this_ranks_part(tmp_path: Path) -> None:
    """The operator around it has the sizes of all ranks together: a peak that no device has would follow."""

    def multiplies(program: Program, number: int) -> None:
        assert isinstance(program, Torch)
        with program.op("aten::mm", "[[1000, 1000], [1000, 4000]]"):
            program.host(1)
            with program.op("PythonSubclass", "[[1000, 1000], [1000, 4000]]"):
                program.launch(5, "redistributes")
                with program.op("aten::mm", "[[1000, 1000], [1000, 1000]]"):
                    program.launch(100, GEMM)

    rows = [r for r in table(summary(Torch().steps(multiplies), tmp_path), "operators") if r["name"] == "aten::mm"]
    assert [(r["flops"], r["shapes"]) for r in rows] == [(2 * 10**9 * rows[0]["calls"], "1000x1000, 1000x1000")]


@pytest.mark.parametrize(
    ("kernels", "gradients"),
    [(("x_dgrad_y", "wgrad_nhwc"), 2), (("wgrad_nhwc", "cudnn::nchwToNhwcKernel"), 1), (("conv2d",), None)],
)
def test_a_compiled_backward_is_told_by_its_kernels(
    kernels: tuple[str, ...], gradients: int | None, tmp_path: Path
) -> None:
    """What takes its results is no operator there; kernels say what they are, or the number stays open."""

    def compiled(program: Program, number: int) -> None:
        assert isinstance(program, Torch)
        with program.op("CompiledFunctionBackward", "[[8, 16, 28, 28]]"):
            program.host(1)
            with program.op(
                "aten::convolution_backward", "[[8, 16, 28, 28], [8, 3, 30, 30], [16, 3, 3, 3], []]"
            ) as back:
                for kernel in kernels:
                    program.launch(100, kernel)
            with program.op("torch::autograd::AccumulateGrad", "[[16, 3, 3, 3]]", f"[({back},1)]"):
                program.host(1)

    row = next(r for r in table(summary(Torch().steps(compiled), tmp_path), "operators") if "conv" in str(r["name"]))
    one = 2 * 8 * 16 * 28 * 28 * 3 * 3 * 3
    assert row["flops"] == (gradients and gradients * one * row["calls"])
    assert row["why_not"] == (None if gradients else "which gradients it made is not recorded")


def test_operators_of_a_marked_step_are_those_of_the_steps_that_repeat_it(tmp_path: Path) -> None:
    """--ops records few steps: kernels of the others get the operators of the launches that they repeat."""
    program = Torch()

    def some(one: Program, number: int) -> None:
        assert isinstance(one, Torch)
        if number in (1, 3):
            one.main.mark(f'info {{"marks":{str(number == 1).lower()}}}', one.t, domain="nsysx")
        recorded = 1 <= number < 3
        with one.range("forward Net"):
            for size in (1000, 500):
                begin = one.t
                one.launch(100, GEMM)
                if recorded:
                    text = f"aten::mm, op_id = {next(one.ids)}, sizes = [[1000, 1000], [1000, {size}]]"
                    one.main.add_range(text, begin, one.t)

    told = {"schema": "nsysx.run/1", "probe": [{"pid": 100, "backend": "nvtx", "steps": {"unmarked_from": 3}}]}
    (tmp_path / "r.run.json").write_text(json.dumps(told))
    found = summary(program.steps(some, 12), tmp_path)
    rows = {r["shapes"]: r for r in table(found, "operators")}
    scope = found.tables["operators"].scope
    assert scope is not None and scope.steps > 5, "most steps are not marked"
    for size in (1000, 500):
        row = rows[f"1000x1000, 1000x{size}"]
        assert (row["calls"], row["flops"]) == (scope.steps, scope.steps * 2 * 1000**2 * size)
    assert None not in rows
    assert "operator cost" not in {c.check for c in found.quality}, "the steady steps recorded none themselves"


def test_each_launch_of_a_graph_computes_what_was_captured_once(tmp_path: Path) -> None:
    report = Report()
    report.gpu(pids=[(100, 0)])
    main = report.process(100).thread(100, "python")
    main.add_range("aten::mm, op_id = 1, sizes = [[1000, 1000], [1000, 1000]]", 0, 1_000)
    main.launch(100, 500, kernel=GEMM)
    main.graph_node(200, 5)
    for i in range(3):
        at = 10_000 + i * 200_000
        call = main.graph_launch(at, 10, nodes=[(GEMM, at + 100, 100_000)])
        call.ops[0]["graphNodeId"] = 5
    rows = table(_summarized(report, tmp_path), "operators")
    row = next(r for r in rows if r["name"] == "aten::mm")
    assert row["calls"] == 3 and row["flops"] == 3 * 2 * 10**9


def _summarized(report: Report, folder: Path) -> Summary:
    from nsysx.pipeline import summarize

    return summarize([report.write(folder / "r.sqlite")], every_table=False)


def test_not_recorded_names_the_option(tmp_path: Path) -> None:
    program = Program().steps(lambda one, _: one.launch(100))
    assert reason(program.report, tmp_path, "operators") == (
        "operators were not recorded. To record it: nsysx run -- CMD"
    )

    def bare(one: Program, number: int) -> None:
        assert isinstance(one, Torch)
        with one.op("aten::mm"):
            one.launch(100, GEMM)

    found = summary(Torch().steps(bare), tmp_path)
    assert found.tables["flops"].reason.startswith("operators were recorded without their shapes")
    (row,) = table(found, "operators")
    assert (row["shapes"], row["flops"], row["why_not"]) == (None, None, "its shapes were not recorded")
