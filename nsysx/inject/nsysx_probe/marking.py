"""Decides which steps are marked module by module. The other steps carry only their step and phases, at almost no cost.

A training step repeats the same calls, so the report can infer the modules of an unmarked step from a marked one
(``events/sequence.py``). The first steps are marked until ``REFERENCES`` of them had the same shape, and marking resumes after a
step whose shape no marked step had. The shape is what costs nothing to know: the phases and, now and then, the number of module
calls. What runs outside of steps is always marked, because it does not repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

#: Marked steps of one shape: one to learn from, one to check it, and the first one, which also fills caches.
REFERENCES = 3
#: In a capture window of fewer steps than this, only one is marked; otherwise too few would run without marks.
SHORT_WINDOW = 8
#: Marking ends after this many marked steps even if no shape came up often enough.
PATIENCE = 6
#: Least number of steps before another unknown shape turns marks on again. It doubles each time, so that a program whose steps
#: are never alike pays for marks in fewer and fewer of them.
FIRST_PAUSE = 8
_MOST_SHAPES = 1_000
#: Number of module calls, None if they were not counted, and a hash over the phases.
Shape = tuple[Optional[int], int]  # noqa: UP045 - Python 3.9 reads this too

_MOST_STEPS = 1_000


class Marking:
    """``on``: whether marks are sent now. ``switch(on)`` is called when that changes."""

    def __init__(self, wanted: str, switch: Callable[[bool], None]) -> None:
        self.wanted = wanted  # few, all, off
        self.on = wanted != "off"
        self.steps: list[int] = []  # the numbers of the marked steps
        self.unmarked_from: int | None = None  # the first step without marks
        self._switch = switch
        self._start(REFERENCES)

    def _start(self, references: int) -> None:
        self._references = references
        self._known: dict[Shape, int] = {}
        self._phases: set[int] = set()
        self._strange: dict[Shape, int] = {}
        self._planned: set[int] = set()
        self._learning = True
        self._left = PATIENCE
        self._pause = FIRST_PAUSE
        self._resume = 0

    def start(self, steps: int | None) -> None:
        """Begin a capture of ``steps`` steps (None: open end), and forget what was marked before it."""
        self.steps = []
        self._start(1 if steps is not None and steps < SHORT_WINDOW else REFERENCES)

    def step_begins(self, index: int) -> None:
        """Turn marks on or off for step ``index``."""
        if self.wanted == "few":
            self._turn(self._learning or index in self._planned)
            if not self.on and self.unmarked_from is None:
                self.unmarked_from = index
        if self.on and len(self.steps) < _MOST_STEPS:
            self.steps.append(index)

    def step_ended(self, index: int, shape: Shape, border: bool) -> None:
        """Learn from the step that has ended. ``border``: the next one begins immediately."""
        if self.wanted != "few":
            return
        if self.on:
            self._learn(index, shape)
        elif shape not in self._known and (shape[0] is not None or shape[1] not in self._phases):
            self._meet(index, shape)
        if not border:
            self._turn(True)

    def _learn(self, index: int, shape: Shape) -> None:
        self._planned.discard(index)
        if index:  # the very first step does work that no other step does
            self._known[shape] = self._known.get(shape, 0) + 1
            self._phases.add(shape[1])
        self._left -= 1
        if self._known.get(shape, 0) >= self._references or not self._left:
            self._learning = False

    def _meet(self, index: int, shape: Shape) -> None:
        """Handle a step without marks whose shape no marked step had."""
        if len(self._strange) >= _MOST_SHAPES:
            self._strange.clear()
        before = self._strange.get(shape)
        self._strange[shape] = index
        if before is not None:  # the shape may recur at regular intervals, as in a step that logs
            self._planned.add(2 * index - before)
        if index >= self._resume:
            self._learning, self._left = True, self._references
            self._resume = index + self._pause
            self._pause *= 2

    def pause(self) -> None:
        """Turn marks on for something that must not be missed (the capture of a CUDA graph)."""
        if self.wanted == "few":
            self._turn(True)

    def resume(self, index: int) -> None:
        """Return to the marks of step ``index`` after `pause`."""
        if self.wanted == "few":
            self._turn(self._learning or index in self._planned)

    def _turn(self, on: bool) -> None:
        if on != self.on:
            self.on = on
            self._switch(on)
