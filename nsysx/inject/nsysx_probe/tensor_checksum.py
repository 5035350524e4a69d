"""Checksums of some numbers of tensors: equal ones on several ranks tell that these have the same data."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from .probe_bounds import FEWEST_BATCH_VALUES, MOST_BATCH_NUMBERS


def checksum(torch: Any, tensors: Iterable[Any], before: int = 0) -> int | None:
    """Return a checksum of some numbers of each tensor, None where none of them has many different values: those are alike by chance."""
    sums, telling = before, False
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for tensor in tensors:
            numbers = some_numbers(torch, tensor.detach())
            sums = zlib.crc32(repr([str(tensor.dtype), *tensor.shape, *numbers]).encode(), sums)
            telling = telling or len(set(numbers)) >= FEWEST_BATCH_VALUES
    return sums if telling else None


def some_numbers(torch: Any, tensor: Any, most: int = MOST_BATCH_NUMBERS) -> list[Any]:
    """Return numbers of a tensor that lie equally far apart: oddly far, so that not all of them are of one column."""
    index = some_places(torch, tensor, most)
    chosen = tensor[index] if index else tensor.reshape(1)
    numbers: list[Any] = chosen.cpu().tolist()
    return numbers


def some_places(torch: Any, tensor: Any, most: int = MOST_BATCH_NUMBERS) -> tuple[Any, ...]:
    """Return the index by which a tensor gives these numbers, on its device; () for a single number."""
    apart = -(-tensor.numel() // most) | 1
    left = torch.arange(0, tensor.numel(), apart)
    index: list[Any] = []
    for size in reversed(tensor.shape):
        index.insert(0, (left % size).to(tensor.device))
        left = left // size
    return tuple(index)
