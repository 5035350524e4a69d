"""Which lines run in steps that are far longer than usual while nothing records: in every n-th step, or between steps.

A window of a few steps holds none of them. A thread looks now and then whether the program is still in the step, or behind the step, that
it was in, and notes the line of the program as long as that lasts. A usual step pays for nothing but a look every 200 ms or more.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from types import FrameType
from typing import Any

from .clock import StepClock
from .probe_bounds import (
    FEWEST_LOOKS,
    LAST_LOOKS,
    LAST_STEPS,
    LONG_STEP_LOOK_NS,
    LONG_STEP_SAMPLE_NS,
    LONG_STEP_TIMES,
    MOST_LONG_STEP_PLACES,
    MOST_LONG_STEP_SAMPLES,
    SHORTEST_LONG_STEP_NS,
    SHORTEST_RETURNING_NS,
)
from .returning_steps import next_long
from .sources import Sources

#: What opens and closes windows.
_PAUSES = ("capture_range.py", "meeting.py", "probe_windows.py", "draining.py")


def _is_probes(frame: FrameType | None) -> bool:
    """Return whether the probe itself keeps the program waiting, as at the border of a window."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(_PAUSES):
            return True
        frame = frame.f_back
    return False


class LongSteps:
    """Notes where the thread that makes the steps is while one of them lasts long. ``start`` and ``stop`` may come again and again."""

    def __init__(self, clock: StepClock, sources: Sources) -> None:
        self._clock, self._sources = clock, sources
        self._stopped: threading.Event | None = None
        self._steps = self._samples = 0
        self._places: dict[tuple[str, int, str], int] = {}
        self._entries: dict[tuple[str, int, str], int] = {}
        self._usual: dict[tuple[str, int], bool] = {}  # whether the X-ray has seen the line, too

    def start(self) -> None:
        """Look at this thread from now on."""
        self.stop()
        self._stopped = threading.Event()
        of_thread = (threading.get_ident(), self._stopped)
        threading.Thread(target=self._look, args=of_thread, name="nsysx long steps", daemon=True).start()

    def stop(self) -> None:
        """Look no longer."""
        if self._stopped is not None:
            self._stopped.set()
            self._stopped = None

    def record(self) -> dict[str, Any] | None:
        """Return how many ``steps`` were long, and of the ``samples`` taken in them the most frequent ``places``; None where none was.

        Of each: file, line, function, samples, and whether an X-ray of usual steps has seen that line, too. ``entries`` are the lines by
        which usual lines come to them, as a validation that runs a whole network is entered: file, line, function, samples.
        """
        if not self._steps:
            return None
        most = sorted(self._places.items(), key=lambda item: -item[1])[:MOST_LONG_STEP_PLACES]
        for (path, number, _), _ in most[:1]:
            if not self._usual[path, number]:  # what its rounds compute is told by all of their lines
                self._sources.ask_loop(path, number)
        places = [[*line, samples, self._usual[line[:2]]] for line, samples in most]
        entries = sorted(self._entries.items(), key=lambda item: -item[1])[:MOST_LONG_STEP_PLACES]
        return {
            "steps": self._steps,
            "samples": self._samples,
            "every_ns": LONG_STEP_SAMPLE_NS,
            "places": places,
            "entries": [[*line, samples] for line, samples in entries],
        }

    def _look(self, thread: int, stopped: threading.Event) -> None:
        before, lengths, pause_ns = self._clock.begun, list[int](), LONG_STEP_LOOK_NS
        while not stopped.wait(pause_ns / 1e9) and self._samples < MOST_LONG_STEP_SAMPLES:
            begun = self._clock.begun
            steps = begun[0] - before[0]
            if steps > 0:
                lengths = [*lengths[1 - LAST_LOOKS :], (begun[1] - before[1]) // steps]
            before = begun
            if len(lengths) < FEWEST_LOOKS:
                continue
            usual = int(statistics.median(lengths))
            pause_ns = max(LONG_STEP_LOOK_NS, usual)
            long_ns, due_ns = max(LONG_STEP_TIMES * usual, SHORTEST_LONG_STEP_NS), self._due_ns(begun[0])
            left_ns = min(long_ns, due_ns or long_ns) - (time.perf_counter_ns() - begun[1])
            if due_ns and left_ns > 0:  # what runs between steps may take no longer than a few of them
                stopped.wait(left_ns / 1e9)
            if (due_ns or left_ns < 0) and self._clock.begun == begun:
                self._follow(thread, begun, stopped)

    def _due_ns(self, index: int) -> int:
        """Return from which time on step ``index`` is long, if long ones come back regularly and it is one that is due; else 0."""
        steps = self._clock.last_steps(LAST_STEPS)
        if not steps or next_long(steps, index - 1, {}) != index:
            return 0
        usual = int(statistics.median(step.ns for step in steps))
        return max(LONG_STEP_TIMES * usual, SHORTEST_RETURNING_NS)

    def _follow(self, thread: int, begun: tuple[int, int], stopped: threading.Event) -> None:
        """Note lines until another step begins."""
        first = 1
        while self._clock.begun == begun and self._samples < MOST_LONG_STEP_SAMPLES:
            frame = sys._current_frames().get(thread)
            if not _is_probes(frame):
                self._samples += 1
                self._steps, first = self._steps + first, 0
                self._note(frame)
            del frame
            if stopped.wait(LONG_STEP_SAMPLE_NS / 1e9):
                return

    def _note(self, frame: FrameType | None) -> None:
        """Note the innermost line of the user's own code that usual steps do not run, within one that they do, and the outermost such line.

        A validation runs the model as training does: what makes the step long is the line that calls it. Where no line is unusual,
        the innermost is noted alone.
        """
        lines = []
        while frame is not None:
            if self._sources.kind(frame.f_code) == "user":
                lines.append((self._sources.path(frame.f_code), frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        if not lines:
            return
        usual = [self._usual.get(line[:2], self._sources.has_seen(*line[:2])) for line in lines]
        # What lies outside of all that an X-ray saw has begun before it: the loop itself.
        inside = usual[: len(usual) - usual[::-1].index(True)] if True in usual else []
        chosen = inside.index(False) if False in inside else 0
        self._count(self._places, lines[chosen], usual[chosen])
        if False in inside:
            entry = len(inside) - 1 - inside[::-1].index(False)
            self._count(self._entries, lines[entry], False)

    def _count(self, lines: dict[tuple[str, int, str], int], line: tuple[str, int, str], usual: bool) -> None:
        if line[:2] not in self._usual:
            self._usual[line[:2]] = usual
            self._sources.seen(*line[:2], False)  # so that its text is kept
        lines[line] = lines.get(line, 0) + 1
