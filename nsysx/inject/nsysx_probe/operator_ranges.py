"""Turns on torch's own ranges of operators: ``aten::addmm, seq = 7, op_id = 9, sizes = [[8], [4, 16], [16, 8]], ...``.

These are the ranges of ``torch.autograd.profiler.emit_nvtx``, without its ``torch.cuda.synchronize``: CUDA must not start before
the program needs it. Operators are observed after dispatch, so compiled programs, CUDA graphs, gradients and random numbers stay
what they are. A dispatch mode would change what is dispatched.

Each range costs microseconds. So shapes are recorded only in X-ray steps, in a few steps that represent
the others, and never in the first step, which compiles. Three rules keep the program safe:

- The recorder belongs to the thread that turned it on (and to the threads of its backward): no other thread turns it off.
- Torch allows only one profiler per thread: ours ends before one of the program's starts, and does not come back.
- With shapes, torch keeps a table of which operator made which tensor, without a lock. If two threads run one backward (parts of
  it on the CPU, or on several devices), operators are recorded without shapes from then on.
"""

from __future__ import annotations

import threading
from typing import Any

from .backward_graph import nodes_of
from .interrupts import of_program
from .output import Output
from .probe_bounds import BACKWARD_LOOKS, MOST_BACKWARD_NODES


class OperatorRanges:
    """``wanted`` is shapes, names (in every step, NSYSX_BACKWARD=ops) or off; ``why_not``: why nothing is recorded, or None."""

    def __init__(self, torch: Any, out: Output, wanted: str) -> None:
        self.torch = torch
        self.out = out
        self.wanted = self.asked = wanted
        self.shapes = wanted == "shapes"
        self.times = 0  # how often it was turned on
        self.why_not: str | None = None
        self._thread: int | None = None  # the thread that turned the recorder on, while it is on
        self._looks = BACKWARD_LOOKS

    def record(self) -> dict[str, Any] | None:
        """Return what was recorded, for the probe file; None if nothing was asked for."""
        if self.asked == "off":
            return None
        return {"shapes": self.shapes, "times": self.times, "why_not": self.why_not}

    @property
    def on(self) -> bool:
        """Return whether operators are recorded now."""
        return self._thread is not None

    def in_step(self, on: bool) -> None:
        """Turn shapes on or off for this step or this capture of a CUDA graph, if shapes were asked for."""
        if self.wanted == "shapes":
            self.turn(on)

    def turn(self, on: bool) -> None:
        """Turn the recorder on or off, on this thread."""
        if self.wanted == "off" or on == (self._thread is not None):
            return
        try:
            self._on() if on else self._off()
        except Exception as error:
            self._end(f"{type(error).__name__}: {error}", error)

    def _end(self, reason: str, error: Exception | None = None) -> None:
        """Go on without operators, and note the reason. Raises ``error`` again if it is the program's."""
        if error is not None and of_program(error):
            raise error
        self.wanted, self.why_not = "off", reason[:200]

    def _on(self) -> None:
        from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

        if self.torch.autograd._profiler_enabled():
            return  # a profiler of the program is running
        config = ProfilerConfig(ProfilerState.NVTX, self.shapes, False, False, False, False, _ExperimentalConfig())
        self.torch._C._autograd._enable_profiler(config, set())
        self._thread = threading.get_ident()
        self.times += 1

    def _off(self) -> None:
        if self._thread == threading.get_ident():  # only the thread that turned it on can turn it off
            self._thread = None
            self.torch._C._autograd._disable_profiler()

    def give_way(self, _first: Any) -> None:
        """Stop recording, because the program starts its own profiler on this thread."""
        if self._thread == threading.get_ident() and self.wanted != "off":
            self.turn(False)
            self._end("the program uses its own profiler, and torch allows only one at a time")

    def before_backward(self, roots: Any) -> None:
        """Before a backward on this thread: leave the shapes out if several threads will run it."""
        if self._thread is None or not self.shapes or not self._looks:
            return
        self._looks -= 1
        try:
            if _one_thread(roots):
                return
            self.turn(False)
            self.shapes = False
            self.out.note("operators: without shapes, because several threads run one backward")
            self.turn(True)
        except Exception as error:
            self.turn(False)
            self._end(f"{type(error).__name__}: {error}", error)


def _one_thread(roots: Any) -> bool:
    """Return whether one thread runs the backward of these tensors, because every node of their graph is on the same device."""
    devices = set()
    for number, node in enumerate(nodes_of(roots)):
        if number >= MOST_BACKWARD_NODES:
            return False
        of_node = {str(given.device) for given in node._input_metadata}
        devices |= {device for device in of_node if device != "cpu"} or of_node
    return len(devices) <= 1
