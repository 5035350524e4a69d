"""How many keys the masks let be seen that modules are given where no gradients are made: of few queries, as decoding has them.

A cache of keys of a fixed size is attended to as a whole, and a mask leaves out what is not written yet. No graph keeps such a mask: in
the last step of a window a few tensors that modules are given and that may be one are held until the window has closed and the device has
rested, and are read then. In the step nothing is launched for them and nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .held_memory import has_room
from .plain_values import flat
from .probe_bounds import FEW_MASK_ROWS, HELD_MASKS_OF_SHAPE, LEAST_MASKED, MOST_MASK_SHAPES
from .program_modes import looked_on
from .settings_state import asked


class GivenMasks:
    """``rows``: of each shape how many of the ``keys`` any query ``sees`` at most, counted to the last of them, as far as was looked; None
    as long as nothing was. What sees all is no mask of this kind, and has no row.

    ``looks``: `called` while modules' arguments are looked at: calls of modules look here.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.rows: list[dict[str, Any]] | None = None
        self.looks: list[Callable[[tuple[Any, ...], Mapping[str, Any]], None]] = []
        self._held: dict[tuple[int, ...], list[tuple[Any, int]]] = {}  # of each tensor its number of changes

    def begin(self, *, last: bool) -> None:
        """A recorded step begins, the window's ``last`` one in which all is noted."""
        self._held.clear()
        self.looks[:] = [self.called] if last else []

    def called(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A module is called without gradients."""
        asked(self._look, args, kwargs)

    def window_closed(self) -> None:
        """Read what is held: nothing is recorded any more, and the devices have rested."""
        if self._held:
            self.rows = asked(self._read) or self.rows
        self.begin(last=False)

    def _look(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        torch = self.torch
        tensors = [value for value in flat([*args, *kwargs.values()]) if type(value) is torch.Tensor]
        if not tensors or looked_on(torch):
            return
        with torch._C.DisableTorchFunction():
            for tensor in tensors:
                if tensor.dim() > 1 and tensor.shape[-2] <= FEW_MASK_ROWS < tensor.shape[-1]:
                    self._hold(tensor)

    def _hold(self, mask: Any) -> None:
        torch, shape = self.torch, tuple(int(n) for n in mask.shape)
        may_mask = mask.dtype == torch.bool or mask.is_floating_point()
        if not may_mask or mask.layout != torch.strided or mask.device.type not in ("cpu", "cuda"):
            return
        if mask.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        held = self._held.get(shape, [])
        if any(other is mask or other.data_ptr() == mask.data_ptr() for other, _ in held):
            return
        if not held and len(self._held) >= MOST_MASK_SHAPES:
            return
        if len(held) >= HELD_MASKS_OF_SHAPE:
            held.pop(0)  # the last calls of a step see the most
        others = (other for masks in self._held.values() for other, _ in masks)
        if has_room(torch, [*others, mask]):
            self._held.setdefault(shape, held).append((mask, 0 if mask.is_inference() else mask._version))

    def _read(self) -> list[dict[str, Any]] | None:
        rows = []
        with self.torch.no_grad(), self.torch._C.DisableTorchFunction():
            for shape, held in self._held.items():
                seen = []
                for mask, version in held:
                    if mask.is_cuda and not self.torch.cuda.current_stream(mask.device).query():
                        return None  # the device has not come to rest in time: no wait for it
                    if mask.is_inference() or mask._version == version:
                        seen.append(keys_seen(mask.detach()))
                if seen and max(seen) < shape[-1]:
                    rows.append({"shape": list(shape), "sees": max(seen)})
        return rows


def keys_seen(mask: Any) -> int:
    """Return up to which key any query is let see, counted from the first; truth lets see, and what is added to a score unless it masks."""
    kept = mask > LEAST_MASKED if mask.dtype.is_floating_point else mask
    places = kept.reshape(-1, kept.shape[-1]).any(0).nonzero()
    return int(places.max()) + 1 if places.numel() else 0
