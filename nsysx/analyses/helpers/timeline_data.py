"""Data for pictures of one step and of the times of one kernel, bounded in size whatever the size of the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import ids
from nsysx.analyses.helpers import picture_code, picture_places, picture_windows
from nsysx.analyses.helpers.analysis_bounds import (
    DRY_QUEUE_NS,
    LANE_LABEL_LETTERS,
    MOST_DOTS,
    MOST_DRAWN_QUEUES,
    MOST_LANE_SPANS,
    MOST_LANES,
    MOST_STRIPS,
    MOST_THREAD_LANES,
    QUEUE_INSTANTS,
    STREAMS_OF_OTHERS,
)
from nsysx.analyses.helpers.picture_windows import DrawnWindow
from nsysx.catalogue import DeviceActivity
from nsysx.events import gpu_samples, line_shares
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64
from nsysx.pictures import SEVERAL, Counters, Lane, LongestStretch, Queue, Role, Span, Strip, Timeline
from nsysx.reading import schema

_OPS = ("process", "device", "stream", "start_ns", "end_ns", "cls", "name", "call_start_ns", "thread")


def _merge(spans: list[Span], width: int, most: int = MOST_LANE_SPANS) -> tuple[tuple[Span, ...], int]:
    """Merge neighbors of one kind that are closer than a pixel, of ``most``; return the spans and how many vanished."""
    if len(spans) <= most:
        return tuple(spans), 0
    pixel = max(width // most, 1)
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        if (
            last
            and last.kind == span.kind
            and span.start_ns - last.end_ns < pixel
            and last.end_ns - last.start_ns < 4 * pixel
        ):
            before = last.end_ns - last.start_ns if last.covered_ns is None else last.covered_ns
            merged[-1] = replace(
                last,
                end_ns=max(last.end_ns, span.end_ns),
                label=last.label if last.label == span.label else SEVERAL,
                module=last.module if last.module == span.module else "",
                line=last.line if last.line == span.line else "",
                backlog_ns=last.backlog_ns + span.backlog_ns,
                covered_ns=before + max(0, span.end_ns - max(span.start_ns, last.end_ns)),
            )
        else:
            merged.append(span)
    return tuple(merged), len(spans) - len(merged)


def _overlapping(frame: pl.DataFrame, process: int, start: int, end: int) -> pl.DataFrame:
    overlaps = (pl.col("process") == process) & (pl.col("end_ns") > start) & (pl.col("start_ns") < end)
    return frame.filter(overlaps).sort("start_ns")


def queued(ops: pl.DataFrame, time: I64) -> I64:
    """Return the GPU time (ns) of ``ops`` that is launched but not yet run at each instant, summed over streams."""
    ops = ops.filter(pl.col("call_start_ns").is_not_null())
    if not ops.height or not len(time):
        return np.zeros(len(time), np.int64)
    base = int(time.min())
    launch = ops["call_start_ns"].to_numpy() - base
    # Clock conversion may put an op before its call; it was not done before it was asked for.
    start = np.maximum(ops["start_ns"].to_numpy() - base, launch)
    end = np.maximum(ops["end_ns"].to_numpy() - base, start)
    live = end > 0  # what is done before the first instant is queued at none
    launch, start, end, t = launch[live], start[live], end[live], time - base
    order = np.argsort(launch, kind="stable")
    asked = np.concatenate([[0], np.cumsum((end - start)[order])])[np.searchsorted(launch[order], t, side="left")]
    start, end = np.sort(start), np.sort(end)
    begun, ended = np.searchsorted(start, t, side="left"), np.searchsorted(end, t, side="left")
    sums = np.concatenate([[0], np.cumsum(start)]), np.concatenate([[0], np.cumsum(end)])
    run = t * begun - sums[0][begun] - (t * ended - sums[1][ended])
    return np.asarray(asked - run, np.int64)


def _queues(profile: Profile, process: int, start: int, end: int, first: int) -> tuple[Queue, ...]:
    """Return the queues of the first devices that get work in [start, end); launches from ``first`` on are counted."""
    ops = profile.attributed.gpu_ops["process", "device", "start_ns", "end_ns", "call_start_ns"]
    # Ops launched after the window or done before it are never in the queue.
    seen = ops.filter((ops["call_start_ns"] < end) & ((ops["end_ns"] > start) | (ops["call_start_ns"] >= start)))
    instants = np.linspace(start, end, QUEUE_INSTANTS).astype(np.int64)
    queues = []
    for device in ops["device"].filter(ops["process"] == process).unique(maintain_order=True):
        on_device = seen.filter((seen["process"] == process) & (seen["device"] == device))
        launches = on_device["call_start_ns"].filter(on_device["call_start_ns"] >= start)
        moments = launches.unique().sort().to_numpy()
        if not len(moments):
            continue
        values = queued(on_device, np.concatenate([instants, moments]))
        counted = moments >= first
        dry = int((values[len(instants) :][counted] < DRY_QUEUE_NS).sum())
        queues.append(
            Queue(
                device,
                tuple((instants - start).tolist()),
                tuple(values[: len(instants)].tolist()),
                int(counted.sum()),
                dry,
            ),
        )
        if len(queues) == MOST_DRAWN_QUEUES:
            break
    return tuple(queues)


#: The GPU counters in the picture: column of the samples, and its label.
_COUNTERS = {"sm_active": "SMs", "tensor_active": "tensor cores", "dram": "DRAM bandwidth"}


def _counters(profile: Profile, process: int, start: int, end: int) -> tuple[Counters, ...]:
    """Return the counters of the devices of a process in [start, end), as means over the pixels of the picture."""
    counters = []
    for device in sorted(d for p, d in profile.ledgers.activity if p == process)[:MOST_DRAWN_QUEUES]:
        rows = gpu_samples.in_window(profile.trace, process, device, start, end)
        if rows is None or not rows.height:
            continue
        wide = max((end - start) // QUEUE_INSTANTS, 1)
        slot = ((pl.col("time_ns") - start) // wide).alias("place")
        means = rows.group_by(slot).agg(pl.col(*_COUNTERS).cast(pl.Float64).mean()).sort("place")
        shares = {name: tuple(means[c].to_list()) for c, name in _COUNTERS.items() if means[c].count()}
        middles = tuple((means["place"].cast(pl.Int64) * wide + wide // 2).to_list())
        counters.append(Counters(f"GPU {device}: counters", middles, shares))
    return tuple(c for c in counters if c.shares)


class _Lanes:
    """The lanes of a picture of [start, end) of a process, as they come; ``merged`` counts the boxes that vanished."""

    def __init__(self, profile: Profile, process: int, start: int, end: int) -> None:
        self.profile, self.process, self.start, self.end = profile, process, start, end
        self.lanes: list[Lane] = []
        self.merged = 0
        self._api_lane: dict[int, int] = {}  # of each thread
        self._device: int | None = None  # the busiest one, once the streams are there

    def _within(self, begin: int, finish: int) -> tuple[int, int]:
        return max(begin, self.start) - self.start, min(finish, self.end) - self.start

    def _add(self, role: Role, label: str, boxes: list[Span]) -> None:
        spans, gone = _merge(boxes, self.end - self.start) if role != "phases" else (tuple(boxes), 0)
        self.merged += gone
        self.lanes.append(Lane(role, label, spans))

    def add_threads(self) -> None:
        """Add the phases and the API calls of the busiest threads, those that run the steps first."""
        calls = self.profile.attributed.api_calls["call", "process", "thread", "start_ns", "end_ns", "kind", "name"]
        calls = _overlapping(calls, self.process, self.start, self.end)
        waits = self.profile.ledgers.waits["call", "backlog_ns"]
        calls = calls.join(waits, on="call", how="left", maintain_order="left")
        phases = _overlapping(self.profile.attributed.phase_spans, self.process, self.start, self.end)
        names = dict(self.profile.trace.thread_name.select("thread", pl.col("name").cast(pl.String)).iter_rows())
        steps = self.profile.steps.cpu
        driver = line_shares.driver(self.profile)
        driving = set(steps.filter(steps["process"] == self.process)["thread"].to_list())
        busiest = calls.group_by("thread").len().sort("len", "thread", descending=[True, False])["thread"].to_list()
        for thread in sorted(busiest[:MOST_THREAD_LANES], key=lambda t: (t not in driving, busiest.index(t))):
            label = names.get(thread) or f"thread {ids.tid_of(thread)}"
            spans = phases.filter(phases["thread"] == thread)["start_ns", "end_ns", "phase"].iter_rows()
            if boxes := [Span(*self._within(a, b), phase, phase) for a, b, phase in spans]:
                self._add("phases", label, boxes)
            if thread == driver and (boxes := picture_code.host_lines(self.profile, thread, self.start, self.end)):
                self._add("lines", label, boxes)
            self._api_lane[thread] = len(self.lanes)
            self._add("api", label, self._calls(calls.filter(calls["thread"] == thread)))

    def _calls(self, calls: pl.DataFrame) -> list[Span]:
        text = (pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String))
        rows = calls.select("start_ns", "end_ns", *text, pl.col("backlog_ns").fill_null(0)).iter_rows()
        return [
            Span(*self._within(a, b), kind, name, backlog_ns=max(0, min(a + wait, self.end) - max(a, self.start)))
            for a, b, kind, name, wait in rows
        ]

    def add_streams(self) -> None:
        """Add the GPU ops of the busiest streams, as many as there is room for."""
        ops = _overlapping(
            self.profile.attributed.gpu_ops.select(*_OPS, "op", "module"), self.process, self.start, self.end
        )
        ops = picture_code.of_ops(self.profile, ops)
        streams = ops.group_by("device", "stream").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"))
        streams = streams.sort("ns", "device", "stream", descending=[True, False, False])
        streams = streams.head(MOST_LANES - len(self.lanes)).sort("device", "stream")
        for device, stream in streams["device", "stream"].iter_rows():
            of_stream = ops.filter((ops["device"] == device) & (ops["stream"] == stream))
            self._add("stream", f"GPU {device} stream {stream}", self._ops(of_stream))
        by_device = ops.group_by("device").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"))
        busiest = by_device.sort("ns", "device", descending=[True, False])["device"]
        if busiest.is_empty():
            return
        self._device = int(busiest[0])
        inside = ops.filter(ops["device"] == self._device).with_columns(
            pl.col("start_ns", "end_ns").clip(self.start, self.end)
        )
        if boxes := picture_code.modules(inside, self.start):
            self._add("modules", f"GPU {self._device} modules", boxes)

    def add_idle(self) -> tuple[LongestStretch, ...]:
        """Add when the busiest device of the process idles, and why; return where work of each module and phase is."""
        device = self._device
        if device is None:
            return ()
        pieces = picture_places.idle_pieces(self.profile, self.process, device, self.start, self.end)
        if pieces.height:
            self._add("idle", f"GPU {device} idle", picture_places.idle_spans(pieces, self.start))
        return picture_places.places(self.profile, pieces, self.process, self.start, self.end)

    def add_other_processes(self) -> None:
        """Add the busiest streams of the other processes of the report: the other ranks, on the same clock.

        Processes may share a device, or each may number the one that it sees 0: then a lane says whose it is, not which device.
        """
        numbered = {device for process, device in self.profile.ledgers.activity if process == self.process}
        ops = self.profile.attributed.gpu_ops.filter(pl.col("process") != self.process).select(_OPS)
        ops = ops.filter((ops["end_ns"] > self.start) & (ops["start_ns"] < self.end)).sort("start_ns")
        streams = ops.group_by("process", "device", "stream").agg(
            (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
        )
        busiest = streams.sort("ns", "process", "device", "stream", descending=[True, False, False, False])
        busiest = (
            busiest.group_by("process", maintain_order=True)
            .head(STREAMS_OF_OTHERS)
            .head(max(0, MOST_LANES - len(self.lanes)))
        )
        in_order = busiest.sort("device", "process", "stream")["process", "device", "stream"]
        for process, device, stream in in_order.iter_rows():
            here = (pl.col("process") == process) & (pl.col("device") == device) & (pl.col("stream") == stream)
            whose = f"process {ids.pid_of(process)}" if device in numbered else f"GPU {device}"
            self._add("stream", f"{whose} stream {stream}", self._ops(ops.filter(here)))

    def _ops(self, ops: pl.DataFrame) -> list[Span]:
        return _op_spans(ops, self.start, self.end, self._api_lane)


def _op_spans(ops: pl.DataFrame, start: int, end: int, api_lane: Mapping[int, int]) -> list[Span]:
    """Return GPU operations as boxes of [start, end); ``api_lane`` is the lane of the calls of each thread."""
    text = (pl.col("cls").cast(pl.String), pl.col("name").cast(pl.String))
    code = [pl.col(c).fill_null("") if c in ops.columns else pl.lit("").alias(c) for c in ("module", "line")]
    rows = ops.select("start_ns", "end_ns", *text, "call_start_ns", "thread", *code).iter_rows()
    return [
        Span(
            max(a, start) - start,
            min(b, end) - start,
            kind=cls,
            label=name[:LANE_LABEL_LETTERS],
            launch_ns=None if called is None else called - start,
            launch_lane=None if thread is None else api_lane.get(thread),
            module=module,
            line=line,
        )
        for a, b, cls, name, called, thread, module, line in rows
    ]


def lanes_of_rank(ops: pl.DataFrame, start: int, end: int, *, device: int, streams: int, most: int) -> tuple[Lane, ...]:
    """Return the busiest ``streams`` of a device in [start, end), of about ``most`` boxes each; one empty lane without work.

    That with most compute comes first, so that equal ranks show equal streams. ``ops`` are the GPU operations of one process.
    """
    ops = ops.select(_OPS).filter(
        (pl.col("device") == device) & (pl.col("end_ns") > start) & (pl.col("start_ns") < end)
    )
    ns = pl.col("end_ns") - pl.col("start_ns")
    computes = ns.filter(pl.col("cls") == DeviceActivity.COMPUTE.value).sum()
    busy = ops.group_by("stream").agg(computes.alias("compute_ns"), ns.sum().alias("ns"))
    order = busy.sort("compute_ns", "ns", "stream", descending=[True, True, False])
    busiest = order.head(streams)["stream"].to_list()
    if not busiest:
        return (Lane("stream", f"GPU {device}", ()),)
    of_stream = {s: ops.filter(ops["stream"] == s).sort("start_ns") for s in busiest}
    spans = {s: _merge(_op_spans(rows, start, end, {}), end - start, most)[0] for s, rows in of_stream.items()}
    return tuple(Lane("stream", f"GPU {device} stream {s}", spans[s]) for s in busiest)


def draw(profile: Profile, process: int, window: DrawnWindow) -> Timeline:
    """Return the lanes of a window: phases, lines and API calls of threads, GPU ops of streams, their modules, and what is queued."""
    start, end = window.start_ns, window.end_ns
    picture = _Lanes(profile, process, start, end)
    picture.add_threads()
    picture.add_streams()
    places = picture.add_idle()
    picture.add_other_processes()
    inside = tuple((instant - start, name) for instant, name in window.marks if start <= instant < end)
    first = start if window.step is None else window.step[0]
    queues = _queues(profile, process, start, end, first)
    counters = _counters(profile, process, start, end)
    return Timeline(
        window.title,
        start,
        end_ns=end,
        lanes=tuple(picture.lanes),
        merged=picture.merged,
        queues=queues,
        counters=counters,
        marks=inside,
        places=places,
        step_ns=window.step and (window.step[0] - start, window.step[1] - start),
    )


def timelines(profile: Profile) -> tuple[Timeline, ...]:
    """Return the pictures of the windows that are drawn."""
    process = profile.steps.process
    return tuple(draw(profile, process, w) for w in picture_windows.windows(profile))


def strips(profile: Profile) -> tuple[Strip, ...]:
    """Return the times of the kernels with the longest totals, one entry per launch shape, as in ``kernel_spread``."""
    kernels = profile.ops.select("name", "grid", "block", ns=pl.col("end_ns") - pl.col("start_ns"))  # sorted by start
    grouped = (
        kernels.filter(profile.ops["op_kind"] == "kernel")
        .group_by("name", "grid", "block", maintain_order=True)
        .agg(pl.col("ns"), pl.len().alias("count"), pl.col("ns").sum().alias("total"))
        .filter(pl.col("count") > 1)
        .with_columns(pl.col("name").cast(pl.String))
        .sort("total", "name", "count", descending=[True, False, False])
        .head(MOST_STRIPS)
    )
    drawn = []
    for (name, grid, block), times in zip(grouped["name", "grid", "block"].iter_rows(), grouped["ns"], strict=True):
        picked = np.unique(np.linspace(0, len(times) - 1, min(len(times), MOST_DOTS)).astype(np.int64))
        shape = "" if grid is None else "x".join(map(str, schema.unpack(grid, schema.GRID)))
        threads = "" if block is None else "x".join(map(str, schema.unpack(block, schema.BLOCK)[:3]))
        drawn.append(Strip(name, shape, threads, len(times), tuple(times.gather(picked).to_list())))
    return tuple(drawn)
