"""Several optimizers: which of their steps are rounds, and which are trainings of their own."""

from __future__ import annotations

import pytest
from nsysx_probe.step_follower import StepFollower

CRITIC, ACTOR = 1, 2


class Loop:
    """A program without a loader: networks are called, then an optimizer steps."""

    def __init__(self) -> None:
        self.steps = StepFollower(lambda _index: None, lambda: None)
        self.steps.related = lambda _key, _ends: (
            False
        )  # what the other optimizer works on is not called before its own turn
        for key in "ab":
            self.steps.made_optimizer(key)

    def step(self, key: str, *networks: int) -> None:
        for network in networks:
            self.steps.turns_taken.networks.add(network)
            self.steps.forward()
            self.steps.forward_end()
        self.steps.backward()
        self.steps.backward_end()
        self.steps.optimizer(key)
        self.steps.optimizer_end(key)

    def count(self) -> int:
        self.steps.exit()
        return self.steps.count


@pytest.mark.parametrize(("epochs", "size"), [(4, 8), (10, 50), (2, 2)])
def test_each_step_of_trainings_that_take_turns_of_epochs_is_one(epochs: int, size: int) -> None:
    """Once 40 of 64 were counted, and 802 of 1,000."""
    loop = Loop()
    for _ in range(epochs):
        for key, network in (("a", 1), ("b", 2)):
            for _ in range(size):
                loop.step(key, network)
    assert loop.count() == 2 * epochs * size


@pytest.mark.parametrize("critics", [2, 5, 11])
def test_the_critics_steps_of_the_first_round_are_none_of_their_own(critics: int) -> None:
    """Which optimizer ends a round shows only at its first step: 12 rounds were 17 steps."""
    loop = Loop()
    for _ in range(12):
        for _ in range(critics):
            loop.step("a", CRITIC)
        loop.step("b", ACTOR, CRITIC)
    assert loop.count() == 12


def test_several_steps_of_both_in_a_round_that_share_a_network() -> None:
    """Two of the generator's after five of the critic's: what is called for both makes them a training, not two."""
    loop = Loop()
    for _ in range(10):
        for _ in range(5):
            loop.step("a", CRITIC)
        for _ in range(2):
            loop.step("b", ACTOR, CRITIC)
    assert loop.count() < 10 * 7


def test_a_first_stage_is_not_taken_for_a_part_of_the_first_round() -> None:
    """Twenty steps of the critic alone, then rounds with three of its own each."""
    loop = Loop()
    for _ in range(20):
        loop.step("a", CRITIC)
    for _ in range(10):
        loop.step("b", ACTOR, CRITIC)
        for _ in range(3):
            loop.step("a", CRITIC)
    assert loop.count() == 30


def test_a_new_optimizer_with_the_key_of_one_that_is_gone_has_a_history_of_its_own() -> None:
    loop = Loop()
    for _ in range(3):
        loop.step("a", 1)
    for _ in range(3):
        loop.step("b", 2)
    loop.steps.made_optimizer("a")
    loop.step("a", 2)
    assert not loop.steps.turns_taken.apart("a", "b")
