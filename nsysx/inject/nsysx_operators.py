"""Operators of torch as ranges of torch's own: ``aten::addmm, seq = 7, op_id = 9, sizes = [[8], [4, 16], [16, 8]], ...``.

This is what ``torch.autograd.profiler.emit_nvtx`` writes, without its ``torch.cuda.synchronize``: CUDA must not start before
the program wants it. It looks at operators where they are dispatched, so compiled programs, CUDA graphs, gradients and random
numbers are what they are without it; a dispatch mode would change what is dispatched.

Each range costs microseconds, so shapes (NSYSX_OPS=1) are recorded where modules are marked, in few steps that the others
repeat, and never in the first, which compiles. Rules that keep the program safe:

- The recorder belongs to the thread that turned it on (and to the threads of its backward): no other turns it off.
- Torch lets only one profiler run in a thread: ours is gone before one of the program's starts, and stays away.
- With shapes torch keeps a table of who made which tensor, without a lock. Where two threads run one backward (parts of it
  on the CPU, or on several devices) operators are recorded without shapes from there on.
"""

from __future__ import annotations

import threading
from typing import Any

from nsysx_output import Output

#: Backwards whose graph is looked at before they are taken for alike, and the largest graph that is looked at (nodes).
_LOOKS, _MOST_NODES = 3, 50_000


class Operators:
    """``wanted`` is shapes, names (in every step, NSYSX_BACKWARD=ops) or off; ``why_not`` says what kept them from being recorded."""

    def __init__(self, torch: Any, out: Output, wanted: str) -> None:
        self.torch = torch
        self.out = out
        self.wanted = self.asked = wanted
        self.shapes = wanted == "shapes"
        self.times = 0  # turned on
        self.why_not: str | None = None
        self._thread: int | None = None  # that of the recorder, while it is on
        self._looks = _LOOKS

    def record(self) -> dict[str, Any] | None:
        """Return what was recorded; None where nothing was asked for."""
        if self.asked == "off":
            return None
        return {"shapes": self.shapes, "times": self.times, "why_not": self.why_not}

    def in_step(self, on: bool) -> None:
        """Say whether this step, or this capture of a CUDA graph, is one whose operators are recorded with their shapes."""
        if self.wanted == "shapes":
            self.turn(on)

    def turn(self, on: bool) -> None:
        """Turn the recorder on or off, on this thread."""
        if self.wanted == "off" or on == (self._thread is not None):
            return
        try:
            self._on() if on else self._off()
        except Exception as error:
            self._end(f"{type(error).__name__}: {error}")

    def _end(self, reason: str) -> None:
        """Go on without operators."""
        self.wanted, self.why_not = "off", reason[:200]
        self.out.note(f"operators: {reason}")

    def _on(self) -> None:
        from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

        if self.torch.autograd._profiler_enabled():
            return  # one of the program's own
        config = ProfilerConfig(ProfilerState.NVTX, self.shapes, False, False, False, False, _ExperimentalConfig())
        self.torch._C._autograd._enable_profiler(config, set())
        self._thread = threading.get_ident()
        self.times += 1

    def _off(self) -> None:
        if self._thread == threading.get_ident():  # else it stays: only the thread that turned it on can
            self._thread = None
            self.torch._C._autograd._disable_profiler()

    def give_way(self, _first: Any) -> None:
        """A profiler of the program's own starts on this thread."""
        if self._thread == threading.get_ident() and self.wanted != "off":
            self.turn(False)
            self._end("the program uses a profiler of its own, and torch allows one at a time")

    def before_backward(self, roots: Any) -> None:
        """A backward begins on this thread: leave the shapes out if several threads will run it."""
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
            self._end(f"{type(error).__name__}: {error}")


def _one_thread(roots: Any) -> bool:
    """Say whether one thread runs the backward of these tensors: every node of their graph works on the same GPU."""
    roots = roots if isinstance(roots, (tuple, list)) else (roots,)
    todo = [getattr(root, "node", None) or getattr(root, "grad_fn", None) for root in roots]
    seen: dict[int, Any] = {}
    devices = set()
    while todo:
        node = todo.pop()
        if node is None or id(node) in seen:
            continue
        if len(seen) >= _MOST_NODES:
            return False
        seen[id(node)] = node
        of_node = {str(given.device) for given in node._input_metadata}
        devices |= {device for device in of_node if device != "cpu"} or of_node
        todo.extend(following for following, _ in node.next_functions)
    return len(devices) <= 1
