"""Whether steps train on what networks were given between them, row by row: so a rollout is told from an evaluation, however it keeps them.

Between recorded steps some numbers of each row of what a network is given are copied before some of its calls, on the device and with no
wait. Of what networks are given in the last step of a window, which is held until that has closed, as many numbers of each row are compared
with them then. Samples of a data set come again in the next evaluation; those of a rollout are new.
"""

from __future__ import annotations

from typing import Any

from .plain_values import flat
from .probe_bounds import EVALUATED_NUMBERS, FEWEST_BATCH_VALUES, FIRST_EVALUATED, MOST_EVALUATED
from .program_modes import looked_on


class GivenRows:
    """``rows``: of each window that could tell, ``calls`` of the last time between steps, ``share``: of the rows that the step behind it
    was given so much had been given to these calls, as far as they were looked at; ``again``: of their rows, so much had been given to
    those of the time before, too.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.rows: list[dict[str, Any]] = []
        self._runs = False  # networks are called between two steps
        self._calls = 0
        self._parts: list[Any] = []  # some numbers of each row, of the calls that were looked at
        self._before: list[Any] = []

    def step_begins(self) -> None:
        """What is called next between steps is another time."""
        self._runs = False

    def called(self, given: tuple[Any, ...]) -> None:
        """A network is called between two recorded steps, not from inside another one; ``given``: args and kwargs."""
        if not self._runs:
            self._runs, self._calls, self._before, self._parts = True, 0, self._parts, []
        self._calls += 1
        call, torch = self._calls, self.torch
        if len(self._parts) >= MOST_EVALUATED or (call > FIRST_EVALUATED and call & (call - 1)):
            return
        if looked_on(torch):
            return
        tensor = next((value for value in flat(given) if type(value) is torch.Tensor), None)
        if tensor is None or not self._tells(tensor):
            return
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        with torch._C.DisableTorchFunction(), torch.no_grad():
            self._parts.append(_some_of_rows(tensor).clone())

    def window_closed(self, held: list[Any]) -> None:
        """Compare what the last step was given, ``held``, with what was given before it. The devices have rested."""
        parts, before, calls = self._parts, self._before, self._calls
        self._parts, self._before, self._runs = [], [], False
        tensor = next((each for each in held if type(each) is self.torch.Tensor and self._tells(each)), None)
        if tensor is None or not parts or not before:
            return
        if tensor.is_cuda and not self.torch.cuda.current_stream(tensor.device).query():
            return
        with self.torch._C.DisableTorchFunction(), self.torch.no_grad():
            step, now, then = _each([_some_of_rows(tensor)]), _each(parts), _each(before)
        if len(set(now)) < FEWEST_BATCH_VALUES or not step:
            return
        share = sum(row in set(now) for row in step) / len(step)
        again = sum(row in set(then) for row in now) / len(now)
        looked_at = len(parts) / calls
        self.rows.append({"calls": calls, "share": round(min(share / looked_at, 1.0), 3), "again": round(again, 3)})

    def _tells(self, tensor: Any) -> bool:
        """Return whether a tensor has rows of numbers that can be read."""
        plain = tensor.layout == self.torch.strided and not tensor.is_complex() and not tensor.is_quantized
        return plain and tensor.device.type in ("cpu", "cuda") and tensor.dim() > 1 and tensor.numel() > 0


def _some_of_rows(tensor: Any) -> Any:
    """Return some columns of the first rows: the same of tensors whose rows have the same shape."""
    rows = tensor.detach()[:EVALUATED_NUMBERS].flatten(1)
    return rows[:, :: -(-rows.shape[1] // EVALUATED_NUMBERS)]


def _each(parts: list[Any]) -> list[Any]:
    """Return the rows of all parts, each with the kind of its numbers."""
    return [(str(part.dtype), tuple(row)) for part in parts for row in part.cpu().tolist()]
