"""DataLoaders with workers or pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import Change, Watch
from ._wrapping import with_arguments

#: Batches that each worker makes ahead.
_PREFETCHED = 8


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


def _prefetch(torch: Any, watch: Watch) -> None:
    watch.why_not = "no DataLoader with workers was made"

    def change(named: dict[str, Any]) -> None:
        if not named.get("num_workers"):
            return
        before = named.get("prefetch_factor") or 2
        if before >= _PREFETCHED:
            watch.why_not = f"prefetch_factor={before} is set already"
            return
        named["prefetch_factor"] = _PREFETCHED
        watch.took()

    with_arguments(torch.utils.data.DataLoader, change)


def _pinned(torch: Any, watch: Watch) -> None:
    watch.why_not = "no DataLoader was made"

    def change(named: dict[str, Any]) -> None:
        if named.get("pin_memory"):
            watch.why_not = "it pins its memory already"
            return
        named["pin_memory"] = True
        watch.took()

    with_arguments(torch.utils.data.DataLoader, change)


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
        "loader-prefetch", f"prefetch_factor={_PREFETCHED} for the DataLoader",
        f"prefetch_factor={_PREFETCHED},  # one more argument of the DataLoader", _prefetch, findings=("NSX106",),
        alters="memory", beware="workers keep more batches",
    ),
    Change(
        "pin-memory", "pin_memory=True for the DataLoader", "pin_memory=True,  # one more argument of the DataLoader", _pinned,
        findings=("NSX105",), alters="memory", needs="cuda", beware="batches stay in host memory that cannot be swapped out",
    ),
)  # fmt: skip
