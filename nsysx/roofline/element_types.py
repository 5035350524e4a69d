"""What the name of a kernel of torch says about the numbers that it reads and writes: their size, how many tensors, conversions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from nsysx.roofline.roofline_bounds import LONGEST_KERNEL_NAME

#: Bytes of one number, by how C++ and CUDA spell its type.
_SIZES = {
    "double": 8, "float": 4, "c10::BFloat16": 2, "c10::Half": 2, "__half": 2, "__nv_bfloat16": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::complex<double>": 16, "c10::complex<float>": 8,
}  # fmt: skip
#: Types of indices and masks: they count where the kernel names no other.
_WHOLE = {"long": 8, "int": 4, "short": 2, "signed char": 1, "unsigned char": 1, "bool": 1}
#: Bytes of one number in the formats of products, see ``events.kernel_math``.
OF_FORMAT = {"fp64": 8, "fp32": 4, "tf32": 4, "tf32x3": 4, "bf16": 2, "fp16": 2, "16 bits": 2, "fp8": 1, "int8": 1}

_VALUE = re.compile(r"\((?:unsigned )?(?:int|long|bool|short|char)\)-?\d+")
_OPAQUE = re.compile(r"OpaqueType<\((?:unsigned )?int\)(\d{1,2})>")
_POINTERS = re.compile(r"std::array<char \*, \(unsigned long\)(\d{1,2})>")
_CASTS = re.compile(r"LoadWithCast|StoreWithCast|gpu_kernel_impl<")
_LAMBDA = re.compile(r"\[lambda\(([^()]+)\)")
_TYPE = re.compile(
    "|".join(rf"(?<![\w:]){re.escape(t)}(?!\w)" for t in sorted((*_SIZES, *_WHOLE), key=len, reverse=True))
)
#: Their results are masks, though their names do not say so; and what moves rows as bytes names the type of its indices alone.
_MASKS, _BYTES = (
    re.compile(r"compare_(scalar_)?kernel|is(neg|pos)?inf_kernel|signbit_kernel"),
    re.compile(r"vectorized_gather_kernel<\(int\)(\d{1,2})"),
)
_ONE, _TWO = (
    re.compile(r"\b[AB]UnaryFunctor<"),
    re.compile(r"\bBinaryFunctor<|\bCUDAFunctor_add<|\bCUDAFunctorOnSelf_add"),
)


@dataclass(frozen=True, slots=True)
class ElementTypes:
    """``size``: bytes of one number of the narrowest floating point type named, else of the first integer; None if none is named.

    ``tensors``: how many an elementwise kernel reads and writes in one pass, each of full size; None where its name does not say
    so. ``arguments``: how many tensors an elementwise kernel reads at most. ``casts``: it converts types as it reads or writes, so
    that ``size`` is that of its arithmetic. ``mask``: it names bool beside a floating point type, or compares numbers of one.
    ``written``: bytes of one number of the result where they differ, None for ``size``. ``vector``: bytes that each of its threads moves at
    once, where it moves bytes of any type.
    """

    size: int | None = None
    tensors: int | None = None
    arguments: int | None = None
    casts: bool = False
    mask: bool = False
    written: int | None = None
    vector: int | None = None


@lru_cache(maxsize=4096)
def types_of(kernel: str) -> ElementTypes:
    """Return what the full name of a kernel says about its numbers."""
    text = kernel[:LONGEST_KERNEL_NAME]
    pointers = _POINTERS.search(text)
    plain = _VALUE.sub("", text.rpartition(">(")[0] or text)
    opaque = _OPAQUE.search(text)
    names = _TYPE.findall(plain)
    real = [_SIZES[n] for n in names if n in _SIZES]
    whole = [_WHOLE[n] for n in names if n in _WHOLE]
    if "bfloat16_copy_kernel" in text or "float16_copy_kernel" in text:  # of FP32 numbers, which stay in the name
        return ElementTypes(4, None, 1, written=2)
    size = int(opaque[1]) if opaque else min(real) if real else whole[0] if whole else None
    moved = _BYTES.search(text)
    if moved:
        size = None
    called = _LAMBDA.findall(text)
    arguments = 1 if _ONE.search(text) else 2 if _TWO.search(text) else called[-1].count(",") + 1 if called else None
    return ElementTypes(
        size,
        int(pointers[1]) if pointers and "elementwise_kernel" in text else None,
        arguments,
        bool(_CASTS.search(text)),
        bool(real) and ("bool" in names or bool(_MASKS.search(text))),
        vector=int(moved[1]) if moved else None,
    )


def converts_types(kernel: str) -> bool:
    """Return whether a kernel only writes numbers as another type."""
    types = types_of(kernel)
    return types.written is not None or (types.casts and "direct_copy_kernel" in kernel)
