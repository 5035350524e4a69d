"""Calls of modules that need the result of another call, and calls that do not, by what made the arguments of operators."""

from __future__ import annotations

import polars as pl
import pytest

from nsysx.events.needs_of_calls import depth, signature
from nsysx.events.operator_flow import ModuleCall, OperatorFlow, _passed_on, _without_numbers
from nsysx.events.recorded_beside import recorded_beside

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
#: The second call is given what a collective of the first one brought (2), which is no operator; that of before both (9) is none's.
SENT: list[Op] = [("aten::to", 0, (-1,), "[8, 8]"), linear(1, 0), linear(3, 2)]
SENT_BEFORE: list[Op] = [("aten::to", 0, (-1,), "[8, 8]"), linear(11, 0), linear(12, 9)]


@pytest.mark.parametrize(
    ("ops", "calls", "deep"),
    [
        (SENT, [(1, 2), (2, 3)], 2),
        (SENT_BEFORE, [(1, 2), (2, 3)], 1),
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


@pytest.mark.parametrize(
    ("name", "sizes", "alike"),
    [
        ("aten::embedding", ("[1000, 64], [128]", "[20, 64], [131]"), True),
        ("aten::embedding", ("[1000, 64], [128]", "[1000, 32], [128]"), False),
        ("aten::linear", ("[1000, 64], [128]", "[20, 64], [131]"), False),
    ],
    ids=["rows", "columns", "layers"],
)
def test_tables_are_alike_whatever_rows_they_have(name: str, sizes: tuple[str, str], alike: bool) -> None:
    calls = [ModuleCall(f"m.{i}", "M", 1, i, i + 1, i, i + 1) for i in range(2)]
    of = OperatorFlow([name, name], [1, 2], [(-1, -1), (-1, -1)], sizes, tuple(calls))
    assert (signature(of, calls[0]) == signature(of, calls[1])) is alike


@pytest.mark.parametrize(
    ("ops", "beside"),
    [
        ([0, 1, 2, 3], (True, True)),  # operators begin in these steps, six each in the one that is looked at
        ([0, 2], (False, False)),  # those of other windows, far from it
        ([1], (True, False)),
        ([3], (False, True)),
        ([], (False, False)),
    ],
)
def test_only_the_steps_right_beside_one_tell_what_it_takes_from_them_and_gives_to_them(
    ops: list[int], beside: tuple[bool, bool]
) -> None:
    """Steps of 100 us, of which the third is looked at; after the first and behind the last one others lie that were not recorded."""
    begin = {0: 0, 1: 500, 2: 1_000, 3: 700}
    steps = pl.DataFrame(
        {
            "kind": "step",
            "own": True,
            "start_ns": [0, 400, 500, 600, 700, 1_000],
            "end_ns": [100, 500, 600, 700, 800, 1_100],
        }
    )
    times = [begin[number] + 10 * k for number in ops for k in range(6)]
    operators = pl.DataFrame(
        {"start_ns": times, "end_ns": [t + 5 for t in times]}, schema={"start_ns": pl.Int64, "end_ns": pl.Int64}
    )
    assert recorded_beside(steps, operators, (600, 700), 6) == beside


@pytest.mark.parametrize(
    ("maker", "size", "told"),
    [(2, "[]", -1), (1, "[]", 1), (2, "[1]", 2), (2, "[4, 8]", 2)],
    ids=["a number of Python", "what the operator returned", "a row", "weights that autocast keeps"],
)
def test_a_number_does_not_bear_the_name_of_what_was_dropped_within_an_operator(
    maker: int, size: str, told: int
) -> None:
    """Operator 1 makes 2 inside; a number of Python may lie where the result of 2 lay until 1 had ended."""
    names, spans = ["aten::index", "aten::reshape", "aten::div"], [(0, 10), (2, 4), (20, 30)]
    made = _passed_on(
        [(-1, -1), (-1, -1), (-1, maker)], ["[50], [1]", "[1], []", f"[42], {size}"], [1, 2, 3], names, spans
    )
    assert made[2] == (-1, told)


@pytest.mark.parametrize(
    ("others", "size", "kept"),
    [
        (
            (-1, -1),
            "",
            -1,
        ),  # the same operator is given a number elsewhere: here one that lies where a tensor of an earlier step lay
        ((-1, -1), "8", 3),  # a tensor that an earlier step made
        ((30, 31), "", 3),  # tensors without dimensions, wherever they are given
        ((-1, 31), "", 3),
    ],
)
def test_a_number_of_python_has_no_maker_where_the_same_operator_is_mostly_given_none(
    others: tuple[int, int], size: str, kept: int
) -> None:
    made = [(20, 3), (21, others[0]), (22, others[1])]
    sizes = [f"[8, 8], [{size}]"] * 3
    assert _without_numbers(made, sizes, [40, 41, 42], ["aten::mul"] * 3)[0] == (20, kept)
