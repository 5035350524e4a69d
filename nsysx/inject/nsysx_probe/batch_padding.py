"""How much of a batch is padding: of what a DataLoader returns on the CPU, else of what the network is called with. One batch is looked at.

What lies on a GPU is held until the window has closed and the device has rested, and read then: in the window nothing is launched for it,
nothing waits for it, and the bare steps have not begun.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from .probe_bounds import (
    HELD_STORAGE_BYTES,
    HELD_TENSOR_BYTES,
    IGNORED_TARGET,
    LARGEST_PADDED_TENSOR,
    MOST_BATCH_TENSORS,
    SHORTEST_PADDED,
)
from .qualified_names import WRAPPER_PARTS, held
from .settings_state import asked

#: Masks of what a loss is about, or of what may be looked at: what they leave out is no padding.
_OF_A_LOSS = re.compile(r"(loss|label|target|causal|response|prompt)\w*mask")


class BatchPadding:
    """``counts``: what `padding` returns for the first batch that has any, None as long as there is none."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.counts: dict[str, Any] | None = None
        self._called = False
        self._held: dict[str, tuple[Any, int]] = {}  # of each tensor its number of changes

    def loaded(self, batch: Any) -> None:
        """A loader has made a batch."""
        if self.counts is None:
            self.counts = padding(self.torch, batch)

    def called(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The first network of the step is called: what it is given is held only if the loader's batch has told nothing."""
        if (
            self._called
            or self.counts is not None
            or self.torch._C._len_torch_function_stack()
            or self.torch._C._len_torch_dispatch_stack()
        ):
            return
        self._called = True
        trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
        if trees is not None and getattr(getattr(trees, "local", None), "tree_manager_containers", None):
            return  # they record anew when a tensor of theirs lives longer than before
        for name, value in _arguments(module, args, kwargs):
            if len(self._held) < MOST_BATCH_TENSORS and self._may_be_held(name, value):
                self._held[name] = value, value._version

    def _may_be_held(self, name: str, value: Any) -> bool:
        if type(value) is not self.torch.Tensor or value.layout != self.torch.strided or value.is_inference():
            return False
        whole = not (value.is_floating_point() or value.is_complex()) or _is_mask(name)
        small = value.numel() * value.element_size() <= HELD_TENSOR_BYTES
        return whole and small and value.untyped_storage().nbytes() <= HELD_STORAGE_BYTES and value.dim() >= 2

    def window_closed(self) -> None:
        """Read what the network was called with: nothing is recorded any more, and the devices have rested."""
        if self.counts is None and self._held:
            self.counts = asked(self._read)
        self._held.clear()

    def _read(self) -> dict[str, Any] | None:
        batch = {}
        for name, (tensor, version) in self._held.items():
            if tensor._version != version:
                continue  # the program has written into it since
            if tensor.is_cuda and not self.torch.cuda.current_stream(tensor.device).query():
                return None  # the device has not come to rest in time: no wait for it
            if math.prod(tensor.shape[1:-1]) == 1:  # masks have dimensions of heads and queries
                batch[name] = tensor.detach().cpu().reshape(tensor.shape[0], tensor.shape[-1])
        return padding(self.torch, batch)


def _arguments(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the tensors of a call by the names of the arguments; those of a mapping by its keys."""
    names = asked(_names, module) or ()
    for number, value in enumerate(args):
        name = names[number] if number < len(names) else str(number)
        yield from ((str(k), v) for k, v in value.items()) if isinstance(value, Mapping) else ((name, value),)
    yield from ((str(name), value) for name, value in kwargs.items())


def _names(module: Any) -> tuple[str, ...]:
    """Return the names of the arguments of a network, below what torch wraps it in."""
    below = held(module).get("_modules") or {}
    inner = next(
        (m for name, m in below.items() if name in WRAPPER_PARTS or (name == "module" and len(below) == 1)), None
    )
    if inner is not None:
        return _names(inner)
    code = type(module).forward.__code__
    names: tuple[str, ...] = code.co_varnames[1 : code.co_argcount]
    return names


def padding(torch: Any, batch: Any) -> dict[str, Any] | None:
    """Return name, rows, length, longest and real (elements of all rows) of the tensor with a mask, else of the one that is padded most.

    None where no row of any tensor ends, or begins, with a run of one value while others do not: equal lengths, or another kind of data.
    """
    best: dict[str, Any] | None = None
    tensors = list(tensors_on_cpu(torch, batch))
    for name, tensor in tensors:
        if (
            tensor.dim() not in ((2,) if "mask" in name.lower() else (2, 3))  # of images, or of pairs
            or _OF_A_LOSS.search(name.lower())
            or tensor.shape[0] < 2
            or tensor.shape[1] < SHORTEST_PADDED
            or tensor.numel() > LARGEST_PADDED_TENSOR
            or _targets(tensor, [other for _, other in tensors])
        ):
            continue
        real = _lengths(torch, tensor, name)
        if real is None:
            continue
        rows, length = int(tensor.shape[0]), int(tensor.shape[1])
        about: dict[str, Any] = {
            "name": name,
            "rows": rows,
            "length": length,
            "longest": int(real.max()),
            "real": int(real.sum()),
        }
        if _is_mask(name):
            return about
        if best is None or about["real"] / rows / length < best["real"] / best["rows"] / best["length"]:
            best = about
    return best


def _is_mask(name: str) -> bool:
    return "mask" in name.lower() and not _OF_A_LOSS.search(name.lower())


def _targets(tensor: Any, tensors: list[Any]) -> bool:
    """Return whether these are targets, some of them ignored, of samples that are in the batch as well: a prompt is no padding."""
    beside = any(t is not tensor and t.shape == tensor.shape and not t.is_floating_point() for t in tensors)
    return beside and not tensor.is_floating_point() and bool((tensor == IGNORED_TARGET).any())


def _items(torch: Any, batch: Any) -> list[tuple[Any, Any]]:
    """Return the parts of a batch with their names, or places."""
    if isinstance(batch, torch.Tensor):
        return [("batch", batch)]
    if isinstance(batch, Mapping):
        return list(batch.items())
    return list(enumerate(batch)) if isinstance(batch, (tuple, list)) else []


def tensors_on_cpu(torch: Any, batch: Any) -> Iterator[tuple[str, Any]]:
    """Yield the first tensors of a batch that lie on the CPU, with their names, or places."""
    items: list[tuple[Any, Any]] = []
    for name, value in _items(torch, batch)[:MOST_BATCH_TENSORS]:  # a pair may hold a mapping and its labels
        items += [(name, value)] if isinstance(value, torch.Tensor) else _items(torch, value)
    for name, value in items[:MOST_BATCH_TENSORS]:
        if type(value) is torch.Tensor and value.device.type == "cpu" and value.layout == torch.strided:
            yield str(name), value.detach()


def _lengths(torch: Any, tensor: Any, name: str) -> Any:
    """Return the real length of each row, None where the rows are not padded: at the end, else at the begin.

    Rows of a mask may be padded alike, to a length that no batch has; one that lets each row see those before it is about no padding.
    """
    of_mask = _is_mask(name)
    if tensor.dim() == 3:  # frames of features: padding is 0 in all of them
        if not tensor.is_floating_point():
            return None
        run = _run(torch, (tensor == 0).all(-1).flip(1))
        return tensor.shape[1] - run if _is_padding(run, tensor) else None
    if tensor.is_complex() or (tensor.is_floating_point() and not of_mask):
        return None
    if of_mask or tensor.dtype == torch.bool:
        kept = _kept(tensor, name)
        if kept is None:
            return None
        ends = begins = ~kept
    else:
        ends, begins = (tensor == tensor[:, side].mode().values for side in (-1, 0))
    sides = [_run(torch, ends.flip(1)), _run(torch, begins)]
    real = next((tensor.shape[1] - run for run in sides if _is_padding(run, tensor, alike=of_mask)), None)
    causal = real is not None and len(real) == tensor.shape[1] and len(real.unique()) >= len(real) - 1
    return None if causal else real


def _kept(tensor: Any, name: str) -> Any:
    """Return what a mask of two values keeps, None where it does not tell which of the two that is: each row keeps something.

    It is what is set, or what nothing is added to; of padding, what is not set. The other value may be meant where rows begin with it. Of
    padding, and of what is no mask by its name, either value may be: where all rows have both, these have to begin with what is kept.
    """
    kept = tensor >= 0 if tensor.is_floating_point() and bool((tensor < 0).any()) else tensor != 0
    padding = "pad" in name.lower()
    kept = ~kept if padding else kept
    if not bool(kept.any(1).all()):
        return ~kept if not bool(kept[:, 0].any()) else None
    sure = bool(kept.all(1).any()) or (_is_mask(name) and not padding)
    return kept if sure or bool(kept[:, 0].all()) else None


def _run(torch: Any, padded: Any) -> Any:
    """Return how many leading elements of each row are set."""
    return padded.to(torch.int64).cumprod(1).sum(1)


def _is_padding(run: Any, tensor: Any, *, alike: bool = False) -> bool:
    """Return whether most rows have a run of some length, and, unless they may be ``alike``, not all the same: what one value fills by
    chance is short. What has one value alone is no padding.
    """
    long = run >= max(2, tensor.shape[1] // 32)
    uneven = bool(run.max() > run.min()) or (alike and bool(run.max() < tensor.shape[1]))
    return bool(2 * long.sum() > len(run)) and uneven
