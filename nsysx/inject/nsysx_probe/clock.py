"""Measures how long steps take, without ever waiting for the device.

By the host's clock, a step lasts from its beginning to that of the next one. If the GPU sets the pace, this is too short at
first: the host runs ahead until the launch queue is full, which a short program never reaches. So before a capture window each
step begins with an event in the current stream (2 us), and the device's times of the last of these events give the step's length.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from .interrupts import of_program
from .probe_bounds import (
    BARE_BLOCK_NS,
    BARE_ENOUGH,
    BARE_ERROR_BLOCKS,
    BARE_ERROR_SHARE,
    BARE_FEWEST,
    BARE_LONGEST_NS,
    BARE_SETTLING_NS,
    BARE_SETTLING_STEPS,
    BARE_SHORTEST_NS,
    BARE_WAIT_SHARE,
    BETWEEN_STEPS_SHARE,
    CLOCK_BLOCKS,
    MOST_CLOCKED_STEPS,
    SMALLEST_CLOCK_BLOCK,
    WARM_UP_STEPS,
)


def event_here(torch: Any) -> Any:
    """Record an event in the current stream and return it; None if CUDA is not in use or the stream is being captured."""
    cuda = torch.cuda
    if not cuda.is_initialized() or cuda.is_current_stream_capturing():
        return None
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


class TimedStep(NamedTuple):
    """A step that another one followed immediately: number, length, whether it was marked and recorded, time in loaders' ``next``."""

    number: int
    ns: int
    marked: bool
    recorded: bool
    fetch_ns: int


class Ring:
    """The last rows of numbers, in memory that does not grow: a step that is noted may cost a program nothing that it sees."""

    def __init__(self, most: int, width: int) -> None:
        self._cells, self._most, self._width = array("q", bytes(8 * most * width)), most, width
        self._first = self._count = 0

    def append(self, *row: int) -> None:
        """Add a row, in place of the first one where there is no room."""
        if self._count == self._most:
            self._first, self._count = (self._first + 1) % self._most, self._count - 1
        cell = (self._first + self._count) % self._most * self._width
        for i in range(self._width):
            self._cells[cell + i] = row[i]
        self._count += 1

    def pop(self) -> None:
        """Remove the last row."""
        self._count -= 1

    def clear(self) -> None:
        """Remove all rows."""
        self._first = self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, ...]:
        if not -self._count <= index < self._count:
            raise IndexError(index)
        cell = (self._first + index % self._count) % self._most * self._width
        return tuple(self._cells[cell : cell + self._width])

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return (self[i] for i in range(self._count))


class StepClock:
    """Is told when steps begin and end, and derives their lengths."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self._periods = Ring(MOST_CLOCKED_STEPS, len(TimedStep._fields))
        self._open: tuple[int, int, bool, bool] | None = None
        self._events: deque[tuple[int, Any]] = deque(maxlen=MOST_CLOCKED_STEPS)
        self._bare_from: int | None = None  # the first bare step after a window that counts
        self._bare_ns = self._counted_ns = 0  # when that window closed, and when the first step that counts began
        self._counted, self._look_at = 0, BARE_ENOUGH
        self._waited = False  # a bare step that counts has waited for its batch
        self._block = 1  # the steps between two events
        self._begun = Ring(MOST_CLOCKED_STEPS, 2)  # number and time of each step's beginning
        self.begun = 0, time.perf_counter_ns()  # number and time of the last step's beginning, for other threads
        self.fetch_ns = 0  # how long the open step has waited for batches (`Fetches`)

    def begin(self, index: int, *, recorded: bool = False, marked: bool = False, event: bool = False) -> None:
        """Note that step ``index`` begins now; ``event``: a capture window comes soon, so the device's time is wanted, too."""
        now = time.perf_counter_ns()
        if event and index % self._block == 0:
            self._record_event(index)
        before, self._open = self._open, (index, now, marked, recorded)
        if before is not None and before[0] != index:
            self._periods.append(before[0], now - before[1], before[2], before[3], self.fetch_ns)
            if self._counted_ns and not self._waited and self.fetch_ns > BARE_WAIT_SHARE * (now - before[1]):
                self._count_anew(now)
        self.fetch_ns = 0
        if self._begun and self._begun[-1][0] == index:  # it begins at another place in the program
            self._begun.pop()
        else:
            self._counted += 1
        self._begun.append(index, now)
        self.begun = index, now
        if self._bare_from is not None and not self._counted_ns:
            self._settle(index, now)

    def stop(self) -> None:
        """Note that a step has ended and none begins immediately: its length is not known, and it is dropped."""
        self._open = None

    def move(self) -> None:
        """From here on steps begin at another place in the program: the open one has no length that is comparable."""
        self._open = None
        if self._events:
            self._events.pop()

    @property
    def periods(self) -> list[TimedStep]:
        """Return the noted steps."""
        return [
            TimedStep(number, ns, bool(marked), bool(recorded), fetch)
            for number, ns, marked, recorded, fetch in self._periods
        ]

    def last_steps(self, most: int) -> list[TimedStep]:
        """Return the last steps with the time from each one's beginning to the next one's; asked by another thread, it may miss some."""
        with contextlib.suppress(IndexError):
            count = len(self._begun)
            begun = [self._begun[i] for i in range(max(0, count - most - 1), count)]
            steps = zip(begun, begun[1:])  # noqa: B905, RUF007 - Python 3.9
            return [TimedStep(i, after - ns, False, False, 0) for (i, ns), (j, after) in steps if j == i + 1]
        return []

    def longest_ns(self) -> int:
        """Return how long the longest of the noted steps took, by the host's clock; 0 without any."""
        return max((p.ns for p in self.periods), default=0)

    def _record_event(self, index: int) -> None:
        try:
            event = event_here(self.torch)
            if event is not None:
                self._events.append((index, event))
        except Exception as error:  # no device, or a failing one: use the host's clock instead
            if of_program(error):
                raise
            self._events.clear()

    def by_device(self) -> dict[int, int]:
        """Return number -> length (ns) of each step whose block's first event and whose successor's the device has reached.

        In a block of several steps each has their mean. A block in which a step has no length of its own, because something else
        followed it, is left out.
        """
        lengths, block = {}, self._block
        numbers = {p.number for p in self.periods}
        with contextlib.suppress(Exception):
            reached = [(number, event) for number, event in self._events if event.query()]
            for (number, first), (after, last) in zip(reached, reached[1:]):  # noqa: B905, RUF007 - Python 3.9
                steps = range(number, after)
                if after == number + block and numbers.issuperset(steps):
                    lengths.update(dict.fromkeys(steps, int(first.elapsed_time(last) * 1e6) // block))
        return lengths

    def _timed(self, steps: list[TimedStep], least: int) -> tuple[list[TimedStep], str]:
        """Return the steps with their lengths by the device's clock (gpu) if it tells at least that many, else by the host's (cpu)."""
        device = self.by_device()
        free = [p._replace(ns=device[p.number]) for p in steps if p.number in device]
        return (free, "gpu") if len(free) >= least else (steps, "cpu")

    def _loop(self, first: int, before: int | None) -> list[int]:
        """Return how long each step from ``first`` on took from its beginning to that of the next one, whatever ran between them (ns).

        [] where next to nothing did. By the host's clock: what runs between steps has no events.
        """
        begun = [(i, ns) for i, ns in self._begun if i >= first and (before is None or i < before)]
        steps = [(j - i, (after - ns) // (j - i)) for (i, ns), (j, after) in zip(begun, begun[1:]) if j > i]  # noqa: B905, RUF007
        whole = [ns for count, ns in steps for _ in range(count)]
        in_steps = sum(p.ns for p in self.periods if begun and begun[0][0] <= p.number < begun[-1][0])
        return whole if sum(whole) - in_steps > BETWEEN_STEPS_SHARE * sum(whole) else []

    def unrecorded(self, before: int | None) -> dict[str, Any] | None:
        """Return count, median_ns, low_ns, high_ns, clock and where of the unprofiled steps before step ``before``.

        The first steps and the last one, in which the capture starts, do not count. None if too few steps are left. ``clock``
        is gpu or cpu; the three times are median, minimum and maximum of the block means.
        """
        if before is None:
            return None
        periods = self.periods
        steps = [p for p in periods if not p.recorded and p.number < before - 1]
        first = max(WARM_UP_STEPS, len(steps) // CLOCK_BLOCKS)
        steps = steps[first:] if periods and periods[0].number < WARM_UP_STEPS else steps
        timed, clock = self._timed(steps, CLOCK_BLOCKS * SMALLEST_CLOCK_BLOCK)
        free = [p.ns for p in timed]
        size = len(free) // CLOCK_BLOCKS
        if size < SMALLEST_CLOCK_BLOCK:
            return None
        free = free[len(free) - size * CLOCK_BLOCKS :]
        means = [sum(free[i : i + size]) / size for i in range(0, len(free), size)]
        return {
            "loop_ns": self._loop(steps[0].number, before),
            "count": len(free),
            "median_ns": round(statistics.median(means)),
            "low_ns": round(min(means)),
            "high_ns": round(max(means)),
            "clock": clock,
            "where": "before the window",
        }

    # ---- bare steps between two windows, and after them ---------------------------------------------------------------

    def start_bare(self, index: int) -> None:
        """A window has closed, and step ``index`` follows: forget the steps before it."""
        for clear in (self._periods.clear, self._events.clear, self._begun.clear):
            clear()
        self._open, self._bare_from, self._bare_ns = None, index, time.perf_counter_ns()
        self._counted_ns = self._counted = 0
        self._block, self._look_at = 1, BARE_ENOUGH
        self._waited = False

    def _count_anew(self, now: int) -> None:
        """Measure as long again from the first wait for a batch on: what workers made during the pause is used up only now.

        The steps before it stay noted: where it was a single wait, they count like all others.
        """
        self._waited, self._counted_ns, self._counted, self._look_at = True, now, 0, BARE_ENOUGH

    def _settle(self, index: int, now: int) -> None:
        """Count from step ``index`` on if the device has long enough run as it does without a pause."""
        assert self._bare_from is not None
        if index >= self._bare_from + BARE_SETTLING_STEPS and now - self._bare_ns >= BARE_SETTLING_NS:
            usual = statistics.median(row[1] for row in self._periods) if self._periods else BARE_BLOCK_NS
            self._bare_from, self._counted_ns, self._counted = index, now, 0
            if usual < BARE_BLOCK_NS:
                self._events.clear()  # those of single steps
                self._block = round(BARE_BLOCK_NS / max(usual, 1))

    def is_long_enough(self) -> bool:
        """Return whether bare steps were measured long enough, or their mean is known well enough."""
        if not self._counted_ns:
            return False
        spent = time.perf_counter_ns() - self._counted_ns
        if spent >= BARE_LONGEST_NS or spent < BARE_SHORTEST_NS or self._counted < self._look_at:
            return spent >= BARE_LONGEST_NS and self._counted >= BARE_FEWEST
        self._look_at = self._counted + self._counted // 4
        begun = [ns for number, ns in self._begun if number >= (self._bare_from or 0)]
        lengths = [after - ns for ns, after in zip(begun, begun[1:])]  # noqa: B905, RUF007 - Python 3.9
        size = len(lengths) // BARE_ERROR_BLOCKS
        if not size:
            return False
        means = [sum(lengths[i : i + size]) / size for i in range(0, size * BARE_ERROR_BLOCKS, size)]
        error = statistics.stdev(means) / BARE_ERROR_BLOCKS**0.5
        return bool(2 * error <= BARE_ERROR_SHARE * statistics.fmean(means))

    def bare(self, before: int | None) -> dict[str, Any] | None:
        """Return count, median_ns, low_ns, high_ns, clock, where, lengths_ns, fetch_ns and loop_ns of the bare steps; None if too few.

        ``before``: the first step of the second window, None if it never opened. ``lengths_ns`` are those of all steps, in order,
        and ``fetch_ns`` what of each the host spent in the ``next`` of loaders (it may be hidden behind work of the device);
        ``loop_ns`` the same with what ran behind each and was no step, [] where that is next to nothing. If it runs behind every step,
        none has a length of its own.
        """
        if self._bare_from is None or not self._counted_ns:
            return None
        loop = self._loop(self._bare_from, before)
        steps = [p for p in self.periods if p.number >= self._bare_from and (before is None or p.number < before - 1)]
        timed, clock = self._timed(steps, max(BARE_FEWEST, len(steps) // 2))
        lengths = [p.ns for p in timed]
        told = {"clock": clock, "where": "between the windows", "loop_ns": loop}
        if len(lengths) < BARE_FEWEST:
            return {"count": 0, **told, "lengths_ns": [], "fetch_ns": []} if len(loop) >= BARE_FEWEST else None
        return {
            "count": len(lengths),
            "median_ns": round(statistics.median(lengths)),
            "low_ns": min(lengths),
            "high_ns": max(lengths),
            **told,
            "lengths_ns": lengths,
            "fetch_ns": [p.fetch_ns for p in timed],
        }

    def marks_cost(self) -> dict[str, Any] | None:
        """Return what marks add to a step: median_ns, low_ns, high_ns, marked_steps, unmarked_steps; None if unknown.

        This compares recorded steps of this process with and without marks: median, minimum and maximum of the marked steps,
        each minus the median of the others. The first marked step of a run or window does not count, because it has other costs.
        """
        recorded = [p for p in self.periods if p.recorded]
        marked = [p.ns for p in recorded if p.marked and p.number > recorded[0].number and p.number > 1]
        free = [p.ns for p in recorded if not p.marked]
        if not marked or len(free) < SMALLEST_CLOCK_BLOCK:
            return None
        usual = statistics.median(free)
        return {
            "median_ns": round(statistics.median(marked) - usual),
            "low_ns": round(min(marked) - usual),
            "high_ns": round(max(marked) - usual),
            "marked_steps": len(marked),
            "unmarked_steps": len(free),
        }
