"""Lets a program run almost bare while it waits for its capture window: only the end of each optimizer step is followed.

Once steps have repeated by one plain rule (one optimizer, which steps once in each), its end alone tells steps apart. So far from
the window everything that runs in each step (module calls, backward, zero_grad) has its own code back, and of a batch only the time
is noted (fetches). All of it returns two steps before the window, or as soon as something happens that the rule does not cover.

While resting, a step lasts from one end of the optimizer's step to the next; its length is the same as from forward to forward.
A step with ``Module.eval`` or a new pass over a loader is not timed: it may contain an evaluation. One without either is.
"""

from __future__ import annotations

import threading
from typing import Any

from .borders import Borders
from .calls import ModuleCalls
from .interrupts import shielded
from .output import Output
from .patch import Patch, Patcher
from .phase_ranges import Phases
from .probe_bounds import FIRST_COMPARED_STEPS, RESTING_AHEAD, RESTING_SETTLED
from .settings_state import asked


class Resting:
    """``on``: the probe rests. ``possible``: it may rest later, because a window is awaited."""

    def __init__(self, torch: Any, out: Output, borders: Borders, phases: Phases, calls: ModuleCalls) -> None:
        self.out = out
        self.steps, self.clock, self.window = borders.steps, borders.clock, borders.window
        self._evaluations, self._untrained = borders.settings.evaluations, borders.settings.untrained
        self.phases = phases
        self.calls = calls
        self.on = False
        self.possible = borders.timing is None and (self.window.two or self.window.first is not None)
        self._task = torch._C._current_graph_task_id
        self._patcher: Patcher | None = None
        self._removed: list[Patch] = []
        self._alike = 0  # settled steps in a row
        self._last = -1  # the step whose optimizer stepped last
        self._driver: int | None = None
        self._key: object = None  # the optimizer that ends steps
        self._depth = 0  # open calls of optimizers: a scaler's step holds that of its optimizer
        self._interrupted = False  # the open step may contain an evaluation
        self._compares = self._apart = 0  # weights are compared from that step on, and again so many steps later

    def arm(self, patcher: Patcher) -> None:
        """Note whose functions get their own code back."""
        self._patcher = patcher

    def stop(self) -> None:
        """End the rest for good; no code is exchanged any more."""
        self.on = self.possible = False
        self._removed = []

    def interrupted(self, _first: Any = None) -> None:
        """Note that the open step may contain an evaluation, so its length is not that of a step."""
        self._interrupted = True

    def evaluates(self, network: Any) -> None:
        """A network is put into evaluation mode: what the first evaluation is given is looked at, so that its calls are followed."""
        self.interrupted()
        try:
            if self.on and not self._evaluations.rows and threading.get_ident() == self._driver:
                self.wake()
        except BaseException as error:
            self.out.fail("resting", error)

    # ---- the optimizer's step ---------------------------------------------------------------------------------------

    def enters(self, optimizer: Any) -> bool:
        """Return whether an optimizer's step that begins while resting is one that ends a step, or is inside of one.

        If not, everything is followed again.
        """
        try:
            this_thread = threading.get_ident()
            if this_thread != self._driver:
                if this_thread == threading.main_thread().ident:  # it will drive from here on
                    self.wake()
                return False
            if not self._depth and (id(optimizer) != self._key or self._task() != -1):
                if self.steps.done:  # its forward and backward were not seen, but are work of the next step
                    self.steps.next()
                self.wake()
                return False
            self._depth += 1
            return True
        except BaseException as error:
            return bool(self.out.fail("resting", error))

    @shielded
    def leaves(self) -> None:
        """Count the step that ends with this optimizer's step."""
        try:
            self._depth -= 1
            if self._depth:
                return
            steps = self.steps
            followed = steps.is_open and not steps.done  # a loader's new pass has begun this step already
            steps.index += not followed
            steps.is_open = steps.worked = True
            steps.done = 1
            following = steps.index + 1
            dropped, self._interrupted = followed or self._interrupted, False
            if dropped or (following >= self._compares and self._compare(following)):
                self.clock.stop()
            self.clock.begin(following, event=self.window.near(following))
            if self.window.comes(following, RESTING_AHEAD) or dropped or steps.pending:
                self.wake()
        except BaseException as error:
            self.out.fail("resting", error)

    def _compare(self, following: int) -> bool:
        """Have weights compared, ever more rarely; return whether that took time of the step."""
        self._apart *= 2
        self._compares = following + self._apart
        return bool(asked(self._untrained.look))

    # ---- to rest and to wake ----------------------------------------------------------------------------------------

    def look(self) -> None:
        """After an optimizer's step that was followed: rest if steps have settled and the window is far."""
        try:
            thread = self.out.thread
            if threading.get_ident() != self.phases.driver or thread.phases or thread.open:
                return
            steps = self.steps
            index, before = steps.index, self._last
            if self.window.cold:
                return
            if self.window.comes(index + 1, RESTING_AHEAD):
                self.possible = self.window.two
                return
            self._last = index
            self._alike = self._alike + 1 if index == before + 1 and self._settled() else 0
            if self._alike >= RESTING_SETTLED:
                self._rest()
        except BaseException as error:
            self.out.fail("resting", error)

    def _settled(self) -> bool:
        """Return whether the open step was one optimizer's one step, and followed the step before without a gap."""
        steps = self.steps
        return steps.done == 1 and steps.alone and steps.closed_by == "border" and not self.phases.has_graphs

    def _rest(self) -> None:
        patcher = self._patcher
        if patcher is None:
            return
        self._driver, self._key = self.phases.driver, self.steps.key
        self._depth, self._interrupted = 0, False
        following = self.steps.index + 1
        self._apart = FIRST_COMPARED_STEPS
        self._compares = following + self._apart
        self.clock.move()
        self.clock.begin(following, event=self.window.near(following))
        self._removed = [p for p in patcher.patches if p.each_step and p.function.__code__ is p.new]
        self.on = True
        for patch in self._removed:
            patch.off()

    def wake(self) -> None:
        """Follow everything again."""
        if not self.on:
            return
        for patch in self._removed:
            patch.on_again()
        self.calls.use()
        self.clock.stop()
        self.steps.expected = set(self.steps.pending)
        self._alike = 0
        self.on = False  # last: if a signal's exception came before, the next step wakes
