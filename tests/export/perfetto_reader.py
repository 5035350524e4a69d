"""Reads a trace as Perfetto's trace processor does: by its published schema, a stack of slices for each track, flows by id."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


@dataclass
class Slice:
    track: int
    start_ns: int
    name: str
    category: str
    args: dict[str, object]
    depth: int
    end_ns: int | None = None


@dataclass
class Read:
    tracks: dict[int, object] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    flows: list[tuple[Slice, Slice]] = field(default_factory=list)
    counters: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    wrong: Counter[str] = field(default_factory=Counter)

    def of(self, category: str) -> list[Slice]:
        return [s for s in self.slices if s.category == category]

    def track(self, uuid: int) -> str:
        """Return a track by its names, the outermost first."""
        found = self.tracks[uuid]
        parent = found.parent_uuid  # type: ignore[attr-defined]
        return (self.track(parent) + " / " if parent else "") + found.name  # type: ignore[attr-defined, no-any-return]


def read(data: bytes) -> Read:
    """Return what a trace holds. ``wrong`` counts what the trace processor would complain about."""
    trace = Trace()
    trace.ParseFromString(data)
    found = Read()
    texts: dict[str, dict[int, str]] = defaultdict(dict)
    events = []
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            found.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        for kind in ("event_names", "event_categories", "debug_annotation_names", "debug_annotation_string_values"):
            for entry in getattr(packet.interned_data, kind):
                value = entry.str.decode() if hasattr(entry, "str") else entry.name
                texts[kind][entry.iid] = value
        if packet.HasField("track_event") or packet.HasField("interned_data"):
            assert packet.trusted_packet_sequence_id == 1, "numbers of texts hold within a sequence"
        if packet.HasField("track_event"):
            events.append((packet.timestamp, packet.track_event))
    found.wrong["unsorted"] = sum(a[0] > b[0] for a, b in pairwise(events))
    events.sort(key=lambda e: e[0])
    stacks: dict[int, list[Slice]] = defaultdict(list)
    flowing: dict[int, Slice] = {}
    for time, event in events:
        assert event.track_uuid in found.tracks
        stack = stacks[event.track_uuid]
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            args = {}
            for a in event.debug_annotations:
                value = (
                    texts["debug_annotation_string_values"][a.string_value_iid]
                    if a.HasField("string_value_iid")
                    else a.int_value
                )
                args[texts["debug_annotation_names"][a.name_iid]] = value
            (category,) = event.category_iids
            slice_ = Slice(
                event.track_uuid,
                time,
                texts["event_names"][event.name_iid],
                texts["event_categories"][category],
                args,
                len(stack),
            )
            stack.append(slice_)
            found.slices.append(slice_)
            for flow in event.flow_ids:
                if flow in flowing:
                    found.flows.append((flowing[flow], slice_))
                flowing[flow] = slice_
            for flow in event.terminating_flow_ids:
                if flow in flowing:
                    found.flows.append((flowing.pop(flow), slice_))
                else:
                    found.wrong["a flow that ends without having begun"] += 1
        elif event.type == TrackEvent.TYPE_SLICE_END:
            if not stack:
                found.wrong["an end without a begin"] += 1
            else:
                stack.pop().end_ns = time
        elif event.type == TrackEvent.TYPE_COUNTER:
            found.counters[found.track(event.track_uuid)].append((time, event.counter_value))
    found.wrong["never ended"] = sum(len(s) for s in stacks.values())
    return found
