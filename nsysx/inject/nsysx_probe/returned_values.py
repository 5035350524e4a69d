"""Which functions of the program return the same in each X-rayed step: what they make on the CPU could be made once.

Where a function of the user's own files returns, on the thread that drives the steps, some numbers of what it returns are looked at: of
arrays of numpy, tensors on the CPU, and lists of these, of numbers and of text. Nothing is held and nothing waits; no operator of torch
runs. A function that returns anything else, such as a tensor on the GPU, is not told of, and neither is one whose numbers are few or all
alike: these are the same by chance.
"""

from __future__ import annotations

import inspect
import sys
import time
from types import CodeType, FrameType
from typing import Any

from .plain_values import PLAIN
from .probe_bounds import (
    FEWEST_BATCH_VALUES,
    MOST_BATCH_NUMBERS,
    MOST_RETURNED,
    MOST_RETURNING,
    MOST_SPARSE_NUMBERS,
    RETURNED_MOST_NS,
)
from .program_modes import looked_on

#: Generators, coroutines and asynchronous generators give what they return piece by piece; ``*args`` and ``**kwargs``.
_IN_PIECES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_STARRED = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
#: Types of torch that can be keys of a cache, as plain values are.
_NAMED = ("torch.device", "torch.dtype")


class _UnreadableError(Exception):
    """What a function returns does not say what it is."""


class _Function:
    """What one function has returned: a sum for each step. ``steps``: pairs of a step and its sum; ``calls`` of the open step."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.known = not code.co_flags & _IN_PIECES
        self.plain = not code.co_flags & _STARRED  # it was called with what can be a key
        self.steps: list[list[int]] = []
        self.sum = self.calls = 0


class ReturnedValues:
    """Follows the X-rayed steps of all windows."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self._functions: dict[int, _Function] = {}
        self._step: int | None = None
        self._took_ns = 0

    def begin(self, step: int) -> None:
        """An X-rayed step begins."""
        self.end()
        self._step, self._took_ns = step, 0

    def end(self) -> None:
        """It has ended: of the functions that returned in it the sums are kept."""
        step, self._step = self._step, None
        if step is None:
            return
        for function in self._functions.values():
            if function.calls:
                function.steps.append([step, function.sum, function.calls])
            function.sum = function.calls = 0

    def returned(self, frame: FrameType, value: Any) -> None:
        """A function of the program returns a value on the thread that drives the steps."""
        code = frame.f_code
        if self._step is None:
            return
        function = self._functions.get(id(code))
        if function is None:
            if len(self._functions) >= MOST_RETURNING:
                return
            function = self._functions[id(code)] = _Function(code)
        if not function.known:
            return
        if function.calls >= MOST_RETURNED or self._took_ns > RETURNED_MOST_NS or looked_on(self.torch):
            function.known = False
            return
        begin = time.perf_counter_ns()
        try:
            numbers, forms = self._sampled(value, MOST_BATCH_NUMBERS)
            if len(numbers) >= FEWEST_BATCH_VALUES and len(set(numbers)) < 2:
                numbers, forms = self._sampled(value, MOST_SPARSE_NUMBERS)
            if len(numbers) < FEWEST_BATCH_VALUES or len(set(numbers)) < 2:
                function.known = False
            if not function.calls:
                function.plain = function.plain and _can_be_keys(frame)
            function.sum = hash((function.sum, *forms, *("nan" if each != each else each for each in numbers)))
            function.calls += 1
        except (_UnreadableError, RecursionError):  # a list may hold itself
            function.known = False
        self._took_ns += time.perf_counter_ns() - begin

    def rows(self, path: Any) -> list[dict[str, Any]]:
        """Return the functions that returned the same in all steps in which they ran, of several, for the probe file."""
        rows = []
        for function in self._functions.values():
            code, steps = function.code, function.steps
            alike = len({(total, calls) for _, total, calls in steps}) == 1
            if function.known and alike and len(steps) > 1:
                row = {"file": path(code), "line": code.co_firstlineno, "plain": function.plain}
                row["function"] = getattr(code, "co_qualname", code.co_name)
                rows.append({**row, "calls": steps[0][2], "steps": [step for step, _, _ in steps]})
        return rows

    def _sampled(self, value: Any, most: int) -> tuple[list[Any], list[Any]]:
        """Return so many numbers of a value, and the types and sizes of its parts. Raises _UnreadableError as ``_read`` does."""
        numbers: list[Any] = []
        forms: list[Any] = []
        self._read(value, most, numbers, forms)
        return numbers, forms

    def _read(self, value: Any, most: int, numbers: list[Any], forms: list[Any]) -> None:
        """Add some numbers of a value, of each of its parts at least one, and its types and sizes to ``forms``.

        Raises _UnreadableError where it does not say what it is.
        """
        kind = type(value)
        if value is None:
            forms.append(value)
        elif kind is str:
            forms.append(len(value))
            numbers += value[:: _apart(len(value), most)]
        elif kind in PLAIN:
            numbers.append(value)
        elif kind in (list, tuple):
            forms.append(len(value))
            parts = value[:: _apart(len(value), most)]
            for each in parts:
                self._read(each, max(most // len(parts), 1), numbers, forms)
        elif kind is dict:
            self._read(list(value), most, numbers, forms)
            self._read(list(value.values()), most, numbers, forms)
        else:
            array = self._as_array(value)
            forms += [str(array.dtype), *array.shape]
            numbers += array.flat[:: _apart(array.size, most)].tolist()

    def _as_array(self, value: Any) -> Any:
        """Return an array, or a tensor on the CPU as one. Raises _UnreadableError for anything else."""
        numpy, torch = sys.modules.get("numpy"), self.torch
        if type(value) is getattr(torch, "Tensor", None):
            plain = value.layout == torch.strided and value.device.type == "cpu" and not value.requires_grad
            if not plain or value.is_conj() or value.is_neg():
                raise _UnreadableError
            try:
                value = value.numpy()
            except (RuntimeError, TypeError) as error:  # a type that numpy does not have
                raise _UnreadableError from error
        if numpy is None or type(value) is not numpy.ndarray or value.dtype.kind not in "biufc":
            raise _UnreadableError
        return value


def _apart(count: int, most: int) -> int:
    """Return how far apart lie the numbers that are looked at: oddly far, so that not all of them are of one column."""
    return max(-(-count // most), 1) | (count > most)


def _can_be_keys(frame: FrameType) -> bool:
    """Return whether a function was called with plain values alone, as far as its parameters still have them."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    local = frame.f_locals
    return all(name in local and _can_be_key(local[name]) for name in names)


def _can_be_key(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_can_be_key, value))
    kind = type(value)
    return kind in PLAIN or f"{kind.__module__}.{kind.__name__}" in _NAMED
