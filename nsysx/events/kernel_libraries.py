"""Whose kernel it is: a library's, which nobody who trains a network rewrites, or the program's own."""

from __future__ import annotations

import re
from functools import lru_cache

import polars as pl

from nsysx.frames import lookup

#: The compiler of ``torch.compile``, which writes kernels of Triton.
INDUCTOR = "TorchInductor"
#: Library and pattern of its kernels' full names, as they stand in reports; the first that matches counts.
LIBRARIES = (
    ("NCCL", r"^nccl|ncclDevKernel|nccl(Dev)?Kernel"),
    ("Transformer Engine", r"transformer_engine::|\bnvte_"),
    ("FlashAttention", r"\bflash(_fwd|_bwd|fwd|bwd)?_|pytorch_flash|\bflash::|flash_attn|FlashAttn"),
    ("xFormers", r"fmha_cutlass|PyTorchMemEffAttention|xformers"),
    ("bitsandbytes", r"\bk(Quantize|Dequantize)Blockwise|\bkOptimizer\w*(32bit|8bit)|\bkgemm_4bit"),
    ("torch-scatter", r"\b(scatter_kernel|segment_(csr|coo)_kernel|gather_(csr|coo)_kernel|spmm_kernel)<"),
    ("Apex", r"\bcu(Apply|Compute)\w*(LayerNorm|RMSNorm|GradInput|GradGammaBeta|PartGradGammaBeta)|^void multi_tensor_apply_kernel|apex::"),
    ("vLLM", r"\bvllm::|flashinfer::"),
    ("FBGEMM", r"fbgemm|\b(lxu|lru|lfu|direct_mapped_l[rf]u)_cache_|linearize_(cache_indices|index)|split_embedding|embedding_codegen_"),
    ("Mamba", r"selective_scan_(fwd|bwd)_kernel|causal_conv1d_(fwd|bwd)_kernel"),
    ("cuDNN", r"cudnn|convolve_common_engine|[dw]grad_alg\d_engine|"
              r"[dw]grad[123]d_|\bconv[123]d_c1_k1|implicit_convolve|LSTM_elementWise|GRU_elementWise|RNN_blockPersist|"
              r"elemWiseRNNcell|persistRNN|\bbn_(fw|bw)_|nchwToNhwc|nhwcToNchw|\bop_(generic_)?tensor_kernel"),
    ("cuFFT", r"cufft|(regular|vector|bluestein)_fft|composite_\w*fft|[sd]pRadix|bluestein|(un)?packR2C|unpackC2R|real_complex_args_t"),
    ("cuSPARSE", r"cusparse"),
    ("cuSOLVER", r"cusolver|\b(potrf|getrf|geqrf|getrs|potrs|syevj?|gesvdj?|larft|larfb|laswp|ormqr|orgqr|sytrd)\w*\b|"
                 r"kernel<(potrf|getrf|geqrf|syevj)\w*_params_|\bxxtrf\d"),
    ("cuBLAS", r"cublas|nvjet|xmma|gemv|gemmSN|gemmk1|[sdcz]gemm_largek|splitKreduce|dot_kernel<|\b(scal|asum|axpy|nrm2|iamax)_kernel|"
               r"(volta|turing|ampere|maxwell|hopper)_\w*gemm|trsm|trsv|zdisplace_pointers|reduce_1Block_kernel|copy_kernel_\w*cublas"),
    ("cuRAND", r"curand|generate_seed_pseudo|gen_sequenced<"),
    ("CUTLASS", r"cutlass|\bcute::"),
    ("CUB and Thrust", r"\bcub::|thrust::|DeviceRadixSort|DeviceScan|DeviceReduce|DeviceSelect"),
    ("MAGMA", r"magma"),
    (INDUCTOR, r"triton_(poi|red|per|tem|for|split_scan|mm)_"),
    ("CUDA driver", r"^mem(cpy|set)(8|16|32|64)_\w+$"),
    ("XLA", r"^(wrapped|loop|input|gemm)_(\w+_)?fusion"),
    ("PyTorch", r"at::native|at_cuda_detail|c10::|torch::|<unnamed>::(softmax_warp|indexing_backward)|^reduction_\w+_kernel$"),
)  # fmt: skip


def library_of(names: pl.Series) -> pl.Series:
    """Return the library of each kernel, null for what is the program's own as far as its name says."""
    library: pl.Series = lookup.changed(names, _library).cast(pl.String).alias("library")
    return library


@lru_cache(maxsize=4096)  # several rules ask for the same few kernels
def _library(name: str) -> str | None:
    return next((library for library, pattern in LIBRARIES if re.search(pattern, name)), None)
