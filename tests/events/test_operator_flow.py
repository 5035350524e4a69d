"""Calls of modules that need the result of another call, and calls that do not, by what made the arguments of operators."""

from __future__ import annotations

import pytest

from nsysx.events.operator_flow import ModuleCall, OperatorFlow, depth

Op = tuple[str, int, tuple[int, ...], str]


def flow(ops: list[Op], calls: list[tuple[int, int]]) -> int:
    """Return the depth of calls that hold these operators."""
    names, number, made, size = zip(*ops, strict=True)
    called = [ModuleCall(f"m.{i}", "M", 1, first, last, first, last) for i, (first, last) in enumerate(calls)]
    return depth(OperatorFlow(names, number, made, size, tuple(called)), called)


def linear(number: int, made: int) -> Op:
    return ("aten::linear", number, (made,), "[4, 8]")


INDEPENDENT: list[Op] = [("aten::to", 1, (-1,), "[8, 8]"), linear(2, 1), linear(3, 1), linear(4, 1)]
CHAIN: list[Op] = [linear(1, -1), ("aten::tanh", 2, (1,), "[4, 8]"), linear(3, 2), linear(4, 3)]
#: What is written into a view of a buffer without a name is read from another view of that size, not from one of another size.
BUFFER: list[Op] = [
    linear(1, -1),
    ("aten::select", 2, (-1,), "[9, 4, 8]"),
    ("aten::copy_", 3, (2, 1), "[4, 8]"),
    ("aten::select", 4, (-1,), "[9, 4, 8]"),
    linear(5, 4),
]
OTHER_BUFFER: list[Op] = [*BUFFER[:3], ("aten::select", 4, (-1,), "[5, 4, 8]"), linear(5, 4)]
#: The same with a buffer that an operator of the step made.
MADE: list[Op] = [
    ("aten::zeros", 1, (), ""),
    linear(2, -1),
    ("aten::select", 3, (1,), "[9, 4, 8]"),
    ("aten::copy_", 4, (3, 2), "[4, 8]"),
    ("aten::select", 5, (1,), "[9, 4, 8]"),
    linear(6, 5),
]


@pytest.mark.parametrize(
    ("ops", "calls", "deep"),
    [
        (INDEPENDENT, [(1, 2), (2, 3), (3, 4)], 1),
        (CHAIN, [(0, 1), (2, 3), (3, 4)], 3),
        (BUFFER, [(0, 1), (4, 5)], 2),
        (OTHER_BUFFER, [(0, 1), (4, 5)], 1),
        (MADE, [(1, 2), (5, 6)], 2),
    ],
)
def test_a_call_comes_after_those_whose_results_it_needs(
    ops: list[Op], calls: list[tuple[int, int]], deep: int
) -> None:
    assert flow(ops, calls) == deep
