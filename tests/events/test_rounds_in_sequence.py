"""Loops whose rounds need one another, and loops that one operation can do."""

from __future__ import annotations

import numpy as np
import pytest

from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.rounds_in_sequence import grows, in_sequence

#: What runs at the line in each of four rounds, and what runs elsewhere behind it: names, and what each is given: "state" is what the
#: round before left, "own" what the round has made so far, "item" is the round's own.
KINDS = {
    "recurrent cell": ([("linear", "state"), ("tanh", "own")], ("mul", "own")),
    "layers": ([("linear", "state")], ("relu", "own")),
    "Newton's steps": ([("linalg_solve", "state")], ("sub", "own")),
    "segments": ([("linear", "item"), ("tanh", "own")], ("mul", "own")),
    "a sum of losses": ([("mse_loss", "item"), ("add", "state")], ("mul", "item")),
    "rows of a table": ([("exp", "item"), ("copy_", "state")], ("mul", "item")),
    "a mean": ([("exp", "item"), ("log", "own"), ("add_", "state")], ("neg", "item")),
}


def flow(kind: str, rounds: int = 4) -> tuple[OperatorFlow, np.ndarray]:
    line, behind = KINDS[kind]
    names, made, there = ["randn"] * rounds, [()] * rounds, [False] * rounds
    state = own = 0
    for item in range(rounds):
        for place, (name, given) in enumerate([*line, behind]):
            made.append(({"state": state, "own": own, "item": item}[given],))
            names.append(name)
            there.append(place < len(line))
            own = len(names) - 1
            if given == "state":
                state = own
        state = own if behind[1] == "own" else state
    start = np.arange(len(names)) * 10
    operators = OperatorFlow(
        [f"aten::{name}" for name in names],
        range(len(names)),
        made,
        ["[8]"] * len(names),
        (),
        start_ns=start,
        end_ns=start + 5,
    )
    return operators, np.array(there, np.bool_)


@pytest.mark.parametrize("kind", list(KINDS)[:3])
def test_rounds_that_need_one_another(kind: str) -> None:
    assert in_sequence(*flow(kind))


@pytest.mark.parametrize("kind", list(KINDS)[3:])
def test_rounds_that_do_not(kind: str) -> None:
    assert not in_sequence(*flow(kind))


@pytest.mark.parametrize(("kind", "needs"), [("recurrent cell", True), ("segments", False)])
def test_rounds_with_nothing_between_them_are_told_apart_by_their_beginnings(kind: str, needs: bool) -> None:
    """A loop that calls functions is there all the time; rounds of other steps came before."""
    operators, _ = flow(kind)
    of_rounds = np.arange(len(operators.names)) >= 4  # behind what the loop is given
    begins = operators.start_ns[4 :: (len(operators.names) - 4) // 4]
    assert len(begins) == 4
    assert in_sequence(operators, of_rounds, np.concatenate((begins - 1_000, begins))) is needs
    assert not in_sequence(operators, of_rounds), "one round"


def test_two_rounds_are_no_loop() -> None:
    assert not in_sequence(*flow("recurrent cell", 2))


def test_what_an_operator_makes_in_others_is_its_result() -> None:
    """Of a chunk of the state the parts bear the number of a view within."""
    names, made, start, end, there = ["randn"], [()], [0], [5], [False]
    for number in range(4):
        last, begin = len(names) - 1, 100 * (number + 1)
        names += ["linear", "chunk", "split", "tanh"]
        made += [(last,), (last + 1,), (last + 1,), (last + 3,)]
        start += [begin, begin + 20, begin + 21, begin + 40]
        end += [begin + 10, begin + 30, begin + 29, begin + 50]
        there += [True, False, False, False]
    operators = OperatorFlow(
        [f"aten::{name}" for name in names], range(len(names)), made, ["[8]"] * len(names), (),
        start_ns=np.array(start), end_ns=np.array(end),
    )  # fmt: skip
    assert in_sequence(operators, np.array(there, np.bool_))


@pytest.mark.parametrize(
    ("sizes", "grow"),
    [
        (["[4, 8], [1, 8]", "[5, 8], [1, 8]"], True),
        (["[4, 8], [4, 8]"] * 2, False),
        (["[4, 8], [4, 2]"] * 4 + ["[64, 8], [64, 2]"] * 4, False),  # two loops call the line, one with more rows
    ],
)
def test_what_grows_by_being_put_together(sizes: list[str], grow: bool) -> None:
    count = len(sizes)
    start = np.arange(count) * 10
    operators = OperatorFlow(
        ["aten::cat"] * count, range(count), [()] * count, sizes, (), start_ns=start, end_ns=start + 5
    )
    assert grows(operators, np.ones(count, np.bool_)) is grow
