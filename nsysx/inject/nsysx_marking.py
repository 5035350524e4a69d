"""Decides which steps are marked module by module. The others carry their step and phases only, and cost next to nothing.

A training step repeats the same calls, so the reader can tell the modules of a step without marks from one with them
(``events/sequence.py``). Marked are the first steps, up to the point where ``REFERENCES`` of one shape have been marked,
and again when a step had a shape that no marked step had. The shape is what can be had for nothing: the phases, and, now and
then, the number of module calls. What lies outside of steps is always marked: it is not repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

#: Steps of one shape that are marked: one to learn from, one to check it, and the first pays for caches besides.
REFERENCES = 3
#: In a capture window of fewer steps than this only one is marked, or too few would run freely.
SHORT_WINDOW = 8
#: Marked steps after which marking ends although no two of them were alike.
PATIENCE = 6
#: Steps without marks before an unknown shape turns them on again; doubled each time, so that a program whose steps are
#: never alike pays for marks in ever fewer of them.
FIRST_PAUSE = 8
_MOST_SHAPES = 1_000
#: Number of module calls, None where they were not counted, and a hash over the phases.
Shape = tuple[Optional[int], int]  # noqa: UP045 - Python 3.9 reads this too

_MOST_STEPS = 1_000


class Marking:
    """``on`` says whether marks go out now. ``switch(on)`` is called when that changes."""

    def __init__(self, wanted: str, switch: Callable[[bool], None]) -> None:
        self.wanted = wanted  # few, all, off
        self.on = wanted != "off"
        self.steps: list[int] = []  # the numbers of the marked steps
        self.unmarked_from: int | None = None  # the first one without marks
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
        """A capture of so many steps begins: what was marked before is not in it."""
        self.steps = []
        self._start(1 if steps is not None and steps < SHORT_WINDOW else REFERENCES)

    def step_begins(self, index: int) -> None:
        """Turn marks on or off for this step."""
        if self.wanted == "few":
            self._turn(self._learning or index in self._planned)
            if not self.on and self.unmarked_from is None:
                self.unmarked_from = index
        if self.on and len(self.steps) < _MOST_STEPS:
            self.steps.append(index)

    def step_ended(self, index: int, shape: Shape, border: bool) -> None:
        """Learn from the step that has ended. ``border``: the next one begins at once."""
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
        if index:  # the very first step does work that no other does
            self._known[shape] = self._known.get(shape, 0) + 1
            self._phases.add(shape[1])
        self._left -= 1
        if self._known.get(shape, 0) >= self._references or not self._left:
            self._learning = False

    def _meet(self, index: int, shape: Shape) -> None:
        """A step without marks had a shape that no marked one had."""
        if len(self._strange) >= _MOST_SHAPES:
            self._strange.clear()
        before = self._strange.get(shape)
        self._strange[shape] = index
        if before is not None:  # it may come at regular distances, as a step that logs does
            self._planned.add(2 * index - before)
        if index >= self._resume:
            self._learning, self._left = True, self._references
            self._resume = index + self._pause
            self._pause *= 2

    def pause(self) -> None:
        """Marks go on for something that must not be missed (a capture of a CUDA graph)."""
        if self.wanted == "few":
            self._turn(True)

    def resume(self, index: int) -> None:
        """That is over."""
        if self.wanted == "few":
            self._turn(self._learning or index in self._planned)

    def _turn(self, on: bool) -> None:
        if on != self.on:
            self.on = on
            self._switch(on)
