"""A trace for ui.perfetto.dev: CPU threads with their API calls, phases and modules, GPU streams, arrows from launch to kernel.

    process python (1393)
      thread 1393            CUDA API calls
        steps and phases, modules, ranges
      GPU 0 (NVIDIA H200)
        stream 7             kernels, copies, memsets
        queue of GPU 0       launched but not started
        memory of GPU 0      as the driver hands it out

It is written as TrackEvent packets (https://perfetto.dev/docs/reference/synthetic-track-event) without a library, because the
packets of a million events are a few tables of numbers. Times are those of the report; if some lie before the session
began, all are shifted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import polars as pl

from nsysx.events.layers import backward_ranges
from nsysx.events.profile import Profile
from nsysx.export import frames
from nsysx.export import protobuf as pb
from nsysx.export.track_events import Builder, Slices
from nsysx.frames.intervals import I64
from nsysx.reading import schema

#: CounterDescriptor.Unit.
_UNIT_COUNT, _UNIT_BYTES = 2, 3


@dataclass(frozen=True)
class PerfettoTrace:
    """A trace as bytes in parts, and what is in it. ``flows`` are the arrows from a call to its work."""

    parts: tuple[bytes, ...]
    slices: int
    kernels: int
    flows: int

    def write(self, file: BinaryIO) -> None:
        """Write the trace."""
        file.writelines(self.parts)


def _grouped_by(frame: pl.DataFrame, *keys: str) -> Iterator[tuple[tuple[int, ...], pl.DataFrame]]:
    for key, part in frame.sort(*keys, "start_ns", maintain_order=True).group_by(*keys, maintain_order=True):
        yield tuple(-1 if k is None else int(k) for k in key), part


def _ints(frame: pl.DataFrame, column: str) -> I64:
    values: I64 = frame[column].fill_null(0).to_numpy().astype(np.int64)
    return values


def _calls(build: Builder, calls: pl.DataFrame, ops: pl.DataFrame) -> None:
    """Add the API calls of each thread, with an arrow for each op that they launched."""
    for (thread,), part in _grouped_by(calls, "thread"):
        start, end = _ints(part, "start_ns"), _ints(part, "end_ns")
        of_thread = build.thread(thread)
        rows = part.select("call").with_row_index("row").join(ops.select("call", "op"), on="call")
        flows = np.stack((_ints(rows, "row"), _ints(rows, "op") + 1), 1)
        build.add(
            Slices(
                build.spread(of_thread, "more CUDA calls", start, end, top=of_thread),
                start,
                end=end,
                name=build.names.ids(part["name"]),
                category=build.categories.ids(pl.repeat("api", part.height, eager=True)),
                args={"kind": build.strings.ids(part["kind"])},
                flows=flows,
            )
        )


#: Tracks of a thread: title, and the kinds of ranges on it.
_RANGE_TRACKS = (
    ("steps and phases", ("step", "phase")),
    ("modules", ("module", "backward_module")),
    ("ranges", ("op", "range")),
)


def _ranges(build: Builder, ranges: pl.DataFrame) -> None:
    for (thread,), of_thread in _grouped_by(ranges.drop_nulls("thread"), "thread"):
        for title, kinds in _RANGE_TRACKS:
            part = of_thread.filter(pl.col("kind").cast(pl.String).is_in(kinds))
            if not part.height:
                continue
            start, end = _ints(part, "start_ns"), _ints(part, "end_ns")
            build.add(
                Slices(
                    build.spread(build.thread(thread), title, start, end),
                    start,
                    end=end,
                    name=build.names.ids(part["label"]),
                    category=build.categories.ids(part["kind"]),
                    args={"cls": build.strings.ids(part["cls"].cast(pl.String).replace("", None))},
                )
            )


def _shape(names: Sequence[str]) -> pl.Expr:
    return pl.concat_str(*names, separator=", ")


def _ops(build: Builder, given: Profile, ops: pl.DataFrame) -> None:
    """Add the work of each stream."""
    cards = {(g.process, g.device): g.name for g in given.trace.capture.gpus}
    named = ops.with_columns(
        pl.when(pl.col("op_kind") == "memcpy").then(pl.format("memcpy {}", "name")).otherwise("name").alias("shown"),
        _shape(("grid_x", "grid_y", "grid_z")).alias("grid"),
        _shape(("block_x", "block_y", "block_z")).alias("block"),
    )
    for (process, device), of_device in _grouped_by(named, "process", "device"):
        name = f"GPU {device}" + (f" ({cards[process, device]})" if cards.get((process, device)) else "")
        gpu = build.tracks.add(name, build.process(process))
        for (_context, stream), part in _grouped_by(of_device, "context", "stream"):
            track = build.spread(gpu, f"stream {stream}", _ints(part, "start_ns"), _ints(part, "end_ns"))
            # Arrows point forward in time: if a clock error puts work before its call, the arrow is reversed.
            early = (part["start_ns"] < part["call_start_ns"]).fill_null(False).to_numpy()
            for rows, ends in ((~early, True), (early, False)):
                _work(build, part.filter(pl.Series(rows, dtype=pl.Boolean)), track[rows], ends)
        _queue(build, gpu, f"queue of GPU {device}", of_device)


def _work(build: Builder, part: pl.DataFrame, track: I64, ends: bool) -> None:
    flows = part.with_row_index("row").drop_nulls("call").select("row", "op")
    args = {arg: build.strings.ids(part[arg]) for arg in ("phase", "module", "family", "grid", "block")}
    numbers = {"bytes": np.maximum(_ints(part, "bytes"), 0), "queue_ns": _ints(part, "queue_ns")}
    build.flows += flows.height
    build.kernels += int((part["op_kind"] == "kernel").sum())
    build.add(
        Slices(
            track,
            _ints(part, "start_ns"),
            end=_ints(part, "end_ns"),
            name=build.names.ids(part["shown"]),
            category=build.categories.ids(part["op_kind"]),
            args=args | numbers,
            numbers=tuple(numbers),
            flows=np.stack((_ints(flows, "row"), _ints(flows, "op") + 1), 1),
            ends_flow=ends,
        )
    )


def _counter(build: Builder, gpu: int, title: str, unit: int) -> int:
    return build.tracks.add(title, gpu, pb.constant(pb.message(8, pb.number(3, unit))))


def _queue(build: Builder, gpu: int, title: str, ops: pl.DataFrame) -> None:
    """Add how many ops are launched and not begun."""
    rows = ops.drop_nulls("call_start_ns")
    begin = _ints(rows, "start_ns")
    launched = np.minimum(_ints(rows, "call_start_ns"), begin)
    time = np.concatenate((launched, begin))
    change = np.repeat((1, -1), len(begin))
    order = np.argsort(time, kind="stable")
    if len(time):
        build.count(_counter(build, gpu, title, _UNIT_COUNT), time[order], np.cumsum(change[order]))


def _memory(build: Builder, given: Profile, window: tuple[int, int] | None) -> None:
    """Add the memory that was allocated since the capture began, of each device and kind."""
    if not given.recorded("memory_usage"):
        return
    rows = given.trace.memory_usage.drop_nulls("bytes").sort("time_ns", "address", "freed")
    for (process, device, kind), part in rows.group_by("process", "device", "memory_kind", maintain_order=True):
        words = schema.MEMORY_KINDS.get(kind, "unknown")
        change = part["bytes"].abs() * pl.select(pl.when(part["freed"] != 0).then(-1).otherwise(1)).to_series()
        time, level = part["time_ns"].to_numpy(), np.cumsum(change.to_numpy())
        if window is not None:
            inside = (time >= window[0]) & (time < window[1])
            time, level = time[inside], level[inside]
        if len(time):
            title = f"{words} memory of GPU {device}"
            build.count(_counter(build, build.process(process), title, _UNIT_BYTES), time, level)


def _window(given: Profile) -> tuple[int, int] | None:
    """Return the span of the chosen steps on CPU and GPU (ns), None if no steps were chosen."""
    if given.whole.scope.of != "chosen":
        return None
    both = [f.select("start_ns", "end_ns") for f in (given.steps.cpu_windows, given.steps.windows)]
    spans = pl.concat(both)
    return (min(_ints(spans, "start_ns")), max(_ints(spans, "end_ns"))) if spans.height else None


def trace(given: Profile, *, redact: bool = True) -> PerfettoTrace:
    """Return a report as a trace, with ``--steps A:B`` only those steps. ``redact`` hides home folders in names."""
    build, window = Builder(given, redact=redact), _window(given)
    ops = frames.opened_ops(given)
    _calls(build, given.calls, ops)
    ranges = pl.concat([given.ranges.ranges.drop("range", strict=False), backward_ranges(given.ranges)], how="diagonal")
    if window is not None:
        ranges = ranges.filter((pl.col("end_ns") > window[0]) & (pl.col("start_ns") < window[1]))
    _ranges(build, ranges)
    _ops(build, given, ops)
    _memory(build, given, window)
    return PerfettoTrace(tuple(build.parts()), build.slices, build.kernels, build.flows)
