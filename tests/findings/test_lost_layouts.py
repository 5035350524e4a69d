"""NSX117 by lines that lose channels_last: the line, what it costs, and the program's own statements with the order kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_smaller_operators import operator

FIRST, VIEW, CAT, BACK, LAST = 12, 13, 14, 15, 16
SOURCE = {
    FIRST: "        x = self.first(x).relu_()",
    VIEW: "        y = x.view(n // t, t, c, h, w)",
    CAT: "        y = torch.cat([y[:, :, :a], y[:, :, a:].flip(1)], dim=2)  # some go back",
    BACK: "        y = y.view(n, c, h, w)",
    LAST: "        return self.last(y)",
}
PLAIN = SOURCE | {CAT: "        y = torch.cat([y, y], dim=2)"}
NHWC = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_execute_kernel__5x_cudnn"
NCHW = "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, (bool)0, (bool)1, (cudnnKernelDataType_t)2>()"
COPY = (
    "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda("
    "at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::[lambda() (instance 12)]::operator ()() const::"
    "[lambda(c10::BFloat16) (instance 1)]>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)"
)
RELU = "void at::native::vectorized_elementwise_kernel<(int)8, launch_clamp_scalar, std::array<char *, (unsigned long)2>>(int, T2, T3)"
PICTURES, CLIPS = "[64, 256, 56, 56]", "[8, 8, 256, 56, 56]"


def step(program: Lined, number: int, kind: str) -> None:
    """A convolution (1 ms), clips that are joined (800 us), and a convolution that copies them (900 us, and 500 us)."""
    at = 1000 * number + 10
    with program.range("forward"), program.range("net:Net"):
        with program.line(FIRST, "Net.forward"):
            operator(program, "conv2d", at, [-1, -1], f"{PICTURES}, [256, 256, 3, 3]", 1000, NHWC)
            operator(program, "relu_", at + 1, [at], PICTURES, 200, RELU)
        with program.line(VIEW, "Net.forward"):
            operator(program, "view", at + 2, [at + 1, -1], f"{PICTURES}, []")
        with program.line(CAT, "Net.forward"):
            operator(
                program, "cat", at + 3, [at + 2, at + 2], f"{CLIPS}, {CLIPS}", 30 if kind == "short" else 800, COPY
            )
        with program.line(BACK, "Net.forward"):
            operator(program, "view", at + 4, [at + 3, -1], f"{CLIPS}, []")
        with program.line(LAST, "Net.forward"):
            begin = program.t
            program.host(2)
            if kind != "kept":
                outer = program.t
                program.host(2)
                operator(
                    program, "clone", at + 7, [at + 4, -1], f"{PICTURES}, []", 30 if kind == "short" else 900, COPY
                )
                operator(program, "contiguous", at + 6, [at + 4, -1], f"{PICTURES}, []", begin=outer)
            program.host(2)
            if kind == "channels first":
                program.launch(300, NCHW)
            program.launch(500, NHWC)
            operator(program, "conv2d", at + 5, [at + 4, -1], f"{PICTURES}, [64, 256, 1, 1]", begin=begin)
    program.sync()


def findings_of(folder: Path, kind: str = "", source: dict[int, str] = SOURCE) -> list[Finding]:
    return Lined(source).run(lambda program, number: step(program, number, kind)).findings(folder, "NSX117")


def told(folder: Path, kind: str = "", source: dict[int, str] = SOURCE) -> list[Finding]:
    """Return what is said of lines that lose the order."""
    return [
        each for each in findings_of(folder, kind, source) if [w.name for w in each.remedies] == ["channels-last-kept"]
    ]


def test_the_line_that_loses_it(tmp_path: Path) -> None:
    (finding,) = told(tmp_path)
    assert finding.where["line"] == CAT
    assert (
        finding.title.endswith("1 convolution copies back what cat makes") and "channels_last is lost" in finding.title
    )
    # The copy goes for certain; the join takes part of its time.
    assert finding.saving.likely_ns is not None and 900_000 < finding.saving.likely_ns < 1_700_000
    assert finding.saving.error_ns is not None
    assert finding.saving.likely_ns - finding.saving.error_ns == pytest.approx(900_000, rel=0.05)
    assert finding.fix.startswith("Keep the order of channels_last")


def test_in_the_programs_own_statements(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, source=PLAIN)
    assert finding.paste == (
        "y = x.permute(0, 2, 3, 1).view(n // t, t, h, w, c)\ny = torch.cat([y, y], dim=4)\ny = y.view(n, h, w, c).permute(0, 3, 1, 2)"
    )
    assert f"lines {VIEW} to {BACK}" in finding.fix


def test_statements_of_another_form_are_left_to_the_program(tmp_path: Path) -> None:
    (finding,) = told(tmp_path)
    assert "x = work(x)" in finding.paste


@pytest.mark.parametrize("kind", ["kept", "short", "channels first"])
def test_programs_that_lose_nothing(kind: str, tmp_path: Path) -> None:
    assert told(tmp_path, kind) == []
