"""What a report becomes: its frames, facts about the capture, and counts of the rows that were left out or changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from nsysx.advice import Tried
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


#: The reason that has its own check.
REVERSED = "an end before their begin"


@dataclass(frozen=True)
class DeviceLimits:
    """The limits of one device. ``gpu`` is nsys's number of it (not the CUDA ordinal); what was not recorded is None.

    ``compute`` is the compute capability. Per SM: warps, blocks, registers (32 bits each), shared memory in bytes. ``clock_hz`` is
    the highest SM clock, ``memory_bandwidth`` the nominal one in bytes per second.
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

    @property
    def missing(self) -> str:
        """Return the names of the limits that occupancy needs and the report lacks, "" if it has all."""
        wanted = ("compute", "sm_count", "warps_per_sm", "blocks_per_sm", "registers_per_sm", "shared_per_sm")
        return ", ".join(f.name for f in fields(self) if f.name in wanted and getattr(self, f.name) is None)


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
    counters, None without any; see ``reading.gpu_metrics``. ``left_out``: counts of rows that were left out, changed or merged.
    ``window``: set if only this part of the capture was read. ``tried``: what ``nsysx try`` left in NAME.try.json beside it.
    ``joined_ns``: where the second of two reports that are read as one capture begins, None for a single report; see
    ``reading.two_windows``.
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
    joined_ns: int | None = None

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
