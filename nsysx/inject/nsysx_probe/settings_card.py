"""What the driver says of the GPU: its limits of power and clocks, what holds them down, and who else uses it.

NVIDIA's management library is asked, which torch itself loads for some questions. It starts no context on the GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from .probe_bounds import MOST_CARD_PROCESSES
from .settings_state import asked

_LIBRARY = "libnvidia-ml.so.1"
_SM, _MEMORY = 1, 2  # of nvmlClockType_t
#: Bits of nvmlClocksEventReasons.
_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "temperature",
    0x40: "temperature of the hardware",
    0x80: "power brake",
}
_TOO_SMALL = 7  # of nvmlReturn_t: there are more processes than there was room for


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t, as the third version of the call has it."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def card(torch: Any, load: Callable[[str], Any] = ctypes.CDLL) -> dict[str, Any] | None:
    """Return what the driver says of the current GPU; None before the program has started CUDA.

    Powers are in W, clocks in MHz. ``held_by``: why clocks are below their most. ``others``: how many other processes have a context there.
    """
    if not torch.cuda.is_initialized():
        return None
    library = load(_LIBRARY)
    if library.nvmlInit_v2():
        return None
    try:
        handle = _handle(torch, library)
        return None if handle is None else _answers(library, handle)
    finally:
        library.nvmlShutdown()


def _handle(torch: Any, library: Any) -> Any:
    """Return the library's handle of torch's current device, which is known by its place on the bus."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    domain, bus, slot = (int(getattr(properties, f"pci_{part}_id")) for part in ("domain", "bus", "device"))
    handle = ctypes.c_void_p()
    address = f"{domain:08x}:{bus:02x}:{slot:02x}.0".encode("ascii")
    return None if library.nvmlDeviceGetHandleByPciBusId_v2(address, ctypes.byref(handle)) else handle


def _answers(library: Any, handle: Any) -> dict[str, Any]:
    def number(call: str, *given: int) -> int | None:
        value = ctypes.c_ulonglong()
        failed = getattr(library, call)(handle, *given, ctypes.byref(value))
        return None if failed else int(value.value)

    def watts(call: str) -> float | None:
        milli = asked(number, call)
        return None if milli is None else milli / 1000

    reasons = asked(number, "nvmlDeviceGetCurrentClocksThrottleReasons")
    return {
        "power_limit_w": watts("nvmlDeviceGetEnforcedPowerLimit"),
        "default_power_limit_w": watts("nvmlDeviceGetPowerManagementDefaultLimit"),
        "power_w": watts("nvmlDeviceGetPowerUsage"),
        "clock_mhz": asked(number, "nvmlDeviceGetClockInfo", _SM),
        "most_clock_mhz": asked(number, "nvmlDeviceGetMaxClockInfo", _SM),
        "memory_clock_mhz": asked(number, "nvmlDeviceGetClockInfo", _MEMORY),
        "most_memory_clock_mhz": asked(number, "nvmlDeviceGetMaxClockInfo", _MEMORY),
        "held_by": None if reasons is None else [name for bit, name in _REASONS.items() if reasons & bit],
        "temperature_c": asked(number, "nvmlDeviceGetTemperature", 0),
        "others": asked(_others, library, handle),
    }


def _others(library: Any, handle: Any) -> int | None:
    """Return how many processes but this one have a context on the GPU.

    In a container the numbers of processes are others than the driver's, and this one is among them all the same.
    """
    count = ctypes.c_uint(MOST_CARD_PROCESSES)
    processes = (_Process * MOST_CARD_PROCESSES)()
    failed = library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes)
    if failed:
        return MOST_CARD_PROCESSES if failed == _TOO_SMALL else None
    return max(0, int(count.value) - 1)
