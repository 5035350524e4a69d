"""What a report becomes: its frames, facts about the capture, and a count of everything that is not as the report has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from nsysx.model import Capture

#: [start, end) in ns.
Window = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of one table that are not handed on as the report has them.

    ``table`` is the report's own name, ``reason`` what is wrong with them, as "no stream". ``effect``: they are left out;
    they are kept without what is wrong (or with what it must have been); or they are another row's second copy.
    """

    table: str
    reason: str
    rows: int
    effect: Literal["left out", "kept", "merged"] = "left out"


#: The reason that stands under a check of its own.
REVERSED = "an end before their begin"


@dataclass(frozen=True)
class DeviceLimits:
    """One device. ``gpu`` is the number by which nsys knows it (not the CUDA ordinal); what is not recorded is None.

    ``compute`` is its compute capability. Per SM: warps, blocks, registers (32 bits), shared memory in bytes. ``clock_hz`` is
    the highest SM clock, ``memory_bandwidth`` that of the data sheet in bytes per second.
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
        """Return which of the limits that an occupancy needs the report does not name, "" where it names all."""
        wanted = ("compute", "sm_count", "warps_per_sm", "blocks_per_sm", "registers_per_sm", "shared_per_sm")
        return ", ".join(f.name for f in fields(self) if f.name in wanted and getattr(self, f.name) is None)


@dataclass(frozen=True)
class Trace:
    """A report as frames, columns as ``schema.SOURCES`` declares them.

    ``recorded`` names the frames whose table is in the report at all: an empty frame that was not recorded is not a zero.
    The other frames are declared in `nsysx.frames.derived` and `.declared`.
    ``python_lines`` has the stacks inside CUDA calls where ``--python-backtrace=cuda`` was on, else None.
    ``samples`` has the Python stacks that were sampled over time, and ``stacks`` their frames, innermost first, see ``samples.py``;
    no rows where ``recorded`` does not name "python_sample".
    ``nccl`` has what NCCL says of its own calls, see ``nccl_ranges``, None where it said nothing. ``host`` stands for the
    machine: equal for reports from the same one, None where the report does not name it.
    ``limits``: (process, CUDA ordinal) -> what the device can hold, where the report says so. ``gpu_metrics`` has the
    samples of the GPUs' counters, see ``reading.gpu_metrics``, None where there are none. ``left_out`` counts what was left out,
    mended or merged. ``window`` is set where only a part of the capture was read.
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
    left_out: tuple[LeftOut, ...] = ()
    limits: Mapping[tuple[int, int], DeviceLimits] = field(default_factory=dict)
    gpu_metrics: pl.DataFrame | None = None

    @property
    def unplaced_rows(self) -> int:
        """Return how many rows were left out because they belong nowhere or to no possible time."""
        return sum(n.rows for n in self.left_out if n.effect == "left out" and n.reason != REVERSED)

    def without(self, *frames: str) -> Trace:
        """Return the trace without the rows of these frames, for those who have made something better of them."""
        kept = {name: frame.clear() if name in frames else frame for name, frame in self.frames.items()}
        return replace(self, frames=kept)

    def __getattr__(self, name: str) -> pl.DataFrame:
        """Return a frame by its name, e.g. ``trace.kernel``."""
        try:
            return self.__dict__["frames"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None
