"""Which networks get gradients in a step that nothing reads: they are reset, or left, before an optimizer that holds them steps.

A critic's loss on what a generator made, without ``detach()``, runs the generator's backward for nothing. Of each network a few
parameters are looked at: whether they have a gradient, and how often it was written. No value is read.

Gradients have other readers than optimizers: a hook that sends them to other ranks, a flat buffer that they are parts of, a line that
updates weights by hand, one that keeps them for a later sum. Where any of these may be, nothing is called unread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from . import settings_objects
from .probe_bounds import DEEPEST_INPUT, FIRST_PARAMETERS, MOST_HELD_PARAMETERS


class _Touched(NamedTuple):
    """Of a parameter: where its gradient lies (0: none), how often that was written, and how often the parameter itself."""

    gradient: int
    written: int
    weight_written: int


class UnreadGradients:
    """Of one step. Networks are known by their ``id``, backwards by their number in the step, from 0."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._class_of: dict[int, str] = {}
        self._trained: dict[int, list[Any]] = {}  # parameters of each network
        # Parameters in torch's own wrappers, the readers of whose buffers are the optimizers.
        self._wrapped: set[int] = set()
        self._needed: set[int] = set()  # an input of the network needs a gradient: its backward leads there
        self._elsewhere: set[int] = set()  # something else than an optimizer may read gradients
        self._first: dict[int, list[_Touched]] = {}  # of all parameters, before the first backward
        self._before: dict[int, list[_Touched]] = {}
        self._after: dict[int, list[_Touched]] = {}  # the last backward that wrote them
        self._resets: dict[int, list[_Touched]] | None = None  # before the last reset
        self._written: dict[int, list[int]] = {}  # backwards that wrote gradients which nothing has read so far
        self._lost: dict[int, list[int]] = {}
        self._read: set[int] = set()  # an optimizer has stepped by gradients of the step
        self._stepped: set[int] = set()  # an optimizer has stepped by what the step before has left
        self.backwards = 0

    def network(self, module: Any) -> None:
        """Note a network that is called."""
        with self._torch._C.DisableTorchFunction():
            trained = [p for p, _ in zip(_trained(module), range(MOST_HELD_PARAMETERS))]  # noqa: B905 - Python 3.9
        if trained and id(module) not in self._trained:
            self._class_of[id(module)] = settings_objects.class_of(module)
            self._trained[id(module)] = trained
            if settings_objects.wrappers(module):
                self._wrapped.update(map(id, trained))

    def inputs(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note what a network is called with, each time."""
        if id(module) not in self._needed and self._needs_gradient((args, kwargs), DEEPEST_INPUT):
            self._needed.add(id(module))

    def begins(self) -> None:
        """A backward begins."""
        self._look_for_reset()
        self._before = self._states()
        for key in self._trained:
            if key not in self._first:
                self._first[key] = self._of_all(key)

    def ended(self) -> None:
        """A backward has ended."""
        for key, state in self._states().items():
            if state != self._before.get(key):
                self._written.setdefault(key, []).append(self.backwards)
                self._after[key] = state
                if key not in self._elsewhere and self._has_other_readers(key):
                    self._elsewhere.add(key)
        self.backwards += 1

    def zeroes(self) -> None:
        """Gradients are about to be reset; whose, shows later."""
        self._look_for_reset()
        self._resets = self._states()

    def read(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        self._look_for_reset()
        now = self._states()
        for key in self._held_by(optimizer):
            (self._read if key in self._after else self._stepped).add(key)
            if self._written.pop(key, None) and now[key] != self._after.get(key):
                self._elsewhere.add(key)  # scaled, clipped, or put together from several backwards

    def finish(self, optimizers: list[Any]) -> dict[str, list[int]]:
        """Return class of a network -> numbers of the backwards whose gradients nothing read, of its inputs neither.

        Where no optimizer holds a network, something else may: its gradients must have been left as they are from step to step.
        """
        return self._by_class(self._without_reader(optimizers), through=False)

    def weights(self, optimizers: list[Any]) -> dict[str, list[int]]:
        """Return the same of the networks through which a backward may lead to others: of their own weights nothing read the gradients.

        Also those that are left when the step ends, if it began without any, as the next one will, and an optimizer has read others.
        """
        unread = self._by_class(self._without_reader(optimizers), through=True)
        for key in {key for each in optimizers for key in self._held_by(each)}:
            left = self._written.get(key) if key in self._read and key in self._needed else None
            began_empty = not any(before.gradient for before in self._first.get(key, ()))
            if left and began_empty and key not in self._stepped and not self._has_other_readers(key):
                unread.setdefault(self._class_of[key], []).extend(left)
        return unread

    def _without_reader(self, optimizers: list[Any]) -> dict[int, list[int]]:
        kept = {key for each in optimizers for key in self._held_by(each)}
        lost = {key: numbers for key, numbers in self._lost.items() if key in kept}
        if optimizers:
            lost |= {k: numbers for k, numbers in self._written.items() if k not in kept and all(self._left_alone(k))}
        return lost

    def _by_class(self, lost: dict[int, list[int]], *, through: bool) -> dict[str, list[int]]:
        unread: dict[str, list[int]] = {}
        for key, numbers in lost.items():
            if key not in self._elsewhere and (key in self._needed) == through:
                unread.setdefault(self._class_of[key], []).extend(numbers)
        return unread

    def unheld(self, optimizers: list[Any]) -> dict[str, list[int]]:
        """Return class of a network -> numbers of its parameters with gradients that no optimizer reads, and of all that it trains."""
        theirs = {id(p) for each in optimizers for p in settings_objects.parameters_of(each)}
        counted: dict[str, list[int]] = {}
        with self._torch._C.DisableTorchFunction():
            for key, parameters in self._trained.items():
                if not theirs or self._has_other_readers(key):
                    continue
                lost = [
                    p.numel()
                    for p, alone in zip(parameters, self._left_alone(key))  # noqa: B905 - Python 3.9
                    if alone and id(p) not in theirs
                ]
                if lost:
                    row = counted.setdefault(self._class_of[key], [0, 0])
                    row[0] += sum(lost)
                    row[1] += sum(p.numel() for p in parameters)
        return counted

    def readers(self) -> list[str]:
        """Return the classes of networks whose gradients may be read by something else than an optimizer."""
        with self._torch._C.DisableTorchFunction():
            return sorted({self._class_of[key] for key in self._trained if self._has_other_readers(key)})

    def in_buffers(self) -> list[str]:
        """Return the classes of networks whose gradients are parts of buffers that are none of torch's own wrappers."""
        return sorted({self._class_of[key] for key in self._trained if self._in_buffer(key)})

    def _held_by(self, optimizer: Any) -> list[int]:
        theirs = {id(p) for p in settings_objects.parameters_of(optimizer)}
        return [key for key, trained in self._trained.items() if any(id(p) in theirs for p in trained)]

    def _look_for_reset(self) -> None:
        """Note the gradients that the last reset took: clipping writes them, too, but not between a reset and the next use."""
        if self._resets is not None:
            now = self._states()
            for key in [k for k in self._written if now[k] != self._resets.get(k)]:
                self._lost.setdefault(key, []).extend(self._written.pop(key))
                if self._resets.get(key) != self._after.get(key):
                    self._elsewhere.add(key)  # written or used in between: its weights may have been moved by them
        self._resets = None

    def _left_alone(self, key: int) -> Iterator[bool]:
        """Yield of each parameter whether the step added to its gradient of before, and nothing else touched that or the parameter."""
        first = self._first.get(key)
        for before, now in zip(first or (), self._of_all(key) if first else ()):  # noqa: B905 - Python 3.9
            added = now.written - before.written
            same = now.gradient == before.gradient and now.weight_written == before.weight_written
            yield before.gradient != 0 and same and 0 < added <= self.backwards

    def _has_other_readers(self, key: int) -> bool:
        """Return whether a hook is on a parameter, or gradients are parts of a buffer that is none of torch's own wrappers."""
        with self._torch._C.DisableTorchFunction():
            for parameter in self._trained[key]:
                if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
                    return True
        return self._in_buffer(key)

    def _in_buffer(self, key: int) -> bool:
        """Return whether gradients are parts of a buffer. A wrapper's parameters have their views also where what it wraps is called."""
        with self._torch._C.DisableTorchFunction():
            others = (p for p in self._trained[key] if id(p) not in self._wrapped)
            return any(_is_part(p.grad) for p in others if p.grad is not None)

    def _needs_gradient(self, given: Any, depth: int) -> bool:
        """Return whether a tensor in here needs a gradient; also where that cannot be seen."""
        if given is None or isinstance(
            given, (bool, int, float, complex, str, bytes, self._torch.dtype, self._torch.device)
        ):
            return False
        if isinstance(given, self._torch.Tensor):
            with self._torch._C.DisableTorchFunction():
                return bool(given.requires_grad)
        if type(given) in (tuple, list):
            return depth == 0 or any(self._needs_gradient(each, depth - 1) for each in given)
        if isinstance(given, dict):
            return depth == 0 or any(self._needs_gradient(each, depth - 1) for each in given.values())
        return True

    def _states(self) -> dict[int, list[_Touched]]:
        with self._torch._C.DisableTorchFunction():
            return {key: [_state(p) for p in trained[:FIRST_PARAMETERS]] for key, trained in self._trained.items()}

    def _of_all(self, key: int) -> list[_Touched]:
        with self._torch._C.DisableTorchFunction():
            return [_state(p) for p in self._trained[key]]


def _state(parameter: Any) -> _Touched:
    gradient = parameter.grad
    if gradient is None:
        return _Touched(0, 0, parameter._version)
    return _Touched(gradient.data_ptr(), gradient._version, parameter._version)


def _is_part(gradient: Any) -> bool:
    """Return whether a gradient is a view, or lies in memory that holds more than it."""
    if gradient._base is not None:
        return True
    return bool(gradient.untyped_storage().nbytes() > gradient.numel() * gradient.element_size())


def _trained(module: Any) -> Iterator[Any]:
    return (parameter for parameter in settings_objects.parameters_in(module) if parameter.requires_grad)
