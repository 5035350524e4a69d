"""What the masks hold that scaled_dot_product_attention is given: nothing that masks, the causal pattern, or something else.

The kernels of attention keep their mask for the gradient, however attention was called. In the last step of a window, where a backward
begins, a few of these tensors are held until the window has closed and the device has rested, and are read then: in the step nothing
is launched for them and nothing waits. They live until that backward anyway, so that they add little to the most memory of a step.

Compiled programs and captured graphs show no such node. What a hook has packed away (checkpoints, offloading) is not unpacked.
"""

from __future__ import annotations

from typing import Any

from .backward_graph import nodes_of
from .held_memory import has_room
from .output import Output
from .probe_bounds import (
    HELD_MASKS_OF_SHAPE,
    LEAST_MASKED,
    MASK_ROWS,
    MOST_BACKWARD_NODES,
    MOST_MASK_BACKWARDS,
    MOST_MASK_LEADS,
    MOST_MASK_SHAPES,
)
from .saved_tensors import SavedTensors
from .settings_state import asked

_NODE = "ScaledDotProduct"
_SAVED = ("attn_bias", "attn_mask")
#: What a mask holds.
NOTHING, CAUSAL, OTHER = "nothing", "causal", "other"


class AttentionMasks:
    """``rows``: of each shape of a mask ``shape``, how many ``tensors`` of it a step has, how many were ``looked`` at, what each ``holds``
    (`NOTHING`, `CAUSAL` or `OTHER`) and which share of the scores is ``masked``; None as long as no mask was looked at.

    ``first``: of a mask of more keys than queries, of which each query is let see one key more than the one before, as of a chunk of a
    sequence, how many keys the first one sees.
    """

    def __init__(self, torch: Any, out: Output) -> None:
        self.torch, self.saved = torch, SavedTensors(torch, out)
        self.rows: list[dict[str, Any]] | None = None
        self._backwards = 0  # that are still looked at in this step
        self._tensors: dict[tuple[int, ...], int] = {}
        self._held: dict[tuple[int, ...], list[tuple[Any, int]]] = {}  # of each mask its number of changes
        self._learned: set[tuple[int, ...]] = set()  # shapes of masks that get a gradient
        self._hidden = False  # a mask could not be looked at

    def begin(self, *, last: bool) -> None:
        """A recorded step begins, the window's ``last`` one in which all is noted."""
        self._forget()
        self._backwards = MOST_MASK_BACKWARDS if last else 0
        self.saved.begin(last=last)

    def backward(self, roots: Any) -> None:
        """A backward of ``roots`` begins."""
        if self._backwards:
            self._backwards -= 1
            asked(self._look, roots)

    def window_closed(self) -> None:
        """Read what is held: nothing is recorded any more, and the devices have rested."""
        if self._tensors and not self._hidden:
            self.rows = asked(self._read) or self.rows
        self.begin(last=False)

    def _forget(self) -> None:
        self._backwards, self._hidden = 0, False
        for kept in (self._tensors, self._held, self._learned):
            kept.clear()

    # ---- in the step ------------------------------------------------------------------------------------------------

    def _look(self, roots: Any) -> None:
        torch = self.torch
        if not self.saved.may_be_read():
            return
        self._hidden, hidden = True, False  # unless the whole graph was looked at
        by_shape: dict[tuple[int, ...], dict[int, Any]] = {}
        with torch._C.DisableTorchFunction():
            for number, node in enumerate(nodes_of(roots)):
                if number >= MOST_BACKWARD_NODES:
                    return
                if not type(node).__name__.startswith(_NODE):
                    continue
                name = next((name for name in _SAVED if self.saved.has(node, name)), None)
                if name is None:
                    continue
                if self.saved.is_packed(node, name):
                    hidden = True
                    continue
                self._note(node, self.saved.tensor(node, name), by_shape)
            for shape, masks in by_shape.items():
                self._tensors[shape] = self._tensors.get(shape, 0) + len(masks)
                self._hold(shape, list(masks.values()))
        self._hidden = hidden

    def _note(self, node: Any, mask: Any, by_shape: dict[tuple[int, ...], dict[int, Any]]) -> None:
        if mask is None:
            return
        shape = tuple(int(n) for n in mask.shape)
        if type(mask) is not self.torch.Tensor or mask.layout != self.torch.strided:
            self._learned.add(shape)  # not known: no claim is made of it
        if len(node.next_functions) > 3 and node.next_functions[3][0] is not None:
            self._learned.add(shape)
        by_shape.setdefault(shape, {}).setdefault(mask.data_ptr(), mask)

    def _hold(self, shape: tuple[int, ...], masks: list[Any]) -> None:
        """Hold some of the masks of a shape: those of the last layers, of the first and of one between."""
        if shape in self._learned or (shape not in self._held and len(self._held) >= MOST_MASK_SHAPES):
            return
        held = self._held.setdefault(shape, [])
        for number in dict.fromkeys((0, len(masks) - 1, len(masks) // 2)):
            mask = masks[number]
            others = (other for masks_of_shape in self._held.values() for other, _ in masks_of_shape)
            if len(held) < HELD_MASKS_OF_SHAPE and has_room(self.torch, [*others, mask]):
                held.append((mask, 0 if mask.is_inference() else mask._version))

    # ---- at the window's border -------------------------------------------------------------------------------------

    def _read(self) -> list[dict[str, Any]] | None:
        rows = []
        with self.torch.no_grad(), self.torch._C.DisableTorchFunction():
            for shape, tensors in self._tensors.items():
                looked, first = [], set()
                for mask, version in self._held.get(shape, ()):
                    if mask.is_cuda and not self.torch.cuda.current_stream(mask.device).query():
                        return None  # the device has not come to rest in time: no wait for it
                    if mask.is_inference() or mask._version == version:
                        looked.append(content(self.torch, mask.detach()))
                        first.add(keys_of_first(self.torch, mask.detach()))
                row: dict[str, Any] = {"shape": list(shape), "tensors": tensors, "looked": len(looked)}
                if looked:
                    holds = {what for what, _ in looked}
                    masked = sum(share for _, share in looked) / len(looked)
                    row |= {"holds": holds.pop() if len(holds) == 1 else OTHER, "masked": round(masked, 4)}
                    if len(first) == 1 and None not in first:
                        row["first"] = first.pop()
                rows.append(row)
        return rows


def _each_number_once(mask: Any) -> Any:
    """Return an expanded mask as it was before."""
    return mask[tuple(slice(0, 1) if step == 0 else slice(None) for step in mask.stride())]


def content(torch: Any, mask: Any) -> tuple[str, float]:
    """Return what a mask holds and which share of the scores it masks, that of some of its rows.

    True and 0 are what masks nothing. What adds other numbers to scores masks something as well.
    """
    mask = _each_number_once(mask)
    truth = mask.dtype == torch.bool
    if bool(mask.all() if truth else ~mask.any()):
        return NOTHING, 0.0
    queries, keys = (int(n) for n in mask.shape[-2:]) if mask.dim() >= 2 else (1, int(mask.shape[-1]))
    step = max(1, queries // MASK_ROWS)
    part = mask[tuple(slice(0, MOST_MASK_LEADS) for _ in mask.shape[:-2])] if mask.dim() > 2 else mask
    rows = part[..., ::step, :].cpu() if mask.dim() >= 2 else part.cpu()
    kept = rows if truth else rows == 0
    masked = ~rows if truth else rows <= LEAST_MASKED
    share = float(masked.double().mean())
    if queries != keys or queries == 1:
        return OTHER, share
    before = torch.arange(keys) <= torch.arange(0, queries, step)[:, None]
    causal = bool((kept == before).all()) and bool((masked == ~before).all())
    return CAUSAL if causal else OTHER, share


def keys_of_first(torch: Any, mask: Any) -> int | None:
    """Return how many of more keys than queries the first query is let see, where each sees one more than the one before; else None."""
    mask = _each_number_once(mask)
    if mask.dim() < 2 or not 1 < int(mask.shape[-2]) < int(mask.shape[-1]):
        return None
    queries, keys = (int(n) for n in mask.shape[-2:])
    step = max(1, queries // MASK_ROWS)
    part = mask[tuple(slice(0, MOST_MASK_LEADS) for _ in mask.shape[:-2])] if mask.dim() > 2 else mask
    rows = part[..., ::step, :].cpu().reshape(-1, len(range(0, queries, step)), keys)
    kept = rows if mask.dtype == torch.bool else rows == 0
    masked = ~rows if mask.dtype == torch.bool else rows <= LEAST_MASKED
    first = int(kept[0, 0].sum())
    sees = torch.arange(keys) < first + torch.arange(0, queries, step)[:, None]
    told = bool((kept == sees).all()) and bool((masked == ~sees).all())
    return first if told and 0 < first <= keys - queries + 1 else None
