"""The devices of a capture: as each process sees them, and each once however many processes share it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: The name shown for a device that the report does not name.
UNKNOWN_GPU = "unknown GPU"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as a process sees it. Limits are None if the report does not give them (bytes, bytes/s, count).

    ``card`` is the report's number of the device, the same for all processes that share it; None if it does not tell which it is.
    """

    process: int
    pid: int
    device: int
    name: str
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    memory_bandwidth: int | None = None
    sm_count: int | None = None
    card: int | None = None


def each_once(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the devices, each as the first of the processes that share it sees it."""
    first: dict[tuple[int | None, int, int], Gpu] = {}
    for gpu in gpus:
        first.setdefault((None, gpu.process, gpu.device) if gpu.card is None else (gpu.card, 0, 0), gpu)
    return tuple(first.values())
