"""What comes out the same in each step although numbers of it are read back or ranks tell it each other; and what only looks so."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pytest

from nsysx.events.needless_operators import fixed_operators
from nsysx.events.operator_flow import ModuleCall, OperatorFlow

Op = tuple[str, tuple[int, ...], str]
IDS, ROWS, X, W, BATCH = "[5000]", "[1500]", "[200, 64]", "[64, 64]", "[200, 96]"
#: A plan of static edges, whose operators have the numbers 2 to 9. What is received bears the number of the collective.
PLAN: list[Op] = [
    ("aten::ne", (-1, -1), f"{IDS}, []"),
    ("aten::index", (-1, 2), f"{IDS}, {IDS}"),
    ("aten::_unique2", (3, -1), f"{ROWS}, []"),
    ("aten::new_empty", (4, -1), f"{ROWS}, []"),
    ("c10d::alltoall_base_", (5, 4, -1), f"{ROWS}, {ROWS}, []"),
    ("aten::to", (6, -1), f"{ROWS}, []"),
    ("aten::sub", (6, -1), f"{ROWS}, []"),
    ("aten::index_put_", (8, 2, 4), f"{ROWS}, {IDS}, {ROWS}"),
]
NAMES = [name for name, *_ in PLAN]


def fixed(
    plan: Sequence[Op],
    first: Op = ("aten::linear", (-1, -1), f"{BATCH}, [64, 96]"),
    optimizer: str = W,
    *,
    weights: Collection[tuple[int, ...]] = ((64, 64), (64, 96)),
    changing: int | None = None,
) -> list[str]:
    """Return what is fixed of a plan, by which rows of a trained network's first layer (operator 1) are picked and multiplied."""
    ops = [
        first,
        *plan,
        ("aten::index_select", (1, -1, len(plan) + 1), f"{X}, [], {ROWS}"),
        ("aten::linear", (len(plan) + 2, -1), f"{X}, {W}"),
        ("aten::_fused_adam_", (-1, -1), optimizer),
    ]
    names, made, size = zip(*ops, strict=True)
    start, last = np.arange(len(ops)), len(ops) - 1
    calls = (ModuleCall("", "Net", 1, 0, 1, 0, last),)
    flow = OperatorFlow(
        names, range(1, len(ops) + 1), made=made, size=size, calls=calls, start_ns=start, end_ns=start + 1, follows=True
    )
    learns = [row in (0, last - 2, last - 1) for row in range(len(ops))]
    reads = [name == "aten::to" for name in names]
    rows, _ = fixed_operators(
        flow,
        learns,
        [name == "aten::copied" for name in names],
        gives_gradients=learns,
        changing=[row == changing for row in range(len(ops))],
        to_host=reads,
        weights=weights,
    )
    return [names[row] for row in rows]


def test_a_plan_of_static_edges_is_fixed_with_what_is_sent_and_read_on_the_way() -> None:
    assert fixed(PLAN) == NAMES


def test_a_plan_of_a_tensor_that_was_copied_or_drawn_is_not() -> None:
    for first in ("aten::copied", "aten::randint"):
        assert fixed([(first, (-1, -1), IDS), *PLAN[1:]]) == []


def test_a_plan_whose_sizes_are_others_in_another_step_is_not() -> None:
    """Nor is what they are made of: that other edges are chosen shows in the size of what is chosen alone."""
    assert fixed(PLAN, changing=3) == []


def test_shards_of_weights_that_are_gathered_are_not() -> None:
    """They are sent as they are, or converted before: an optimizer writes into tensors of their size, in a list."""
    room: Op = ("aten::empty", (-1,), "[]")
    assert fixed([room, ("c10d::_allgather_base_", (2, -1, -1), "[2048], [1024], []")]) == []
    cast: list[Op] = [
        ("aten::_to_copy", (-1, -1), "[1024], []"),
        room,
        ("c10d::_allgather_base_", (3, 2), "[2048], [1024]"),
    ]
    assert fixed(cast, optimizer="[1024]") == []
    assert len(fixed(cast)) == 3


def test_what_is_summed_into_is_made_anew() -> None:
    """Zeros are the same in each step until rows of the step are added to them."""
    zeros: list[Op] = [
        ("aten::zeros", (-1,), "[]"),
        ("aten::view", (2, -1), f"{X}, []"),
        ("aten::index_add_", (3, -1, 1), f"{X}, {ROWS}, {X}"),
    ]
    assert fixed(zeros) == []
    assert fixed([zeros[0], ("aten::exp", (2,), X)]) == ["aten::zeros", "aten::exp"]


def test_a_number_of_python_may_be_another_one() -> None:
    assert fixed([("aten::full", (-1, -1), "[], []"), ("aten::triu", (2, -1), f"{X}, []")]) == []


@pytest.mark.parametrize(
    ("mask", "same"),
    [
        (
            f"{BATCH}",
            False,
        ),  # of the network's own input: a benchmark takes one batch again and again, a program one of some
        ("[200]", False),  # lengths of its samples
        ("[48, 48]", True),
    ],
)
def test_what_is_made_of_a_batch_without_a_name_is_of_the_step(mask: str, same: bool) -> None:
    plan: list[Op] = [("aten::ne", (-1, -1), f"{mask}, []"), ("aten::cumsum", (2, -1), f"{mask}, []")]
    assert bool(fixed(plan)) is same


def test_pictures_that_are_made_ready_for_a_network_are_of_the_step() -> None:
    """Where they wait on the GPU and are picked from a list, or are always the same ones, they have no name."""
    ready: list[Op] = [("aten::to", (-1, -1), "[200, 3, 32, 32], []"), ("aten::div", (1, -1), "[200, 3, 32, 32], []")]
    ops = [*ready, ("aten::conv2d", (2, -1), "[200, 3, 32, 32], [8, 3, 3, 3]")]
    names, made, size = zip(*ops, strict=True)
    start = np.arange(len(ops))
    flow = OperatorFlow(
        names, range(1, 4), made=made, size=size, calls=(), start_ns=start, end_ns=start + 1, follows=True
    )
    assert fixed_operators(flow, [False, False, True], [False] * 3, weights=[(8, 3, 3, 3)])[0] == []
    mixed = OperatorFlow(
        ["aten::fft_fft2", *names[1:]],
        range(1, 4),
        made=made,
        size=size,
        calls=(),
        start_ns=start,
        end_ns=start + 1,
        follows=True,
    )
    assert fixed_operators(mixed, [False, False, True], [False] * 3, weights=[(8, 3, 3, 3)])[0] != []


def told(ops: Sequence[Op], *, learns: Collection[int], copied: Collection[int] = (), parts: bool = False) -> list[int]:
    """Return which of the operators 1, 2, ... are told, of a step without modules; ``learns``, ``copied``: numbers of operators."""
    names, made, size = zip(*ops, strict=True)
    start, numbers = np.arange(len(ops)), range(1, len(ops) + 1)
    flow = OperatorFlow(names, numbers, made=made, size=size, calls=(), start_ns=start, end_ns=start + 1, follows=True)
    rows, _ = fixed_operators(
        flow,
        [number in learns for number in numbers],
        [number in copied for number in numbers],
        weights=[(64, 64)],
        same_parts=[parts] * len(ops),
    )
    return [row + 1 for row in rows]


TABLE: list[Op] = [
    ("aten::zeros", (-1,), "[]"),
    ("aten::exp", (-1,), "[200, 32]"),
    ("aten::slice", (1, -1), f"{X}, []"),
    ("aten::copy_", (3, 2), "[200, 32], [200, 32]"),
]


def test_what_is_written_into_a_view_of_a_table_goes_into_the_table() -> None:
    """So does what that is made of; a table that something of the step is written into is of the step."""
    step: list[Op] = [
        ("aten::randint", (-1,), "[]"),
        ("aten::linear", (5, -1), f"{X}, {W}"),
        ("aten::add", (6, 1), f"{X}, {X}"),
    ]
    assert told([*TABLE, *step], learns=(6, 7), parts=True) == [1, 2, 3, 4]
    drawn: Op = ("aten::rand", (-1,), "[]")
    assert told([TABLE[0], drawn, *TABLE[2:], *step], learns=(6, 7), parts=True) == []


def test_a_part_that_python_may_choose_is_of_the_step_where_its_line_does_not_say_which_it_is() -> None:
    ops: list[Op] = [
        ("aten::select", (-1, -1), "[2, 5000], []"),
        ("aten::argsort", (1,), IDS),
        ("aten::randint", (-1,), "[]"),
        ("aten::linear", (3, -1), f"{X}, {W}"),
        ("aten::index", (4, 2), f"{X}, {IDS}"),
    ]
    assert told(ops, learns=(4, 5), parts=True) == [1, 2]
    assert told(ops, learns=(4, 5)) == []


@pytest.mark.parametrize(
    ("lay_there", "size", "same"),
    [
        ("aten::embedding", X, True),  # a row of numbers: no number of Python is one
        ("aten::select", X, True),
        ("aten::empty", "[]", True),
        ("aten::view", X, True),
        ("aten::sum", X, False),  # it may be what is meant
        ("aten::select", "[200]", False),
    ],
)
def test_a_number_of_python_with_the_name_of_what_had_dimensions_is_a_number(
    lay_there: str, size: str, same: bool
) -> None:
    ops: list[Op] = [
        ("aten::randint", (-1,), "[]"),
        (lay_there, (1,), size),
        ("aten::exp", (-1,), X),
        ("aten::div", (3, 2), f"{X}, []"),
        ("aten::linear", (1, -1), f"{X}, {W}"),
        ("aten::add", (5, 4), f"{X}, {X}"),
    ]
    assert told(ops, learns=(5, 6)) == ([3, 4] if same else [3])


@pytest.mark.parametrize(("copied", "size", "same"), [((1,), X, True), ((), X, False), ((1,), "[200]", False)])
def test_where_rows_come_from_the_host_what_lies_on_the_gpu_is_no_batch(
    copied: tuple[int, ...], size: str, same: bool
) -> None:
    """Without it the rows of the network's input that have no name may be of a batch that waits there, and so may what has as many."""
    ops: list[Op] = [
        ("aten::to", (-1, -1), f"{size}, []"),
        ("aten::linear", (1, -1), f"{X}, {W}"),
        ("aten::linear", (-1, -1), f"{X}, {W}"),
        ("aten::ne", (-1, -1), "[200, 200], []"),
        ("aten::mul", (2, 4), f"{X}, {X}"),
    ]
    assert (told(ops, learns=(2, 3, 5), copied=copied) == [4]) is same
