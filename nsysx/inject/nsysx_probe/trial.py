"""A run of ``nsysx try``: times warm-up and measured steps without a profiler, with or without changes, and ends the program.

``NSYSX_TRIAL=W:N:S:P:B:U:T``: W steps to warm up, then N that are measured, or fewer (at least `TRIAL_LEAST_STEPS`) once they took
S seconds (0: never fewer). Then the parameters and the losses are read. If the changes can be turned off and on, P pairs of
blocks of B steps follow. At the time U (s since 1970, 0: never) the run ends with what it has, from `TRIAL_LEAST_LONG` measured
steps on. With T (s, 0: not so), changes that took effect in the warm-up and can be turned off are off in the measured steps, and
blocks have as many steps as take T, B at least; where none took effect the run goes on without: one start measures the unchanged
program and the change. At last trial-<pid>.json is written, and the process waits to be killed. Before that, nothing is read by the
host and nothing waits for the device; what the parameters are early on is computed between two steps of the warm-up.
``beat-<pid>`` holds the number of steps that were begun, as 8 bytes.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import changes
from .blocks import Blocks
from .interrupts import of_program
from .probe_bounds import (
    TRIAL_EARLY_STEPS,
    TRIAL_FEWEST_PAIRS,
    TRIAL_KILLED_S,
    TRIAL_LEAST_LONG,
    TRIAL_LEAST_STEPS,
    TRIAL_MANY_TIMES,
    TRIAL_MOST_BLOCK_STEPS,
)
from .timing import Timing
from .weights import Weights


class TrialRecorder(Timing):
    """The lengths of all steps, and what tells whether the program computed the same."""

    def __init__(self, torch: Any, environ: Mapping[str, str]) -> None:
        super().__init__(torch, None)
        warm, steps, seconds, pairs, size, until, turning = environ["NSYSX_TRIAL"].split(":")
        self.environ = environ
        self.warm, self.steps, self.seconds = int(warm), int(steps), float(seconds)
        self.pairs, self.block_steps = int(pairs), int(size)
        self.until_s = float(until) or math.inf
        self.turning_s, self.turned_off = float(turning), False
        self.blocks: Blocks | None = None
        self.results: dict[str, Any] | None = None
        self.index = -1
        self.pid = os.getpid()
        self.written = False
        self.optimizers: Callable[[], list[Any]] = list
        self.watches: dict[str, changes.Watch] = {}
        self.weights = Weights(torch, self._living, self._places)
        self.losses: dict[str, list[Any]] = {"first": [], "last": []}
        self._lost_in = -1  # the step whose losses were kept last
        self.began_ns = 0  # the first measured step, by the host's clock
        self.first_step_s: float | None = None
        self._beat: Any = None

    def make_changes(self) -> None:
        """Make the changes that the environment names. A change that fails ends the process, and says why."""
        try:
            self.watches = changes.make(self.torch, self.environ)
        except Exception:
            traceback.print_exc()
            os._exit(1)

    # ---- steps ------------------------------------------------------------------------------------------------------

    def border(self, index: int | None) -> None:
        """Note that step ``index`` begins here or, with None, that the open one ends; after the last one, end the run."""
        if index is not None and self.blocks is not None:
            self.blocks.begin(index)
        elif index is not None and index <= self.warm:
            self._look_early(index)
            if index == self.warm and self.turning_s and self._can_turn():
                self._turn_off()
        super().border(index)
        if index is None:
            if self._complete():
                self._go_on()
            return
        self.index = index
        if index == self.warm:
            self.began_ns = time.perf_counter_ns()
            if self.watches and not self.turning_s and not any(watch.count for watch in self.watches.values()):
                self._finish()  # no change has taken effect: there is nothing to measure
        if self.first_step_s is None:
            self.first_step_s = time.time()
        self._show(index + 1)
        for watch in self.watches.values():
            for work in (*watch.each_step, *watch.at_step.pop(index, ())):
                work()

    def _look_early(self, index: int) -> None:
        """Keep what the parameters are before the first step of an optimizer, after it, and after `TRIAL_EARLY_STEPS` steps."""
        if len(self.weights.points) < 2 or index == min(TRIAL_EARLY_STEPS, self.warm):
            self.weights.keep(index)

    def _complete(self) -> bool:
        done = self.index + 1 - self.warm
        if done >= self.steps or (done >= TRIAL_LEAST_LONG and self._late()):
            return True
        if not self.seconds or done < TRIAL_LEAST_LONG:
            return False
        took = (time.perf_counter_ns() - self.began_ns) / 1e9
        return took > self.seconds * (1 if done >= TRIAL_LEAST_STEPS else TRIAL_MANY_TIMES)

    def _go_on(self) -> None:
        """After the measured steps, begin with blocks if the changes can be turned off; after the blocks, end the run."""
        if self.blocks is None:
            size = self._block_size()
            if not self.pairs or not self._can_turn() or not size:
                self._finish()
            else:
                self.write("so far")
                self.blocks = Blocks(self.watches, self.index + 1, size, self.pairs, self._wait, on=not self.turned_off)
        elif self.blocks.over(self.index) or self._late():
            self._finish()

    def _can_turn(self) -> bool:
        """Return whether there are changes, and all of them took effect and can be turned off."""
        return bool(self.watches) and all(watch.turns and watch.count for watch in self.watches.values())

    def _turn_off(self) -> None:
        self._wait()
        for watch in self.watches.values():
            watch.turn(on=False)
        self.turned_off = True

    def _block_size(self) -> int:
        """Return how many steps a block has, 0 if there is no time for blocks.

        A run that turns its changes off is the first one: nobody knew how long its steps are.
        """
        if not self.turned_off:
            return self.block_steps
        step_s = (time.perf_counter_ns() - self.began_ns) / 1e9 / max(1, self.index + 1 - self.warm)
        steps = min(max(self.block_steps, round(self.turning_s / step_s)), TRIAL_MOST_BLOCK_STEPS)
        fits = time.time() + 2 * TRIAL_FEWEST_PAIRS * steps * step_s < self.until_s
        return steps if fits else 0

    def _late(self) -> bool:
        return time.time() > self.until_s

    def _wait(self) -> None:
        cuda = self.torch.cuda
        if cuda.is_initialized() and not cuda.is_current_stream_capturing():
            self.synchronize()

    def _show(self, steps: int) -> None:
        if self._beat is None:
            file = Path(self.environ["NSYSX_PROBE_DIR"]) / f"beat-{self.pid}"
            with file.open("w+b") as opened:
                opened.write(bytes(8))
                opened.flush()
                self._beat = mmap.mmap(opened.fileno(), 8)
        struct.pack_into("=q", self._beat, 0, steps)

    def before_backward(self, roots: Any) -> None:
        """Keep the loss of the first and of the last step; it is read when the measured steps are over.

        If nobody knows which step is the last, each may be: then the tensor itself is kept, not a copy.
        """
        last = self.warm + self.steps - 1
        which = "first" if self.index == 0 else "last" if self.index == last or self.seconds or self._late() else ""
        if not which or self.results is not None:
            return
        if self.index != self._lost_in:
            self._lost_in, self.losses[which] = self.index, []
        for root in roots if isinstance(roots, (tuple, list)) else (roots,):
            capturing = root.is_cuda and self.torch.cuda.is_current_stream_capturing()
            if root.numel() == 1 and not capturing:
                kept = root.detach()
                self.losses[which].append(kept if self.seconds and self.index else kept.clone())

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Write the result and wait to be killed: no handler and no exit function of the program runs."""
        if os.getpid() != self.pid:
            return
        self.ended = True
        try:
            self.write("measured")
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        until = time.monotonic() + TRIAL_KILLED_S
        while time.monotonic() < until:
            time.sleep(0.1)
        os._exit(0)

    def write(self, how: str) -> None:
        """Write trial-<pid>.json, completely or not at all: once the steps are measured, and at the end, with the blocks.

        A program that ends in its blocks has measured its steps.
        """
        if self.written or os.getpid() != self.pid or (how == "exit" and self.index < 0):
            return
        self.written = how != "so far"
        how = "measured" if self.results is not None else how
        self.results = self.results or self._results()
        ran = [] if self.blocks is None else self.blocks.ran
        record = {**self.record(), **self.results, "blocks": ran, "ended": how}
        file = Path(self.environ["NSYSX_PROBE_DIR"]) / f"trial-{self.pid}.json"
        scratch = file.with_suffix(".tmp")
        scratch.write_text(json.dumps(record), encoding="utf-8")
        scratch.replace(file)

    def _results(self) -> dict[str, Any]:
        """Return what the measured steps left: the context, what the changes say, parameters and losses."""
        for watch in self.watches.values():
            for work in watch.at_end:
                work()
        results = self._context()
        self.weights.keep(self.index + 1)
        try:
            results["weights"] = self.weights.record()
            results["losses"] = {which: [float(v) for v in kept] for which, kept in self.losses.items()}
        except Exception as error:
            if of_program(error):
                raise
            results["weights"], results["why_no_results"] = None, f"{type(error).__name__}: {error}"
        return results

    def _context(self) -> dict[str, Any]:
        torch = self.torch
        cuda = bool(torch.cuda.is_initialized())
        return {
            "pid": self.pid,
            "ranks": int(self.environ.get("LOCAL_WORLD_SIZE") or 1),
            "rank": self.environ.get("RANK"),
            "warm": self.warm,
            "steps": self.index + 1,
            "turned_off": self.turned_off,
            "first_step_s": self.first_step_s,
            "warm_up_ns": next((time_ns for i, time_ns, _ in self.borders if i == self.warm), self.began_ns)
            - (self.borders[0][1] if self.borders else 0),
            "cuda": cuda,
            "peak_memory_bytes": torch.cuda.max_memory_allocated() if cuda else None,
            "optimizers": sorted({type(o).__name__ for o in self._living()}),
            "changes": {name: watch.record() for name, watch in self.watches.items()},
        }

    def _places(self) -> dict[int, int]:
        """Return the place that each parameter had in its optimizer, by its id, where a change gave it another one."""
        return {key: before for watch in self.watches.values() for key, before in watch.places_before.items()}

    def _living(self) -> list[Any]:
        return [optimizer for ref in self.optimizers() if (optimizer := ref()) is not None]
