"""Sees whether a program goes over to steps of another kind after its windows, and has more of its time gone to them.

A program may first collect data with its network, or train one network and then another: minutes of steps that both windows were spent
on, and hours of others. So once the windows have closed, optimizers still tell that they step. Those of the recorded kind, and others
over the same weights, change nothing. The time of another kind counts from the last step of the recorded one on. Once it is as long as
all of the recorded kind was, bare steps are timed anew and one more window opens, over steps of the other kind. So a program that trains
for a moment after long inference keeps its windows. Standard library only.
"""

from __future__ import annotations

import time
from typing import Any

from .probe_bounds import LATER_KIND_NS, MOST_LATER_KINDS


class LaterKind:
    """``on``: the windows have closed, and optimizers are looked at. ``begun_ns``: when the steps of the present kind began, 0 before."""

    def __init__(self) -> None:
        self.on = False
        self.begun_ns = 0
        self.left = MOST_LATER_KINDS
        self.earlier: list[dict[str, Any]] = []  # the kinds that were gone over from
        self._recorded: set[int] = set()  # optimizers of the recorded kind
        self._weights: set[int] = set()  # what they work on
        self._others: set[int] = set()  # optimizers of another kind
        self._last_ns = 0  # when the last step of the recorded kind was seen
        self._pauses_ns = 0
        self._ended = False  # that kind has ended for good: there was no optimizer before

    def opens(self, optimizers: list[Any]) -> None:
        """A window opens over steps that these optimizers make; none: over passes of a network."""
        self._recorded = {id(optimizer) for optimizer in optimizers}
        self._weights = {weight for optimizer in optimizers for weight in _weights(optimizer)}
        self._others, self._ended = set(), False

    def begins(self, *, recorded: bool) -> None:
        """Steps of another kind begin; ``recorded``: those before have had their window."""
        now = time.perf_counter_ns()
        if recorded:
            self._last_ns = self._last_ns if self._ended else now
            self._recorded, self._ended = set(), True
        else:
            self.begun_ns = now

    def leaves(self, pauses_ns: int) -> None:
        """The windows have closed, for which the program stood still for ``pauses_ns``."""
        self.on, self._pauses_ns = True, pauses_ns
        if not self._ended:
            self._last_ns = time.perf_counter_ns()

    def made(self, optimizer: Any) -> None:
        """An optimizer was made, perhaps where one that is gone was in memory."""
        self._recorded.discard(id(optimizer))
        self._others.discard(id(optimizer))

    def goes_over(self, optimizer: Any) -> bool:
        """Return whether the step of an optimizer, which begins now, shows that the run's time goes to steps of another kind."""
        now, key = time.perf_counter_ns(), id(optimizer)
        if key not in self._recorded and key not in self._others:
            same = not self._ended and not self._weights.isdisjoint(_weights(optimizer))
            (self._recorded if same else self._others).add(key)
        if key in self._recorded:
            self._last_ns = now
            return False
        if not self._recorded and not self._ended:  # the first step after passes without training
            self._last_ns, self._ended = now, True
        return now - self._last_ns >= max(self._took_ns(), LATER_KIND_NS)

    def come(self, steps: int, rule: str) -> None:
        """Go over: what was recorded so far is an earlier kind."""
        self.earlier.append({"steps": steps, "rule": rule, "ns": self._took_ns()})
        self.on = self._ended = False
        self.left -= 1

    def _took_ns(self) -> int:
        """Return how long the program made steps of the recorded kind."""
        return max(self._last_ns - self.begun_ns - self._pauses_ns, 0)


def _weights(optimizer: Any) -> set[int]:
    groups = getattr(optimizer, "param_groups", ())
    return {id(weight) for group in groups for weight in group["params"]}
