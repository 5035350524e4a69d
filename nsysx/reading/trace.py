"""What a report becomes: its frames, facts about the capture, and counts of the rows that were left out or changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from nsysx.advice import Tried
from nsysx.frames.intervals import I64
from nsysx.model import Capture

#: [start, end) in ns.
Window = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of one table that are not used as the report has them.

    ``table`` is the report's own name, ``reason`` what is wrong with the rows, such as "no stream". ``effect``: they are left out;
    they are kept without what is wrong; or they are merged, because they are second copies or because the right value is known.
    """

    table: str
    reason: str
    rows: int
    effect: Literal["left out", "kept", "merged"] = "left out"


def summed_notes(notes: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    """Return one note per table, reason and effect, with their rows added up, in the order of their first occurrence."""
    total: dict[tuple[str, str, str], LeftOut] = {}
    for note in notes:
        key = (note.table, note.reason, note.effect)
        total[key] = replace(note, rows=note.rows + (total[key].rows if key in total else 0))
    return tuple(total.values())


#: The reason that has its own check.
REVERSED = "an end before their begin"


@dataclass(frozen=True)
class DeviceLimits:
    """The limits of one device. ``gpu`` is nsys's number of it (not the CUDA ordinal); what was not recorded is None.

    ``compute`` is the compute capability. Per SM: warps, blocks, registers (32 bits each), shared memory in bytes. ``clock_hz`` is
    the highest SM clock, ``memory_bandwidth`` the nominal one in bytes per second, ``cache_bytes`` the size of the L2 cache.
    """

    gpu: int | None = None
    compute: tuple[int, int] | None = None
    sm_count: int | None = None
    warps_per_sm: int | None = None
    blocks_per_sm: int | None = None
    registers_per_sm: int | None = None
    registers_per_block: int | None = None
    shared_per_sm: int | None = None
    clock_hz: int | None = None
    memory_bandwidth: int | None = None
    cache_bytes: int | None = None

    @property
    def missing(self) -> str:
        """Return the names of the limits that occupancy needs and the report lacks, "" if it has all."""
        wanted = ("compute", "sm_count", "warps_per_sm", "blocks_per_sm", "registers_per_sm", "shared_per_sm")
        return ", ".join(f.name for f in fields(self) if f.name in wanted and getattr(self, f.name) is None)


@dataclass(frozen=True)
class Totals:
    """``work``: frame -> rows and their time (ns); ``calls``: name, calls, time (ns) of each API function as the report names it."""

    work: Mapping[str, tuple[int, int]]
    calls: tuple[tuple[str | None, int, int], ...]


@dataclass(frozen=True)
class Sampled:
    """What is known of the steps of a long capture of which parts were read; see ``reading.capture_parts``. Lengths are those on the CPU.

    ``lengths_ns``: of each step, from its begin to that of the next. ``parts``: the first step of each part that was read and the one
    behind its last; the first part is the cold start, and ``first`` to ``last`` are the steps that stand for all others. ``long``: the
    begin on the clock of the trace, None if it was not read, and the length of each step that is far longer than the others and so
    rare that it is not among them, longest first. ``totals`` are those of the whole capture.
    """

    lengths_ns: I64
    parts: tuple[tuple[int, int], ...]
    first: int
    last: int
    long: tuple[tuple[int | None, int], ...] = ()
    totals: Totals = field(default_factory=lambda: Totals({}, ()))

    @property
    def later_ns(self) -> I64:
        """The lengths of all steps after the cold start but the last one, whose end is not known."""
        return self.lengths_ns[self.parts[0][1] : -1]

    @property
    def read_ns(self) -> I64:
        """The lengths of the steps that stand for them."""
        return self.lengths_ns[self.first : self.last + 1]

    @property
    def indices(self) -> tuple[int, ...]:
        """The index in the capture of each step that was read, in their order."""
        return tuple(index for begin, behind in self.parts for index in range(begin, behind))

    @property
    def usual_ns(self) -> float:
        """The mean length of all later steps but the long ones."""
        long = sum(ns for _, ns in self.long)
        return float((self.later_ns.sum() - long) / (len(self.later_ns) - len(self.long)))

    @property
    def unread_ns(self) -> int:
        """The length of all steps that were not read."""
        return int(self.lengths_ns.sum() - sum(self.lengths_ns[a:b].sum() for a, b in self.parts))


@dataclass(frozen=True)
class Trace:
    """A report as frames, with the columns that ``schema.SOURCES`` declares. Frames made from them are in `nsysx.frames`.

    ``recorded`` names the frames whose table is in the report; an empty frame that was not recorded does not mean zero.
    ``python_lines``: the stacks inside CUDA calls if ``--python-backtrace=cuda`` was on, else None; see ``backtraces``.
    ``samples``: the Python stacks sampled over time, and ``stacks`` their frames, innermost first; see ``reading.samples``. They
    are empty unless ``recorded`` names "python_sample".
    ``nccl``: NCCL's own calls, None if it recorded none; see ``nccl_ranges``. ``host``: a hash that is equal for reports from the
    same machine, None if the report does not name the machine.
    ``limits``: (process, CUDA ordinal) -> the device's limits, if the report has them. ``gpu_metrics``: the samples of the GPUs'
    counters, None without any; see ``reading.counter_samples``. ``left_out``: counts of rows that were left out, changed or merged.
    ``window``: set if only this part of the capture was read. ``tried``: what ``nsysx try`` left in NAME.try.json beside it.
    ``seams``: where the second and each later part of a capture begins that was recorded, or read, in parts: between them the clock
    stood still (``reading.joined_windows``, ``reading.capture_parts``). ``main`` is the number of the part whose steps the averages are of.
    ``sampled``: set if parts of a long capture were read. ``cold_missing``: these are the steady steps of a run of two windows, and the
    report of its cold start is not beside this one.
    """

    path: Path
    frames: dict[str, pl.DataFrame]
    recorded: frozenset[str]
    domains: pl.DataFrame
    capture: Capture
    run: dict[str, Any] = field(default_factory=dict)
    python_lines: pl.DataFrame | None = None
    samples: pl.DataFrame = field(default_factory=pl.DataFrame)
    stacks: pl.DataFrame = field(default_factory=pl.DataFrame)
    nccl: pl.DataFrame | None = None
    host: str | None = None
    window: Window | None = None
    tried: tuple[Tried, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    limits: Mapping[tuple[int, int], DeviceLimits] = field(default_factory=dict)
    gpu_metrics: pl.DataFrame | None = None
    seams: tuple[int, ...] = ()
    main: int = 0
    sampled: Sampled | None = None
    cold_missing: bool = False

    def without(self, *frames: str) -> Trace:
        """Return the trace without the rows of these frames, to free memory after other frames were made from them."""
        kept = {name: frame.clear() if name in frames else frame for name, frame in self.frames.items()}
        return replace(self, frames=kept)

    def __getattr__(self, name: str) -> pl.DataFrame:
        """Return a frame by its name, such as ``trace.kernel``. Raises AttributeError for an unknown name."""
        try:
            return self.__dict__["frames"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None
