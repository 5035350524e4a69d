"""A bound: each DataLoader gives its first batch again and again, so that data cost nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from . import Change, Watch


def _arm(torch: Any, watch: Watch) -> None:
    watch.why_not = "no DataLoader was iterated over"
    owner = torch.utils.data.DataLoader
    original = owner.__iter__
    first: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807
        try:
            length = len(self)
        except TypeError:  # nobody knows when an epoch ends
            watch.why_not = "its length is not known"
            return original(self)  # type: ignore[no-any-return]
        return repeated(self, length)

    def repeated(loader: Any, length: int) -> Iterator[Any]:
        if loader not in first:
            batch = next(original(loader), None)
            if batch is None:
                return
            first[loader] = batch
        for _ in range(length):
            watch.took()
            yield first[loader]

    owner.__iter__ = __iter__


CHANGES = (
    Change(
        "bound-data", "the first batch of each DataLoader again and again", "", _arm, findings=("NSX106", "NSX105"),
        alters="computation", beware="a bound: the program learns from one batch",
    ),
)  # fmt: skip
