"""The tensors of a batch one by one, as hashes of some of their numbers.

Ranks with the same samples that each augments have some of them in common, such as labels and numbers of items, not the whole batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from .probe_bounds import FEWEST_PART_NUMBERS, IGNORED_TARGET, MOST_PART_NUMBERS, SAMPLE_NUMBERS_SPAN
from .tensor_checksum import some_numbers

#: Dimensions of tensors whose rows have lengths: tokens, and frames of features. Images are larger.
_OF_SEQUENCES = (2, 3)


def batch_parts(torch: Any, tensors: Iterable[tuple[str, Any]], samples: int | None = None) -> list[dict[str, Any]]:
    """Return ``name``, ``dtype`` and ``shape`` of each tensor, and a hash of each of some ``numbers``, with commas between them.

    These are "" where the tensor tells nothing of which samples the batch holds: numbers in order or that repeat, masks, lengths, and what
    may be numbers of samples, of which each rank's own data have the same ones. ``samples``: how many there are, None where not known.
    """
    made = []
    with torch._C.DisableTorchFunction(), torch.no_grad():
        whole = [(name, tensor) for name, tensor in tensors if tensor.numel() and not tensor.is_complex()]
        sizes = {size for _, tensor in whole if tensor.dim() in _OF_SEQUENCES for size in tensor.shape[1:]}
        for name, tensor in whole:
            numbers = some_numbers(torch, tensor.detach(), MOST_PART_NUMBERS)
            column = sum(size > 1 for size in tensor.shape) < 2
            tells = len(numbers) >= FEWEST_PART_NUMBERS and (
                _column_tells(numbers, sizes, samples) if column else len(set(numbers)) > 2  # not a mask
            )
            made.append(
                {
                    "name": name,
                    "dtype": str(tensor.dtype).replace("torch.", ""),
                    "shape": [int(size) for size in tensor.shape],
                    "numbers": ",".join(map(_hashed, numbers)) if tells else "",
                }
            )
    return made


def _hashed(number: Any) -> str:
    """Return so little of a number that it cannot be told from many others: the probe file holds no data of the program."""
    if number == IGNORED_TARGET:
        return "-"
    return f"{zlib.crc32(repr(number).encode()) & 0xFF:02x}"


def _column_tells(numbers: list[Any], sizes: set[int], samples: int | None) -> bool:
    """Return whether one number of each sample is of the sample, not of how the batch is put together; ``sizes``: of its sequences."""
    if numbers in (sorted(numbers), sorted(numbers, reverse=True)) or _repeats(numbers):
        return False
    low, high = min(numbers), max(numbers)
    if low > 0 and (high == 1 if isinstance(low, float) else any(size / 2 < high <= size for size in sizes)):
        return False  # lengths, or shares of the longest one
    if isinstance(low, float) or len(set(numbers)) < len(numbers):
        return True
    return samples is not None and not (low >= 0 and SAMPLE_NUMBERS_SPAN * samples <= high < samples)


def _repeats(numbers: list[Any]) -> bool:
    """Return whether these numbers are the same few ones again and again, in the same order."""
    return any(numbers[period:] == numbers[:-period] for period in range(1, len(numbers) // 2 + 1))
