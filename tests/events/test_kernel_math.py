"""What the names of kernels say about their numbers: real names of cuBLAS, cuDNN, CUTLASS and PyTorch."""

from __future__ import annotations

import polars as pl
import pytest

from nsysx.events import kernel_math


@pytest.mark.parametrize(
    ("name", "family", "format_"),
    [
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize2x2x1_ffma_aligna4", "gemm", "fp32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8", "gemm", "tf32"),
        ("ampere_sgemm_128x64_nn", "gemm", "fp32"),
        ("std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, float, float, float, float, (bool)0>(T13)", "gemm", "fp32"),
        ("void dot_kernel<float, (int)128, (int)0, cublasDotParams<cublasGemvTensorStridedBatched<const float>>>(T4)", "gemm", "fp32"),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, float, float, (int)128>(T1)", "gemm", "bf16"),
        ("volta_s884gemm_fp16_128x64_ldg8_f2f_nn", "gemm", "fp16"),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn", "gemm", "bf16"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x128_32x3_nn_align8>", "gemm", "fp16"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128", "gemm", "fp8"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", "gemm", "bf16"),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "gemm", "bf16"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "gemm", "fp16"),
        ("nvjet_qqtst_128x256_64x4_1x2_h_bz_coopA_NTT", "gemm", None),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x64x128", "attention", None),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t>>",
         "attention", "bf16"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>", "elementwise", None),
        ("void dgemm_kernel", "gemm", "fp64"),
        ("my_gemm", "gemm", None),
        ("fmha_cutlassB_f32_aligned_64x64_k64_sm80(AttentionBackwardKernel<cutlass::arch::Sm80, float>)", "attention", "tf32x3"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm75(AttentionKernel<float, cutlass::arch::Sm75>)", "attention", "fp32"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(AttentionKernel<cutlass::bfloat16_t>)", "attention", "bf16"),
    ],
)  # fmt: skip
def test_the_number_format_that_a_name_says(name: str, family: str, format_: str | None) -> None:
    names, families = pl.Series([name], dtype=pl.Categorical), pl.Series([family], dtype=pl.Categorical)
    assert kernel_math.number_format(names, families).to_list() == [format_]


def test_tensor_cores_are_told_from_the_compute_capability_and_else_the_name() -> None:
    assert kernel_math.has_tensor_cores("NVIDIA H200", (9, 0))
    assert kernel_math.has_tensor_cores("unknown GPU")
    assert not kernel_math.has_tensor_cores("unknown GPU", (6, 1))
    assert not kernel_math.has_tensor_cores("NVIDIA GeForce GTX 1660", (7, 5))
    assert not kernel_math.has_tensor_cores("Tesla P40")


def test_a_product_with_a_vector_has_no_use_for_tensor_cores() -> None:
    names = pl.Series(
        ["void gemv2T_kernel_val<int, int, float, float>(T1)", "ampere_sgemm_128x64_nn"], dtype=pl.Categorical
    )
    assert kernel_math.by_vector(names).tolist() == [True, False]
    assert kernel_math.fp32(names).tolist() == [False, True]


def test_products_of_16_bits_on_ordinary_cores_are_not_fp32() -> None:
    narrow = "void implicit_convolve_sgemm<__nv_bfloat16, __nv_bfloat16, (int)128, (int)5>(int)"
    names = pl.Series([narrow, "void implicit_convolve_sgemm<float, float, (int)128>(int)"], dtype=pl.Categorical)
    assert kernel_math.fp32(names).tolist() == [False, True]
