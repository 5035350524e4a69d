"""The picture data of single steps: what a reader sees of one window, bounded in size however busy it was."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from nsysx.facts import Facts
from nsysx.model import Lane, Span, Timeline

#: More boxes than this in a lane are narrower than a pixel: neighbours of one kind are merged.
_SPANS = 1500
_LANES = 12


def _merge(spans: list[Span], width: int) -> tuple[tuple[Span, ...], int]:
    """Merge neighbours of one kind that are closer than a pixel; return the spans and how many vanished."""
    if len(spans) <= _SPANS:
        return tuple(spans), 0
    pixel = max(width // _SPANS, 1)
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
                label="several",
                covered_ns=before + max(0, span.end_ns - max(span.start_ns, last.end_ns)),
            )
        else:
            merged.append(span)
    return tuple(merged), len(spans) - len(merged)


def _overlapping(frame: pl.DataFrame, start: int, end: int) -> pl.DataFrame:
    return frame.filter((pl.col("end_ns") > start) & (pl.col("start_ns") < end)).sort("start_ns")


def draw(facts: Facts, process: int, start: int, end: int, title: str) -> Timeline:
    """Return the lanes of [start, end): phases and API calls of each thread, GPU ops of each stream."""
    calls = _overlapping(facts.attributed.api_calls.filter(pl.col("process") == process), start, end)
    ops = _overlapping(facts.attributed.gpu_ops.filter(pl.col("process") == process), start, end)
    phases = _overlapping(facts.attributed.phase_spans.filter(pl.col("process") == process), start, end)
    waits = facts.ledgers.waits.select("call", "backlog_ns")
    calls = calls.join(waits, on="call", how="left", maintain_order="left")
    names = dict(facts.trace.thread_name.select("thread", pl.col("name").cast(pl.String)).iter_rows())
    lanes: list[Lane] = []
    api_lane: dict[int, int] = {}
    merged = 0
    driving = set(facts.steps.cpu.filter(pl.col("process") == process)["thread"].to_list())
    busiest = calls.group_by("thread").len().sort("len", "thread", descending=[True, False])["thread"].to_list()
    threads = sorted(busiest[:4], key=lambda t: (t not in driving, busiest.index(t)))
    for thread in threads:
        label = names.get(thread) or f"thread {thread & 0xFFFFFF}"
        own = phases.filter(pl.col("thread") == thread)
        boxes = [
            Span(max(a, start) - start, min(b, end) - start, k, k)
            for a, b, k in own.select("start_ns", "end_ns", "phase").iter_rows()
        ]
        if boxes:
            lanes.append(Lane("phases", label, tuple(boxes)))
        mine = calls.filter(pl.col("thread") == thread).select(
            "start_ns",
            "end_ns",
            pl.col("kind").cast(pl.String),
            pl.col("name").cast(pl.String),
            pl.col("backlog_ns").fill_null(0),
        )
        boxes = [
            Span(max(a, start) - start, min(b, end) - start, k, n, backlog_ns=w) for a, b, k, n, w in mine.iter_rows()
        ]
        spans, gone = _merge(boxes, end - start)
        merged += gone
        api_lane[thread] = len(lanes)
        lanes.append(Lane("api", label, spans))
    streams = ops.group_by("device", "stream").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"))
    top = (
        streams.sort("ns", "device", "stream", descending=[True, False, False])
        .head(_LANES - len(lanes))
        .sort("device", "stream")
    )
    for device, stream in top.select("device", "stream").iter_rows():
        mine = ops.filter((pl.col("device") == device) & (pl.col("stream") == stream)).select(
            "start_ns",
            "end_ns",
            pl.col("cls").cast(pl.String),
            pl.col("name").cast(pl.String),
            "call_start_ns",
            "thread",
        )
        boxes = [
            Span(
                max(a, start) - start,
                min(b, end) - start,
                k,
                n[:200],
                None if c is None else c - start,
                api_lane.get(t) if t is not None else None,
            )
            for a, b, k, n, c, t in mine.iter_rows()
        ]
        spans, gone = _merge(boxes, end - start)
        merged += gone
        lanes.append(Lane("stream", f"GPU {device} stream {stream}", spans))
    return Timeline(title, start, end, tuple(lanes), merged)


def timelines(facts: Facts) -> tuple[Timeline, ...]:
    """Return the typical steady step and the slowest one (the whole capture where there are no steps)."""
    steps = facts.steps
    mine = steps.gpu.filter((pl.col("process") == steps.process) & (pl.col("end_ns") > pl.col("start_ns")))
    if steps.source == "capture" or steps.steady is None or not mine.height:
        window = steps.cpu_windows.filter(pl.col("process") == steps.process)
        if not window.height:
            return ()
        start, end = window.select("start_ns", "end_ns").row(0)
        return (draw(facts, steps.process, start, end, "The whole capture"),)
    busiest = (
        mine.group_by("device")
        .agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"))
        .sort("ns", "device", descending=[True, False])
    )
    mine = mine.filter((pl.col("device") == busiest["device"][0]) & pl.col("index").is_between(*steps.steady))
    if not mine.height:
        return ()
    mine = mine.with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("ns")).sort("ns", "index")
    rows = mine.select("index", "start_ns", "end_ns").rows()
    cpu = dict(steps.cpu.filter(pl.col("process") == steps.process).select("index", "start_ns").iter_rows())
    result = []
    for title, (index, start, end) in (("A typical step", rows[len(rows) // 2]), ("The slowest steady step", rows[-1])):
        # Begin with the CPU step, so that its launches are seen before the kernels that they start; a CPU far ahead is cut.
        begin = max(min(cpu.get(index, start), start), start - (end - start))
        result.append(draw(facts, steps.process, begin, end, f"{title} (step {index})"))
    return tuple(result[:1] if len(rows) == 1 else result)
