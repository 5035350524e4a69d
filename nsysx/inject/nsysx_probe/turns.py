"""How several optimizers take turns: what is one round of them, and what are trainings of their own. No torch, no NVTX."""

from __future__ import annotations

from typing import Any


class _Turn:
    """How an optimizer steps: how often in all, in a row now and at most, and after which networks' calls."""

    def __init__(self) -> None:
        self.steps = self.row = self.longest = 0
        self.networks: set[int] = set()


class Turns:
    """``networks``: the ids of those that were called since the last step of an optimizer."""

    def __init__(self) -> None:
        self.networks: set[int] = set()
        self._of: dict[Any, _Turn] = {}
        self._last: object = None
        # Steps before the first of the optimizer that ends rounds, and steps of optimizers in them.
        self._first_round: tuple[int, int] | None = None

    def forget(self, key: object) -> None:
        """A new optimizer has the key of one that is gone."""
        self._of.pop(key, None)

    def take(self, key: object) -> None:
        """Note that this optimizer has stepped."""
        turn = self._of.setdefault(key, _Turn())
        turn.row = turn.row + 1 if key == self._last else 1
        turn.steps += 1
        turn.longest = max(turn.longest, turn.row)
        turn.networks |= self.networks
        self._last, self.networks = key, set()

    def apart(self, key: object, ends: object) -> bool:
        """Return whether two optimizers are trainings of their own, so that each step of either is one.

        Both have stepped several times in a row, and no network was called for both. A critic's steps and that of a generator, which
        calls the critic, are a round.
        """
        turn, other = self._of.get(key), self._of.get(ends)
        if turn is None or other is None or min(turn.longest, other.longest) < 2:
            return False
        return bool(turn.networks and other.networks) and turn.networks.isdisjoint(other.networks)

    def begin_rounds(self, steps: int) -> None:
        """From here on the optimizer that has just stepped for the first time ends rounds; ``steps`` were counted before it."""
        self._first_round = (steps, sum(turn.steps for turn in self._of.values()) - 1)

    def first_round(self, others: int) -> int:
        """Return how many steps the first round was counted as too many, once it is known how often others step in one: ``others``."""
        steps, turns = self._first_round or (0, -1)
        self._first_round = None
        return steps if turns == others else 0
