"""NSX116 to 119 and 121: programs that the GPU limits, by what its kernels do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nsysx.events.attention_backends import AttentionCalls
from nsysx.findings import nsx118_unfused_attention
from nsysx.replay import engine
from tests.findings import Program, empty, healthy, stepless

SGEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute"
FP32_CONV = "void wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>(int, int, int)"
TF32_CONV = "cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_256x64_16x4_nhwc>"


def running(*kernels: tuple[float, str]):
    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            for us, name in kernels:
                program.launch(us, name)

    return body


def test_products_in_fp32_could_use_tensor_cores(tmp_path: Path) -> None:
    finding = Program().steps(running(*[(400, SGEMM)] * 10)).finding(tmp_path, "NSX116")
    assert finding.verdict == "found"
    assert finding.cost_ns_per_step == 4_000_000
    assert finding.saving_ns_per_step == pytest.approx(3_500_000, rel=0.01), "seven eighths"
    assert "set_float32_matmul_precision" in finding.fix


PANEL = "void kernel<getrf_wo_pivot_params_<float, (int)0, (int)256, (int)1, (int)64>>"
ADD = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>>"


def test_products_within_a_factorization_follow_no_setting_of_torch(tmp_path: Path) -> None:
    """A library's factorization launches its products itself; a product of the program lies between other operators."""
    cholesky = [(300, PANEL), (400, SGEMM)] * 6
    assert Program().steps(running(*cholesky, (50, ADD))).finding(tmp_path, "NSX116").verdict == "clear"
    small = [(20, PANEL), (30, SGEMM), (50, ADD), *[(400, SGEMM)] * 6, (50, ADD)]
    finding = Program().steps(running(*small)).finding(tmp_path, "NSX116")
    assert finding.verdict == "found"
    assert finding.cost_ns_per_step == 2_400_000, "without the 30 us of the factorization"


def test_products_beside_a_factorization_that_takes_as_long_need_all_digits(tmp_path: Path) -> None:
    beside = [(300, PANEL), (50, ADD), *[(400, SGEMM)] * 2, (50, ADD)]
    assert Program().steps(running(*beside * 2)).finding(tmp_path, "NSX116").verdict == "clear"


def test_a_host_that_waits_for_the_gpu_may_work_less_than_is_seen(tmp_path: Path) -> None:
    """3 of 4 ms of host code limit the step once its products are faster, unless the host waits in them: then 3.5 ms go.

    A GPU that idles, in a step of 6 ms, says itself how long the host works.
    """

    def body(host_us: int) -> Callable[[Program, int], None]:
        def step(program: Program, number: int) -> None:
            with program.range("forward"), program.range("net:Net"):
                for _ in range(10):
                    program.host(host_us)
                    program.launch(400, SGEMM)

        return step

    saving = Program().steps(body(300)).finding(tmp_path, "NSX116").saving
    assert saving.likely_ns == pytest.approx(2_250_000, rel=0.05) and saving.most_ns == pytest.approx(
        3_500_000, rel=0.02
    )
    assert Program().steps(body(600)).finding(tmp_path, "NSX116").verdict == "clear"


def test_convolutions_that_cudnn_chose_against_tf32_promise_nothing(tmp_path: Path) -> None:
    body = running(*[(400, FP32_CONV)] * 10)
    assert Program().steps(body).finding(tmp_path, "NSX116").saving_ns_per_step == pytest.approx(3_500_000, rel=0.01)
    mixed = running(*[(400, FP32_CONV)] * 10, (400, TF32_CONV))
    finding = Program().steps(mixed).finding(tmp_path, "NSX116")
    assert finding.saving_ns_per_step is None
    assert "not known" in finding.saving.confidence


@pytest.mark.parametrize(
    "name", ["nvjet_sm90_tst_256x128", TF32_CONV, "void at::native::vectorized_elementwise_kernel<4>"]
)
def test_kernels_of_tensor_cores_are_clear(name: str, tmp_path: Path) -> None:
    assert Program().steps(running(*[(400, name)] * 10)).finding(tmp_path, "NSX116").verdict == "clear"


def test_a_card_without_tensor_cores_is_left_alone(tmp_path: Path) -> None:
    program = Program()
    program.report.rows["TARGET_INFO_GPU"][0]["name"] = program.report.rows["TARGET_INFO_GPU"][0]["name"] = (
        "Tesla P100-PCIE"
    )
    assert program.steps(running(*[(400, SGEMM)] * 10)).finding(tmp_path, "NSX116").verdict == "clear"


def test_normalization_beside_conversions_is_faster_in_channels_last_too(tmp_path: Path) -> None:
    """1.6 ms of conversions go, and 4 parts of 10 of 2.4 ms; kernels that work in channels last already stay."""
    kernels = [
        (200, "cudnn::nchwToNhwcKernel<float>"), (600, "batch_norm_collect_statistics_kernel<BFloat16>"), (200, TF32_CONV),
        (200, "cudnn::nhwcToNchwKernel<float>"),
    ]  # fmt: skip
    finding = Program().steps(running(*kernels * 4)).finding(tmp_path, "NSX117")
    assert finding.saving_ns_per_step == pytest.approx(1_600_000 + 0.4 * 2_400_000, rel=0.02)
    kernels[1] = (600, "batch_norm_collect_statistics_channels_last_kernel<BFloat16>")
    (tmp_path / "b").mkdir()
    already = Program().steps(running(*kernels * 4)).finding(tmp_path / "b", "NSX117")
    assert already.saving_ns_per_step == pytest.approx(1_600_000, rel=0.02)


def test_conversions_of_layout_are_counted(tmp_path: Path) -> None:
    kernels = [(200, "cudnn::nchwToNhwcKernel<float>"), (600, TF32_CONV), (200, "cudnn::nhwcToNchwKernel<float>")]
    finding = Program().steps(running(*kernels * 4)).finding(tmp_path, "NSX117")
    assert finding.cost_ns_per_step == pytest.approx(1_600_000, rel=0.01)
    assert finding.saving_ns_per_step == pytest.approx(1_600_000, rel=0.02)
    assert "channels_last" in finding.fix
    assert Program().steps(healthy).finding(tmp_path, "NSX117").verdict == "clear"


SOFTMAX = "void softmax_warp_forward<float, float, float, 9, false, false>(float *)"
SCALE = "void at::native::vectorized_elementwise_kernel<4, Mul>(int)"


def test_attention_in_pieces_is_found(tmp_path: Path) -> None:
    layer = [(200, "nvjet_bmm"), (50, SCALE), (100, SOFTMAX), (50, SCALE), (200, "nvjet_bmm"), (300, "nvjet_mlp")]
    finding = Program().steps(running(*layer * 4)).finding(tmp_path, "NSX118")
    assert finding.verdict == "found"
    assert finding.cost_ns_per_step == pytest.approx(4 * 200_000, rel=0.02)
    assert "scaled_dot_product_attention" in finding.fix


@pytest.mark.parametrize(("backend", "remedy"), [("math", "sdpa-fused"), ("efficient", "sdpa"), (None, "sdpa")])
def test_the_math_path_of_the_fused_call_is_told_from_attention_in_pieces(
    backend: str | None, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes in FP32 and looks for rows that are masked as a whole: twelve kernels between its products."""
    calls = [AttentionCalls(backend, "32x8x1500x64", True, 4, None)]
    monkeypatch.setattr(nsx118_unfused_attention, "flow_of", lambda profile: object())
    monkeypatch.setattr(nsx118_unfused_attention, "attention_calls", lambda flow: calls)
    layer = [(200, SGEMM), *[(50, SCALE)] * 3, (100, SOFTMAX), *[(50, SCALE)] * 8, (200, SGEMM), (300, "nvjet_mlp")]
    finding = Program().steps(running(*layer * 4)).finding(tmp_path, "NSX118")
    assert finding.cost_ns_per_step == pytest.approx(4 * 650_000, rel=0.02)
    assert [way.name for way in finding.remedies] == [remedy]
    assert ("queries of 32x8x1500x64, with a mask" in finding.fix) == (backend == "math")


def test_attention_of_torchs_own_module_is_fused_without_its_weights(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("blocks.0.attention:MultiheadAttention"):
            for us, name in [(200, "nvjet_bmm"), (100, SOFTMAX), (200, "nvjet_bmm")] * 4:
                program.launch(us, name)

    finding = Program().steps(body).finding(tmp_path, "NSX118")
    assert [way.name for way in finding.remedies] == ["no-attention-weights"] and "need_weights=False" in finding.paste
    assert not finding.saving.bound, "the products become faster, too"


@pytest.mark.parametrize(
    "kernels",
    [
        [(200, "nvjet"), (100, "flash_fwd_kernel"), (200, "nvjet")],
        [(200, "nvjet"), (100, "cunn_SoftMaxForward<LogSoftMaxForwardEpilogue>"), (200, "nvjet")],
        [(200, "nvjet"), *[(50, SCALE)] * 14, (100, SOFTMAX), (200, "nvjet")],
    ],
    ids=["flash", "loss", "far apart"],
)
def test_other_softmax_is_no_attention(kernels: list[tuple[float, str]], tmp_path: Path) -> None:
    assert Program().steps(running(*kernels * 4)).finding(tmp_path, "NSX118").verdict == "clear"


def test_pauses_between_short_kernels_are_no_launches(tmp_path: Path) -> None:
    program = Program()
    for _k in range(20):  # what a launch usually takes is known
        program.launch(1)
        program.host(20)
    for number in range(8):
        begin = program.t
        first = program.t + 2_000_000
        nodes = [("tiny", first + 2_400 * k, 1_200) for k in range(500)]
        program.main.graph_launch(program.t + 10_000, 20_000, nodes=nodes)
        program.t += 1_200_000
        program.main.add_range(f"step {number}", begin, program.t - 1_000, domain="nsysx")
    finding = program.finding(tmp_path, "NSX119")
    assert finding.verdict == "found"
    assert finding.saving_ns_per_step == pytest.approx(600_000, rel=0.02)
    assert "larger kernels" in finding.fix
    assert Program().steps(healthy).finding(tmp_path, "NSX119").verdict == "clear"


def test_pages_of_unified_memory_move(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        for kind in ("UVM_HtoD", "UVM_DtoH"):
            program.process.copy(kind, program.queue(400, 7), 400_000, correlation=0, bytes=2 << 20)
        program.launch(600)
        program.sync()

    finding = Program().steps(body).finding(tmp_path, "NSX121")
    assert finding.verdict == "found"
    assert finding.cost_ns_per_step == pytest.approx(800_000, rel=0.05)
    assert "back and forth" in finding.detail
    assert Program().steps(healthy).finding(tmp_path, "NSX121").verdict == "clear"


@pytest.mark.parametrize(("cls", "kept"), [("Conv2d", True), ("Conv1d", False), ("ConvTranspose1d", False)])
def test_layers_of_one_dimension_have_no_channels_last(cls: str, kept: bool, tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        with program.range("forward"), program.range("net:Net"):
            program.host(1)
            with program.range(f"net.conv:{cls}"):
                for _ in range(4):
                    program.launch(400, "nchwToNhwcKernel<float>")
                    program.launch(400, TF32_CONV)
            program.host(1)

    finding = Program().steps(body).finding(tmp_path, "NSX117")
    assert finding.verdict == "found" and ("channels-last" in [way.name for way in finding.remedies]) == kept
    assert ("height 1" in finding.fix) != kept


@pytest.mark.parametrize("code", ["NSX116", "NSX117", "NSX118", "NSX119", "NSX121"])
def test_without_gpu_work_it_cannot_be_told(code: str, tmp_path: Path) -> None:
    assert empty().finding(tmp_path, code).verdict == "cannot_tell"
    assert stepless(healthy).finding(tmp_path, code).verdict in ("clear", "cannot_tell")


#: Kernels of one step that a rule prices by the replay, by code.
PRICED = {
    "NSX116": [(400, SGEMM)] * 10,
    "NSX117": [(400, "nchwToNhwcKernel<float>"), (400, TF32_CONV)] * 5,
    "NSX118": [(100, "sgemm_128x128"), (200, "softmax_warp_forward"), (100, "sgemm_128x128")] * 4,
}


@pytest.mark.parametrize("code", PRICED)
def test_a_replay_that_misses_the_step_is_not_stepped_around(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "TRUSTED_ERROR", -1.0)
    finding = Program().steps(running(*PRICED[code])).finding(tmp_path, code)
    assert finding.verdict == "found"
    assert finding.saving_ns_per_step is None
    assert "misses the recorded step" in finding.saving.confidence
