"""A slow second reading of the definitions: plain Python over sqlite3, sharing no line with the package.

Everything here is written to be checked by eye, not to be fast. Times are integer nanoseconds; every interval is half open,
[start, end); a process is the upper 40 bits of a globalTid (``global_tid >> 24``). Where a definition leaves room, the choice
is written beside the code that makes it.

    data = read(path)
    totals(data); busy(data, process, device, t0, t1); ledger(...); idle_causes(...)
    wait_split(data); self_times(data); innermost(data, global_tid, t, predicate); gpu_steps(...)
"""

from __future__ import annotations

import re
import sqlite3
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

NO_ID = 0xFFFFFFFF
#: The clocks of CPU and GPU are converted into each other with an error of a few us: real reports show the work that a
#: synchronize waited for ending up to 7 us after the synchronize returned.
SKEW_NS = 20_000
#: An allocation or release that waited for the device returns soon after it has drained; one that goes on for longer only
#: happened to see it drain (cudaHostAlloc takes ms whatever the GPU does).
DRAIN_NS = 50_000
#: A median of fewer is none; then a launch takes LAUNCH_NS, and the pause between two kernels PAUSE_NS.
MANY = 20
LAUNCH_NS = 20_000
PAUSE_NS = 5_000
PAGEABLE = 0
D2D = 8
CAUSES = (
    "launch_latency", "sync", "alloc", "load", "copy_call", "other_api", "data_loader", "profiler", "host_code", "dependency",
    "kernel_gap", "untraced_launch", "no_further_work",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One API call, after its copies were taken out. ``correlation`` is 0 where there is none."""

    process: int
    global_tid: int
    correlation: int
    name: str
    kind: str
    start: int
    end: int

    @property
    def key(self) -> tuple[int, int, str, int]:
        return self.process, self.correlation, self.name, self.start


@dataclass(frozen=True)
class Op:
    """One GPU op: ``kind`` is kernel, memcpy, memset or graph."""

    process: int
    device: int
    context: int
    stream: int
    correlation: int
    kind: str
    start: int
    end: int
    name: str = ""
    short_name: str = ""
    copy_kind: int = 0
    pageable: bool = False
    row: int = 0


@dataclass(frozen=True)
class Range:
    """One NVTX range. ``end_tid`` is the thread that closed it; ``closed`` is false where the end was never recorded."""

    process: int
    global_tid: int
    end_tid: int
    start: int
    end: int
    name: str
    domain: str
    closed: bool = True


@dataclass(frozen=True)
class Busy:
    """Any other interval of a process, e.g. what the profiler cost."""

    process: int
    start: int
    end: int


@dataclass
class Data:
    """All that was read.

    ``syncs`` holds the SYNCHRONIZATION row of each (process, correlation id); ``event_records`` the (start of the call,
    context, stream) of each record of a (process, event); ``stream_waits`` the (start of the call, event) of each
    cudaStreamWaitEvent on a (process, context, stream).
    """

    calls: list[Call] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    overheads: list[Busy] = field(default_factory=list)
    syncs: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    event_records: dict[tuple[int, int], list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    stream_waits: dict[tuple[int, int, int], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    tables: set[str] = field(default_factory=set)
    #: How each (pid, context, stream) was made: 1 blocking, 2 not, 3 it is the legacy default stream.
    streams: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _calls_of: dict[tuple[int, int], Call] | None = None
    _index: dict[Any, Nearby] = field(default_factory=dict)
    _launches: list[Call] | None = None

    @property
    def calls_of(self) -> dict[tuple[int, int], Call]:
        """The call of each (process, correlation id).

        Two calls may share an id (cudaDeviceReset around cuCtxSynchronize): the outer one, which starts first, is taken.
        """
        if self._calls_of is None:
            self._calls_of = {}
            for call in sorted(self.calls, key=lambda c: (c.start, -c.end, c.name)):
                if call.correlation:
                    self._calls_of.setdefault((call.process, call.correlation), call)
        return self._calls_of

    def call_of(self, op: Op) -> Call | None:
        """Return the call that launched an op: joined on (process, correlation id)."""
        return self.calls_of.get((op.process, op.correlation))

    def blocking(self, process: int, context: int, stream: int) -> list[int]:
        """Return the blocking streams whose work the legacy default stream holds, too; none for any other stream."""
        made = {s: how for (pid, c, s), how in self.streams.items() if (pid, c) == (process & 0xFFFFFF, context)}
        blocking = [s for s, how in made.items() if how == 1 and s != stream]
        return blocking if made.get(stream, 3) == 3 else []

    def nearby(self, what: str, key: int) -> Nearby:
        """Return the calls or ranges of a thread, or the overheads of a process, ready to be asked by time."""
        if (what, key) not in self._index:
            items: Iterable[Any]
            if what == "calls":
                items = (c for c in self.calls if c.global_tid == key)
            elif what == "ranges":
                # A range that another thread closed is no part of this thread's nesting.
                items = (r for r in self.ranges if r.global_tid == key and r.end_tid == key)
            else:
                items = (o for o in self.overheads if o.process == key)
            self._index[what, key] = Nearby(items)
        return self._index[what, key]

    @property
    def devices(self) -> list[tuple[int, int]]:
        return sorted({(op.process, op.device) for op in self.ops})

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of calls and GPU ops."""
        items = [*self.calls, *self.ops]
        return (min(i.start for i in items), max(i.end for i in items)) if items else (0, 0)


class Nearby:
    """Intervals in order of start, and the last end of all up to each, to find by time without looking at all of them."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = sorted(items, key=lambda i: (i.start, -i.end))
        self.starts = [i.start for i in self.items]
        self.last_ends: list[int] = []
        for item in self.items:
            self.last_ends.append(max(item.end, self.last_ends[-1] if self.last_ends else item.end))

    def overlapping(self, t0: int, t1: int) -> list[Any]:
        """Return the intervals that share time with [t0, t1)."""
        found = []
        for i in range(bisect_left(self.starts, t1) - 1, -1, -1):
            if self.last_ends[i] <= t0:
                break
            if self.items[i].end > t0:
                found.append(self.items[i])
        return found

    def innermost(self, t: int, predicate: Callable[[Any], bool]) -> Any:
        """Return the interval open at ``t`` that started last (of equals the one that ends first), or None."""
        best = None
        for i in range(bisect_right(self.starts, t) - 1, -1, -1):
            item = self.items[i]
            if self.last_ends[i] <= t or (best is not None and item.start < best.start):
                break
            if item.end > t and predicate(item) and (best is None or item.end < best.end):
                best = item
        return best


# -- reading ------------------------------------------------------------------------------------------------------------


def plain_name(name: str) -> str:
    """Return an API name without the version and the per-thread-stream suffix; ``_v2`` is part of the name."""
    name = re.sub(r"_v\d{4,5}$", "", name)
    return re.sub(r"_pts[zd]$", "", name)


def api_kind(name: str) -> str:
    """Return the kind of an API by its plain name."""
    n = re.sub(r"_v\d$", "", name)
    n = n.removeprefix("cuda") if n.startswith("cuda") else n.removeprefix("cu")
    if n.startswith("GraphLaunch"):
        return "graph_launch"
    if re.match(r"Launch(Kernel|CooperativeKernel|Grid|$)", n) or n == "Launch":
        return "launch"
    if n.startswith("Memcpy"):
        return "copy"
    if n.startswith("Memset"):
        return "memset"
    if n.endswith("Synchronize"):
        return "sync"
    if n in {"HostAlloc", "MallocHost", "MemHostAlloc", "MemAllocHost", "HostRegister", "MemHostRegister"}:
        return "host_alloc"
    if n.startswith(("Malloc", "MemAlloc")) or n in {"MemCreate", "MemMap", "MemAddressReserve", "MemSetAccess"}:
        return "alloc"
    if n.startswith(
        ("Free", "MemFree", "HostUnregister", "MemHostUnregister", "MemUnmap", "MemRelease", "MemAddressFree")
    ):
        return "free"
    if re.match(r"(Module|Library)(?!GetLoadingMode)|KernelGetFunction", n):
        return "load"
    if n.startswith("Event") or n == "StreamWaitEvent":
        return "event"
    return "other"


def read(path: Path | str) -> Data:
    """Read a report. Rows whose end lies before their start hold no time and are left out."""
    base = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)
    base.text_factory = lambda raw: raw.decode("utf-8", "replace")
    base.row_factory = sqlite3.Row
    data = Data(tables={r[0] for r in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")})

    def rows(table: str) -> Iterator[dict[str, Any]]:
        if table in data.tables:
            for row in base.execute(f'SELECT * FROM "{table}"'):
                found = dict(row)
                if found.get("end") is None or found.get("start") is None or found["end"] >= found["start"]:
                    yield found

    strings = {row["id"]: row["value"] for row in rows("StringIds")}
    api = list(rows("CUPTI_ACTIVITY_KIND_RUNTIME"))
    traced = {row["globalTid"] >> 24 for row in api if row["globalTid"] is not None}

    def process_of(row: dict[str, Any]) -> int:
        """Old or foreign files lack globalPid: with one process there is no doubt, else there is no answer (-1)."""
        if row.get("globalPid") is not None:
            return int(row["globalPid"]) >> 24
        return next(iter(traced)) if len(traced) == 1 else -1

    data.calls = _calls(api, strings)
    for kind, table in (
        ("kernel", "CUPTI_ACTIVITY_KIND_KERNEL"), ("memcpy", "CUPTI_ACTIVITY_KIND_MEMCPY"),
        ("memset", "CUPTI_ACTIVITY_KIND_MEMSET"), ("graph", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"),
    ):  # fmt: skip
        for number, row in enumerate(rows(table)):
            if row["start"] == row["end"] == 0:
                continue  # CUPTI's way of saying that it got no time stamp
            data.ops.append(
                Op(
                    process_of(row),
                    row["deviceId"],
                    row["contextId"],
                    row["streamId"],
                    row.get("correlationId") or 0,
                    kind,
                    row["start"],
                    row["end"],
                    strings.get(row.get("demangledName"), ""),
                    strings.get(row.get("shortName"), ""),
                    row.get("copyKind") or 0,
                    PAGEABLE in (row.get("srcKind"), row.get("dstKind")),
                    number,
                )
            )
    for row in rows("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"):
        key = (process_of(row), row.get("correlationId") or 0)
        data.syncs[key] = min(
            row, data.syncs.get(key, row), key=lambda r: (r["start"], r["end"], r["streamId"], r["eventId"])
        )
    for row in rows("CUPTI_ACTIVITY_KIND_CUDA_EVENT"):
        call = data.calls_of.get((process_of(row), row.get("correlationId") or 0))
        if call is not None and row["eventId"] != NO_ID:
            record = (call.start, row["contextId"], row["streamId"])
            data.event_records[call.process, row["eventId"]].append(record)
    for key, row in data.syncs.items():
        call = data.calls_of.get(key)
        if call is not None and "StreamWaitEvent" in call.name:
            place = (call.process, row["contextId"], row["streamId"])
            data.stream_waits[place].append((call.start, row["eventId"]))
    for row in rows("TARGET_INFO_CUDA_STREAM"):
        data.streams[row["processId"], row["contextId"], row["streamId"]] = row["flag"]
    for row in rows("PROFILER_OVERHEAD"):
        if row["globalTid"] is not None:
            data.overheads.append(Busy(row["globalTid"] >> 24, row["start"], row["end"]))
    events = [row for row in rows("NVTX_EVENTS") if row["globalTid"] is not None]
    label = {id(row): row["text"] if row["text"] is not None else strings.get(row["textId"], "") for row in events}
    domains = {(r["globalTid"] >> 24, r["domainId"]): label[id(r)] for r in events if r["eventType"] == 75}
    last = max(
        [data.span[1], *(r["end"] for r in events if r["end"] is not None), *(r["start"] for r in events)], default=0
    )
    for row in events:
        if row["eventType"] in (59, 60, 70, 71):
            end_tid = row["endGlobalTid"] if row["endGlobalTid"] is not None else row["globalTid"]
            closed = row["end"] is not None
            data.ranges.append(
                Range(
                    row["globalTid"] >> 24,
                    row["globalTid"],
                    end_tid,
                    row["start"],
                    row["end"] if closed else last + 1,
                    label[id(row)],
                    domains.get((row["globalTid"] >> 24, row["domainId"]), ""),
                    closed,
                )
            )
    base.close()
    return data


def _calls(api: Sequence[dict[str, Any]], strings: dict[int, str]) -> list[Call]:
    """Return every call once.

    A row of class 67 is a copy when its (process, id) has a row of class 0 or 1. Rows of one (process, id) and one plain name
    are aliases: the one whose name carries a version is kept, of equals the one that starts first. Without an id every row
    is a call.
    """
    timed = {
        (r["globalTid"] >> 24, r["correlationId"]) for r in api if r["globalTid"] is not None and r["eventClass"] != 67
    }
    best: dict[Any, tuple[Any, Call]] = {}
    for number, row in enumerate(api):
        if row["globalTid"] is None:
            continue
        process, correlation = row["globalTid"] >> 24, row["correlationId"] or 0
        if row["eventClass"] == 67 and correlation and (process, correlation) in timed:
            continue
        recorded = strings.get(row["nameId"], "")
        name = plain_name(recorded)
        call = Call(process, row["globalTid"], correlation, name, api_kind(name), row["start"], row["end"])
        rank = (recorded == name, row["start"], -row["end"], row["globalTid"])
        key = (process, correlation, name) if correlation else number
        if key not in best or rank < best[key][0]:
            best[key] = (rank, call)
    return sorted((call for _, call in best.values()), key=lambda c: (c.start, -c.end, c.key))


# -- time ---------------------------------------------------------------------------------------------------------------


def instants(items: Iterable[Any], t0: int, t1: int) -> Iterator[tuple[int, int, list[Any]]]:
    """Cut [t0, t1) wherever an item starts or ends; yield each piece with the items that are open in it."""
    inside = sorted((i for i in items if i.start < t1 and i.end > t0 and i.end > i.start), key=lambda i: i.start)
    cuts = sorted({t0, t1, *(max(t0, i.start) for i in inside), *(min(t1, i.end) for i in inside)})
    waiting, opened = 0, []
    for a, b in pairwise(cuts):
        while waiting < len(inside) and inside[waiting].start <= a:
            opened.append(inside[waiting])
            waiting += 1
        opened = [i for i in opened if i.end > a]
        yield a, b, list(opened)


def _inner_call(calls: Iterable[Call]) -> Call:
    """Of calls that are open at one instant: the one that started last, ends first, has the highest id."""
    return max(calls, key=lambda c: (c.start, -c.end, c.correlation, c.name))


def _device_ops(data: Data, process: int, device: int) -> list[Op]:
    return [op for op in data.ops if op.process == process and op.device == device]


# -- answers ------------------------------------------------------------------------------------------------------------


def totals(data: Data) -> dict[str, Any]:
    """Count and add up: whole capture, every call and every op once."""
    result: dict[str, Any] = {}
    for kind, count in (("kernel", "kernels"), ("memcpy", "memcpys"), ("memset", "memsets"), ("graph", "graphs")):
        ops = [op for op in data.ops if op.kind == kind]
        result[count] = len(ops)
        result[f"{kind}_ns"] = sum(op.end - op.start for op in ops)
    result["api_calls"] = len(data.calls)
    result["api_ns"] = sum(c.end - c.start for c in data.calls)
    result["gpu_ops_without_call"] = sum(data.call_of(op) is None for op in data.ops)
    own = self_times(data)
    api: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    kinds: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for call, self_ns in own:
        for row in (api[call.name], kinds[call.kind]):
            row[0] += 1
            row[1] += call.end - call.start
            row[2] += self_ns
    kernels: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for op in data.ops:
        if op.kind == "kernel":
            kernels[op.name][0] += 1
            kernels[op.name][1] += op.end - op.start
    result["api"] = {name: tuple(row) for name, row in api.items()}  # (calls, ns, self ns)
    result["api_by_kind"] = {kind: tuple(row) for kind, row in kinds.items()}
    result["kernels_by_name"] = {name: tuple(row) for name, row in kernels.items()}  # (count, ns)
    return result


def self_times(data: Data) -> list[tuple[Call, int]]:
    """Return each call with its self time: the instants at which it is the innermost call of its thread."""
    threads: dict[int, list[int]] = defaultdict(list)
    for number, call in enumerate(data.calls):
        threads[call.global_tid].append(number)
    own = [0] * len(data.calls)
    for numbers in threads.values():
        calls = [data.calls[n] for n in numbers]
        number_of = {id(call): n for n, call in zip(numbers, calls, strict=True)}
        for a, b, opened in instants(calls, min(c.start for c in calls), max(c.end for c in calls)):
            if opened:
                own[number_of[id(_inner_call(opened))]] += b - a
    return list(zip(data.calls, own, strict=True))


def cpu_ledger(data: Data, global_tid: int, t0: int, t1: int) -> dict[str, int]:
    """Split [t0, t1) of a thread by the kind of the innermost call; ``outside`` is the time without any."""
    result: dict[str, int] = defaultdict(int)
    for a, b, opened in instants(data.nearby("calls", global_tid).overlapping(t0, t1), t0, t1):
        result[_inner_call(opened).kind if opened else "outside"] += b - a
    return dict(result)


def busy(data: Data, process: int, device: int, t0: int, t1: int) -> int:
    """Return how long at least one GPU op ran on the device inside [t0, t1)."""
    return sum(b - a for a, b, opened in instants(_device_ops(data, process, device), t0, t1) if opened)


def is_communication(op: Op) -> bool:
    """Say whether a kernel is NCCL's."""
    return op.kind == "kernel" and "nccl" in op.name.lower()


def ledger(
    data: Data, process: int, device: int, t0: int, t1: int, communication: Callable[[Op], bool] = is_communication
) -> dict[str, int]:
    """Split [t0, t1) of a device: compute > comm > copy > memset > idle; the five sum to the window.

    ``hidden_comm`` is communication under compute, ``hidden_copy`` a copy under compute or communication. A graph launch
    that was recorded as one opaque bar is compute.
    """
    result = dict.fromkeys(("compute", "comm", "copy", "memset", "idle", "busy", "hidden_comm", "hidden_copy"), 0)
    for a, b, opened in instants(_device_ops(data, process, device), t0, t1):
        kinds = {
            "comm" if communication(op) else {"memcpy": "copy", "memset": "memset"}.get(op.kind, "compute")
            for op in opened
        }
        part = next((kind for kind in ("compute", "comm", "copy", "memset") if kind in kinds), "idle")
        result[part] += b - a
        result["busy"] += b - a if kinds else 0
        result["hidden_comm"] += b - a if {"comm", "compute"} <= kinds else 0
        result["hidden_copy"] += b - a if "copy" in kinds and kinds & {"comm", "compute"} else 0
    return result


def is_data_range(r: Range) -> bool:
    """Say whether a range is nsysx's phase for loading data."""
    name = r.name if r.domain == "nsysx" else r.name.removeprefix("nsysx:") if r.name.startswith("nsysx:") else ""
    return name.split(" ")[0] == "data"


_CAUSE_OF_KIND = {
    "sync": "sync", "alloc": "alloc", "free": "alloc", "host_alloc": "alloc", "load": "load", "copy": "copy_call",
    "memset": "copy_call", "launch": "other_api", "graph_launch": "other_api", "event": "other_api", "other": "other_api",
}  # fmt: skip


def gaps(data: Data, process: int, device: int) -> list[tuple[int | None, int | None]]:
    """Return the idle gaps of a device over all time; None is for ever: before its first op, and after its last."""
    ops = [op for op in _device_ops(data, process, device) if op.end > op.start]
    if not ops:
        return [(None, None)]
    first, last = min(op.start for op in ops), max(op.end for op in ops)
    inner: list[tuple[int | None, int | None]] = [(a, b) for a, b, opened in instants(ops, first, last) if not opened]
    return [(None, first), *inner, (last, None)]


def _of(seen: Sequence[int], default: int) -> tuple[int, int]:
    """Return the median of many, else a default, and from when on something takes noticeably longer."""
    usual = int(median(seen)) if len(seen) >= MANY else default
    return usual, max(2 * usual, usual + SKEW_NS)


def ending(
    data: Data, process: int, device: int
) -> list[tuple[int | None, int | None, list[Op], tuple[int, Call] | None]]:
    """Return each gap with the ops that end it, and the (stream, call) of the one that was launched first."""
    starting: dict[int, list[Op]] = defaultdict(list)
    for op in _device_ops(data, process, device):
        if op.end > op.start:
            starting[op.start].append(op)
    result = []
    for g0, g1 in gaps(data, process, device):
        ops = [] if g1 is None else starting[g1]
        known = [(c.start, c.correlation, op.stream, c) for op in ops if (c := data.call_of(op)) is not None]
        first = min(known, key=lambda k: k[:3]) if known else None
        result.append((g0, g1, ops, None if first is None else (first[2], first[3])))
    return result


def begun(data: Data, process: int, device: int) -> dict[tuple[int, ...], int]:
    """Return when the first op of each call began on a device."""
    first: dict[tuple[int, ...], int] = {}
    for op in _device_ops(data, process, device):
        if op.end > op.start and (call := data.call_of(op)) is not None:
            first[call.key] = min(first.get(call.key, op.start), op.start)
    return first


def usual(data: Data, process: int, device: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (median, noticed) of the launch latency of ops whose call began in the gap that they end, and of the pause between
    two kernels of one stream of which the second was queued.
    """
    ends = {(op.stream, op.end) for op in _device_ops(data, process, device) if op.end > op.start}
    found = ending(data, process, device)
    latencies = [
        g1 - min(of[1].start, g1)
        for g0, g1, _, of in found
        if g1 is not None and of is not None and (g0 is None or of[1].start >= g0)
    ]
    latency = _of(latencies, LAUNCH_NS)
    pauses = []
    first = begun(data, process, device)
    for g0, g1, _, of in found:
        if g0 is not None and g1 is not None and of is not None and of[1].start < g0 and (of[0], g0) in ends:
            pauses.append(g1 - _ready(g0, g1, of[1], latency, first[of[1].key] < g1))
    return latency, _of(pauses, PAUSE_NS)


def _ready(g0: int, g1: int, call: Call, latency: tuple[int, int], under_way: bool) -> int:
    """Return when the op could start whose call began before the gap: what is left of the gap had another reason.

    A call of which an op ran before (a graph, a copy in pieces) is ``under_way``: its launch is over.
    """
    possible = max(call.start + latency[0], call.end)
    if possible <= g0 or under_way:
        return g0
    return min(possible, g1) if g1 - possible > latency[1] - latency[0] else g1


def in_control(data: Data, g0: int, call: Call) -> tuple[int, int]:
    """Return the thread that kept the device waiting at g0, and until when.

    It is the thread of the launch, unless another launched last before it and its own made no call since, until in the gap.
    """
    if data._launches is None:
        made = {c.key: c for op in data.ops if (c := data.call_of(op)) is not None}
        data._launches = sorted(made.values(), key=lambda c: (c.start, c.global_tid))
    before = [c for c in data._launches if c.process == call.process and c.start < call.start]
    last = before[-1] if before else None
    if last is None or last.global_tid == call.global_tid:
        return call.global_tid, g0
    mine = data.nearby("calls", call.global_tid)
    inside = any(c.end > g0 for c in mine.overlapping(g0, g0 + 1))
    earlier = [c.start for c in mine.items if c.start < g0]
    if inside or (earlier and max(earlier) >= last.start):
        return call.global_tid, g0
    return last.global_tid, min(min(c.start for c in mine.items if c.start >= g0), call.start)


def idle_causes(
    data: Data, process: int, device: int, t0: int, t1: int, data_range: Callable[[Range], bool] = is_data_range
) -> dict[str, int]:
    """Give each idle nanosecond of the device in [t0, t1) to one cause; the causes sum to the idle time.

    A gap is judged as a whole, by the ops around it wherever they lie, and only then cut to the window: so the causes of
    adjoining windows add up to those of both together.
    """
    result = dict.fromkeys(CAUSES, 0)
    ended = {(op.stream, op.end) for op in _device_ops(data, process, device) if op.end > op.start}
    latency, pause = usual(data, process, device)
    first = begun(data, process, device)

    def share(a: int, b: int, cause: str) -> None:
        a, b = max(a, t0), min(b, t1)
        _share(result, data.nearby("overheads", process).overlapping(a, b), a, b, cause) if a < b else None

    for g0, g1, _, of in ending(data, process, device):
        # Judged as a whole: before the first op a gap reaches back to the begin of the process.
        a, b = min(t0, data.span[0]) if g0 is None else g0, t1 if g1 is None else g1
        if max(a, t0) >= min(b, t1):
            continue
        if g1 is None:
            result["no_further_work"] += t1 - max(a, t0)
            continue
        if of is None:
            share(a, b, "untraced_launch")
            continue
        stream, call = of
        if g0 is not None and call.start < g0:
            ready = _ready(g0, g1, call, latency, first[call.key] < g1)
            share(g0, ready, "launch_latency")
            follows = (stream, g0) in ended
            paused = (g1 if g1 - ready <= pause[1] else ready + pause[0]) if follows else ready
            share(ready, paused, "kernel_gap")
            share(paused, g1, "dependency")
            continue
        begin = min(call.start, g1)
        possible = max(begin + latency[0], call.end)
        ready = min(possible, g1) if g1 - possible > latency[1] - latency[0] else g1
        share(begin, ready, "launch_latency")
        share(ready, g1, "dependency")
        start = min(op.start for op in data.ops if op.process == process) if g0 is None else g0
        start = min([start, *(c.start for c in data.calls if c.process == process)]) if g0 is None else start
        who, taken = in_control(data, start, call)
        # Before the first op a gap has no begin: the thread that had the first word had it for ever.
        for thread, c0, c1 in ((who, a, min(taken, begin)), (call.global_tid, max(taken, a), begin)):
            _host(data, process, thread, max(c0, t0), min(c1, t1), data_range, result)
    return result


def _host(
    data: Data, process: int, thread: int, a: int, b: int, data_range: Callable[[Range], bool], result: dict[str, int]
) -> None:
    """Give [a, b) to what a thread did then."""
    if a >= b:
        return
    calls = data.nearby("calls", thread).overlapping(a, b)
    loading = [r for r in data.nearby("ranges", thread).overlapping(a, b) if data_range(r)]
    overheads = data.nearby("overheads", process).overlapping(a, b)
    for c, d, opened in instants([*calls, *loading, *overheads], a, b):
        inside = [i for i in opened if isinstance(i, Call)]
        if any(isinstance(i, Busy) for i in opened):
            cause = "profiler"
        elif inside:
            cause = _CAUSE_OF_KIND[_inner_call(inside).kind]
        else:
            cause = "data_loader" if any(isinstance(i, Range) for i in opened) else "host_code"
        result[cause] += d - c


def _share(result: dict[str, int], overheads: Sequence[Busy], a: int, b: int, cause: str) -> None:
    """Give [a, b) to ``cause``, but what the profiler cost to ``profiler``."""
    for c, d, opened in instants(overheads, a, b) if a < b else ():
        result["profiler" if opened else cause] += d - c


def wait_split(
    data: Data, *, skew_ns: int = SKEW_NS, follow_events: bool = True
) -> dict[tuple[int, int, str, int], tuple[int, int, int]]:
    """Return {call.key: (backlog, own op, host)} of every call that can block; the three sum to its duration.

    The backlog counts when the awaited work ends before the call does. A synchronize that names its target cannot return
    earlier than that work ends: where it seems to, by no more than the clocks' error, the work ends with the call. Any
    other call that returns earlier (cudaMalloc amid queued kernels, a copy that was staged) did not wait for it; nor did an
    allocation or release that goes on for more than DRAIN_NS after it.

    A stream that was told to wait for an event (cudaStreamWaitEvent) holds the work in front of that event too, unless
    ``follow_events`` is false.
    """
    result = {}
    work: dict[int, list[tuple[int, Op]]] = defaultdict(list)
    own_ops: dict[tuple[int, int, str, int], list[Op]] = defaultdict(list)
    for op in data.ops:
        call = data.call_of(op)
        # Work that was launched outside the trace was launched at the latest when it started.
        work[op.process].append((op.start if call is None else call.start, op))
        if call is not None:
            own_ops[call.key].append(op)
    found = []
    for call in _outer(data, [c for c in data.calls if _target(data, c, own_ops.get(c.key, [])) is not None]):
        own = own_ops.get(call.key, [])
        target = _target(data, call, own)
        assert target is not None
        before, context, stream = target
        places = {(context, stream): before}
        if context is not None and stream is not None and follow_events:
            places = _reachable(data, call.process, context, stream, before)
            for other in data.blocking(call.process, context, stream):
                for place, limit in _reachable(data, call.process, context, other, before).items():
                    places[place] = max(places.get(place, limit), limit)
        d = None
        for launched, op in work[call.process]:
            for (c, s), limit in places.items():
                if launched < limit and c in (None, op.context) and s in (None, op.stream):
                    d = op.end if d is None else max(d, op.end)
        d = call.start if d is None else max(d, call.start)
        if call.kind == "sync" and context is not None and call.end < d <= call.end + skew_ns:
            d = call.end
        found.append((call, own, d))
    allocating = ("alloc", "free", "host_alloc")
    alone: dict[tuple[int, str], list[int]] = defaultdict(list)
    for call, _, d in found:
        if call.kind in allocating and d <= call.start:
            alone[call.process, call.name].append(call.end - call.start)
    for call, own, d in found:
        waited = d <= call.end
        if call.kind in allocating:
            lengths = alone[call.process, call.name]
            if len(lengths) >= 3:
                # With its backlog on top of its usual duration, or only as long as usual: the nearer.
                waited &= call.end - call.start - median(lengths) > (d - call.start) / 2
            else:
                waited &= call.end - d <= DRAIN_NS
        backlog = d - call.start if waited else 0
        rest = call.start + backlog
        copies = [op for op in own if op.kind == "memcpy"]
        covered = sum(b - a for a, b, opened in instants(copies, rest, call.end) if opened) if rest < call.end else 0
        result[call.key] = (backlog, covered, call.end - rest - covered)
    return result


def _outer(data: Data, calls: Sequence[Call]) -> list[Call]:
    """Leave out the calls that lie inside another of the same thread: they wait once."""
    kept: list[Call] = []
    reach: dict[int, int] = {}
    for call in sorted(calls, key=lambda c: (c.start, -c.end, c.key)):
        last = reach.get(call.global_tid)
        if last is None or call.end > last or call.start >= last:
            kept.append(call)
        reach[call.global_tid] = call.end if last is None else max(last, call.end)
    return kept


def _target(data: Data, call: Call, own: Sequence[Op]) -> tuple[int, int | None, int | None] | None:
    """Return what a call waits for as (launched before, context or any, stream or any), None when it cannot block.

    A device is told by its context: nsys writes deviceId 0 into every SYNCHRONIZATION row, whatever the device.
    """
    if call.kind in ("alloc", "free", "host_alloc"):
        return None if "Async" in call.name else (call.start, None, None)
    if call.kind == "copy":
        copies = [op for op in own if op.kind == "memcpy"]
        if not copies:
            return None
        copy = min(copies, key=lambda op: (op.start, op.end, op.device, op.stream))
        # A copy inside the device never holds the host, whatever its name.
        inside = all(op.copy_kind == D2D for op in copies)
        blocks = any(op.pageable for op in copies) or ("Async" not in call.name and not inside)
        return (call.start, copy.context, copy.stream) if blocks else None
    if call.kind != "sync":
        return None
    row = data.syncs.get((call.process, call.correlation)) if call.correlation else None
    if row is None:
        return call.start, None, None
    if "Stream" in call.name and row["streamId"] != NO_ID:
        return call.start, row["contextId"], row["streamId"]
    if "Event" in call.name:
        record = _record(data, call.process, row["eventId"], call.start)
        if record is not None:
            return record
    return call.start, row["contextId"], None


def _record(data: Data, process: int, event: int, before: int) -> tuple[int, int, int] | None:
    """Return (start of its call, context, stream) of the last record of an event before a time."""
    return max((record for record in data.event_records[process, event] if record[0] < before), default=None)


def _reachable(
    data: Data, process: int, context: int, stream: int, before: int
) -> dict[tuple[int | None, int | None], int]:
    """Return {(context, stream): launched before} of all work that must end before what a stream holds has ended."""
    limits: dict[tuple[int | None, int | None], int] = {}
    todo = [(before, context, stream)]
    while todo:
        before, context, stream = todo.pop()
        if limits.get((context, stream), before - 1) >= before:
            continue
        limits[context, stream] = before
        for at, event in data.stream_waits[process, context, stream]:
            record = _record(data, process, event, at) if at < before else None
            if record is not None:
                todo.append(record)
    return limits


def innermost(data: Data, global_tid: int, t: int, predicate: Callable[[Range], bool] = lambda r: True) -> Range | None:
    """Return the range of a thread open at ``t`` that started last (of equals the one that ends first), or None."""
    found: Range | None = data.nearby("ranges", global_tid).innermost(t, predicate)
    return found


def range_self_times(data: Data, predicate: Callable[[Range], bool] = lambda r: True) -> list[tuple[Range, int]]:
    """Return each range with the time during which it is the innermost of its thread (of equals, one is)."""
    result = []
    for tid in sorted({r.global_tid for r in data.ranges}):
        ranges = [r for r in data.nearby("ranges", tid).items if predicate(r)]
        own = [0] * len(ranges)
        number_of = {id(r): n for n, r in enumerate(ranges)}
        if ranges:
            for a, b, opened in instants(ranges, min(r.start for r in ranges), max(r.end for r in ranges)):
                if opened:
                    inner = max(opened, key=lambda r: (r.start, -r.end, number_of[id(r)]))
                    own[number_of[id(inner)]] += b - a
        result += list(zip(ranges, own, strict=True))
    return result


def gpu_steps(data: Data, process: int, device: int, borders: Sequence[int]) -> list[tuple[int, int]]:
    """Return the GPU tiles of the CPU steps [borders[i], borders[i + 1]).

    Tile i begins with the first op that a call of step i launched and ends where tile i + 1 begins; the last one ends with
    the last op launched in it. A step that launched nothing is an empty tile.
    """
    ops = [(call.start, op) for op in _device_ops(data, process, device) if (call := data.call_of(op)) is not None]
    steps = [[op for launched, op in ops if start <= launched < end] for start, end in pairwise(borders)]
    end = max(
        (op.end for step in steps[-1:] for op in step), default=max((op.end for s in steps for op in s), default=0)
    )
    tiles: list[tuple[int, int]] = []
    for step in reversed(steps):
        start = min(min((op.start for op in step), default=end), end)
        tiles.append((start, end))
        end = start
    return tiles[::-1]
