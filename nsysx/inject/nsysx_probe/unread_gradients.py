"""Which networks get gradients in a step that nothing reads: they are reset, or left, before an optimizer that holds them steps.

A critic's loss on what a generator made, without ``detach()``, runs the generator's backward for nothing. Of each network a few
parameters are looked at: whether they have a gradient, and how often it was written. No value is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import settings_objects
from .probe_bounds import FIRST_PARAMETERS, MOST_HELD_PARAMETERS


class UnreadGradients:
    """Of one step. ``unread``: class of a network -> numbers of the backwards, from 0, whose gradients nothing read."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._parameters: dict[int, tuple[str, list[Any]]] = {}  # of each network
        self._trained: dict[int, list[Any]] = {}  # all of them
        self._before: dict[int, list[tuple[int, int]]] = {}
        self._resets: dict[int, list[tuple[int, int]]] | None = None  # before the last reset
        self._written: dict[int, list[int]] = {}  # backwards that wrote gradients which nothing has read so far
        self.backwards = 0
        self.unread: dict[str, list[int]] = {}

    def network(self, module: Any) -> None:
        """Note a network that is called."""
        with self._torch._C.DisableTorchFunction():
            given = [p for p, _ in zip(_trained(module), range(MOST_HELD_PARAMETERS))]  # noqa: B905 - Python 3.9
        if given and id(module) not in self._parameters:
            self._parameters[id(module)] = (type(module).__name__, given[:FIRST_PARAMETERS])
            self._trained[id(module)] = given

    def begins(self) -> None:
        """A backward begins."""
        self._look_for_reset()
        self._before = self._state()

    def ended(self) -> None:
        """A backward has ended."""
        for key, state in self._state().items():
            if state != self._before.get(key):
                self._written.setdefault(key, []).append(self.backwards)
        self.backwards += 1

    def zeroes(self) -> None:
        """Gradients are about to be reset; whose, shows later."""
        self._look_for_reset()
        self._resets = self._state()

    def read(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        self._look_for_reset()
        for key in self._held_by(optimizer):
            self._written.pop(key, None)

    def finish(self, optimizers: list[Any]) -> dict[str, list[int]]:
        """Return ``unread``: gradients of networks that no optimizer holds are read by none."""
        kept = {key for each in optimizers for key in self._held_by(each)}
        for key in [k for k in self._written if k not in kept]:
            self._lost(key)
        return self.unread

    def unheld(self, optimizers: list[Any]) -> dict[str, list[int]]:
        """Return class of a network -> numbers of its parameters with gradients that no optimizer reads, and of all that it trains."""
        theirs = {id(p) for each in optimizers for p in settings_objects.parameters_of(each)}
        counted: dict[str, list[int]] = {}
        with self._torch._C.DisableTorchFunction():
            for key, parameters in self._trained.items():
                lost = sum(p.numel() for p in parameters if id(p) not in theirs and p.grad is not None)
                if lost and theirs:
                    row = counted.setdefault(self._parameters[key][0], [0, 0])
                    row[0] += lost
                    row[1] += sum(p.numel() for p in parameters)
        return counted

    def _held_by(self, optimizer: Any) -> list[int]:
        theirs = {id(p) for p in settings_objects.parameters_of(optimizer)}
        return [key for key, (_, given) in self._parameters.items() if any(id(p) in theirs for p in given)]

    def _look_for_reset(self) -> None:
        """Note the gradients that the last reset took: clipping writes them, too, but not between a reset and the next use."""
        if self._resets is not None:
            now = self._state()
            for key in [k for k in self._written if now[k] != self._resets.get(k)]:
                self._lost(key)
        self._resets = None

    def _lost(self, key: int) -> None:
        self.unread.setdefault(self._parameters[key][0], []).extend(self._written.pop(key))

    def _state(self) -> dict[int, list[tuple[int, int]]]:
        """Return of each network's parameters which gradient they have, and how often it was written."""
        with self._torch._C.DisableTorchFunction():
            return {
                key: [(0, 0) if p.grad is None else (p.grad.data_ptr(), p.grad._version) for p in parameters]
                for key, (_, parameters) in self._parameters.items()
            }


def _trained(module: Any) -> Iterator[Any]:
    return (parameter for parameter in settings_objects.parameters_in(module) if parameter.requires_grad)
