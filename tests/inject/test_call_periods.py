"""Which calls of networks make one step where nothing but their order tells: words over networks, one letter each."""

from __future__ import annotations

import random

import pytest
from nsysx_probe.call_periods import Calls
from nsysx_probe.step_follower import StepFollower


def count(calls: str, changes: list[int] | None = None) -> int:
    """Return the number of steps found; ``changes``: how much the weights changed before each call."""
    found, begun, version = Calls(), 0, 0
    for i, network in enumerate(calls):
        version += changes[i] if changes else 0
        begun += found.begins(network, version if changes else None)
    return begun + found.correction


@pytest.mark.parametrize("word", ["A", "AB", "ABC", "ABA", "AAAAB", "TUUUUUUV", "AABB", "ABCDEF"])
def test_a_word_that_repeats_is_a_step(word: str) -> None:
    for times in (1, 3, 4, 30) if len(set(word)) == len(word) else (3, 4, 30):
        assert count(word * times) == times


def test_words_of_many_lengths() -> None:
    dice = random.Random(1)
    assert count("".join("E" + "D" * (2 + i % 3) for i in range(20))) == 20
    assert count("".join("E" + "D" * dice.randint(1, 9) for i in range(200))) == 200


def test_what_came_once_begins_nothing_for_ever() -> None:
    assert count("E" + "D" * 30) == 30, "the calls repeat, the first one does not"
    assert count("A" * 30 + "B" * 30) == 60
    assert count("A" * 20 + "BC" * 20) == 40
    assert count("U" + "TUUUUUUV" * 12) == 13, "a warm-up"


def test_zeroth_order_methods() -> None:
    assert count("M" * 60, [1, *([1, 3] * 30)[:59]]) == 30, "on two sides"
    assert count("M" * 60, [0, *([1, 2] * 30)[:59]]) == 30, "on one side"
    assert count("M" * 96, [1] * 8 + [3, *[1] * 7] * 11) == 12, "a population of eight"
    assert count("M" * 30, [1] * 30) == 30, "each call changes the weights by the same"


class Machine:
    """Feeds words to Steps; A, B: optimizers; a, b: their networks."""

    def __init__(self, *made: str, related: bool | None = True) -> None:
        self.steps = StepFollower(lambda _index: None, lambda: None)
        self.steps.related = lambda _key, _ends: related
        for key in made:
            self.steps.made_optimizer(key)

    def __call__(self, events: str, times: int = 1) -> int:
        steps = self.steps
        for event in events.split() * times:
            what, _, how = event.partition(":")
            if what == "fwd":
                steps.forward(how != "eval", how, None)
                steps.forward_end()
            elif what == "bwd":
                steps.backward()
                steps.backward_end()
            elif what == "opt":
                steps.optimizer(how)
                steps.optimizer_end(how)
            elif what == "zero":
                steps.zero_grad()
            else:
                steps.fetch()
        return steps.count


def test_five_steps_of_a_critic_for_one_of_the_generator() -> None:
    assert Machine("d", "g")("fwd bwd opt:d " * 5 + "fwd bwd opt:g", times=30) == 30
    assert Machine("d", "g")("fwd:eval fwd bwd opt:d " * 5 + "fwd bwd opt:g", times=30) == 30
    assert Machine("d", "g")("fwd bwd opt:d", times=30) == 30, "the other never steps"
    assert Machine("d", "g", related=False)("fwd bwd opt:d", times=30) == 30


def test_gradients_that_are_reset_within_a_step() -> None:
    sam = Machine("a")
    sam.steps.compilations = lambda: 7
    assert sam("fwd bwd zero fwd bwd opt:a zero", times=30) == 30


def test_what_ends_without_its_work_is_no_step() -> None:
    assert Machine("a")("fwd bwd opt:a " * 12 + "fwd:grad") == 12
    assert Machine("a")("fetch fwd bwd opt:a " * 12 + "fetch") == 12


def test_no_modules() -> None:
    assert Machine()("bwd", times=30) == 30
    assert Machine()("fwd bwd", times=30) == 30
    assert Machine()("fwd:eval", times=30) == 30
    assert Machine()("fwd:grad", times=30) == 30


def test_one_batch_that_is_used_again_and_again() -> None:
    assert Machine("a")("fetch " + "fwd bwd opt:a " * 30) == 30


def test_another_thread_takes_over() -> None:
    machine = Machine()
    machine("fwd bwd", times=5)
    machine.steps.restart()
    assert machine("fwd bwd opt:a", times=30) == 30
