"""What networks are given in evaluations between steps, as checksums: ranks that all evaluate the same samples are told by it.

Of the first evaluations a few numbers of each tensor are copied before some of their calls, on the device and with no wait, and read when
a window has closed or the program ends: nothing of the program is held meanwhile, so that none of its allocations misses it. Some trained
numbers tell whether the ranks evaluate one network, or each its own. Evaluations run between steps, whose time has none of that.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import islice
from typing import Any

from . import settings_objects
from .changes import place
from .given_rows import GivenRows
from .plain_values import PLAIN, flat
from .probe_bounds import (
    EVALUATED_NUMBERS,
    EVALUATED_WEIGHTS,
    FEWEST_BATCH_VALUES,
    FIRST_EVALUATED,
    MOST_BATCH_TENSORS,
    MOST_EVALUATED,
    MOST_EVALUATIONS,
    MOST_HELD_NETWORKS,
    MOST_ROOT_PARAMETERS,
)
from .program_modes import looked_on
from .settings_state import asked


class _Copied:
    """Some numbers of tensors, copied on their devices, and what is plain beside them."""

    def __init__(self, torch: Any, tensors: list[Any], plain: str) -> None:
        self.torch, self.plain = torch, plain
        with torch._C.DisableTorchFunction(), torch.no_grad():
            self._parts = [(str(t.dtype), list(t.shape), t.detach()[_cuts(t)].clone()) for t in tensors]
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        self._streams = [torch.cuda.current_stream(device) for device in devices]

    def rests(self) -> bool:
        """Return whether the devices have copied them: to read does not wait then."""
        return all(stream.query() for stream in self._streams)

    def checksum(self) -> int | None:
        """Return a checksum, None where no tensor has many different numbers: those are alike by chance."""
        sums, telling = zlib.crc32(self.plain.encode()), False
        with self.torch._C.DisableTorchFunction(), self.torch.no_grad():
            for dtype, shape, part in self._parts:
                numbers = part.cpu().flatten().tolist()
                sums = zlib.crc32(repr([dtype, *shape, *numbers]).encode(), sums)
                telling = telling or len(set(numbers)) >= FEWEST_BATCH_VALUES
        return sums if telling else None


class Evaluations:
    """``rows``: of each network of an evaluation, ``step``, behind which it ran, ``class``, ``place`` of its first call, the number of
    ``calls``, ``rows`` of the first tensor, and ``sums``: a checksum for each call that was looked at, None for one that does not tell.
    ``weights``: one of some trained numbers, ``loader`` the line that makes the loader that began then, each None where there is none.
    ``loader`` returns that for a number of steps. ``given_rows``: whether the steps behind are given the same, which ``held`` returns.
    """

    def __init__(self, torch: Any, loader: Callable[[int], str | None], held: Callable[[], list[Any]] = list) -> None:
        self.torch, self._loader, self._held = torch, loader, held
        self.given_rows = GivenRows(torch)
        self.rows: list[dict[str, Any]] = []
        self._count = 0
        self._open: dict[int, dict[str, Any]] | None = None  # of the evaluation that runs: id of a network -> its row
        self._copied: list[tuple[list[Any], int, _Copied]] = []

    def step_begins(self) -> None:
        """What was called since the last step is one evaluation."""
        self._open = None
        self.given_rows.step_begins()

    def called(self, module: Any, given: tuple[Any, ...], step: int, *, recorded: bool = False) -> None:
        """A network is called to evaluate, not from inside another one, behind ``step``; ``given``: args and kwargs."""
        if recorded:
            self.given_rows.called(given)
        if self._open is None:
            if self._count >= MOST_EVALUATIONS:
                return
            self._count += 1
            self._open = {}
        row = self._open.get(id(module))
        if row is None:
            if len(self._open) >= MOST_HELD_NETWORKS:
                return
            row = self._row(module, step)
        row["calls"] += 1
        call, sums = row["calls"], row["sums"]
        # The first calls, and fewer and fewer of the others: parts of ranks may begin alike.
        if len(sums) >= MOST_EVALUATED or (call > FIRST_EVALUATED and call & (call - 1)):
            return
        sums.append(None)
        values = list(flat(given))
        tensors = [value for value in values if type(value) is self.torch.Tensor]
        with self.torch._C.DisableTorchFunction():  # a mode of the program's sees no question of ours
            if tensors and tensors[0].dim():
                row["rows"] = row["rows"] or int(tensors[0].shape[0])
            readable = all(isinstance(value, PLAIN) or self._readable(value) for value in values)
        if readable:
            self._copy(sums, tensors, repr([value for value in values if isinstance(value, PLAIN)]))

    def window_closed(self) -> None:
        """Read what the devices have copied by now."""
        self.given_rows.window_closed(self._held())
        waiting = []
        for copied in self._copied:
            values, index, numbers = copied
            if asked(numbers.rests) is False:
                waiting.append(copied)
            else:
                values[index] = asked(numbers.checksum)
        self._copied = waiting

    def record(self) -> list[dict[str, Any]]:
        """Return the rows, with what is known of the weights by now."""
        return [{**row, "weights": row["weights"][0]} for row in self.rows]

    def _row(self, module: Any, step: int) -> dict[str, Any]:
        row: dict[str, Any] = {
            "step": step,
            "class": settings_objects.class_of(module),
            "place": place(),
            "calls": 0,
            "rows": None,
            "sums": [],
            "weights": [None],
            "loader": self._loader(step + 1),
        }
        assert self._open is not None
        self._open[id(module)] = row
        self.rows.append(row)
        weights = list(islice(settings_objects.parameters_in(module), MOST_ROOT_PARAMETERS))
        weights = [each for each in weights if each.requires_grad] or weights
        chosen = weights[:: max(1, len(weights) // EVALUATED_WEIGHTS)] + weights[-1:]  # the head may be each rank's own
        if chosen and all(type(each) is self.torch.nn.Parameter and self._lies_here(each) for each in chosen):
            self._copy(row["weights"], chosen, "")
        return row

    def _copy(self, values: list[Any], tensors: list[Any], plain: str) -> None:
        """Copy some numbers, whose checksum becomes the last of ``values``; not into a CUDA graph, nor under a mode of the program's."""
        torch = self.torch
        if len(tensors) > MOST_BATCH_TENSORS or looked_on(torch):
            return
        if any(tensor.is_cuda for tensor in tensors) and torch.cuda.is_current_stream_capturing():
            return
        self._copied.append((values, len(values) - 1, _Copied(torch, tensors, plain)))

    def _readable(self, value: Any) -> bool:
        return type(value) is self.torch.Tensor and self._lies_here(value)

    def _lies_here(self, tensor: Any) -> bool:
        """Return whether a tensor has numbers, and is this rank's whole one."""
        return (
            tensor.layout == self.torch.strided
            and tensor.device.type in ("cpu", "cuda")
            and not tensor.is_complex()
            and not tensor.is_quantized
        )


def _cuts(tensor: Any) -> tuple[slice, ...]:
    """Return the slices of a tensor's dimensions that leave some of its numbers, of all dimensions as far as they reach."""
    sizes, left = list(tensor.shape), EVALUATED_NUMBERS
    cuts = [slice(None)] * len(sizes)
    for done, dim in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        kept = max(1, min(sizes[dim], round(left ** (1 / (len(sizes) - done)))))
        apart = max(1, -(-sizes[dim] // kept))
        cuts[dim] = slice(apart // 2, None, apart)
        left = max(1, left // kept)
    return tuple(cuts)
