"""What scaled_dot_product_attention chose, from the operators of an X-ray step: as PyTorch nests them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from nsysx.events.attention_backends import AttentionCalls, attention_calls
from nsysx.events.operator_flow import OperatorFlow

CALL = "aten::scaled_dot_product_attention"


def flow(*operators: tuple[str, int, int, list[list[int]]]) -> OperatorFlow:
    """Return operators of a step, each with name, start, end and the sizes of its arguments."""
    names, start, end, sizes = zip(*operators, strict=True)
    nothing: tuple[int, ...] = ()
    return OperatorFlow(
        names,
        range(len(names)),
        [nothing] * len(names),
        [json.dumps(s)[1:-1] for s in sizes],
        (),
        0,
        np.array(start),
        np.array(end),
    )


def one(chosen: str, head: int = 64, mask: list[int] | None = None, value: int | None = None) -> OperatorFlow:
    q = [2, 8, 32, head]
    sizes = [q, q, [2, 8, 32, value or head], mask or [], [], [], [], []]
    return flow((CALL, 0, 100, sizes), (CALL, 5, 95, sizes), (f"aten::_scaled_dot_product_{chosen}", 10, 90, sizes))


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        (one("cudnn_attention"), AttentionCalls("cudnn", "2x8x32x64", False, 1, None)),
        (one("flash_attention"), AttentionCalls("flash", "2x8x32x64", False, 1, None)),
        (
            one("efficient_attention", mask=[2, 1, 32, 32]),
            AttentionCalls("efficient", "2x8x32x64", True, 1, "a mask is an argument"),
        ),
        (
            one("attention_math", head=512),
            AttentionCalls("math", "2x8x32x512", False, 1, "a head has 512 numbers, more than 256"),
        ),
        (
            one("efficient_attention", value=32),
            AttentionCalls("efficient", "2x8x32x64", False, 1, "the heads of queries, keys and values differ in size"),
        ),
        (one("attention_math"), AttentionCalls("math", "2x8x32x64", False, 1, None)),
        (flow((CALL, 0, 10, [[2, 8]])), AttentionCalls(None, "2x8", False, 1, None)),
    ],
)
def test_the_operator_inside_the_call_is_what_was_chosen(operators: OperatorFlow, expected: AttentionCalls) -> None:
    assert attention_calls(operators) == [expected]


def test_calls_of_one_kind_are_counted_and_one_behind_the_call_is_not_its_own() -> None:
    q = [[2, 8, 32, 64]] * 3
    flash = "aten::_scaled_dot_product_flash_attention"
    calls = attention_calls(
        flow((CALL, 0, 10, q), (CALL, 20, 30, q), (flash, 40, 50, q), (CALL, 60, 90, q), (flash, 61, 89, q))
    )
    assert [(c.backend, c.calls) for c in calls] == [(None, 2), ("flash", 1)]


def test_a_reason_is_asked_for_only_where_something_faster_was_refused() -> None:
    (fast,), (slow,) = attention_calls(one("flash_attention")), attention_calls(one("attention_math"))
    assert "not_flash" not in fast.facts() and slow.facts()["not_flash"] is None
