"""Steps of a program that calls no network: calls of modules without parameters, launches of Triton's kernels, rounds of its main loop.

A search, a solver or a transform may be a module with buffers alone, or without anything. Called again and again outside of all else, it
is what the program does, and is followed as a network is (``call_periods``). Where there are networks, such modules are their helpers
(metrics, transforms, activations), and so are launches: from the first network, backward, optimizer or graph on they make no steps,
and those that they made were none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import Any

from .interrupts import shielded
from .output import Output
from .qualified_names import ModuleEntry
from .step_follower import StepFollower


class SoleWork:
    """``drives()`` tells whether this thread's calls make steps; ``unfollow_launches()`` ends that those of Triton are told."""

    def __init__(
        self,
        torch: Any,
        out: Output,
        steps: StepFollower,
        drives: Callable[[], bool],
        unfollow_launches: Callable[[], object],
    ) -> None:
        self.torch = torch
        self.out = out
        self.steps = steps
        self._drives = drives
        self._unfollow_launches = unfollow_launches
        self._running = False
        self._has_begun = self._over = False
        self._by_rounds = False  # the main loop's rounds make steps

    def give_way(self) -> None:
        """Something is about to run beside which such work is that of a helper, such as a network."""
        if self._over:
            return
        self._over = True
        if self._has_begun:
            self.steps.network_comes()

    def enter_module(self, entry: ModuleEntry) -> bool:
        """A module without parameters is about to be called outside of every network; return whether ``leave`` has to follow."""
        if self._is_over() or self._by_rounds:
            entry.unfollow()
            return False
        return self._enter((entry.path, entry.cls))

    def enter_launch(self, kernel: Any) -> bool:
        """A kernel of Triton is about to be launched; return whether ``leave`` has to follow."""
        if self._is_over() or self._by_rounds:
            self._unfollow_launches()
            return False
        return self._enter(id(kernel))

    def has_other_steps(self, *, loop: bool) -> bool:
        """Return whether something makes steps beside which rounds of a loop are none; ``loop``: such rounds have made some."""
        return self._is_over() or (not loop and self.steps.index >= 0 and not self._by_rounds)

    def round(self, what: Hashable, source_line: list[Any], *, anew: bool) -> None:
        """A round of the main loop begins, which is in file and line ``source_line``; ``anew``: those before were of another loop."""
        if self.has_other_steps(loop=self._by_rounds):
            return
        if anew:
            self.steps.restart()
        self._by_rounds = True
        if self._enter(what):
            self.steps.loop = source_line
            self.leave()

    @shielded
    def leave(self) -> None:
        """The module has returned, or the kernel is launched."""
        self._running = False
        if not self._over:
            self.steps.forward_end()

    def _is_over(self) -> bool:
        return self._over or self.steps.trains or self.steps.user

    def _enter(self, what: Hashable) -> bool:
        thread = self.out.thread
        if self._running or thread.phases or thread.open or self.prepares() or not self._drives():
            return False
        self._has_begun = True
        self.steps.forward(False, what)
        self._running = True
        return True

    def prepares(self) -> bool:
        """Return whether this process only prepares data: it is a DataLoader's worker, or has not used the GPU yet."""
        worker = sys.modules.get("torch.utils.data._utils.worker")
        if getattr(worker, "_worker_info", None) is not None:
            return True
        return self.torch.version.cuda is not None and not self.torch.cuda.is_initialized()
