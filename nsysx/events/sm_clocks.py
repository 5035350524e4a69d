"""The SM clock beside a capture, as ``nsysx run --clocks`` sampled it (``recording.clock_sampler``)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nsysx.events.event_bounds import FEWEST_CLOCK_SAMPLES, LAST_CLOCK_HOLDS_NS
from nsysx.frames.intervals import I64
from nsysx.reading.load import Trace


def sm_clock(trace: Trace, devices: int) -> tuple[I64, npt.NDArray[np.float64]] | None:
    """Return (times in ns of the session, SM clock in MHz), None where it was not sampled. ``devices`` worked in the capture.

    NVML counts devices its own way, so samples are used only where there is one device on both sides.
    """
    clocks, epoch = trace.run.get("clocks"), trace.capture.utc_epoch_ns
    listed = clocks.get("devices") if isinstance(clocks, dict) else None
    if epoch is None or not isinstance(listed, list) or len(listed) != 1 or devices != 1:
        return None
    times, values = (listed[0].get(key) if isinstance(listed[0], dict) else None for key in ("utc_ns", "sm_mhz"))
    if not isinstance(times, list) or not isinstance(values, list):
        return None
    pairs = [(t, v) for t, v in zip(times, values, strict=False) if isinstance(t, int) and isinstance(v, int)]
    if len(pairs) < FEWEST_CLOCK_SAMPLES:
        return None
    return np.array([t for t, _ in pairs], np.int64) - epoch, np.array([v for _, v in pairs], np.float64)


def at(samples: tuple[I64, npt.NDArray[np.float64]] | None, times: I64) -> npt.NDArray[np.float64]:
    """Return the clock at each instant (MHz), NaN where it was not sampled."""
    mhz = np.full(len(times), np.nan)
    if samples is not None:
        when, clock = samples
        row = np.searchsorted(when, times, side="right") - 1
        held = (row >= 0) & (times <= when[-1] + LAST_CLOCK_HOLDS_NS)
        mhz[held] = clock[row[held]]
    return mhz


def means(samples: tuple[I64, npt.NDArray[np.float64]] | None, start: I64, end: I64) -> npt.NDArray[np.float64]:
    """Return the mean clock of the samples in each window [start, end) (MHz), NaN for windows without one."""
    mhz = np.full(len(start), np.nan)
    if samples is not None:
        when, clock = samples
        total = np.concatenate(([0.0], np.cumsum(clock)))
        low, high = np.searchsorted(when, start), np.searchsorted(when, end)
        some = high > low
        mhz[some] = (total[high] - total[low])[some] / (high - low)[some]
    return mhz
