"""What every analysis is given: the frames of one report, with the windows that figures are taken over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.catalogue import Call
from nsysx.events import code_lines as lines_room
from nsysx.events import ledger
from nsysx.events.attribute import Attributed
from nsysx.events.event_bounds import MOST_FRAME_PIECES
from nsysx.events.layers import PATHLESS
from nsysx.events.ledger import Ledgers
from nsysx.events.nvtx_ranges import Ranges
from nsysx.events.other_ranks import OtherRanks
from nsysx.events.python_lines import python_lines
from nsysx.events.steps import StepTable
from nsysx.events.thread_roles import elsewhere
from nsysx.frames import derived, frame_columns, lookup
from nsysx.model import Scope
from nsysx.reading.load import Trace

T = TypeVar("T")


@dataclass(frozen=True)
class Events:
    """API calls and GPU ops with what they cover. Raises ValueError for rows of a process that ``scope`` does not name."""

    scope: Scope
    calls: pl.DataFrame
    ops: pl.DataFrame

    def __post_init__(self) -> None:
        for frame in (self.calls, self.ops):
            strange = set(lookup.present(frame["process"])) - set(self.scope.processes)
            if strange:
                raise ValueError(f"rows of processes {sorted(strange)} in a scope of {self.scope.processes}")


@dataclass(frozen=True)
class Profile:
    """``whole`` covers the whole capture, all processes, or the steps that ``--steps A:B`` names.

    ``steady`` covers the steady steps of the shown process alone: calls that start in them, the work that those calls
    launched, and the work without a call that ran meanwhile. A sum over it is per step by ``scope.per_step``; another process,
    device or rank changes nothing in it. Where there are no steps, or none are to be told apart, it is all of the process.

    ``other_ranks`` is what the reports of the other ranks say, None for a report alone.
    """

    trace: Trace
    ranges: Ranges
    attributed: Attributed
    steps: StepTable
    ledgers: Ledgers
    whole: Events
    steady: Events
    other_ranks: OtherRanks | None = None
    _made: dict[Callable[[Profile], Any], Any] = field(default_factory=dict, repr=False, compare=False)
    #: What was made of the capture alone: that is the same, whichever process is shown and whatever other reports say.
    _of_capture: dict[Callable[[Profile], Any], Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def calls(self) -> pl.DataFrame:
        """The API calls of ``whole``."""
        return self.whole.calls

    @property
    def ops(self) -> pl.DataFrame:
        """The GPU ops of ``whole``."""
        return self.whole.ops

    @property
    def steady_calls(self) -> pl.DataFrame:
        """The API calls of ``steady``."""
        return self.steady.calls

    @property
    def steady_ops(self) -> pl.DataFrame:
        """The GPU ops of ``steady``."""
        return self.steady.ops

    @property
    def scope(self) -> Scope:
        """The scope of ``steady``."""
        return self.steady.scope

    def showing(self, steps: StepTable) -> Profile:
        """Return the profile with the process of these steps as the shown one: ``steady`` holds its events."""
        _, scope = _scopes(self.trace, self.attributed, steps, chosen=self.whole.scope.of == "chosen")
        steady = _steady_events(scope, steps, self.calls, self.ops)
        return replace(self, steps=steps, steady=steady, _made={})

    def scope_of(self, process: int, *devices: int) -> Scope:
        """Return what the windows of a process and its devices cover: its own steady steps, else all of the process."""
        if not self.scope.steps:
            return replace(self.scope, processes=(process,), devices=devices)
        numbers = self.steps.cpu.filter((pl.col("process") == process) & pl.col("steady"))["index"]
        first, last = (self.step_of_capture(int(numbers.item(n))) for n in (0, -1))
        return replace(
            self.scope, processes=(process,), devices=devices, first=first, last=last, steps=last - first + 1
        )

    def step_of_capture(self, index: int) -> int:
        """Return the index of a step in the capture, of which not all steps may have been read."""
        return index if self.trace.sampled is None else self.trace.sampled.indices[index]

    def steps_of_capture(self) -> pl.Expr:
        """Return the column ``index`` as `step_of_capture` has it."""
        if self.trace.sampled is None:
            return pl.col("index")
        indices = self.trace.sampled.indices
        return pl.col("index").replace_strict(range(len(indices)), indices, default=None, return_dtype=pl.Int64)

    @property
    def process(self) -> int:
        """The shown process."""
        return self.steps.process

    @cached_property
    def device(self) -> int | None:
        """The shown device: the one on which the shown process works most in its window; None without GPU work.

        A step is taken, and its idle time counted, on this device alone: idle time of two devices is not time of one step.
        """
        busy: dict[int, int] = {}
        for device, start, end in self._windows["device", "start_ns", "end_ns"].iter_rows():
            activity = self.ledgers.activity[self.process, device]
            busy[device] = int(activity.within(activity.labels > 0, np.array([start]), np.array([end]))[0])
        return max(busy, key=lambda device: (busy[device], -device), default=None)

    @cached_property
    def window(self) -> tuple[int, int]:
        """What ``steady`` spans on the timeline of the shown device, else on the CPU; (0, 0) when there are no events."""
        gpu = lookup.having(self._windows, device=-1 if self.device is None else self.device)
        rows = gpu if gpu.height else lookup.having(self.steps.cpu_windows, process=self.process)
        if not rows.height:
            return 0, 0
        start, end = rows["start_ns", "end_ns"].row(0)
        return int(start), int(end)

    @property
    def _windows(self) -> pl.DataFrame:
        return lookup.having(self.steps.windows, process=self.process)

    def once(self, make: Callable[[Profile], T]) -> T:
        """Return ``make(self)``, made once for all who ask with the same function."""
        return self._once(make, self._made)

    def _once(self, make: Callable[[Profile], T], made: dict[Callable[[Profile], Any], Any]) -> T:
        if make not in made:
            try:
                made[make] = make(self)
            except NotRecorded as answer:
                # A traceback keeps what everybody who asked had at hand: tens of bytes a GPU op.
                made[make] = answer.with_traceback(None)
        value: T = made[make]
        if isinstance(value, NotRecorded):
            raise NotRecorded(value.reason, value.fix)
        return value

    def recorded(self, *frames: str) -> bool:
        """Return whether the report has the tables of these frames at all."""
        return set(frames) <= self.trace.recorded

    def idle(self) -> dict[tuple[int, int], pl.DataFrame]:
        """Return (process, device) -> the idle pieces of its steady window, cut to it: op, cause, began_in (-1 for none), ns."""
        return self.once(_idle)

    def shown_idle(self) -> pl.DataFrame:
        """Return the pieces of ``idle`` of the shown device of the shown process; no rows without GPU work."""
        pieces = self.idle()
        return pieces[self.process, self.device] if self.device is not None else pl.DataFrame(schema=_PIECES)

    @cached_property
    def waits(self) -> pl.DataFrame:
        """``ledgers.waits``; where the shown process has several devices, ``idle_caused_ns`` counts the shown one alone."""
        waits = self.ledgers.waits
        if self._windows.height < 2:
            return waits
        shown = (pl.col("process") == self.process) & (pl.col("device") == self.device)
        caused = ledger.idle_caused(self.ledgers.idle.filter(shown))
        columns = waits.columns
        waits = waits.drop("idle_caused_ns").join(caused, on="call", how="left", maintain_order="left")
        return waits.with_columns(pl.col("idle_caused_ns").fill_null(0))[columns]

    def wait_sites(self) -> pl.DataFrame:
        """Return the blocking calls of ``steady`` with their split and their call site.

        Columns of ``steady_calls`` and ``waits``, and api, file, line, function, thread_role, site (all of it in words).
        """
        return self.once(_wait_sites)

    def lines(self) -> pl.DataFrame:
        """Return call -> file, line, function; see ``python_lines``; where an X-ray noted lines of all calls but launches."""
        return self._once(_lines, self._of_capture)

    def with_lines(self, calls: pl.DataFrame) -> pl.DataFrame:
        """Add file, line and function to calls of any kind."""
        code = self.code()
        if code is None:
            return calls.join(self.lines(), on="call", how="left", maintain_order="left")
        places = code.places_of(code.call[calls["call"].to_numpy()])
        return calls.with_columns(lookup.at(code.places[c], places).alias(c) for c in code.places.columns)

    def code(self) -> lines_room.CodeLines | None:
        """Return the stacks of lines of all calls and GPU ops, None where no X-ray noted any."""
        return self._once(_code, self._of_capture)


class NotRecorded(Exception):  # noqa: N818 - an answer, not an error
    """An analysis cannot be made from this capture; ``fix`` is what would record it."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


def _code(profile: Profile) -> lines_room.CodeLines | None:
    return lines_room.find(profile.trace, profile.ranges, profile.attributed)


def _lines(profile: Profile) -> pl.DataFrame:
    seen = python_lines(profile.trace, profile.ranges, profile.attributed.api_calls)
    code = profile.code()
    if code is None:
        return seen
    calls = profile.attributed.api_calls
    by_xray = lines_room.inherited(code, (calls["kind"] != Call.LAUNCH).to_numpy())
    return (
        pl.concat([by_xray, seen.join(by_xray, on="call", how="anti", maintain_order="left")])
        if seen.height
        else by_xray
    )


_PIECES = frame_columns.schema(derived.IDLE_PIECES)


def _idle(profile: Profile) -> dict[tuple[int, int], pl.DataFrame]:
    idle = {}
    for p, d, a, b in profile.steps.windows["process", "device", "start_ns", "end_ns"].iter_rows():
        pieces = profile.ledgers.idle_of(p, d)
        start, end = pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy()
        rows = np.flatnonzero((end > a) & (start < b))
        ns = np.minimum(end[rows], b) - np.maximum(start[rows], a)
        others = pieces["op", "cause", "began_in"][rows].with_columns(pl.col("op", "began_in").fill_null(-1))
        idle[p, d] = others.with_columns(pl.Series("ns", ns, dtype=pl.Int64))
    return idle


def _wait_sites(profile: Profile) -> pl.DataFrame:
    calls = profile.steady_calls.join(profile.waits, on="call", how="inner", maintain_order="left")
    calls = calls.with_columns(elsewhere(calls["thread"], profile.attributed.roles))
    calls = calls.join(profile.lines(), on="call", how="left", maintain_order="left").with_columns(
        pl.col("name").cast(pl.String).alias("api"), pl.col("module").cast(pl.String), pl.col("phase").cast(pl.String)
    )
    line_text = pl.when(pl.col("file").is_not_null()).then(
        pl.format("at {}:{}", pl.col("file").str.split("/").list.last(), pl.col("line"))
    )
    inside = pl.when(pl.col("module").is_not_null()).then(pl.format("in {}", "module"))
    # Work outside of modules is called by its phase in parentheses, which is said once.
    named = pl.format(PATHLESS, "phase") == pl.col("module").fill_null("")
    phase = pl.when(pl.col("phase").is_not_null() & ~named).then(pl.format("({})", "phase"))
    of_thread = pl.when(pl.col("thread_role").is_not_null()).then(pl.format("on a {} thread", "thread_role"))
    return calls.with_columns(
        pl.concat_str("api", line_text, inside, phase, of_thread, separator=" ", ignore_nulls=True).alias("site")
    )


Mask = npt.NDArray[np.bool_]


def _rows(frame: pl.DataFrame, inside: Mask) -> pl.DataFrame:
    """Return the rows that are inside."""
    # Rows are sorted by time, at most per thread: what lies in a window is a few runs of rows, and a run costs no memory.
    borders = np.flatnonzero(np.diff(inside, prepend=False, append=False)).tolist()
    if len(borders) > 2 * MOST_FRAME_PIECES:
        return frame.filter(pl.Series(inside, dtype=pl.Boolean))
    runs = [frame.slice(a, b - a) for a, b in zip(borders[::2], borders[1::2], strict=True)]
    return pl.concat(runs, rechunk=False) if runs else frame.clear()


def calls_in(calls: pl.DataFrame, windows: pl.DataFrame) -> Mask:
    """Return which calls start in the CPU window of their process."""
    process, start_ns = lookup.filled(calls["process"], -1), calls["start_ns"].to_numpy()
    inside = np.zeros(len(start_ns), np.bool_)
    for key, start, end in windows["process", "start_ns", "end_ns"].iter_rows():
        inside |= (process == key) & (start_ns >= start) & (start_ns < end)
    return inside


def _ops_in(ops: pl.DataFrame, cpu_windows: pl.DataFrame, windows: pl.DataFrame) -> Mask:
    """Return which GPU ops were launched in the CPU window of their process, or without a call began in that of their device."""
    never = np.iinfo(np.int64).max
    process = lookup.filled(ops["process"], -1)
    called, begin = lookup.filled(ops["call_start_ns"], never), ops["start_ns"].to_numpy()
    inside = np.zeros(len(called), np.bool_)
    for key, start, end in cpu_windows["process", "start_ns", "end_ns"].iter_rows():
        inside |= (process == key) & (called >= start) & (called < end)
    alone = np.flatnonzero(called == never)
    if len(alone):
        # Such as the migrations of unified memory: nobody launches them, and the device is busy with them all the same.
        device = ops["device"].to_numpy()[alone]
        for key, key_device, start, end in windows["process", "device", "start_ns", "end_ns"].iter_rows():
            inside[alone] |= (
                (process[alone] == key) & (device == key_device) & (begin[alone] >= start) & (begin[alone] < end)
            )
    return inside


def _scopes(trace: Trace, attributed: Attributed, steps: StepTable, *, chosen: bool) -> tuple[Scope, Scope]:
    """Return what the whole and the steady events cover."""
    everyone = {p for f in (attributed.api_calls, attributed.gpu_ops) for p in lookup.present(f["process"])}
    first, last = steps.steady if chosen and steps.steady else (None, None)
    covered: Literal["part", "capture"] = "capture" if trace.window is None and trace.sampled is None else "part"
    whole = Scope("chosen" if chosen else covered, tuple(sorted(everyone | {steps.process})), first=first, last=last)
    devices = tuple(lookup.having(steps.windows, process=steps.process)["device"].sort().to_list())
    if steps.whole or steps.steady is None:
        return whole, Scope(covered, (steps.process,), devices)
    first, last = steps.steady if trace.sampled is None else (trace.sampled.indices[index] for index in steps.steady)
    return whole, Scope(
        "chosen" if chosen else "steady",
        (steps.process,),
        devices=devices,
        first=first,
        last=last,
        steps=last - first + 1,
    )


def gather(
    trace: Trace,
    ranges: Ranges,
    attributed: Attributed,
    steps: StepTable,
    ledgers: Ledgers,
    *,
    only_steady: bool,
    device: int | None = None,
) -> Profile:
    """Return the profile of a report. ``only_steady``: totals too cover just the steady steps (``--steps A:B``).

    ``device``: its GPU ops and windows alone are shown; what waits and the replay look at stays whole.
    """
    calls, ops = attributed.api_calls, attributed.gpu_ops
    if device is not None:
        on_it = pl.col("device") == device
        ops = ops.filter(on_it)
        steps = replace(steps, gpu=steps.gpu.filter(on_it), windows=steps.windows.filter(on_it))
    whole, steady = _scopes(trace, attributed, steps, chosen=only_steady)
    if only_steady:
        calls = _rows(calls, calls_in(calls, steps.cpu_windows))
        ops = _rows(ops, _ops_in(ops, steps.cpu_windows, steps.windows))
    return Profile(
        trace,
        ranges,
        attributed=attributed,
        steps=steps,
        ledgers=ledgers,
        whole=Events(whole, calls, ops),
        steady=_steady_events(steady, steps, calls, ops),
    )


def _steady_events(scope: Scope, steps: StepTable, calls: pl.DataFrame, ops: pl.DataFrame) -> Events:
    """Return the calls and GPU ops of the steady steps of the shown process."""
    if steps.whole:
        of_process = [(f["process"] == steps.process).fill_null(False).to_numpy() for f in (calls, ops)]
    else:
        cpu_windows, windows = (lookup.having(f, process=steps.process) for f in (steps.cpu_windows, steps.windows))
        of_process = [calls_in(calls, cpu_windows), _ops_in(ops, cpu_windows, windows)]
    return Events(scope, _rows(calls, of_process[0]), _rows(ops, of_process[1]))
