"""Samples GPU clocks, power and temperature through NVML during a capture, because nsys does not record them.

It uses NVIDIA's own bindings, an optional dependency: without them nsysx still runs, and says what it cannot sample.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

#: Column name, with its unit -> the NVML query that fills it.
_QUERIES: dict[str, Callable[[Any, Any], int]] = {
    "sm_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
    "memory_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
    "power_mw": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle),
    "temperature_c": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
}


@dataclass(slots=True)
class ClockSamples:
    """The samples of one device: ``utc_ns`` is ns since 1970, and a value is None where the device does not report it."""

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
    """The few NVML calls that are needed here. Raises OSError if the bindings or the driver are missing."""

    def __init__(self) -> None:
        try:
            self._nvml: Any = importlib.import_module("pynvml")
        except ImportError as error:
            raise OSError("nvidia-ml-py is not installed: pip install 'nsysx[clocks]'") from error
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML does not start: {error}") from error

    def devices(self) -> list[tuple[Any, ClockSamples]]:
        """Return the handle of each GPU with an empty record for its samples."""
        nvml, samples = self._nvml, []
        for index in range(self._asked(nvml.nvmlDeviceGetCount) or 0):
            if (handle := self._asked(nvml.nvmlDeviceGetHandleByIndex, index)) is not None:
                name, uuid = (self._asked(ask, handle) for ask in (nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetUUID))
                samples.append((handle, ClockSamples(index, str(name or ""), str(uuid or ""))))
        return samples

    def _asked(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """Return NVML's answer, or None if it reports an error."""
        try:
            return ask(*arguments)
        except self._nvml.NVMLError:
            return None

    def sample(self, handle: Any, samples: ClockSamples) -> None:
        """Append one sample of one device."""
        samples.utc_ns.append(time.time_ns())
        for column, ask in _QUERIES.items():
            samples.values[column].append(self._asked(ask, self._nvml, handle))

    def close(self) -> None:
        """Shut NVML down."""
        self._asked(self._nvml.nvmlShutdown)


class Sampler:
    """Samples every GPU until `stop`, in a thread of this process and not of the profiled one."""

    def __init__(self, interval_s: float = 0.02, most: int = 20_000) -> None:
        self._interval_s, self._most = interval_s, most
        self._devices: list[ClockSamples] = []
        self._error = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def _work(self) -> None:
        try:
            nvml = Nvml()
        except OSError as error:
            self._error = str(error)
            return
        devices = nvml.devices()
        self._devices = [samples for _, samples in devices]
        while not self._done.wait(self._interval_s):
            for handle, samples in devices:
                nvml.sample(handle, samples)
            if self._devices and len(self._devices[0].utc_ns) >= self._most:
                # A long run is kept whole at half the rate, so that the samples do not fill the memory.
                self._interval_s *= 2
                for samples in self._devices:
                    samples.thin()
        nvml.close()

    def stop(self) -> dict[str, Any]:
        """Stop sampling and return source, error, final interval (ns) and the samples per device, as JSON values."""
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
