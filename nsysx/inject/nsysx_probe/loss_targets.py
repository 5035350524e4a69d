"""How many targets of losses count: those of cross_entropy and nll_loss that are not ignored, and what a mask keeps of a loss per position.

These keep their targets, and the mask that a loss is multiplied by, for the gradient. In the last step of a window, where a backward
begins, a few of these tensors are held until the window has closed and the device has rested, and are read then: in the step nothing is
launched for them and nothing waits. Of targets that are too large to be held the weight of all is read, which the loss has added up.

Compiled programs and captured graphs show no such node. What a hook has packed away is not unpacked.
"""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

from .backward_graph import nodes_near
from .held_memory import has_room
from .probe_bounds import (
    HELD_STORAGE_BYTES,
    HELD_TARGETS,
    HELD_TENSOR_BYTES,
    MOST_MASK_BACKWARDS,
    MOST_NODES_NEAR_LOSS,
)
from .saved_tensors import SavedTensors
from .settings_state import asked

_LOSSES, _TIMES, _SUMS = ("NllLossBackward", "NllLoss2DBackward"), "MulBackward0", "SumBackward"
_LOSS, _MASK = "loss", "mask"


class _Key(NamedTuple):
    """A loss of so many targets, each of one of so many classes, or a mask (of 0 classes)."""

    kind: str
    targets: int
    classes: int


class _Held(NamedTuple):
    """What tells how many count: targets or a mask, or the weight of all (no dimension); its number of changes, what is ignored, and the
    size of the tensor that it is all of.
    """

    tensor: Any
    version: int
    ignored: int
    size: tuple[int, ...]


class LossTargets:
    """``rows``: of the losses and masks of each size ``kind`` ("loss", "mask"), ``targets`` and ``classes`` of each, how many ``tensors``
    a step has, how many were ``looked`` at and which share ``counts``; of each row the ``least`` and the ``most`` that count of its
    ``length``, and the ``first`` place that does, where rows are known. None as long as nothing was looked at.
    """

    def __init__(self, torch: Any, saved: SavedTensors) -> None:
        self.torch, self.saved = torch, saved
        self.rows: list[dict[str, Any]] | None = None
        self._backwards = 0  # that are still looked at in this step
        self._held: dict[_Key, list[_Held]] = {}
        self._tensors: dict[_Key, int] = {}

    def begin(self, *, last: bool) -> None:
        """A recorded step begins, the window's ``last`` one in which targets are held."""
        self._backwards = MOST_MASK_BACKWARDS if last else 0
        self._held.clear()
        self._tensors.clear()

    def backward(self, roots: Any) -> None:
        """A backward of ``roots`` begins."""
        if self._backwards:
            self._backwards -= 1
            asked(self._look, roots)

    def window_closed(self) -> None:
        """Read what is held: nothing is recorded any more, and the devices have rested."""
        if self._held:
            self.rows = asked(self._read) or self.rows
        self.begin(last=False)

    # ---- in the step ------------------------------------------------------------------------------------------------

    def _look(self, roots: Any) -> None:
        trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
        if trees is not None and getattr(getattr(trees, "local", None), "tree_manager_containers", None):
            return  # they record anew when a tensor of theirs lives longer than before
        if not self.saved.may_be_read():
            return
        with self.torch._C.DisableTorchFunction():
            for node in nodes_near(roots, MOST_NODES_NEAR_LOSS):
                name = type(node).__name__
                if name.startswith(_LOSSES):
                    self._of_loss(node)
                elif name.startswith(_SUMS):
                    for times, _ in node.next_functions:
                        if type(times).__name__ == _TIMES:
                            self._of_mask(times)

    def _of_loss(self, node: Any) -> None:
        if any(self.saved.is_packed(node, name) for name in ("self", "target", "weight", "total_weight")):
            return
        logps, target = self.saved.tensor(node, "self"), self.saved.tensor(node, "target")
        if not all(map(self._is_plain, (logps, target))) or logps.dim() < 2:
            return
        key = _Key(_LOSS, int(target.numel()), int(logps.shape[1]))
        self._tensors[key] = self._tensors.get(key, 0) + 1
        # A negative number is told as one of 64 bits without a sign.
        ignored = int(node._saved_ignore_index)
        ignored -= (1 << 64) if ignored >> 63 == 1 else 0
        weighs_all = self.saved.tensor(node, "weight") is None and node._saved_reduction != 0
        if not self._hold(key, target, ignored) and weighs_all:
            self._hold(key, self.saved.tensor(node, "total_weight"), ignored)

    def _of_mask(self, node: Any) -> None:
        """Note a factor that needs no gradient, which the other one is added up by."""
        given = [node_before is not None for node_before, _ in node.next_functions]
        name = "other" if given == [True, False] else "self" if given == [False, True] else ""
        if not name or not self.saved.has(node, name) or self.saved.is_packed(node, name):
            return
        mask = self.saved.tensor(node, name)
        if self._is_plain(mask) and mask.dim() > 0 and not mask.is_complex():
            key = _Key(_MASK, int(mask.numel()), 0)
            self._tensors[key] = self._tensors.get(key, 0) + 1
            self._hold(key, mask, 0)

    def _is_plain(self, tensor: Any) -> bool:
        plain = type(tensor) is self.torch.Tensor and tensor.layout == self.torch.strided
        return plain and tensor.device.type in ("cpu", "cuda") and not tensor.is_inference()

    def _hold(self, key: _Key, tensor: Any, ignored: int) -> bool:
        """Hold a tensor; return whether it is none that is too large."""
        if not self._is_plain(tensor) or tensor.numel() * tensor.element_size() > HELD_TENSOR_BYTES:
            return False
        if tensor.untyped_storage().nbytes() > HELD_STORAGE_BYTES:
            return False
        every = [each.tensor for some in self._held.values() for each in some]
        if len(every) < HELD_TARGETS and has_room(self.torch, [*every, tensor]):
            base = tensor._base  # targets are given to a loss as one row: what that is a view of has theirs
            whole = base is not None and base.numel() == tensor.numel() and base.is_contiguous()
            size = tuple(int(n) for n in (base if whole and tensor.is_contiguous() else tensor).shape)
            self._held.setdefault(key, []).append(_Held(tensor, tensor._version, ignored, size))
        return True

    # ---- at the window's border -------------------------------------------------------------------------------------

    def _read(self) -> list[dict[str, Any]] | None:
        rows = []
        with self.torch.no_grad(), self.torch._C.DisableTorchFunction():
            for key, several in self._held.items():
                told = []
                for each in several:
                    if each.tensor.is_cuda and not self.torch.cuda.current_stream(each.tensor.device).query():
                        return None  # the device has not come to rest in time: no wait for it
                    if each.tensor._version == each.version:
                        told.append(counted(key.targets, each))
                row: dict[str, Any] = {**key._asdict(), "tensors": self._tensors[key], "looked": len(told)}
                if told:
                    row["counts"] = round(sum(each["share"] for each in told) / len(told), 4)
                    if all("length" in each for each in told):
                        row["least"], row["most"] = min(t["least"] for t in told), max(t["most"] for t in told)
                        row["length"], row["first"] = told[0]["length"], min(t["first"] for t in told)
                rows.append(row)
        return rows


def counted(targets: int, held: Any) -> dict[str, Any]:
    """Return which share of targets counts, and of each row, where that is known, how many and from where on."""
    tensor = held.tensor.detach().cpu()
    if tensor.dim() == 0 and targets > 1:
        return {"share": float(tensor) / targets}
    counts = tensor != held.ignored
    told: dict[str, Any] = {"share": float(counts.double().mean()) if targets else 1.0}
    if len(held.size) == 2 and math.prod(held.size) == counts.numel() > 0:
        of_rows = counts.reshape(held.size)
        sums, there = of_rows.sum(1), of_rows.any(0)
        first = int(there.int().argmax()) if bool(there.any()) else held.size[1]
        told.update(least=int(sums.min()), most=int(sums.max()), length=held.size[1], first=first)
    return told
