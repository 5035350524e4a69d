"""Which dimensions of a tensor are narrowed, by its sizes, and through which operators a part of a result needs a part of the arguments."""

from __future__ import annotations

import numpy as np
import pytest

from nsysx.events.narrowed_operators import narrowed_operators, narrowing
from nsysx.events.operator_flow import OperatorFlow

Op = tuple[str, tuple[int, ...], str]


@pytest.mark.parametrize(
    ("before", "after", "dimensions"),
    [
        ((8, 100, 64), (8, 64), {1}),
        ((8, 100, 64), (8, 1, 64), {1}),
        ((8, 8, 64), (8, 64), {0, 1}),  # either
        ((8, 100, 64), (57, 64), {0, 1}),  # by a mask of 8 x 100
        ((4096, 64), (32, 10, 64), {0}),  # by numbers of rows
        ((8, 100), (8, 100), None),
        ((8, 100), (3, 200), None),
        ((8, 100, 64), (5, 7), None),
    ],
)
def test_the_dimensions_that_are_narrowed(
    before: tuple[int, ...], after: tuple[int, ...], dimensions: set[int] | None
) -> None:
    assert narrowing(before, after) == dimensions


def narrowed(
    *ops: Op, read_later: frozenset[int] = frozenset(), over_last: frozenset[int] = frozenset()
) -> dict[str, float]:
    """Return the operators, numbered from 1, of which a part is enough."""
    names, made, size = zip(*ops, strict=True)
    times = np.arange(len(ops))
    flow = OperatorFlow(
        [f"aten::{name}" for name in names],
        range(1, len(ops) + 1),
        made=made,
        size=size,
        calls=(),
        start_ns=times,
        end_ns=times + 1,
        read_later=read_later,
    )
    return {names[row]: share for each in narrowed_operators(flow, over_last) for row, share in each.share.items()}


LINEAR: Op = ("linear", (-1, -1), "[8, 100, 64], [512, 64]")
LAST: Op = ("select", (2, -1, -1), "[8, 100, 512], [], []")
READ: Op = ("sum", (3,), "[8, 512]")


def test_what_is_made_row_by_row_of_rows_is_narrowed_too() -> None:
    gelu: Op = ("gelu", (1, -1), "[8, 100, 512], []")
    assert narrowed(LINEAR, gelu, LAST, READ) == {"linear": 0.01, "gelu": 0.01}


def test_rows_of_a_flattened_batch_are_rows_of_the_batch() -> None:
    view: Op = ("view", (1, -1), "[8, 100, 512], []")
    some: Op = ("index", (2, -1), "[800, 512], [800]")
    assert narrowed(LINEAR, view, some, ("sum", (3,), "[80, 512]"))["linear"] == 0.1


#: Of 30 masks of each image 3 are picked behind a resampling, by numbers for images and for masks.
LARGE: Op = ("upsample_bilinear2d", (-1, -1), "[4, 30, 64, 64], []")
SOME: Op = ("index", (2, -1, -1), "[4, 30, 128, 128], [4, 1], [4, 3]")


@pytest.mark.parametrize(
    ("between", "told"),
    [
        (("_to_copy", (1, -1), "[4, 30, 128, 128], []"), True),
        (("gt", (1, -1), "[4, 30, 128, 128], []"), True),
        (("avg_pool2d", (1, -1), "[4, 30, 128, 128], []"), True),
        (("conv2d", (1, -1), "[4, 30, 128, 128], [30, 30, 3, 3]"), False),
        (("group_norm", (1, -1, -1, -1), "[4, 30, 128, 128], [], [30], [30]"), False),
    ],
)
def test_channels_are_picked_before_what_makes_each_of_its_own_alone(between: Op, told: bool) -> None:
    found = narrowed(LARGE, between, SOME, ("sum", (3,), "[4, 3, 128, 128]"))
    assert found == (dict.fromkeys((LARGE[0], between[0]), 0.1) if told else {})


@pytest.mark.parametrize(
    "between",
    [
        ("softmax", (1, -1, -1), "[8, 100, 512], [], []"),  # of which dimension is not known
        ("matmul", (1, -1), "[8, 100, 512], [8, 512, 512]"),  # rows of each sample's own product
        ("cumsum", (1, -1), "[8, 100, 512], []"),
    ],
)
def test_what_may_mix_rows_needs_all_of_them(between: Op) -> None:
    assert "linear" not in narrowed(LINEAR, between, LAST, READ)


def test_what_the_next_step_reads_is_read() -> None:
    gelu: Op = ("gelu", (1, -1), "[8, 100, 512], []")
    assert not narrowed(LINEAR, gelu, LAST, READ, read_later=frozenset({2}))


#: The probability of one word at the last 10 of 100 places: a head, a softmax, the words' numbers picked, and those of the last places.
ANSWER: tuple[Op, ...] = (
    ("linear", (-1, -1), "[8, 100, 64], [512, 64]"),
    ("slice", (1, -1), "[8, 100, 512], []"),
    ("log_softmax", (2, -1), "[8, 99, 512], []"),
    ("gather", (3, -1, -1), "[8, 99, 512], [], [8, 99, 1]"),
    ("squeeze", (4, -1), "[8, 99, 1], []"),
    ("slice", (5, -1), "[8, 99], []"),
    ("sum", (6,), "[8, 10]"),
)


def test_of_a_softmax_of_which_one_number_a_row_is_picked_the_rows_that_are_read_are_enough() -> None:
    found = narrowed(*ANSWER)
    assert found == {name: pytest.approx(10 / 99, rel=0.02) for name in ("linear", "log_softmax", "squeeze")}


@pytest.mark.parametrize(
    ("place", "other"),
    [
        (5, ("mul", (5, -1), "[8, 99], []")),  # all places are read
        (
            3,
            ("slice", (3, -1), "[8, 99, 512], []"),
        ),  # which dimension the softmax is over is not known: classes may be left out
    ],
)
def test_without_both_all_rows_of_the_softmax_are_needed(place: int, other: Op) -> None:
    assert "log_softmax" not in narrowed(*ANSWER[:place], other, *ANSWER[place + 1 :])


def test_what_narrows_once_more_is_the_same_change() -> None:
    names, made, size = zip(*ANSWER, strict=True)
    times = np.arange(len(ANSWER))
    flow = OperatorFlow(
        [f"aten::{name}" for name in names],
        range(1, len(ANSWER) + 1),
        made=made,
        size=size,
        calls=(),
        start_ns=times,
        end_ns=times + 1,
    )
    (change,) = narrowed_operators(flow)
    assert set(change.share) == {0, 2, 4} and change.by == {1, 3, 5}


#: Two words' probabilities at the last of 100 places: all rows but one of each sample are left out behind the softmax.
LAST_WORDS: tuple[Op, ...] = (
    LINEAR,
    ("to", (1, -1), "[8, 100, 512], []"),
    ("log_softmax", (2, -1), "[8, 100, 512], []"),
    ("select", (3, -1, -1), "[8, 100, 512], [], []"),
    ("index_select", (4, -1, -1), "[8, 512], [], [2]"),
    ("softmax", (5, -1), "[8, 2], []"),
    ("tolist", (6,), "[8, 2]"),
)


def test_a_softmax_over_the_last_dimension_keeps_the_others() -> None:
    """A part of the numbers of each row is no part of the softmax; a part of its rows is one, and of what they are made of."""
    found = narrowed(*LAST_WORDS, over_last=frozenset({2, 5}))
    assert found == {name: pytest.approx(1 / 100) for name in ("linear", "to", "log_softmax")}
    assert "linear" not in narrowed(*LAST_WORDS), "which dimension it is over is not known"


@pytest.mark.parametrize(
    "ops",
    [
        (LINEAR, ("softmax", (1, -1), "[8, 100, 512], []"), ("slice", (2, -1, -1), "[8, 100, 512], [], []"), ("sum", (3,), "[8, 100, 9]")),
        (LINEAR, ("softmax", (1, -1), "[8, 100, 512], []"), ("mul", (2, -1), "[8, 100, 512], []"), LAST),
        (*LAST_WORDS[:3], ("sum", (3,), "[8, 100, 512]"), *LAST_WORDS[3:]),
    ],
    ids=["numbers of each row", "read by others", "an entropy of all rows"],
)  # fmt: skip
def test_rows_of_a_softmax_that_are_read_are_computed(ops: tuple[Op, ...]) -> None:
    assert "softmax" not in narrowed(*ops, over_last=frozenset({1, 2}))
    assert "linear" not in narrowed(*ops, over_last=frozenset({1, 2}))


def test_one_before_a_dimension_of_one_is_the_last_that_is_longer() -> None:
    """Classes before a place of one: a kernel over these is one of rows, too."""
    softmax: Op = ("softmax", (1, -1), "[8, 100, 1], []")
    first: Op = ("slice", (2, -1, -1), "[8, 100, 1], [], []")
    assert "softmax" not in narrowed(LINEAR, softmax, first, ("sum", (3,), "[8, 9, 1]"), over_last=frozenset({1}))
