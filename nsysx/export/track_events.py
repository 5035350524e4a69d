"""Tracks, slices and counters as Perfetto's TrackEvent packets, in order of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from nsysx import ids
from nsysx.events.profile import Profile
from nsysx.export import lanes
from nsysx.export import protobuf as pb
from nsysx.export.export_bounds import EVENT_CHUNK, LONGEST_TRACK_NAME
from nsysx.frames.intervals import I64
from nsysx.render.safe_text import clean, scrub

#: Numbers of fields in Trace, TracePacket, TrackEvent, TrackDescriptor, InternedData (protos/perfetto/trace).
_PACKET = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _TRACK = 8, 10, 11, 12, 13, 60
_CATEGORY, _ANNOTATION, _TYPE, _NAME, _UUID, _VALUE, _FLOW, _FLOW_ENDS = 3, 4, 9, 10, 11, 30, 47, 48
_CATEGORIES, _NAMES, _ANNOTATIONS, _STRINGS = 1, 2, 3, 29
_BEGIN, _END, _COUNT = 1, 2, 4
_CLEARED, _NEEDED = 1, 2
#: Bytes of a varint: an id of a name or track, a time, any 64 bits.
_ID, _TIME, _ANY = 4, 9, 10


@dataclass
class InternedTexts:
    """Texts that packets name by number, from 1."""

    redact: bool
    known: dict[str, int] = field(default_factory=dict)

    def ids(self, texts: pl.Series) -> I64:
        """Return the number of each text, 0 for null. Nothing of a text acts on whoever looks at it."""
        distinct = texts.unique(maintain_order=True).drop_nulls().cast(pl.String)
        numbers = [self.known.setdefault(self.shown(t), len(self.known) + 1) for t in distinct.to_list()]
        codes = pl.DataFrame({"text": distinct, "id": pl.Series(numbers, dtype=pl.Int64)})
        rows = texts.cast(pl.String).to_frame("text").join(codes, on="text", how="left", maintain_order="left")
        numbers_of: I64 = rows["id"].fill_null(0).to_numpy()
        return numbers_of

    def shown(self, text: str) -> str:
        """Return a text in which nothing is active or invisible, never an empty one."""
        return clean(scrub(text) if self.redact else text, LONGEST_TRACK_NAME) or "<unnamed>"

    def interned(self, field_number: int) -> bytes:
        """Return the texts as InternedData."""
        return b"".join(
            pb.constant(pb.message(field_number, (*pb.number(1, i), *pb.text(2, t)))) for t, i in self.known.items()
        )


@dataclass
class Tracks:
    """Track descriptors, numbered from 1 in the order in which they are made."""

    texts: InternedTexts
    packets: list[bytes] = field(default_factory=list)

    def add(self, name: str, parent: int = 0, *more: bytes) -> int:
        """Return the number of a new track."""
        uuid = len(self.packets) + 1
        parts = (
            *pb.number(1, uuid),
            *pb.text(2, self.texts.shown(name)),
            *(pb.number(5, parent) if parent else ()),
            *more,
        )
        self.packets.append(pb.constant(pb.message(_PACKET, (*pb.number(_SEQUENCE, 1), *pb.message(_TRACK, parts)))))
        return uuid


@dataclass(frozen=True)
class Slices:
    """Slices of one sort. ``args``: name of an argument -> value of each slice, a text's number or (``numbers``) a number; 0
    leaves it out. ``flows``: lines of (row of a slice, flow), whose arrows begin here, or end with ``ends_flow``.
    """

    track: I64
    start: I64
    end: I64
    name: I64
    category: I64
    args: dict[str, I64] = field(default_factory=dict)
    numbers: tuple[str, ...] = ()
    flows: I64 | None = None
    ends_flow: bool = False


def _packet(parts: pb.Parts) -> pb.Parts:
    head = (*pb.slot(_TIMESTAMP, "time", _TIME), *pb.number(_SEQUENCE, 1), *pb.number(_FLAGS, _NEEDED))
    return pb.message(_PACKET, (*head, *pb.message(_EVENT, parts)))


def _begin(args: Sequence[str], numbers: Sequence[str], arg_ids: dict[str, int], flows: int, ends: bool) -> pb.Parts:
    """Return the packet in which a slice begins."""
    parts: list[bytes | pb.Slot] = [*pb.number(_TYPE, _BEGIN), *pb.slot(_UUID, "track", _ID)]
    parts += [*pb.slot(_NAME, "name", _ID), *pb.slot(_CATEGORY, "category", _ID)]
    for arg in args:
        value = pb.slot(4, arg, _TIME) if arg in numbers else pb.slot(17, arg, _ID)
        parts += pb.message(_ANNOTATION, (*pb.number(1, arg_ids[arg]), *value))
    for i in range(flows):
        parts += pb.fixed64(_FLOW_ENDS if ends else _FLOW, f"flow{i}")
    return _packet(tuple(parts))


_END_PACKET = _packet((*pb.number(_TYPE, _END), *pb.slot(_UUID, "track", _ID)))
_COUNT_PACKET = _packet((*pb.number(_TYPE, _COUNT), *pb.slot(_UUID, "track", _ID), *pb.slot(_VALUE, "value", _ANY)))


@dataclass
class _Events:
    """Packets to be: columns of one layout. ``order``: among events of one instant what ends comes first (0), then what
    begins (1), then what counts (2); and the place among these.
    """

    layout: pb.Parts
    columns: dict[str, I64]
    order: tuple[I64, I64]


class Builder:
    """Gathers tracks and events of one report."""

    def __init__(self, given: Profile, *, redact: bool) -> None:
        self.given = given
        self.names, self.categories, self.strings = InternedTexts(redact), InternedTexts(redact), InternedTexts(redact)
        self.args: dict[str, int] = {}
        self.tracks = Tracks(self.names)
        self.events: list[_Events] = []
        self.processes: dict[int, int] = {}
        self.threads: dict[int, int] = {}
        self.slices = self.kernels = self.flows = 0
        self._order = 0

    # ---- tracks -----------------------------------------------------------------------------------------------------

    def process(self, key: int) -> int:
        """Return the track of a process."""
        if key not in self.processes:
            names = {p["process"]: p.get("name") or "" for p in self.given.trace.capture.processes}
            name = str(names.get(key, ""))
            name_part = pb.text(6, self.names.shown(name)) if name else ()
            more = pb.message(3, (*pb.number(1, ids.pid_of(key)), *name_part))
            self.processes[key] = self.tracks.add(name or "process", 0, pb.constant(more))
        return self.processes[key]

    def thread(self, key: int) -> int:
        """Return the track of a thread."""
        if key not in self.threads:
            self.process(ids.process_of(key))
            pid, tid = ids.pid_of(ids.process_of(key)), ids.tid_of(key)
            rows = self.given.trace.thread_name.drop_nulls().select("thread", pl.col("name").cast(pl.String))
            name = dict(rows.iter_rows()).get(key, "thread")
            shown = self.names.shown(name)
            more = pb.message(4, (*pb.number(1, pid), *pb.number(2, tid), *pb.text(5, shown)))
            self.threads[key] = self.tracks.add(shown, 0, pb.constant(more))
        return self.threads[key]

    def spread(self, parent: int, name: str, start: I64, end: I64, *, top: int | None = None) -> I64:
        """Return the track of each slice: ``top`` or a new one called ``name``; others beside it for what does not nest."""
        lane = lanes.assign(start, end)
        made = [top if top is not None else self.tracks.add(name, parent)]
        made += [self.tracks.add(f"{name} ({n + 1})", parent) for n in range(1, int(lane.max(initial=0)) + 1)]
        return np.array(made, np.int64)[lane]

    # ---- events -----------------------------------------------------------------------------------------------------

    def add(self, slices: Slices) -> None:
        """Add slices: a packet for the begin of each and one for its end."""
        count = len(slices.start)
        if not count:
            return
        self.slices += count
        order = np.lexsort((-slices.end, slices.start, slices.track))
        position = np.empty(count, np.int64)
        position[order] = self._order + 2 * np.arange(count)
        self._order += 2 * count
        lasting = slices.end > slices.start
        for arg in slices.args:
            self.args.setdefault(arg, len(self.args) + 1)
        columns = {"track": slices.track, "name": slices.name, "category": slices.category, **slices.args}
        self._add_begins(slices, {**columns, "time": slices.start}, position)
        # A slice with a duration ends before others begin at that instant, the inner one first; one without, right after its begin.
        ends = (np.where(lasting, 0, 1), np.where(lasting, -position, position + 1))
        self.events.append(_Events(_END_PACKET, {"track": slices.track, "time": slices.end}, ends))

    def _add_begins(self, slices: Slices, columns: dict[str, I64], position: I64) -> None:
        """Add the packets in which slices begin: one layout for each choice of arguments and number of flows."""
        count = len(position)
        key = np.zeros(count, np.int64)
        for bit, values in enumerate(slices.args.values()):
            key |= (values != 0).astype(np.int64) << bit
        many = np.zeros(count, np.int64)
        if slices.flows is not None:
            many = np.bincount(slices.flows[:, 0], minlength=count)
            ordered = slices.flows[np.argsort(slices.flows[:, 0], kind="stable")]
            first = np.cumsum(many) - many
        both, which = np.unique(np.stack((key, many), 1), axis=0, return_inverse=True)
        for number, (mask, flows) in enumerate(both.tolist()):
            rows = np.flatnonzero(which.reshape(-1) == number)
            args = [arg for bit, arg in enumerate(slices.args) if mask >> bit & 1]
            used = {"time", "track", "name", "category", *args}
            used_columns = {n: v[rows] for n, v in columns.items() if n in used}
            for i in range(flows):
                used_columns[f"flow{i}"] = ordered[first[rows] + i, 1]
            layout = _begin(args, slices.numbers, self.args, flows, slices.ends_flow)
            self.events.append(_Events(layout, used_columns, (np.ones(len(rows), np.int64), position[rows])))

    def count(self, track: int, time: I64, value: I64) -> None:
        """Add the values of a counter, one or more, sorted by time; of several at one instant the last stands."""
        last = np.append(time[1:] != time[:-1], True)
        time, value = time[last], value[last]
        tracks, places = np.full(len(time), track, np.int64), np.arange(len(time), dtype=np.int64)
        columns = {"track": tracks, "value": value, "time": time}
        self.events.append(_Events(_COUNT_PACKET, columns, (np.full(len(time), 2), places)))

    # ---- bytes ------------------------------------------------------------------------------------------------------

    def parts(self) -> Iterator[bytes]:
        """Yield the trace: texts, tracks, and the events in order of time."""
        arguments = b"".join(
            pb.constant(pb.message(_ANNOTATIONS, (*pb.number(1, i), *pb.text(2, name))))
            for name, i in self.args.items()
        )
        texts = self.categories.interned(_CATEGORIES) + self.names.interned(_NAMES) + arguments
        texts += self.strings.interned(_STRINGS)
        first = (*pb.number(_SEQUENCE, 1), *pb.number(_FLAGS, _CLEARED), *pb.message(_INTERNED, (texts,)))
        yield pb.constant(pb.message(_PACKET, first))
        yield b"".join(self.tracks.packets)
        yield from self._ordered()

    def _ordered(self) -> Iterator[bytes]:
        if not self.events:
            return
        lengths = [len(e.columns["time"]) for e in self.events]
        block = np.repeat(np.arange(len(lengths)), lengths)
        row = np.concatenate([np.arange(n) for n in lengths])
        time = np.concatenate([e.columns["time"] for e in self.events])
        time -= min(0, int(time.min(initial=0)))
        kinds, places = (np.concatenate([e.order[i] for e in self.events]) for i in (0, 1))
        order = np.lexsort((places, kinds, time))
        starts = np.cumsum([0, *lengths])
        for e, a, b in zip(self.events, starts[:-1], starts[1:], strict=True):
            e.columns["time"] = time[a:b]
        for first in range(0, len(order), EVENT_CHUNK):
            chosen = order[first : first + EVENT_CHUNK]
            blocks = []
            for number in np.unique(block[chosen]).tolist():
                places_here = np.flatnonzero(block[chosen] == number)
                e = self.events[number]
                blocks.append((places_here, pb.encode(e.layout, e.columns, row[chosen[places_here]])))
            yield pb.interleaved(blocks, len(chosen))
