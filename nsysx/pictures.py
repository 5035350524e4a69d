"""Frozen records that are drawn but never written as JSON: timelines, queues, counters, executions of one kernel.

Standard library only, as in `model`; the Summary carries them beside its figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

#: What a box is called that was merged from neighbors of several names: nothing is written on it.
SEVERAL = "several"


@dataclass(frozen=True, slots=True)
class Span:
    """One box of a timeline picture, times in ns from the start of the picture's window.

    ``kind`` is an API kind or phase on a CPU lane and compute, comm, copy, memset on a GPU lane. ``launch_ns`` is when the
    API call of a GPU op began (None when unknown), ``backlog_ns`` how much of a blocking call was waiting for earlier work.
    ``module`` is what a GPU op works for and ``line`` the line that launched it, "path:line"; "" when unknown.
    A box merged from several neighbors has ``covered_ns``: how much of it they fill together.
    """

    start_ns: int
    end_ns: int
    kind: str
    label: str
    launch_ns: int | None = None
    launch_lane: int | None = None
    backlog_ns: int = 0
    covered_ns: int | None = None
    module: str = ""
    line: str = ""


Role = Literal["phases", "lines", "api", "stream", "modules", "idle"]
#: The lanes of threads, and those whose boxes are named by the program and have no kind of work.
CPU_ROLES: tuple[Role, ...] = ("phases", "lines", "api")
NAMED_ROLES: tuple[Role, ...] = ("phases", "lines", "modules")


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of a timeline picture.

    ``role`` is phases, lines (of the program, "path:line"), or api for a thread, stream, modules (that the device works for), or idle
    (when it has no work, by cause) for a device.
    """

    role: Role
    label: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Queue:
    """How far the CPU runs ahead of one device: GPU time that is launched but not yet run, at instants of a window (ns).

    ``dry`` of the ``launches`` in the window found an empty queue. Times of several streams add up.
    """

    device: int
    at_ns: tuple[int, ...]
    queued_ns: tuple[int, ...]
    launches: int
    dry: int


@dataclass(frozen=True, slots=True)
class Counters:
    """The GPU's own counters at instants of a window (ns from its start): shares of what the device can do, 0 to 1.

    ``shares`` holds a list per sampled counter, by its name in the picture; None at instants without a sample.
    """

    label: str
    at_ns: tuple[int, ...]
    shares: Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True, slots=True)
class LongestStretch:
    """The longest stretch of one ``part`` of the step (its code) in one module and phase, ns from the start of the window."""

    start_ns: int
    end_ns: int
    module: str
    phase: str
    part: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The picture of one window: CPU threads above, GPU streams below.

    ``marks`` are instants with a name, ns from the start of the window; ``places`` say where what a finding names is.
    ``note`` says what of the job is not in the picture, "" if nothing is missing. ``step_ns`` is the step in the window, which begins
    with its first launch: start and end, ns from the start of the window, which it is where None.
    """

    title: str
    start_ns: int
    end_ns: int
    lanes: tuple[Lane, ...]
    merged: int = 0
    queues: tuple[Queue, ...] = ()
    counters: tuple[Counters, ...] = ()
    marks: tuple[tuple[int, str], ...] = ()
    places: tuple[LongestStretch, ...] = ()
    note: str = ""
    step_ns: tuple[int, int] | None = None

    @property
    def shown_ns(self) -> tuple[int, int]:
        """What of the window is shown at first: the step, ns from the start of the window."""
        return self.step_ns or (0, self.end_ns - self.start_ns)


@dataclass(frozen=True, slots=True)
class Strip:
    """Executions of one kernel and launch shape in order of time, evenly sampled."""

    name: str
    grid: str
    block: str
    count: int
    durations_ns: tuple[int, ...]
