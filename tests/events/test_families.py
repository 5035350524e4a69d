"""Kernel families by pattern: real names, and an editable file whose faults are named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.events import families
from nsysx.pipeline import summarize
from tests.builder import Report


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    families.patterns.cache_clear()
    yield
    families.patterns.cache_clear()


@pytest.mark.parametrize(
    ("kernel", "family"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void deep_ep::internode::dispatch<false, 8>(int4*, float*)", "communication"),
        ("nvshmemi_transfer_rma_nbi", "communication"),
        ("void multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", "communication"),
        ("c10d::symmetric_memory::barrier_kernel(unsigned int**, unsigned long, int)", "communication"),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int)", "communication"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "gemm"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "gemm"),
        (
            "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x2_tn_align8>(T1::Params)",
            "gemm",
        ),
        ("ampere_sgemm_128x64_tn", "gemm"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)", "attention"),
        # cuDNN's attention and batch norm are no convolutions, nor is what torch.compile fuses around one.
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_1x4x1_cga1x1x1", "attention"),
        ("void cudnn::fusion::compute_dot_do_o_specialized<(bool)1, (int)64>(const void *, void *)", "attention"),
        ("void cudnn::fusion::convert_dq_to_16bits<(bool)1>(const void *, void *, unsigned int)", "attention"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, (int)512>(T1)", "norm"),
        ("void convert_CooToCsr_kernel<(int)0>(const int *, int, int, int *)", "other"),
        ("triton_poi_fused__to_copy_convolution_2", "elementwise"),
        ("triton_red_fused_convolution_backward_1", "reduction"),
        ("triton_poi_fused__scaled_dot_product_cudnn_attention_view_1", "elementwise"),
        ("triton_tem_fused_convolution_3", "convolution"),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc", "convolution"),
        ("void convolve_common_engine_float_NHWC<__nv_bfloat16, __nv_bfloat16, (int)1024>(int)", "convolution"),
        ("void cudnn::cnn::wgrad2d_grouped_direct_kernel<(bool)1, (bool)1, int, float>(int)", "convolution"),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, (bool)0>(int)", "convolution"),
        ("void cudnn::engines_precompiled::convertTensor_kernel<float, __nv_bfloat16, float>(T3, int)", "convolution"),
        ("void nhwcAddPaddingKernel<__nv_bfloat16, float, float, (bool)1>(int, int)", "convolution"),
        (
            "void cutlass__5x_cudnn::Kernel<cutlass__5x_cudnn::reduction::kernel::ReduceSplitK<float>>(T1)",
            "convolution",
        ),
        (
            "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816dgrad_analytic_bf16_256x64_32x4_nhwc>(T1)",
            "convolution",
        ),
        ("void cudnn::winograd::generateWinogradTilesKernel<0, float, float>(...)", "convolution"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)", "norm"),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>(T1)",
            "optimizer",
        ),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)", "elementwise"),
        ("triton_poi_fused_add_0", "elementwise"),
        ("triton_red_fused_sum_1", "reduction"),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(T1)",
            "reduction",
        ),
        (
            "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>(float*)",
            "softmax and loss",
        ),
        ("void gen_sequenced<curandStateXORWOW, float, int, &curand_uniform_noargs>(curandStateXORWOW*)", "random"),
        # What a kernel is handed says nothing of what it computes.
        ("void tcnn::kernel_grid<__half, 3u>(unsigned int, tcnn::InterpolationType, __half*)", "other"),
        ("render(vec3 *, int, int, hittable **, curandStateXORWOW *)", "other"),
        ("my_add(float*, float*, int)", "other"),
        ("", "other"),
    ],
)
def test_real_names(kernel: str, family: str) -> None:
    assert families.family(kernel) == family


def test_a_name_of_a_megabyte_is_looked_at_in_front() -> None:
    assert families.family("gemm" + "x" * 1_000_000) == "gemm"
    assert families.family("y" * 1_000_000 + "gemm") == families.OTHER


def test_a_file_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "families.txt"
    own.write_text("# mine\n\nmine : ^my_\ncommunication: ^exchange\n", encoding="utf-8")
    monkeypatch.setenv("NSYSX_KERNEL_FAMILIES", str(own))
    assert [families.family(k) for k in ("my_add", "MY_ADD", "exchange_halo", "gemm")] == [
        "mine",
        "mine",
        "communication",
        "other",
    ]
    report = Report()
    main = report.process(1).thread(1)
    main.launch(0, 5, kernel="exchange_halo", gpu_start=10, gpu_dur=30)
    main.launch(20, 5, kernel="gemm", gpu_start=50, gpu_dur=50)
    summary = summarize([report.write(tmp_path / "r.sqlite")], steps="all")
    (row,) = summary.rows("gpu_ledger")
    assert (row["comm_ns"], row["compute_ns"]) == (30, 50)


@pytest.mark.parametrize(
    ("text", "slug", "said"),
    [
        ("gemm: gemm\nno colon\n", "families-line", "line 2"),
        ("gemm: (\n", "families-line", "line 1"),
        ("gemm:\n", "families-line", "line 1"),
    ],
)
def test_lines_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, slug: str, said: str) -> None:
    own = tmp_path / "families.txt"
    own.write_text(text, encoding="utf-8")
    monkeypatch.setenv("NSYSX_KERNEL_FAMILIES", str(own))
    with pytest.raises(NsysxError) as caught:
        families.patterns()
    assert (caught.value.slug, caught.value.exit_code) == (slug, EXIT_USAGE)
    assert said in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe: x\n"])
def test_a_file_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> None:
    own = tmp_path / "families.txt"
    if content is not None:
        own.write_bytes(content)
    monkeypatch.setenv("NSYSX_KERNEL_FAMILIES", str(own))
    with pytest.raises(NsysxError) as caught:
        families.patterns()
    assert (caught.value.slug, caught.value.exit_code) == ("families-unreadable", EXIT_USAGE)


def test_a_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """512 ranks run the same few kernels."""
    searched: list[str] = []

    class Noting:
        def search(self, name: str) -> bool:
            searched.append(name)
            return name.startswith("mine")

    every = (("own", Noting()),)
    with monkeypatch.context() as patched:
        patched.setattr(families, "patterns", lambda: every)
        named = [families.family(name) for name in ("mine<1>", "theirs", "mine<1>", "theirs")]
    assert named == ["own", "other"] * 2
    assert searched == ["mine<1>", "theirs"]
