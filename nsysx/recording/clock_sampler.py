"""GPU clock, power and temperature beside a capture, from NVML: what nsys itself does not record.

NVML comes with every driver, so it is called directly and nothing has to be installed.
"""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass, field
from typing import Any

_CLOCK_SM = 1
_CLOCK_MEMORY = 2
_TEMPERATURE_GPU = 0
_NAME_BYTES = 96

#: Column of a sample: NVML function, what stands between device and result. The names carry the unit.
_QUERIES: dict[str, tuple[str, tuple[int, ...]]] = {
    "sm_mhz": ("nvmlDeviceGetClockInfo", (_CLOCK_SM,)),
    "memory_mhz": ("nvmlDeviceGetClockInfo", (_CLOCK_MEMORY,)),
    "power_mw": ("nvmlDeviceGetPowerUsage", ()),
    "temperature_c": ("nvmlDeviceGetTemperature", (_TEMPERATURE_GPU,)),
}


@dataclass(slots=True)
class Samples:
    """The samples of one device; ``utc_ns`` is ns since 1970, None stands for what a device does not tell."""

    index: int
    name: str
    uuid: str
    utc_ns: list[int] = field(default_factory=list)
    values: dict[str, list[int | None]] = field(default_factory=lambda: {name: [] for name in _QUERIES})

    def thin(self) -> None:
        """Drop every second sample."""
        del self.utc_ns[1::2]
        for column in self.values.values():
            del column[1::2]


class Nvml:
    """The few calls of NVML that are needed here. Raises OSError when there is no driver."""

    def __init__(self, library: Any = None) -> None:
        self._library = library or ctypes.CDLL("libnvidia-ml.so.1")
        if self._library.nvmlInit_v2() != 0:
            raise OSError("NVML does not start")

    def devices(self) -> list[tuple[ctypes.c_void_p, Samples]]:
        """Return the handle of each GPU with an empty record for its samples."""
        count = ctypes.c_uint()
        self._library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        found = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                name, uuid = self._text("nvmlDeviceGetName", handle), self._text("nvmlDeviceGetUUID", handle)
                found.append((handle, Samples(index, name, uuid)))
        return found

    def _text(self, function: str, handle: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(_NAME_BYTES)
        failed = getattr(self._library, function)(handle, buffer, _NAME_BYTES)
        return "" if failed else buffer.value.decode(errors="replace")

    def sample(self, handle: ctypes.c_void_p, samples: Samples) -> None:
        """Append one sample of one device."""
        samples.utc_ns.append(time.time_ns())
        for column, (function, between) in _QUERIES.items():
            value = ctypes.c_uint()
            failed = getattr(self._library, function)(handle, *between, ctypes.byref(value))
            samples.values[column].append(None if failed else value.value)

    def close(self) -> None:
        """Let go of the driver."""
        self._library.nvmlShutdown()


class Sampler:
    """Samples every GPU in a thread of this process, not of the profiled one, until `stop`."""

    def __init__(self, interval_s: float = 0.02, most: int = 20_000, library: Any = None) -> None:
        self._interval_s, self._most, self._library = interval_s, most, library
        self._devices: list[Samples] = []
        self._error = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def _work(self) -> None:
        try:
            nvml = Nvml(self._library)
        except (OSError, AttributeError) as error:
            self._error = f"no NVML: {error}"
            return
        devices = nvml.devices()
        self._devices = [samples for _, samples in devices]
        while not self._done.wait(self._interval_s):
            for handle, samples in devices:
                nvml.sample(handle, samples)
            if self._devices and len(self._devices[0].utc_ns) >= self._most:
                # A long run keeps its whole length at half the rate instead of filling memory.
                self._interval_s *= 2
                for samples in self._devices:
                    samples.thin()
        nvml.close()

    def stop(self) -> dict[str, Any]:
        """End sampling and return everything as JSON values."""
        self._done.set()
        self._thread.join(timeout=5)
        return {
            "source": "nvml",
            "error": self._error or None,
            "interval_ns": int(self._interval_s * 1e9),
            "devices": [
                {"device": s.index, "name": s.name, "uuid": s.uuid, "utc_ns": s.utc_ns, **s.values}
                for s in self._devices
            ],
        }
