"""Kernels of libraries by the names that stand in reports, and those of programs beside them."""

from __future__ import annotations

import polars as pl
import pytest

from nsysx.events.kernel_libraries import LIBRARIES, library_of

KERNELS = (
    ("NCCL", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)"),
    ("Transformer Engine", "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<float>(T1)"),
    ("FlashAttention", "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(T1)"),
    (
        "FlashAttention",
        "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>(Flash_bwd_params)",
    ),
    (
        "xFormers",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>)",
    ),
    (
        "bitsandbytes",
        "void kDequantizeBlockwise<__nv_bfloat16, (int)512, (int)64, (int)8, (int)2>(float *, unsigned char *)",
    ),
    ("bitsandbytes", "void kgemm_4bit_inference_naive<__half, (int)128, (int)16>(int, int, int)"),
    ("torch-scatter", "void segment_csr_kernel<float, (ReductionType)0, (int)1>(const float *, const long *)"),
    ("torch-scatter", "void spmm_kernel<float, (ReductionType)0, (bool)1>(const long *, const long *)"),
    ("Apex", "void cuApplyLayerNorm<float, float, float>(float *, float *)"),
    ("Apex", "void multi_tensor_apply_kernel<TensorListMetadata<(int)4>, AdamFunctor<float>>(long)"),
    ("vLLM", "void vllm::rms_norm_kernel<c10::BFloat16, (int)8>(c10::BFloat16 *)"),
    ("Mamba", "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128>>(SSMParamsBase)"),
    ("cuDNN", "dgrad2d_c1_k1_nhwc_specialized"),
    ("cuDNN", "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, (int)512>(T1)"),
    ("cuDNN", "void LSTM_elementWise_fp<float, float, float>(int, int)"),
    ("cuFFT", "void multi_bluestein_fft<(unsigned int)256, EPT<(unsigned int)16>>(kernel_arguments_blu_t<T9>)"),
    ("cuFFT", "void vector_fft<(unsigned int)512, EPT<(unsigned int)8>>(kernel_arguments_t<unsigned int>)"),
    ("cuSPARSE", "void cusparse::csrmv_v3_kernel<int, int, float, float>(T1)"),
    ("cuSOLVER", "void potrf_cta_lower_batch<float, float, (int)16>(int, int, int, T1 **, unsigned long, int *)"),
    ("cuSOLVER", "void kernel<getrf_wo_pivot_params_<double, (int)0, (int)256>>(int, int, void *)"),
    ("cuBLAS", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"),
    ("cuBLAS", "void gemv2T_kernel_val<int, int, float, float, float, float, (int)128>(T1)"),
    ("cuBLAS", "ampere_sgemm_128x64_nn"),
    ("cuBLAS", "void trsm_batch_left_upper_kernel<float>(cublasTrsmBatchParams<T1>, const T1 *const *)"),
    ("cuRAND", "void gen_sequenced<curandStateXORWOW, float2, normal_args_st>(T1 *)"),
    ("CUTLASS", "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_32x6_nn_align4>(T1::Params)"),
    ("CUB and Thrust", "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long>>(T1)"),
    ("CUB and Thrust", "void thrust::cuda_cub::core::_kernel_agent<ReduceAgent>(T1)"),
    ("MAGMA", "void magma_sgemm_kernel<float>(int)"),
    ("FBGEMM", "void split_embedding_codegen_forward_unweighted_kernel<float, float, float, (unsigned long)128>(T1)"),
    ("FBGEMM", "void lxu_cache_lookup_kernel<long>(at::GenericPackedTensorAccessor<long, (unsigned long)1>)"),
    ("TorchInductor", "triton_per_fused__softmax_2"),
    ("XLA", "loop_multiply_fusion"),
    ("PyTorch", "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>>(int)"),
    (
        "cuDNN",
        "void wgrad_alg0_engine<float, (int)128, (int)5, (int)5, (int)3, (int)3, (int)3, (bool)0, (int)512>(int, int, int)",
    ),
    ("cuDNN", "void convolve_common_engine_float_NHWC<__nv_bfloat16, __nv_bfloat16, (int)128, (int)5>(T1)"),
    ("cuFFT", "void kernel_wrapper<unsigned int, &packR2C_kernel_Odd_impl<unsigned int, float>>(RealComplex_st<T1>)"),
    ("cuFFT", "void postprocess_kernel<float, unsigned int, (loadstore_modifier_t)2>(real_complex_args_t<T2>)"),
    ("cuSOLVER", "xxtrf4_set_info_ker(int, int *)"),
    ("cuBLAS", "void sgemm_largek_lds64<(bool)1, (bool)0, (int)5, (int)5, (int)4, (int)4, (int)4, (int)34>(float *)"),
    ("CUDA driver", "memcpy32_post"),
    (
        "PyTorch",
        "void <unnamed>::softmax_warp_forward<float, float, float, (int)10, (bool)1, (bool)0>(T2 *, const T1 *)",
    ),
    (
        "PyTorch",
        "void <unnamed>::indexing_backward_kernel<float, (int)4>(const long *, const long *, const T1 *, T1 *)",
    ),
    ("PyTorch", "reduction_prod_kernel"),
    (None, "colnorm"),
    (None, "triton_mine"),
    (None, "my_gemm"),
    (None, "copy_kernel"),
    (None, "void scatter_add_edges(const float *, const int *, float *)"),
    (None, "heat_step_kernel(double *, double const *, int)"),
    (None, "cupy_add__float32_float32_float32"),
    (None, "my_flash"),
    (None, "update_flashlight"),
)


@pytest.mark.parametrize(("library", "name"), KERNELS)
def test_a_kernel_is_a_librarys_or_the_programs(library: str | None, name: str) -> None:
    assert library_of(pl.Series([name], dtype=pl.Categorical)).to_list() == [library]


def test_every_library_is_tried() -> None:
    assert {name for name, _ in LIBRARIES} == {library for library, _ in KERNELS if library}
