"""What the report says of each call of the window, before the calls become a chain: waits, events, targets, waiting for data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.catalogue import Call
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.reading import schema
from nsysx.replay.replay_bounds import HOST_TO_DEVICE_KIND, MOST_EVENTS, PAGEABLE_KIND, STAGED_NS_PER_BYTE
from nsysx.replay.replayed_window import ReplayedWindow


@dataclass
class CallData:
    """Lookup tables by call for making the chain.

    ``waits``: (backlog_ns, host_ns); ``sites``: the copy of a synchronize; ``records`` and ``edges``: (event, stream) of event
    records and of stream waits; ``targets``: what a sync waits for; ``loading``: ns waiting for data before the call; ``staging``:
    the most that the CPU can need to fill the staging buffer of a copy from pageable memory (ns), before which it cannot begin.
    """

    waits: Mapping[int, tuple[int, int]]
    sites: Mapping[int, int]
    records: Mapping[int, tuple[int, int]]
    edges: Mapping[int, tuple[int, int]]
    targets: Mapping[int, int]
    loading: Mapping[int, int]
    staging: Mapping[int, int]
    usual_latency: int
    usual_cost: int


def call_data(profile: Profile, window: ReplayedWindow) -> CallData:
    """Return what the report says of the calls of the window."""
    waits = profile.ledgers.waits["call", "backlog_ns", "host_ns", "site"]
    blocking = waits[np.flatnonzero(np.isin(waits["call"].to_numpy(), window.calls["call"].to_numpy()))]
    records, edges = events(profile, window.calls)
    every = profile.attributed.api_calls
    launches = every["process", "start_ns", "end_ns"].filter(every["kind"] == Call.LAUNCH)
    launches = lookup.having(launches, process=profile.steps.process)
    # Of a launch that nothing delays: if the queue fills up, most launches stall, but not the first thousand.
    usual_cost = int((launches["end_ns"] - launches["start_ns"]).quantile(0.1) or 0)
    return CallData(
        waits={c: (b, h) for c, b, h in blocking["call", "backlog_ns", "host_ns"].iter_rows()},
        sites={call: site for call, site in blocking["call", "site"].iter_rows() if site != call},
        records=records,
        edges=edges,
        targets=_targets(profile, window.calls),
        loading=_loading(profile, window),
        staging=_staging(profile, window),
        usual_latency=_usual_latency(window),
        usual_cost=usual_cost,
    )


def _staging(profile: Profile, window: ReplayedWindow) -> dict[int, int]:
    """Return call -> how long filling its staging buffer may take (ns), for copies from pageable memory to the device."""
    ops = profile.attributed.gpu_ops
    copying = (ops["copy_kind"] == HOST_TO_DEVICE_KIND) & (ops["src_kind"] == PAGEABLE_KIND)
    if not copying.any():
        return {}
    copies = ops["call", "bytes"].filter(copying).drop_nulls()
    inside = np.isin(copies["call"].to_numpy(), window.calls["call"].to_numpy())
    return {call: round(size * STAGED_NS_PER_BYTE) for call, size in copies.filter(inside).iter_rows()}


def _usual_latency(window: ReplayedWindow) -> int:
    """Return the median latency (ns) of ops that did not wait for their stream, 0 if none is known.

    What a call copies itself tells nothing about it, unless there is nothing else: a kernel behind it has waited for it.
    """
    launched = window.ops["call", "stream", "call_start_ns", "end_ns", "latency_ns"].drop_nulls("call_start_ns")
    copies = window.calls["call"].filter(window.calls["kind"] == Call.COPY).to_numpy()
    others = ~np.isin(lookup.filled(launched["call"], -1), copies)
    return _median_latency(launched, others) or _median_latency(launched, np.full(len(others), True))


def _median_latency(launched: pl.DataFrame, chosen: Flags) -> int:
    """Return the median latency (ns) of the chosen ops that found their stream free of all that was launched on it; 0 for none."""
    called, end, latency = (launched[c].to_numpy() for c in ("call_start_ns", "end_ns", "latency_ns"))
    free = [np.empty(0, np.int64)]
    for stream in lookup.present(launched["stream"]):
        on_stream = np.flatnonzero((launched["stream"] == stream).to_numpy())  # sorted by start
        reach = np.maximum.accumulate(end[on_stream])[:-1]
        alone = on_stream[np.append(True, called[on_stream[1:]] >= reach)]
        free.append(latency[alone[chosen[alone]]])
    latencies: I64 = np.concatenate(free)
    return int(np.median(latencies)) if len(latencies) else 0


def awaited(event: int) -> int:
    """Return the ``target`` of an event: below -1, and within 64 bits even if a damaged report has a huge id."""
    return -2 - (event & MOST_EVENTS)


def events(profile: Profile, calls: pl.DataFrame) -> tuple[dict[int, tuple[int, int]], dict[int, tuple[int, int]]]:
    """Return two maps of call -> (event, stream): for event records, and for stream waits."""
    key = ["process", "correlation_id"]
    trace = profile.trace
    if not trace.event.height and not trace.sync.height:
        return {}, {}
    calls = calls.select(*key, "call", pl.col("name").cast(pl.String))
    recorded = trace.event.join(calls, on=key, how="inner")["call", "event", "stream"]
    waiting = trace.sync.join(calls.filter(pl.col("name").str.contains("StreamWaitEvent")), on=key, how="inner")
    return (
        {c: (e, s) for c, e, s in recorded.iter_rows()},
        {c: (e, s) for c, e, s in waiting["call", "event", "stream"].drop_nulls().iter_rows()},
    )


def _targets(profile: Profile, calls: pl.DataFrame) -> dict[int, int]:
    """Return call -> target (a stream, or -2 - event) of the synchronize calls that name one."""
    if not profile.trace.sync.height:
        return {}
    key = ["process", "correlation_id"]
    calls = calls.filter(pl.col("kind") == Call.SYNC)
    rows = profile.trace.sync.join(calls.select(*key, "call", pl.col("name").cast(pl.String)), on=key, how="inner")
    result: dict[int, int] = {}
    for call, name, stream, event in rows["call", "name", "stream", "event"].iter_rows():
        if "Stream" in name and stream not in (None, schema.NO_STREAM):
            result[call] = stream
        elif "Event" in name and event not in (None, schema.NO_STREAM):
            result[call] = awaited(event)
    return result


def _loading(profile: Profile, window: ReplayedWindow) -> dict[int, int]:
    """Return call -> time in the data phase between the previous call and it (ns); key -1 is the time after the last call.

    Only the time inside the window counts, because other steps load data, too.
    """
    calls = window.calls
    spans = profile.attributed.phase_spans
    loads = (spans["phase"] == "data").to_numpy() & np.isin(spans["thread"].to_numpy(), lookup.present(calls["thread"]))
    if not loads.any():
        return {}
    spans = spans.filter(loads).sort("start_ns")
    starts = calls["start_ns"].to_numpy()
    ids = calls["call"].to_numpy()
    result: Counter[int] = Counter()
    for begin, finish in spans["start_ns", "end_ns"].iter_rows():
        reached, b = max(begin, window.start_ns), min(finish, window.end_ns)
        i = int(np.searchsorted(starts, reached, side="left"))
        # A fetch that makes API calls itself (pinning) is split at them, and each part counts for the next call.
        while reached < b:
            upto, key = (min(int(starts[i]), b), int(ids[i])) if i < len(starts) else (b, -1)
            result[key] += upto - reached
            reached, i = upto, i + 1
    return result
