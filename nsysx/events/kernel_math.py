"""What the name of a GEMM, a convolution or an attention says about the numbers that it multiplies.

cuBLAS, cuDNN, CUTLASS and Triton spell their types into the names of their kernels. A name that says nothing stays unknown:
nothing is guessed from the time that a kernel takes.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.events.event_bounds import TENSOR_CORES_FROM
from nsysx.frames import lookup

Mask = npt.NDArray[np.bool_]

#: FP32 on ordinary cores, by how cuBLAS, cuDNN and CUTLASS name it.
_FP32 = (
    r"sgemm|cgemm|_simt_|simt_s|ffma|f32f32_f32f32_f32_(?!.*tf32)|(wgrad|dgrad)\w*engine<float|implicit_convolve_sgemm"
    r"|explicit_convolve_sgemm|scudnn|fmha_cutlass[FB]_f32_\w*sm[5-7]\d"
)
#: Products with a vector of FP32, which have no use for tensor cores: no format would make them faster but by its size.
_VECTOR = r"(gemv\w*(::kernel)?|dot_kernel)<(int, )*float\b"
#: Products of 16 bits on ordinary cores, as of few channels: no format would bring them to others.
_NARROW = r"_sgemm<(__nv_bfloat16|__half)\b"
_TENSOR = r"tf32|tensorop|1688|16816|wgmma|nvjet|hmma|h884|bf16|f16f16"
#: Formats by name, the first that matches counts, for a kernel names its accumulator too. cuDNN's "wgmma_f16" is any format of
#: 16 bits. Where CUTLASS names an instruction for FP32 numbers alone, it rounds them to TF32. nvjet names input, accumulator and
#: output by a letter each: s fp32, h fp16, t bf16. torch's memory-efficient attention multiplies FP32 from compute capability 8.0 on as
#: three products of TF32 (CUTLASS: OpMultiplyAddFastF32), before that on ordinary cores.
_FORMATS = (
    ("tf32x3", r"fmha_cutlass[FB]_f32_\w*sm(8|9|1\d)\d"),
    ("fp8", r"e4m3|e5m2|fp8|f8f8|_qgmma"),
    ("tf32", r"tf32|tensorop_s1688(?!\w*f16)"),
    ("bf16", r"bf16|bfloat16|nvjet_(sm\d+_)?t[a-z]t_"),
    (
        "fp16",
        r"f16f16|nvjet_(sm\d+_)?hsh_|(?<![a-z0-9])(?<!wgmma_)f16|fp16|__half|\bhalf\b|hgemm|h884|h1688|h16816|s884|_hmma",
    ),
    ("int8", r"s8s8|i8i8|_imma|int8"),
    ("fp64", r"dgemm|_f64|d884|double"),
)
#: Families whose kernels multiply.
PRODUCTS = ("gemm", "convolution", "attention")

#: Cards without tensor cores, where the report does not tell the compute capability.
_WITHOUT = re.compile(r"GTX|TITAN X|Tesla [KMP]\d|Quadro [KMP]\d|\b[KMP](4|40|60|80|100)\b", re.IGNORECASE)


def fp32(names: pl.Series) -> Mask:
    """Return which kernels multiply FP32 on ordinary cores, by their names."""
    return lookup.matching(names, _FP32) & ~on_tensor_cores(names) & ~lookup.matching(names, _NARROW)


def by_vector(names: pl.Series) -> Mask:
    """Return which kernels multiply FP32 with a vector."""
    return lookup.matching(names, _VECTOR)


def on_tensor_cores(names: pl.Series) -> Mask:
    """Return which kernels name an instruction or a format of tensor cores."""
    return lookup.matching(names, _TENSOR)


def number_format(names: pl.Series, families: pl.Series) -> pl.Series:
    """Return fp8, tf32, tf32x3, bf16, fp16, int8, fp64 or fp32 for kernels that multiply; null for others and where no name says so."""
    products = families.is_in(PRODUCTS).fill_null(False).to_numpy()
    if not products.any():
        nothing: pl.Series = pl.Series([None], dtype=pl.String).new_from_index(0, len(names))
        return nothing
    kinds, kind = lookup.distinct(names)
    words = pl.Series([None if name is None else _format(name) for name in kinds], dtype=pl.String)
    return lookup.at(words, np.where(products, kind, 0))  # the first of the distinct names is None


@lru_cache(maxsize=4096)  # several tables ask for the same few kernels
def _format(name: str) -> str | None:
    for number_format, pattern in _FORMATS:
        if re.search(pattern, name):
            return number_format
    on_cores = re.search(_FP32, name) and not re.search(_TENSOR, name)
    return "fp32" if on_cores or re.search(_VECTOR, name) else None


def has_tensor_cores(card: str, compute: tuple[int, int] | None = None) -> bool:
    """Say whether a device has tensor cores: from compute capability 7.0 on, but for the GTX 16 series (7.5 without)."""
    if _WITHOUT.search(card):
        return False
    return compute is None or compute[0] >= TENSOR_CORES_FROM
