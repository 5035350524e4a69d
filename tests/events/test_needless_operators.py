"""Operators of whose results nothing is made, and operators that make the same in each step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nsysx.events.needless_operators import fixed_operators, joined_operators, unread_operators
from nsysx.events.operator_flow import ModuleCall, OperatorFlow

Op = tuple[str, tuple[int, ...], str]
X = "[64, 128]"
#: A batch, a network that is trained, and its loss (operators 1 to 3).
TRAINING: list[Op] = [
    ("randperm", (-1,), "[]"),
    ("linear", (-1, -1), f"{X}, [128, 128]"),
    ("cross_entropy_loss", (2, -1), f"{X}, [64]"),
]
TRAINED = [False, True, True]


def flow_of_operators(
    ops: list[Op], *, later: int = 99, follows: bool = True, calls: tuple[ModuleCall, ...] = ()
) -> OperatorFlow:
    names, made, size = zip(*ops, strict=True)
    start = np.arange(len(ops))
    return OperatorFlow(
        [f"aten::{name}" for name in names],
        range(1, len(ops) + 1),
        made=made,
        size=size,
        calls=calls,
        start_ns=start,
        end_ns=start + 1,
        read_later=frozenset({later}),
        follows=follows,
    )


def unread(*more: Op, later: int = 99, to_host: int = -1) -> tuple[list[str], list[str]]:
    """Return the operators behind the loss, numbered from 4, that nothing reads, and those that only numbers are read of."""
    ops = [*TRAINING, *more]
    flow = flow_of_operators(ops, later=later)
    trained = [*TRAINED, *(False for _ in more)]
    nothing, logged = unread_operators(flow, trained, [row == to_host for row in range(len(ops))])
    return [ops[row][0] for row in nothing if row > 2], [ops[row][0] for row in logged]


HEAD: Op = ("softmax", (2, -1, -1), f"{X}, [], []")
MEAN: Op = ("mean", (4,), X)


@pytest.mark.parametrize(
    ("more", "nothing", "logged"),
    [
        ([HEAD, MEAN], ["softmax", "mean"], []),
        ([HEAD, MEAN, ("item", (5,), "[]")], [], ["softmax", "mean"]),
        ([HEAD, ("add_", (-1, 4), f"{X}, {X}")], [], []),  # into what is older than the step
        ([HEAD, ("view", (-1, -1), f"{X}, []"), ("copy_", (5, 4), f"{X}, {X}")], [], []),  # a view of that
        # An optimizer's lists: the roots are made in this step, and what is written into them keeps their names.
        (
            [
                ("_foreach_sqrt", (-1,), X),
                ("_foreach_add_", (4, -1), f"{X}, []"),
                ("_foreach_addcdiv_", (-1, -1, 4), f"{X}, {X}, {X}"),
            ],
            [],
            [],
        ),
        ([("_fused_adamw_", (-1, -1), f"{X}, {X}")], [], []),
        ([("ones_like", (3,), "[]")], [], []),  # the loss's own gradient
        ([("argmax", (1,), X), ("item", (4,), "[]")], [], []),  # not of what is trained: an index, a choice
    ],
)
def test_what_nothing_reads(more: list[Op], nothing: list[str], logged: list[str]) -> None:
    assert unread(*more) == (nothing, logged)


def test_what_the_host_or_the_next_step_reads_is_read() -> None:
    assert unread(HEAD, later=4) == ([], [])
    assert unread(HEAD, to_host=3) == ([], [])


def test_a_result_of_a_list_bears_the_number_of_the_operator_within() -> None:
    """Roots of a list are made one by one: what divides by one of them reads the list's."""
    flow = flow_of_operators(
        [*TRAINING, ("_foreach_sqrt", (-1, -1), X), ("sqrt", (-1,), X), ("copy_", (-1, 5), f"{X}, {X}")]
    )
    ends = flow.end_ns.copy()
    ends[3] = ends[4]
    assert unread_operators(replace(flow, end_ns=ends), [*TRAINED, False, False, False], [False] * 6) == ([0], [])


def test_without_a_later_step_nothing_is_unread() -> None:
    flow = flow_of_operators([*TRAINING, HEAD])
    assert unread_operators(OperatorFlow(flow.names, flow.number, flow.made, flow.size, ()), [*TRAINED, False], []) == (
        [],
        [],
    )


def fixed(*before: Op, follows: bool = True, taught: bool = False, in_module: bool = False) -> list[str]:
    """Return what is fixed of operators, numbered from 2, the last of which is multiplied with rows that are drawn."""
    ops: list[Op] = [("randint", (-1,), "[]"), *before]
    ops.append(("mul", (1, len(ops)), f"{X}, {X}"))
    calls = (ModuleCall("net", "Net", 1, 0, 1, 1, len(ops) - 1),) if in_module or taught else ()
    if taught:
        calls = (*calls, ModuleCall("net", "Net", 1, 0, 1, len(ops) - 1, len(ops)))
    flow = flow_of_operators(ops, follows=follows, calls=calls)
    trained = [taught and row == len(ops) - 1 for row in range(len(ops))]
    return [ops[row][0] for row in fixed_operators(flow, trained, [False] * len(ops))[0]]


TABLE: list[Op] = [("arange", (-1,), "[]"), ("exp", (2,), "[128]")]
FROZEN: Op = ("linear", (-1, -1), f"{X}, [128, 128]")


@pytest.mark.parametrize(
    ("before", "same"),
    [
        (TABLE, ["arange", "exp"]),
        ([FROZEN], ["linear"]),
        ([("randn", (-1,), "[]"), ("exp", (2,), X)], []),
        ([("full", (-1, -1), "[], []"), ("exp", (2,), X)], []),  # a number of Python that may change
        ([("slice", (-1, -1), "[5000, 128], []"), ("exp", (2,), X)], []),  # a part that Python chooses: the next batch
        ([("add_", (-1, -1), "[128, 128], []"), FROZEN], []),  # weights that are written to
        ([("exp", (7,), X)], []),  # made by another step or thread
    ],
)
def test_what_is_the_same_in_each_step(before: list[Op], same: list[str]) -> None:
    assert fixed(*before) == same


def test_a_table_of_a_module_is_cut_to_the_same_length_in_each_step() -> None:
    part: Op = ("slice", (-1, -1), "[512, 128], []")
    assert fixed(part, ("exp", (2,), X), in_module=True) == ["slice", "exp"]


def test_weights_that_another_call_trains_and_tensors_of_unknown_age_are_not_fixed() -> None:
    assert fixed(FROZEN, taught=True) == fixed(FROZEN, follows=False) == []


#: A graph that is spread in the network's own call: operators 1 to 3. Then a layer that is trained (4), with weights, and its loss (5).
SPREAD: list[Op] = [
    ("ones", (-1,), "[]"),
    ("index_select", (-1, 1), "[5000, 64], [5000]"),
    ("scatter_add_", (1, 2), "[5000, 64], [5000, 64]"),
    ("linear", (3, -1), "[5000, 64], [128, 64]"),
    ("cross_entropy_loss", (4, -1), "[5000, 128], [5000]"),
]


@pytest.mark.parametrize(
    ("first", "same"),
    [
        (SPREAD[0], ["ones", "index_select", "scatter_add_"]),
        (("full", (-1,), "[]"), []),  # a number of Python that may change
        (("rsqrt", (-1,), "[128, 64]"), []),  # of the size of the weights: they may be these, read without gradients
        (("randperm", (-1,), "[]"), []),
    ],
)
def test_a_network_that_is_trained_on_the_same_data_in_each_step(first: Op, same: list[str]) -> None:
    """Nothing of the step goes in: what is made of the data alone, within the trained call, is the same each time."""
    ops = [first, *SPREAD[1:]]
    flow = flow_of_operators(ops, calls=(ModuleCall("net", "Net", 1, 0, 1, 0, 4),))
    rows, _ = fixed_operators(flow, [False] * 3 + [True] * 2, [False] * 5)
    assert [ops[row][0] for row in rows] == same


def test_operators_that_are_made_of_each_other_are_one_change() -> None:
    ops: list[Op] = [
        ("arange", (-1,), "[]"), ("arange", (-1,), "[]"), ("exp", (1,), X), ("sin", (2,), X), ("mul", (3, 4), X), ("cos", (-1,), X),
    ]  # fmt: skip
    flow = flow_of_operators(ops)
    assert joined_operators(flow, [0, 1, 2, 3, 5]) == [[0, 2], [1, 3], [5]]
    assert joined_operators(flow, range(6)) == [[0, 1, 2, 3, 4], [5]]
