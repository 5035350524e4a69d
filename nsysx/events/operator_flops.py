"""Floating point operations of GEMMs, convolutions and attention, from the sizes that torch gave the operator.

A multiplication and an addition count as two, as everywhere in the field. Formulas are those of ``torch.utils.flop_counter``
(https://github.com/pytorch/pytorch/blob/main/torch/utils/flop_counter.py): what the operator computes, whatever its kernels
do. Additions of a bias, and everything that is not a product, count nothing. A causal mask is not a tensor and so not recorded:
attention counts in full, as it does there. Sizes are hostile text.

======================================  =====================================================================
``mm`` (m, k) x (k, n)                  2 m k n; ``addmm`` alike
``bmm`` (b, m, k) x (b, k, n)           2 b m k n; ``baddbmm`` alike
convolution, result (b, o, ...)         2 b o r (c / groups) f: r places of the result, f of the filter
transposed convolution                  the same, with the places of its input
its backward                            as often as it made a gradient of input and of weight
attention (b, h, q, d), (b, _, k, d)    2 b h q k (d + v): scores, and their product with (b, _, k, v)
its backward                            2 b h q k (3 d + 2 v): scores again, and the four products of the gradients
======================================  =====================================================================
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.events.event_bounds import LONGEST_SIZES_TEXT, MOST_OPERATIONS
from nsysx.frames import lookup

Shape = list[int]

#: Why there is no number for the backward of a convolution: it may have made one gradient or two.
ONE_GRADIENT = "which gradients it made is not recorded"
_NO_SIZES = "its shapes were not recorded"
_ODD = "its shapes do not fit its name"
_NO_RESULT = "the size of its result is not recorded"


def _product(a: Shape, b: Shape) -> int | None:
    """Return 2 m k n of (..., m, k) x (..., k, n)."""
    if len(a) != len(b) or len(a) not in (2, 3) or a[-1] != b[-2] or a[:-2] != b[:-2]:
        return None
    return 2 * math.prod(a) * b[-1]


def _products(first: int) -> Callable[[list[Shape]], int | None]:
    """Return the formula of a product whose factors are the arguments from ``first`` on."""

    def formula(sizes: list[Shape]) -> int | None:
        return _product(sizes[first], sizes[first + 1]) if len(sizes) >= first + 2 else None

    return formula


def _vector(first: int) -> Callable[[list[Shape]], int | None]:
    """Return the formula 2 m k of (m, k) x (k), the arguments from ``first`` on."""

    def formula(sizes: list[Shape]) -> int | None:
        given = sizes[first : first + 2]
        fits = len(given) == 2 and len(given[0]) == 2 and given[1] == [given[0][1]]
        return 2 * math.prod(given[0]) if fits else None

    return formula


def _attention(first: int, heads: int, *, backward: bool = False) -> Callable[[list[Shape]], int | None]:
    """Return the formula of an attention: query, key and value from argument ``first`` on, heads in dimension ``heads``."""
    places = 3 - heads  # of the other of dimensions 1 and 2

    def formula(sizes: list[Shape]) -> int | None:
        given = sizes[first : first + 3]
        if len(given) < 3 or any(len(s) != 4 for s in given):
            return None
        query, key, value = given
        # Several heads of the query may share one of the keys.
        fits = query[0] == key[0] == value[0] and query[3] == key[3] and key[places] == value[places]
        if not fits or not key[heads] or query[heads] % key[heads]:
            return None
        d, v = (3 * query[3], 2 * value[3]) if backward else (query[3], value[3])
        return 2 * query[0] * query[heads] * query[places] * key[places] * (d + v)

    return formula


_FORMULAS: dict[str, Callable[[list[Shape]], int | None]] = {
    "aten::mm": _products(0),
    "aten::bmm": _products(0),
    "aten::addmm": _products(1),
    "aten::addmm_": _products(1),
    "aten::baddbmm": _products(1),
    "aten::baddbmm_": _products(1),
    "aten::_addmm_activation": _products(1),
    "aten::_scaled_mm": _products(0),
    "aten::_int_mm": _products(0),
    "aten::mv": _vector(0),
    "aten::addmv": _vector(1),
    "aten::addmv_": _vector(1),
    "aten::_scaled_dot_product_flash_attention": _attention(0, 1),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, 1),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, 1),
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention(0, 1),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(0, 1),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(1, 1, backward=True),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(1, 1, backward=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(1, 1, backward=True),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _attention(1, 1, backward=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention(1, 1, backward=True),
    # Called by themselves, these have the heads behind the places.
    "aten::_flash_attention_forward": _attention(0, 2),
    "aten::_efficient_attention_forward": _attention(0, 2),
    "aten::_flash_attention_backward": _attention(1, 2, backward=True),
    "aten::_efficient_attention_backward": _attention(1, 2, backward=True),
    "flash_attn::_flash_attn_forward": _attention(0, 2),
    "flash_attn::_flash_attn_backward": _attention(1, 2, backward=True),
}
#: Without a product inside of their own on a CPU or GPU that fuses them; else what they hold is counted.
_CONVOLUTIONS = (
    "aten::convolution",
    "aten::_convolution",
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_transpose",
)
_BACKWARD = "aten::convolution_backward"
#: Products whose sizes do not tell what they compute.
_UNKNOWN = {
    "flash_attn::_flash_attn_varlen_forward": "the lengths of its sequences are not sizes",
    "flash_attn::_flash_attn_varlen_backward": "the lengths of its sequences are not sizes",
    "aten::_grouped_mm": "the sizes of its groups are not sizes of tensors",
    "aten::_scaled_grouped_mm": "the sizes of its groups are not sizes of tensors",
}
_COUNTED = frozenset((*_FORMULAS, *_CONVOLUTIONS, _BACKWARD, *_UNKNOWN))


def _without_overload(name: str) -> str:
    """Return an operator without its overload: ``aten::mm.out`` is ``aten::mm``."""
    return name.split(".", 1)[0]


def counted(names: pl.Series) -> npt.NDArray[np.bool_]:
    """Return which operators (a categorical column) multiply, as far as their name says."""
    words, index = lookup.distinct(names)
    return np.array([_without_overload(w or "") in _COUNTED for w in words], np.bool_)[index]


def convolutions(names: pl.Series, *, backward: bool = False) -> npt.NDArray[np.bool_]:
    """Return which operators are convolutions, or the backward of one."""
    wanted = [_BACKWARD] if backward else list(_CONVOLUTIONS)
    return names.is_in(wanted).fill_null(False).to_numpy()


def sizes(text: str | None) -> list[Shape] | None:
    """Return the sizes of each argument, None for text that is none."""
    if text is None or len(text) > LONGEST_SIZES_TEXT:
        return None
    try:
        shapes = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(shapes, list):
        return None
    for shape in shapes:
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
            return None
    return shapes


def _convolution(x: Shape, weight: Shape, out: Shape) -> int | None:
    """Return the operations of one convolution, plain or transposed; None where the sizes are not those of one.

    Plain: weight (o, c / groups, ...), x (b, c, ...), out (b, o, ...). Transposed: weight (c, o / groups, ...).
    """
    if not (len(x) == len(weight) == len(out) >= 3) or x[0] != out[0] or 0 in weight[:2]:
        return None
    plain = weight[0] == out[1] and x[1] % weight[1] == 0
    transposed = weight[0] == x[1] and out[1] % weight[1] == 0
    if plain and transposed:  # as many channels in as out: a transposed one makes its input larger
        plain = math.prod(out[2:]) <= math.prod(x[2:])
    if not plain and not transposed:
        return None
    return 2 * x[0] * math.prod((out if plain else x)[2:]) * math.prod(weight)


def flops_of_operator(
    name: str | None, shapes: str | None, result: str | None, made: str | None
) -> tuple[int | None, str | None]:
    """Return the floating point operations of one execution, or why they cannot be told; (None, None) for no product.

    With ``ONE_GRADIENT`` for a reason, the number is that of one gradient.

    ``result``: size of the result of a convolution; ``made``: the results of its backward that were used, as "0,1".
    """
    name = _without_overload(name or "")
    if name not in _COUNTED:
        return None, None
    if name in _UNKNOWN:
        return None, _UNKNOWN[name]
    given = sizes(shapes)
    if given is None:
        return None, _NO_SIZES
    if name in _FORMULAS:
        number = _FORMULAS[name](given)
    elif len(given) < (3 if name == _BACKWARD else 2):
        number = None
    elif name == _BACKWARD:
        number = _convolution(given[1], given[2], given[0])
        if made is None and number is not None:
            return number, ONE_GRADIENT
        made = made or ""
        number = None if number is None else number * len({"0", "1"} & set(made.split(",")))
    else:
        out = sizes(f"[{result}]") if result else None
        if out is None:
            return None, _NO_RESULT
        number = _convolution(given[0], given[1], out[0])
    return (number, None) if number is not None and number < MOST_OPERATIONS else (None, _ODD)
