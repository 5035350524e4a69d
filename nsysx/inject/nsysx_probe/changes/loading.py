"""DataLoaders with workers or pinned memory, and copies from pinned memory that the host does not wait for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import Change, Watch
from ._wrapping import with_arguments


def _workers(number: int) -> Callable[[Any, Watch], None]:
    def arm(torch: Any, watch: Watch) -> None:
        watch.why_not = "no DataLoader was made"

        def change(named: dict[str, Any]) -> None:
            before = named.get("num_workers") or 0
            if isinstance(named.get("dataset"), torch.utils.data.IterableDataset):
                watch.why_not = "an IterableDataset would give its data once per worker"
            elif before >= number:
                watch.why_not = f"it has {before} workers already"
            else:
                named.update(num_workers=number, persistent_workers=True)
                watch.took()

        with_arguments(torch.utils.data.DataLoader, change)

    return arm


def _pinned(torch: Any, watch: Watch) -> None:
    watch.why_not = "no DataLoader was made"

    def change(named: dict[str, Any]) -> None:
        if named.get("pin_memory"):
            watch.why_not = "it pins its memory already"
            return
        named["pin_memory"] = True
        watch.took()

    with_arguments(torch.utils.data.DataLoader, change)


def _non_blocking(torch: Any, watch: Watch) -> None:
    watch.why_not = "no copy from pinned memory waits"

    def leaves(tensor: Any, result_device: Any) -> bool:
        return bool(tensor.device.type == "cpu" and result_device == "cuda" and tensor.is_pinned())

    def device_of(args: Any, kwargs: Any) -> str:
        target = kwargs.get("device", args[0] if args else None)
        if isinstance(target, torch.Tensor):
            return str(target.device.type)
        try:
            return str(torch.device(target).type) if target is not None else ""
        except (TypeError, RuntimeError):
            return ""

    to, cuda = torch.Tensor.to, torch.Tensor.cuda

    @functools.wraps(to)
    def changed_to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) < 2 and not kwargs.get("non_blocking") and leaves(self, device_of(args, kwargs)):
            kwargs["non_blocking"] = True
            watch.took()
        return to(self, *args, **kwargs)

    @functools.wraps(cuda)
    def changed_cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) < 2 and not kwargs.get("non_blocking") and leaves(self, "cuda"):
            kwargs["non_blocking"] = True
            watch.took()
        return cuda(self, *args, **kwargs)

    torch.Tensor.to, torch.Tensor.cuda = changed_to, changed_cuda


def _loader(number: int, name: str) -> Change:
    return Change(
        name, f"num_workers={number} for the DataLoader",
        f"num_workers={number}, persistent_workers=True,  # two more arguments of the DataLoader", _workers(number),
        findings=("NSX106",), alters="numerics", group="workers",
        beware="random numbers that the dataset draws are others",
    )  # fmt: skip


CHANGES = (
    _loader(4, "loader-workers"),
    _loader(8, "loader-workers-8"),
    Change(
        "pin-memory", "pin_memory=True for the DataLoader", "pin_memory=True,  # one more argument of the DataLoader", _pinned,
        findings=("NSX105",), alters="memory", needs="cuda", beware="batches stay in host memory that cannot be swapped out",
    ),
    Change(
        "non-blocking", "copies from pinned memory without a wait", "batch = batch.to(device, non_blocking=True)", _non_blocking,
        findings=("NSX105",), needs="cuda", beware="a pinned buffer must not be overwritten before its copy has ended",
    ),
)  # fmt: skip
