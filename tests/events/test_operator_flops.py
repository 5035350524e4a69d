"""FLOPs by sizes against ``torch.utils.flop_counter``, which counts the same programs while they run."""

from __future__ import annotations

import json

import polars as pl
import pytest

from nsysx.events import operator_flops

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch.utils import flop_counter


def counted(run: object) -> int:
    """Return what torch counts while a function runs."""
    with flop_counter.FlopCounterMode(display=False) as counter:
        run()  # type: ignore[operator]
    return int(counter.get_total_flops())


def of(name: str, *sizes: object, result: object = None, made: str | None = None) -> tuple[int | None, str | None]:
    text = json.dumps([list(s) if s is not None else [] for s in sizes])  # type: ignore[call-overload]
    return operator_flops.flops_of_operator(name, text, json.dumps(list(result)) if result is not None else None, made)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "first", "call"),
    [
        ("aten::mm", (), lambda: torch.mm(torch.ones(3, 5), torch.ones(5, 7))),
        ("aten::addmm", ((7,),), lambda: torch.addmm(torch.ones(7), torch.ones(3, 5), torch.ones(5, 7))),
        ("aten::mm.out", (), lambda: torch.mm(torch.ones(3, 5), torch.ones(5, 7), out=torch.empty(3, 7))),
    ],
)
def test_matrix_products(name: str, first: tuple[tuple[int, ...], ...], call: object) -> None:
    assert of(name, *first, (3, 5), (5, 7), None) == (counted(call), None)


def test_a_matrix_times_a_vector() -> None:
    assert of("aten::mv", (3, 5), (5,)) == of("aten::addmv_", (3,), (3, 5), (5,), None) == (2 * 3 * 5, None)
    assert of("aten::addmv", (3,), (3, 5), (3,))[0] is None


def test_batched_products() -> None:
    a, b, c = torch.ones(4, 3, 5), torch.ones(4, 5, 7), torch.ones(4, 3, 7)
    assert of("aten::bmm", a.shape, b.shape)[0] == counted(lambda: torch.bmm(a, b))
    assert of("aten::baddbmm", c.shape, a.shape, b.shape, None)[0] == counted(lambda: torch.baddbmm(c, a, b))


@pytest.mark.parametrize("channels", [(4, 6), (6, 6), (6, 4)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_and_their_backward(channels: tuple[int, int], groups: int, transposed: bool) -> None:
    inside, outside = channels
    call = F.conv_transpose2d if transposed else F.conv2d
    shape = (inside, outside // groups, 3, 3) if transposed else (outside, inside // groups, 3, 3)
    weight = torch.ones(shape, requires_grad=True)
    x = torch.ones(2, inside, 9, 9, requires_grad=True)
    y = call(x, weight, stride=2, groups=groups)
    forward = counted(lambda: call(x, weight, stride=2, groups=groups))
    assert of("aten::convolution", x.shape, weight.shape, None, result=y.shape) == (forward, None)
    # Each gradient is as much work as the forward; of groups torch counts the gradient of the weight too often.
    both = counted(lambda: y.sum().backward(retain_graph=True)) if groups == 1 else 2 * forward
    assert both == 2 * forward
    sizes = y.shape, x.shape, weight.shape
    assert of("aten::convolution_backward", *sizes, made="0,1,2") == (both, None)
    assert of("aten::convolution_backward", *sizes, made="1") == (both // 2, None), "the first layer: no gradient of x"


def test_attention_and_its_backward() -> None:
    q, k, v = (2, 8, 16, 32), (2, 8, 24, 32), (2, 8, 24, 48)
    truth = flop_counter.sdpa_flop_count(q, k, v)
    assert of("aten::_scaled_dot_product_flash_attention", q, k, v, None) == (truth, None)
    assert of("aten::_scaled_dot_product_cudnn_attention", q, k, v, None) == (truth, None)
    swapped = [(a, c, b, d) for a, b, c, d in (q, k, v)]
    assert of("flash_attn::_flash_attn_forward", *swapped) == (truth, None)
    out = (2, 8, 16, 48)
    truth = flop_counter.sdpa_backward_flop_count(out, q, k, v)
    assert of("aten::_scaled_dot_product_flash_attention_backward", out, q, k, v, out) == (truth, None)
    shared = (2, 2, 24, 32)
    assert of("aten::_scaled_dot_product_flash_attention", q, shared, shared)[0] == flop_counter.sdpa_flop_count(
        q, k, k
    )


@pytest.mark.parametrize(
    "text",
    [None, "", "[", "[[1, 2], [2, 3]", "{}", "[1]", "[[-1, 2], [2, 3]]", "[[1.5, 2], [2, 3]]", "[[true, 2], [2, 3]]",
     "[[99999999999999999999, 2], [2, 3]]", "[" * 10_000, "[[3, 5], [6, 7]]", "[[3, 5]]", "[[3], [5]]", "[[], []]"],
)  # fmt: skip
def test_hostile_and_odd_sizes_have_no_number_but_a_reason(text: str | None) -> None:
    number, why = operator_flops.flops_of_operator("aten::mm", text, None, None)
    assert number is None and why


def test_what_cannot_be_told_says_why() -> None:
    assert of("aten::relu", (3, 4)) == (None, None), "it multiplies nothing"
    assert of("aten::convolution", (2, 4, 9, 9), (6, 4, 3, 3)) == (None, "the size of its result is not recorded")
    assert of("aten::convolution", (2, 4, 9, 9), (6, 4, 3, 3), None, result=(2, 5, 7, 7))[0] is None, (
        "another operator's"
    )
    one = of("aten::convolution", (2, 4, 9, 9), (6, 4, 3, 3), None, result=(2, 6, 7, 7))[0]
    backward = of("aten::convolution_backward", (2, 6, 7, 7), (2, 4, 9, 9), (6, 4, 3, 3))
    assert backward == (one, operator_flops.ONE_GRADIENT)
    assert of("flash_attn::_flash_attn_varlen_forward", (99, 8, 64), (99, 8, 64), (99, 8, 64))[0] is None
    big = 1 << 40
    assert of("aten::mm", (big, big), (big, big))[0] is None, "no operator computes that much"


def test_operators_that_count_are_known_by_their_name() -> None:
    names = pl.Series(["aten::mm", "aten::add", "aten::mm.out", None], dtype=pl.Categorical)
    assert operator_flops.counted(names).tolist() == [True, False, True, False]
