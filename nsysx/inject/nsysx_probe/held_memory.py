"""Whether there is memory to hold tensors of the program for a while longer than it does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .probe_bounds import HELD_BYTES, HELD_MEMORY_SHARE, USED_MEMORY_SHARE


def has_room(torch: Any, tensors: Iterable[Any]) -> bool:
    """Return whether the memory that these lie in can be held beside the most that the program has used so far."""
    storages: dict[Any, dict[int, int]] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages.setdefault(tensor.device, {})[storage.data_ptr()] = storage.nbytes()
    return all(_fits(torch, device, sum(sizes.values())) for device, sizes in storages.items())


def _fits(torch: Any, device: Any, wanted: int) -> bool:
    if device.type != "cuda":
        return wanted <= HELD_BYTES
    whole: int = torch.cuda.get_device_properties(device).total_memory
    used: int = torch.cuda.max_memory_allocated(device)
    return wanted <= HELD_MEMORY_SHARE * whole and used + wanted <= USED_MEMORY_SHARE * whole
