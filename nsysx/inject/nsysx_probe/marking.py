"""Decides what is marked module by module: few steps, which are X-rayed (``xray``), and outside of steps few calls of each network.

A training step repeats the same calls, so the report can infer the modules of an unmarked step from a marked one
(``events/sequence.py``). A window whose end is known has its marked steps there, behind all plain ones, and one at its begin, in case
the program ends before it. Where the end is not known, the first steps are marked until ``REFERENCE_STEPS`` of them had the same shape.
Marking resumes after a step whose shape no marked step had. The shape is what costs nothing to know: the phases and, now and then,
the number of module calls. What runs outside of steps (evaluations, teachers, rollouts) repeats as well, call by call: each network
has its own count.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Optional

from .probe_bounds import (
    MARKING_PATIENCE,
    MARKING_PAUSE,
    MOST_MARKED_STEPS,
    MOST_SHAPES,
    REFERENCE_STEPS,
    SHORT_WINDOW_STEPS,
)

#: Number of module calls, None if they were not counted, and a hash over the phases.
Shape = tuple[Optional[int], int]  # noqa: UP045 - Python 3.9 reads this too


class Learner:
    """Chooses which of many occurrences are marked, so that each shape has its references."""

    def __init__(self, references: int) -> None:
        self._references = references
        self._known: dict[Shape, int] = {}
        self._phases: set[int] = set()
        self._strange: dict[Shape, int] = {}
        self._planned: set[int] = set()
        self._learning = True
        self._left = MARKING_PATIENCE
        self._pause = MARKING_PAUSE
        self._resume = 0

    def plan(self, index: int) -> None:
        """Mark occurrence ``index``, whatever is known until then."""
        self._planned.add(index)

    def wants(self, index: int) -> bool:
        """Return whether occurrence ``index`` should be marked."""
        return self._learning or index in self._planned

    def learn(self, index: int, shape: Shape) -> None:
        """Learn from a marked occurrence."""
        self._planned.discard(index)
        if index:  # the very first one does work that no other does
            self._known[shape] = self._known.get(shape, 0) + 1
            self._phases.add(shape[1])
        self._left -= 1
        if self._known.get(shape, 0) >= self._references or not self._left:
            self._learning = False

    def meet(self, index: int, shape: Shape) -> None:
        """Look at an occurrence without marks: has it a shape that no marked one had?"""
        if shape in self._known or (shape[0] is None and shape[1] in self._phases):
            return
        if len(self._strange) >= MOST_SHAPES:
            self._strange.clear()
        before = self._strange.get(shape)
        self._strange[shape] = index
        if before is not None:  # the shape may recur at regular intervals, as in a step that logs
            self._planned.add(2 * index - before)
        if index >= self._resume:
            self._learning, self._left = True, self._references
            self._resume = index + self._pause
            self._pause *= 2


class Marking:
    """``on``: whether marks should be sent now."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted  # few, all, off
        self.on = wanted != "off"
        self.steps: list[int] = []  # the numbers of the marked steps
        self.unmarked_from: int | None = None  # the first step without marks, in the last window that has one
        self._restarted = False
        self._references = REFERENCE_STEPS
        self._at_end = 0  # so many of a window's last steps are marked
        self._short = False
        self._left: int | None = None  # steps of the window that follow the open one
        self._of_steps = Learner(REFERENCE_STEPS)
        self._of_calls: dict[
            Hashable, tuple[Learner, list[int]]
        ] = {}  # of each network: its learner and number of calls
        self._call: Hashable = None

    def start(self, steps: int | None, long: int | None = None) -> None:
        """Begin a capture of ``steps`` steps (None: open end), and forget what was marked before it. ``long``: a step that will be long."""
        self.steps, self._restarted = [], True
        self._short = steps is not None and steps < SHORT_WINDOW_STEPS
        self._at_end = 1 if self._short else REFERENCE_STEPS
        self._references = 1 if self._short else REFERENCE_STEPS
        self._of_steps = Learner(1 if steps is not None else REFERENCE_STEPS)
        self._of_calls.clear()
        if long is not None:
            self._of_steps.plan(long)

    def _wants(self, index: int) -> bool:
        """Return whether step ``index`` is marked."""
        at_end = self._left is not None and self._left < self._at_end
        return at_end or (not self._short and self._of_steps.wants(index))

    def step_begins(self, index: int, left: int | None = None) -> None:
        """Turn marks on or off for step ``index``, after which so many of the window are ``left`` (None: not known)."""
        self._call, self._left = None, left
        if self.wanted == "few":
            self.on = self._wants(index)
            if not self.on and (self.unmarked_from is None or self._restarted):
                self.unmarked_from, self._restarted = index, False
        if self.on and len(self.steps) < MOST_MARKED_STEPS:
            self.steps.append(index)

    def step_ended(self, index: int, shape: Shape) -> None:
        """Learn from the step that has ended."""
        if self.wanted == "few":
            (self._of_steps.learn if self.on else self._of_steps.meet)(index, shape)

    def call_begins(self, network: Hashable) -> int:
        """Turn marks on or off for a call of a network outside of every step; return its number among that network's calls."""
        learned = self._of_calls.get(network)
        if learned is None:
            if len(self._of_calls) >= MOST_SHAPES:
                self._of_calls.clear()
            learned = self._of_calls[network] = Learner(self._references), [-1]
        learner, number = learned
        number[0] += 1
        self._call = network
        if self.wanted == "few":
            self.on = learner.wants(number[0])
        return number[0]

    def call_ended(self, shape: Shape) -> None:
        """Learn from the call that `call_begins` saw begin, once it has ended."""
        learned = self._of_calls.get(self._call)
        self._call = None
        if learned is not None and self.wanted == "few":
            learner, (number,) = learned
            (learner.learn if self.on else learner.meet)(number, shape)

    def pause(self) -> None:
        """Turn marks on for something that must not be missed (the capture of a CUDA graph)."""
        if self.wanted == "few":
            self.on = True

    def resume(self, index: int) -> None:
        """Return to the marks of step ``index`` after `pause`."""
        if self.wanted == "few":
            self.on = self._wants(index)
