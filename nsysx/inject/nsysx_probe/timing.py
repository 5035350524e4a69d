"""Measures how long each step takes without a profiler; ``nsysx run --calibrate`` runs the program a second time for this.

At the beginning of each step the host's clock is read and, if CUDA is in use, an event is recorded in the current stream. Nothing
waits for the events before the program ends.
"""

from __future__ import annotations

import time
from typing import Any

from .clock import event_here
from .probe_bounds import MOST_TIMED_STEPS


class Timing:
    """The borders between steps, each with the step that begins (None: no step), the host's time in ns, and a CUDA event."""

    def __init__(self, torch: Any, window: tuple[int, int] | None) -> None:
        self.torch = torch
        self.window = window
        self.synchronize = torch.cuda.synchronize  # a change may replace it
        self.ended = False  # the program has ended; only then may `record` wait for the device
        self.borders: list[tuple[int | None, int, Any]] = []

    def border(self, index: int | None) -> None:
        """Note that step ``index`` begins here or, with None, that the open one ends."""
        before = self.borders[-1][0] if self.borders else None
        wanted = index is not None and (self.window is None or self.window[0] <= index < self.window[1])
        if (not wanted and before is None) or len(self.borders) >= MOST_TIMED_STEPS:
            return
        event = event_here(self.torch)
        self.borders.append((index if wanted else None, time.perf_counter_ns(), event))

    def record(self) -> dict[str, Any]:
        """Wait for the device; return ``clock`` (gpu or cpu) and ``steps_ns``, the length of each step by its number."""
        steps = [(a, b) for a, b in zip(self.borders, self.borders[1:]) if a[0] is not None]  # noqa: B905 - Python 3.9
        by_gpu = bool(steps) and all(a[2] is not None and b[2] is not None for a, b in steps[1:] or steps)
        lengths: dict[int, int] = {}
        if by_gpu:
            self.synchronize()
        for (index, begin, first), (_, end, last) in steps:
            assert index is not None
            if not by_gpu:
                lengths[index] = end - begin
            elif first is not None and last is not None:
                lengths[index] = int(first.elapsed_time(last) * 1e6)
        return {"clock": "gpu" if by_gpu else "cpu", "steps_ns": lengths}
