"""NSX136: an operator that one line runs, far longer than its sizes need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from nsysx.model import Finding
from tests.analyses.test_operators import GEMM, Torch
from tests.findings.lined import Lined

#: 2 x 4096 x 4096 x 4096 operations: 174 us at 788 TFLOP/s.
SIZES = "[[4096, 4096], [4096, 4096]]"
LIMIT_NS = 174_000
SGEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute"


class LinedTorch(Torch, Lined):
    """A program that notes its lines, and writes its operators as torch does."""


def step(name: str, us: int, kernel: str = GEMM, sizes: str = SIZES) -> Callable[[Lined, int], None]:
    """Return a step of ten products near their limit, and of one operator of line 30 that takes so long."""

    def body(program: Lined, number: int) -> None:
        assert isinstance(program, LinedTorch)
        with program.line(20), program.range("forward"), program.range("net:Net"):
            for _ in range(10):
                with program.op("aten::mm", SIZES):
                    program.launch(200, GEMM)
        with program.line(30, "pick"), program.op(name, sizes):
            program.launch(us, kernel)
        program.sync()

    return body


def findings(folder: Path, body: Callable[[Lined, int], None]) -> list[Finding]:
    return LinedTorch().run(body).findings(folder, "NSX136")


def test_an_operator_far_from_its_limit_is_named_with_its_line_and_what_could_go(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, step("aten::bmm", 8_000))
    assert finding.verdict == "found" and finding.where["line"] == 30
    assert finding.title.startswith(
        "bmm in train.py:30 takes 8.00 ms per step, 80 % of the step, at 2.2 % of the peak rate"
    )
    assert finding.saving.bound and finding.saving.likely_ns == pytest.approx(8_000_000 - LIMIT_NS, rel=0.02)
    assert "torch.bmm" in finding.fix


CAT = "void at::native::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4, 64, 64>(Args)"


@pytest.mark.parametrize(("us", "verdict"), [(150, "clear"), (4_000, "found")])
def test_joining_tensors_far_from_the_speed_of_the_memory(us: int, verdict: str, tmp_path: Path) -> None:
    # 268 MB are read and written: about 125 us.
    (finding,) = findings(tmp_path, step("aten::cat", us, CAT, "[[8192, 8192], [8192, 8192], []]"))
    assert finding.verdict == verdict
    if verdict == "found":
        assert "views, and results that are written where they are needed" in finding.fix


def test_float32_among_products_of_16_bits_is_striking(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, step("aten::mm", 12_000, SGEMM))
    assert "in fp32 where the other products have 16 bits" in finding.fix


@pytest.mark.parametrize(
    ("name", "us", "kernel"),
    [
        ("aten::mm", 450, GEMM),  # at 39 % of its limit
        ("aten::mm", 500, GEMM),  # a sixth of the step at most could go
        ("aten::_flash_attention_forward", 8_000, "flash_fwd_kernel<bf16>"),  # no form of it is faster
        ("aten::mul", 8_000, "vectorized_elementwise_kernel<4, Mul>"),  # a compiler fuses it
        ("aten::linalg_cholesky_ex", 8_000, "potrf"),  # it has no shorter form
    ],
)
def test_what_is_near_its_limit_or_has_no_shorter_form_is_clear(
    name: str, us: int, kernel: str, tmp_path: Path
) -> None:
    assert [f.verdict for f in findings(tmp_path, step(name, us, kernel))] == ["clear"]


GEMV = "gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false>"


@pytest.mark.parametrize(("us", "verdict"), [(2_200, "clear"), (20_000, "found")])
def test_a_matrix_times_a_vector_at_the_speed_of_the_memory_is_clear(us: int, verdict: str, tmp_path: Path) -> None:
    # 40,000 x 40,000 numbers of 4 bytes: about 1.5 ms at the 4.3 TB/s of an H200.
    (finding,) = findings(tmp_path, step("aten::mv", us, GEMV, "[[40000, 40000], [40000]]"))
    assert finding.verdict == verdict
    if verdict == "found":
        assert "% of the memory bandwidth" in finding.title


@pytest.mark.parametrize(("name", "verdict"), [("aten::renorm", "clear"), ("aten::median", "found")])
def test_work_without_a_limit_is_named_where_another_form_is_known(name: str, verdict: str, tmp_path: Path) -> None:
    (finding,) = findings(
        tmp_path, step(name, 12_000, "void at::native::gatherMedian<float, int, -1>(float *)", "[[4096, 4096]]")
    )
    assert finding.verdict == verdict


def test_without_lines_nothing_is_said(tmp_path: Path) -> None:
    def body(program: Lined, number: int) -> None:
        assert isinstance(program, LinedTorch)
        with program.op("aten::mm", SIZES):
            program.launch(8_000, GEMM)

    finding = LinedTorch().steps(body).finding(tmp_path, "NSX136")
    assert finding.verdict == "cannot_tell" and "nsysx run" in finding.fix


@pytest.mark.parametrize("coalesces", [True, False])
def test_sparse_products_that_order_their_matrix_anew(tmp_path: Path, coalesces: bool) -> None:
    def body(program: Lined, number: int) -> None:
        assert isinstance(program, LinedTorch)
        sorts = "void at::native::apply::coalesceValuesKernel<float, float>(long *, long *)"
        with program.line(20), program.range("forward"), program.range("net:Net"):
            for _ in range(4):
                with program.op("aten::mm", SIZES):
                    program.launch(200, GEMM)
        with program.line(30, "spread"), program.op("aten::addmm", "[[80000, 64], [80000, 80000], [80000, 64]]"):
            program.launch(1_500, "void cub::DeviceMergeSortMergeKernel<long>(long *)")
            program.launch(1_500, sorts if coalesces else "void some::other_kernel(float *)")
            program.launch(2_000, "void cusparse::csrmm_alg1_kernel<float>(int, float *)")
        program.sync()

    found = findings(tmp_path, body)
    if not coalesces:
        assert all("csr-once" not in [way.name for way in f.remedies] for f in found)
        return
    (finding,) = found
    assert finding.title.startswith("Sparse products of train.py:30 put their matrix in order for 3.00 ms per step")
    assert [way.name for way in finding.remedies] == ["csr-once"]
    least, most = 3_000_000, 5_000_000
    assert finding.saving.likely_ns == pytest.approx((least + most) / 2, rel=0.03)
    assert finding.saving.error_ns == pytest.approx((most - least) / 2, rel=0.06)


def test_depthwise_convolutions_in_three_dimensions_become_some_in_two(tmp_path: Path) -> None:
    slow = "void at::native::(anonymous namespace)::conv_depthwise3d_cuda_backward_weight_kernel<c10::BFloat16>(Args)"
    sizes = "[[8, 64, 16, 56, 56], [64, 1, 3, 1, 1], []]"
    (finding,) = findings(tmp_path, step("aten::conv_depthwise3d", 8_000, slow, sizes))
    assert [way.name for way in finding.remedies] == ["depthwise-of-planes"] and finding.where["line"] == 30
    (finding,) = findings(tmp_path, step("aten::cudnn_convolution", 8_000, "sm90_xmma_fprop_implicit_gemm", sizes))
    assert "depthwise-of-planes" not in [way.name for way in finding.remedies]


def test_the_pasted_convolution_gives_the_same() -> None:
    x = torch.randn(2, 4, 5, 6, 7)
    cube = nn.Conv3d(4, 4, (3, 1, 1), padding=(1, 0, 0), groups=4)
    plane = nn.Conv2d(4, 4, (3, 1), padding=(1, 0), groups=4)
    with torch.no_grad():
        plane.weight.copy_(cube.weight.flatten(3))
        assert plane.bias is not None and cube.bias is not None
        plane.bias.copy_(cube.bias)
    torch.testing.assert_close(cube(x), plane(x.flatten(3)).view_as(x))
