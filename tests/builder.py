"""Builds SQLite reports of known truth, in the layout that ``nsys export`` writes, in a few lines.

    report = Report()
    main = report.process(100).thread(100, name="python")
    with main.range("forward"):
        main.launch(at=1000, dur=5, kernel="gemm", gpu_start=2000, gpu_dur=200)
    main.sync(at=1100, dur=1150)
    report.write(path)

All times are integer nanoseconds and explicit. A method returns what it added, so that a test can name its truth. Standard
library only. ``Report.rows`` holds plain dictionaries per table: whatever has no method can be put there by hand.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

Row = dict[str, Any]

NO_STREAM = 0xFFFFFFFF
COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "HtoH": 9, "PtoP": 10, "UVM_HtoD": 11, "UVM_DtoH": 12}
PAGEABLE, PINNED, DEVICE, MANAGED = 0, 1, 2, 4

# One word per column: name, "!" NOT NULL, "$" text, "~" real, "@" first and "^" first-without schema version.
_OP = "start! end! deviceId! contextId! greenContextId@3.7 streamId! correlationId globalPid"
_POOL = (
    "localMemoryPoolAddress@3.0 localMemoryPoolReleaseThreshold@3.0 localMemoryPoolSize@3.0 "
    "localMemoryPoolUtilizedSize@3.0 importedMemoryPoolAddress@3.0 importedMemoryPoolProcessId@3.0"
)
_TABLES = {
    "StringIds": "id! value!$",
    "ANALYSIS_DETAILS@2.7": "globalVid! duration! startTime! stopTime!",
    "TARGET_INFO_SESSION_START_TIME@2.7": "utcEpochNs utcTime$ localTime$ systemClockNs@3.24.7",
    "TARGET_INFO_GPU": "vmId! id! name$ busLocation$ isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount "
    "pwGpuId uuid$ luid chipName$ cuDevice ctxswDevPath$ ctrlDevPath$ revision nodeMask constantMemory maxIPC "
    "maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm threadsPerWarp asyncEngines "
    "maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ maxGridDimX maxGridDimY "
    "maxGridDimZ computeMajor computeMinor smMajor smMinor",
    "TARGET_INFO_CUDA_DEVICE@3.17": "gpuId cudaId! pid! uuid$@3.24.7",
    "TARGET_INFO_CUDA_CONTEXT_INFO@3.7": "nullStreamId! hwId! vmId! processId! deviceId! contextId! parentContextId "
    "isGreenContext",
    "TARGET_INFO_CUDA_NULL_STREAM^3.7": "streamId! hwId! vmId! processId! deviceId! contextId!",
    "TARGET_INFO_CUDA_STREAM": "streamId! hwId! vmId! processId! contextId! priority! flag!",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName!$ name!$ nameEnum! value!$",
    "META_DATA_CAPTURE@3.4": "name!$ value$",
    "META_DATA_EXPORT@3.4": "name!$ value$",
    "EXPORT_META_DATA@2.7^3.4": "name!$ value$",
    "PROCESSES@2.7": "globalPid pid name$",
    "ThreadNames": "nameId! priority globalTid",
    "DIAGNOSTIC_EVENT@3.11": "timestamp! timestampType! source! severity! text!$ globalPid",
    "NVTX_EVENTS": "start! end eventType! rangeId category color text$ globalTid endGlobalTid textId domainId uint64Value "
    "int64Value doubleValue~ uint32Value int32Value floatValue~ jsonTextId jsonText$ binaryData$@3.16",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId@2.7",
    "CUDA_CALLCHAINS": "id! symbol! module! unresolved originalIP stackDepth!",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_OP} demangledName! shortName! mangledName@2.7 launchType cacheConfig "
    "registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! dynamicSharedMemory! "
    "localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig "
    "graphId@3.23 clusterX@3.23 clusterY@3.23 clusterZ@3.23",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_OP} bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId "
    "dstDeviceId dstContextId migrationCause graphNodeId virtualAddress@2.7 copyCount@3.17",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_OP} value! bytes! graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_OP} deprecatedSyncType@3.17 syncType! eventId! eventSyncId@3.17",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "timestamp@3.23 deviceId! contextId! greenContextId@3.7 streamId! correlationId "
    "globalPid eventId! eventSyncId@3.17",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE@3.12": f"{_OP} graphId! graphExecId!",
    # Up to 3.8 the creation of graph nodes stands in CUDA_GRAPH_EVENTS; later that name means whole graphs.
    "CUDA_GRAPH_NODE_EVENTS@3.8": "start! end! eventClass! globalTid nameId! graphNodeId! originalGraphNodeId",
    "CUDA_GRAPH_EVENTS": "start! end! eventClass! globalTid nameId! graphNodeId!^3.8 originalGraphNodeId^3.8 graphId@3.8 "
    "originalGraphId@3.8 graphExecId@3.8",
    "CUPTI_ACTIVITY_KIND_OVERHEAD@3.24": "start! end! eventClass! globalTid correlationId nameId overheadType!",
    "PROFILER_OVERHEAD": "start! end! globalTid nameId! returnValue!^3.24 overheadType!@3.24",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start! globalPid! deviceId! contextId! address! pc! bytes! memKind! "
    f"memoryOperationType! name$ correlationId streamId@3.20 {_POOL}",
    "GPU_METRICS": "rawTimestamp@3.20 timestamp typeId! metricId! value!",
    "TARGET_INFO_GPU_METRICS": "typeId! sourceId! typeName!$ metricId! metricName!$",
    "MPI_RANKS": "globalTid! rank!",
    "MPI_COMMUNICATORS": "rank timestamp commHandle parentHandle localRank size groupRoot groupRootUid members$",
    "MPI_P2P_EVENTS": "start! end globalTid textId commHandle tag remoteRank size requestHandle",
    "MPI_COLLECTIVES_EVENTS": "start! end globalTid textId commHandle rootRank size recvSize requestHandle",
    "MPI_START_WAIT_EVENTS": "start! end globalTid textId requestHandle",
    "UCP_SUBMIT_EVENTS": "start! end globalTid textId bufferAddr packedSize peerWorkerUid tag",
    "UCP_PROGRESS_EVENTS": "start! end globalTid textId bufferAddr packedSize peerWorkerUid tag",
    "OSRT_API": "start! end! eventClass! globalTid nameId! returnValue! nestingLevel callchainId",
}
_TIMES = ("start", "end", "timestamp")
_PRODUCTS = {
    "2.9": "2022.1.1", "3.0": "2022.4.2", "3.7": "2023.4.4", "3.20": "2025.3.2", "3.24": "2026.1.1", "3.25": "2026.2.1",
}  # fmt: skip
_STRINGS = ("nameId", "textId", "jsonTextId", "demangledName", "shortName", "mangledName", "symbol", "module")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _exists(word: str, version: tuple[int, ...]) -> bool:
    since, until = re.search(r"@([\d.]+)", word), re.search(r"\^([\d.]+)", word)
    return not (since and version < _version(since[1])) and not (until and version >= _version(until[1]))


def _name(word: str) -> str:
    return re.split(r"[!$~@^]", word)[0]


@cache
def layout(schema: str) -> Mapping[str, Mapping[str, str]]:
    """Return {table: {column: SQL type}} of a schema version such as "3.20.3"; "" is the oldest, without meta data."""
    version = _version(schema) if schema else (0,)
    return {
        _name(table): {
            _name(word): ("TEXT" if "$" in word else "REAL" if "~" in word else "INTEGER")
            + (" NOT NULL" if "!" in word else "")
            + (" PRIMARY KEY" if table == "StringIds" and word == "id!" else "")
            for word in columns.split()
            if _exists(word, version)
        }
        for table, columns in _TABLES.items()
        if _exists(table, version)
    }


@cache
def _defaults(schema: str) -> Mapping[str, Row]:
    """Return {table: a row of which nothing is given}: what must not be NULL is 0."""
    return {
        table: {
            column: ("" if "TEXT" in kind else 0) if "NOT NULL" in kind else None for column, kind in columns.items()
        }
        for table, columns in layout(schema).items()
    }


@cache
def _plain(api: str) -> str:
    """Return the name of an API function without its version."""
    return re.sub(r"(_pts[zd]|_v\d{4,5})+$", "", api)


@cache
def _short(kernel: str) -> str:
    """Return the name of a kernel without its arguments."""
    return re.split(r"[<(]", kernel)[0]


@dataclass
class Call:
    """An API call that was added: its identity, its time, and the rows of the GPU ops that it launched."""

    process: Process
    global_tid: int
    correlation: int
    name: str
    start: int
    end: int
    ops: list[Row] = field(default_factory=list)


class Report:
    """A report under construction."""

    def __init__(self, schema: str = "3.20.3", *, utc_epoch_ns: int | None = 1_795_228_332_660_273_255) -> None:
        self.schema = schema
        self.layout = layout(schema)
        self._defaults = _defaults(schema)
        self.rows: dict[str, list[Row]] = {table: [] for table in self.layout}
        self.processes: list[Process] = []
        self._strings: dict[str | bytes, int] = {}
        self._dropped: set[str] = set()
        self._dropped_columns: set[tuple[str, str]] = set()
        self._null_columns: set[tuple[str, str]] = set()
        self._kept_empty: set[str] = set()
        self._shuffle: int | None = None
        self.string("[Unknown]")
        product = _PRODUCTS.get(".".join(schema.split(".")[:2]), "2021.5.2")
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
            self.add(table, name="EXPORT_PRODUCT_NAME", value="NVIDIA Nsight Systems")
            self.add(table, name="EXPORT_PRODUCT_VERSION", value=f"{product}.0")
            self.add(table, name="EXPORT_SCHEMA_VERSION", value=schema)
            for key, part in zip(("MAJOR", "MINOR", "MICRO"), schema.split("."), strict=False):
                self.add(table, name=f"EXPORT_SCHEMA_VERSION_{key}", value=part)
        if utc_epoch_ns is not None:
            self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=utc_epoch_ns, utcTime="2026-11-21T02:32:12")

    # -- rows -------------------------------------------------------------------------------------------------------

    def string(self, value: str | bytes) -> int:
        """Return the id of a string in StringIds; bytes may be invalid UTF-8."""
        if value not in self._strings:
            self._strings[value] = len(self._strings)
            self.rows["StringIds"].append({"id": self._strings[value], "value": value})
        return self._strings[value]

    def add(self, table: str, **values: Any) -> Row:
        """Add a row: what this schema version does not have is left out, what must not be NULL and is not given is 0."""
        if table not in self._defaults:
            return {}
        row = dict(self._defaults[table])
        row.update(values if values.keys() <= row.keys() else {c: v for c, v in values.items() if c in row})
        self.rows[table].append(row)
        return row

    def capture(self, name: str, value: str) -> None:
        """Add an option of the capture, e.g. ``PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE``."""
        self.add("META_DATA_CAPTURE", name=name, value=value)

    def process(self, pid: int, *, name: str = "python", vm: int = 1) -> Process:
        """Add a process; every process counts its correlation ids from 1, so that ranks share ids."""
        process = Process(self, pid, vm)
        self.processes.append(process)
        self.add("PROCESSES", globalPid=process.global_pid, pid=pid, name=name)
        return process

    def ranks(self, count: int) -> list[Thread]:
        """Add ranks of a job, processes 100, 101 and so on with a GPU and a context each; return their threads."""
        threads = []
        for r in range(count):
            self.gpu(r, pids=[(100 + r, r)])
            threads.append((process := self.process(100 + r)).thread(process.pid, "python3"))
            process.context(device=r)
        return threads

    def gpu(
        self, number: int = 0, name: str = "NVIDIA H200", *, pids: Sequence[tuple[int, int]] = (), **values: Any
    ) -> None:
        """Describe a GPU; ``pids`` are the (pid, CUDA ordinal) pairs under which processes see it."""
        facts = {
            "vmId": 1 << 48, "id": number, "name": name, "busLocation": f"0000:{number + 6:02x}:00.0", "isDiscrete": 1,
            "l2CacheSize": 62914560, "totalMemory": 150109880320, "memoryBandwidth": 4814304000000, "clockRate": 1980000000,
            "smCount": 132, "uuid": f"0e174c5d-7bd0-d291-b31e-{number:012x}", "chipName": "GH100", "cuDevice": number,
            "computeMajor": 9, "computeMinor": 0, "maxWarpsPerSm": 64, "maxBlocksPerSm": 32, "maxRegistersPerSm": 65536,
            "maxRegistersPerBlock": 65536, "maxShmemPerSm": 233472, "threadsPerWarp": 32,
        }  # fmt: skip
        self.add("TARGET_INFO_GPU", **(facts | values))
        for pid, ordinal in pids:
            self.add("TARGET_INFO_CUDA_DEVICE", gpuId=number, cudaId=ordinal, pid=pid)

    def counters(self, names: Sequence[str], *, gpu: int = 0, kind: int = 0x1_0000_0000_0500) -> None:
        """Name the counters of a GPU, ids from 0 on in this order."""
        for metric, name in enumerate(names):
            self.add(
                "TARGET_INFO_GPU_METRICS", typeId=kind | gpu, sourceId=1, typeName=f"GPU Metrics [{gpu}]", metricId=metric,
                metricName=name,
            )  # fmt: skip

    def sample(self, at: int, values: Sequence[int], *, gpu: int = 0, kind: int = 0x1_0000_0000_0500) -> None:
        """Add one sample: a row for each counter, in the order of ``counters``."""
        for metric, value in enumerate(values):
            self.add("GPU_METRICS", rawTimestamp=at, timestamp=at, typeId=kind | gpu, metricId=metric, value=value)

    def diagnostic(self, text: str, *, severity: int = 2, at: int = 0, process: Process | None = None) -> None:
        """Add a message of nsys: severity 1 info, 2 warning, 3 error."""
        pid = process.global_pid if process else None
        self.add(
            "DIAGNOSTIC_EVENT", timestamp=at, timestampType=1, source=2, severity=severity, text=text, globalPid=pid
        )

    # -- damage and change ------------------------------------------------------------------------------------------

    def drop(self, table: str, column: str | None = None) -> None:
        """Leave a table, or one column of it, out of the file."""
        if column is None:
            self._dropped.add(table)
        else:
            self._dropped_columns.add((table, column))

    def null(self, table: str, column: str) -> None:
        """Write a column all NULL."""
        self._null_columns.add((table, column))

    def keep_empty(self, *tables: str) -> None:
        """Write these tables although they hold no row (nsys writes only tables that have rows)."""
        self._kept_empty.update(tables)

    def shuffle(self, seed: int = 0) -> None:
        """Write the rows of every table in a random order."""
        self._shuffle = seed

    def shift(self, ns: int) -> None:
        """Move every recorded event by ``ns``."""
        for table in self.rows:
            for row in self.rows[table]:
                for column in _TIMES:
                    if row.get(column) is not None:
                        row[column] += ns

    def renumber(self, seed: int = 0) -> None:
        """Give strings, correlation ids and event ids other numbers, without changing what belongs together."""
        shuffled = random.Random(seed)
        strings = list(range(1, 10 * len(self._strings) + 1))
        shuffled.shuffle(strings)
        string_of = {old: strings[i] for i, old in enumerate(self._strings.values())}
        offset = {process.global_pid: shuffled.randrange(1, 1_000_000) for process in self.processes}
        for table, rows in self.rows.items():
            for row in rows:
                pid = row.get("globalPid") or (row.get("globalTid") or 0) & ~0xFFFFFF
                for column in ("correlationId", "eventId"):
                    if row.get(column) not in (None, 0, NO_STREAM) and pid in offset:
                        row[column] += offset[pid]
                for column in _STRINGS:
                    if row.get(column) is not None:
                        row[column] = string_of[row[column]]
                if table == "StringIds":
                    row["id"] = string_of[row["id"]]
        self._strings = {value: string_of[old] for value, old in self._strings.items()}

    def span(self) -> tuple[int, int]:
        """Return the first start and the last end of all events, (0, 0) when there are none."""
        starts, ends = [], []
        for table, rows in self.rows.items():
            if "start" in self.layout[table]:
                starts += [row["start"] for row in rows]
                ends += [row["start"] if row.get("end") is None else row["end"] for row in rows]
        return (min(starts), max(ends)) if starts else (0, 0)

    # -- file -------------------------------------------------------------------------------------------------------

    def write(self, path: Path | str) -> Path:
        """Write the report as a SQLite file and return its path; a file that is there is replaced."""
        path = Path(path)
        path.unlink(missing_ok=True)
        tables = dict(self.rows)
        if not tables.get("ANALYSIS_DETAILS") and "ANALYSIS_DETAILS" in tables:
            duration = max(0, self.span()[1])
            tables["ANALYSIS_DETAILS"] = [
                {"globalVid": 1 << 48, "duration": duration, "startTime": 0, "stopTime": duration}
            ]
        base = sqlite3.connect(path)
        # One transaction, and nothing is waited for until it lies on the disk: of a report of a test nobody needs the rest.
        base.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; BEGIN")
        for table, rows in tables.items():
            columns = {c: k for c, k in self.layout[table].items() if (table, c) not in self._dropped_columns}
            if table in self._dropped or not columns or not (rows or table in self._kept_empty):
                continue
            nulls = {c for c in columns if (table, c) in self._null_columns}
            base.execute(
                f"CREATE TABLE {table} ("
                + ", ".join(f'"{c}" {k.split()[0] if c in nulls else k}' for c, k in columns.items())
                + ")"
            )
            written = itemgetter(*columns, next(iter(columns)))  # of one column a tuple, too
            values = [written(row | dict.fromkeys(nulls) if nulls else row)[:-1] for row in rows]
            if self._shuffle is not None:
                random.Random(f"{self._shuffle} {table}").shuffle(values)
            # Bytes are stored as text without being checked: that is how invalid UTF-8 gets into real reports.
            marks = ", ".join("CAST(? AS TEXT)" if "TEXT" in k else "?" for k in columns.values())
            base.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        base.commit()
        base.close()
        return path


class Process:
    """One traced process: its threads, and GPU ops that no call of the trace launched. Device n has context n + 1."""

    def __init__(self, report: Report, pid: int, vm: int = 1) -> None:
        self.report = report
        self.pid = pid
        self.vm = vm
        self.global_pid = (vm << 48) | (pid << 24)
        self._correlation = 0
        self._domains: dict[str, int] = {}

    def correlation(self) -> int:
        """Return the next correlation id of this process."""
        self._correlation += 1
        return self._correlation

    def thread(self, tid: int | None = None, name: str | None = None) -> Thread:
        """Add a thread; ``name`` goes to ThreadNames."""
        return Thread(self, self.pid if tid is None else tid, name)

    def domain(self, name: str, *, at: int = 0) -> int:
        """Return the id of an NVTX domain of this process; "" is the default domain."""
        if not name:
            return 0
        if name not in self._domains:
            self._domains[name] = len(self._domains) + 1
            self.report.add(
                "NVTX_EVENTS", start=at, eventType=75, text=name, globalTid=self.global_pid | self.pid,
                domainId=self._domains[name],
            )  # fmt: skip
        return self._domains[name]

    def stream(self, stream: int, *, device: int = 0, priority: int = 0, flag: int = 2) -> None:
        """Describe a stream: flag 1 blocking, 2 non-blocking, 3 the null stream."""
        self.report.add(
            "TARGET_INFO_CUDA_STREAM", streamId=stream, vmId=self.vm, processId=self.pid, contextId=device + 1,
            priority=priority, flag=flag,
        )  # fmt: skip

    def context(self, *, device: int = 0, null_stream: int = 7) -> None:
        """Describe a context and its legacy default stream."""
        facts = {"vmId": self.vm, "processId": self.pid, "deviceId": device, "contextId": device + 1}
        self.report.add("TARGET_INFO_CUDA_CONTEXT_INFO", nullStreamId=null_stream, isGreenContext=0, **facts)
        self.report.add("TARGET_INFO_CUDA_NULL_STREAM", streamId=null_stream, **facts)

    def kernel(
        self, name: str | bytes, start: int, dur: int, *, stream: int = 7, device: int = 0,
        correlation: int | None = 0, **values: Any,
    ) -> Row:  # fmt: skip
        """Add a kernel row by itself; with the correlation id of no call it was launched outside the trace."""
        string = self.report.string(name)
        short = self.report.string(_short(name) if isinstance(name, str) else name)
        facts = {
            "demangledName": string, "shortName": short, "mangledName": string, "launchType": 1, "registersPerThread": 32,
            "gridX": 1056, "gridY": 1, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1,
        } | self._op(start, dur, stream, device, correlation)  # fmt: skip
        return self.report.add("CUPTI_ACTIVITY_KIND_KERNEL", **(facts | values))

    def copy(
        self, kind: str, start: int, dur: int, *, bytes: int = 4, pageable: bool = False, stream: int = 7, device: int = 0,
        correlation: int | None = 0, **values: Any,
    ) -> Row:  # fmt: skip
        """Add a memcpy row by itself; ``kind`` is one of COPY_KINDS, ``pageable`` says which memory the host side is."""
        memory = {"H": PAGEABLE if pageable else PINNED, "D": DEVICE, "P": DEVICE}
        source, target = kind.removeprefix("UVM_").split("to")
        facts = {
            "bytes": bytes, "copyKind": COPY_KINDS[kind], "copyCount": 1,
            "srcKind": MANAGED if kind.startswith("UVM") else memory[source[0]],
            "dstKind": MANAGED if kind.startswith("UVM") else memory[target[0]],
        } | self._op(start, dur, stream, device, correlation)  # fmt: skip
        return self.report.add("CUPTI_ACTIVITY_KIND_MEMCPY", **(facts | values))

    def set_memory(
        self, start: int, dur: int, *, bytes: int = 4, stream: int = 7, device: int = 0,
        correlation: int | None = 0, **values: Any,
    ) -> Row:  # fmt: skip
        """Add a memset row by itself."""
        facts = {"bytes": bytes, "memKind": DEVICE} | self._op(start, dur, stream, device, correlation)
        return self.report.add("CUPTI_ACTIVITY_KIND_MEMSET", **(facts | values))

    def graph_trace(
        self, start: int, dur: int, *, graph: int = 1, stream: int = 7, device: int = 0,
        correlation: int | None = 0,
    ) -> Row:  # fmt: skip
        """Add the one row of a whole graph launch, as graph mode records it."""
        facts = self._op(start, dur, stream, device, correlation)
        return self.report.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", graphId=graph, graphExecId=graph + 1, **facts)

    def memory(
        self, at: int, bytes: int, *, free: bool = False, address: int = 0x7F0000000000, kind: int = DEVICE, device: int = 0,
        correlation: int | None = None,
    ) -> Row:  # fmt: skip
        """Add a memory usage event: an allocation, or the release of one."""
        return self.report.add(
            "CUDA_GPU_MEMORY_USAGE_EVENTS", start=at, globalPid=self.global_pid, deviceId=device, contextId=device + 1,
            address=address,
            bytes=bytes, memKind=kind, memoryOperationType=int(free), correlationId=correlation,
        )  # fmt: skip

    def _op(self, start: int, dur: int, stream: int, device: int, correlation: int | None) -> Row:
        return {
            "start": start, "end": start + dur, "deviceId": device, "contextId": device + 1, "streamId": stream,
            "correlationId": correlation, "globalPid": self.global_pid,
        }  # fmt: skip


class Thread:
    """One thread of a process: API calls, NVTX ranges, what the profiler cost."""

    def __init__(self, process: Process, tid: int, name: str | None = None) -> None:
        self.process = process
        self.report = process.report
        self.tid = tid
        self.global_tid = process.global_pid | tid
        self._open: list[list[int]] = []
        if name is not None:
            self.report.add("ThreadNames", nameId=self.report.string(name), priority=20, globalTid=self.global_tid)

    # -- API calls --------------------------------------------------------------------------------------------------

    def call(
        self, name: str, at: int, dur: int, *, correlation: int | None = None, returned: int = 0,
        backtrace: Sequence[tuple[str, str]] | None = None, alias: bool = False,
    ) -> Call:  # fmt: skip
        """Add an API call.

        ``backtrace``, frames of (symbol, module), also adds the copy of event class 67 that ``--cudabacktrace`` stores;
        ``alias`` the second row, without the version, that ``--cuda-trace-all-apis`` stores (for a name that carries one).
        """
        process, report = self.process, self.report
        correlation = process.correlation() if correlation is None else correlation
        plain = _plain(name)

        def add(text: str, start: int, end: int, event_class: int, chain: int | None = None) -> None:
            report.add(
                "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, eventClass=event_class, globalTid=self.global_tid,
                correlationId=correlation, nameId=report.string(text), returnValue=returned, callchainId=chain,
            )  # fmt: skip

        event_class = 0 if name.startswith("cuda") else 1
        if backtrace is not None:
            chain = 1 + max((row["id"] for row in report.rows["CUDA_CALLCHAINS"]), default=0)
            for depth, (symbol, module) in enumerate(backtrace):
                report.add(
                    "CUDA_CALLCHAINS",
                    id=chain,
                    symbol=report.string(symbol),
                    module=report.string(module),
                    stackDepth=depth,
                )
            add(plain, at - 300, at + dur + 200, 67, chain)
        add(name, at, at + dur, event_class)
        if alias and plain != name:
            add(plain, at - 40, at + dur + 40, event_class)
        for hull in self._open:
            hull += [at, at + dur]
        return Call(process, self.global_tid, correlation, plain, at, at + dur)

    def launch(
        self, at: int, dur: int = 5, *, kernel: str | bytes = "kernel", gpu_start: int | None = None, gpu_dur: int = 100,
        stream: int = 7, device: int = 0, api: str = "cudaLaunchKernel_v7000", **options: Any,
    ) -> Call:  # fmt: skip
        """Add a kernel launch and its kernel; ``gpu_start=None`` launches nothing that was recorded."""
        call = self.call(api, at, dur, **options)
        if gpu_start is not None:
            call.ops.append(
                self.process.kernel(
                    kernel, gpu_start, gpu_dur, stream=stream, device=device, correlation=call.correlation
                )
            )
        return call

    def memcpy(
        self, at: int, dur: int = 5, *, kind: str = "HtoD", bytes: int = 4, gpu_start: int | None = None, gpu_dur: int = 100,
        pageable: bool = False, stream: int = 7, device: int = 0, api: str = "cudaMemcpyAsync_v3020", **options: Any,
    ) -> Call:  # fmt: skip
        """Add a copy call and its GPU op."""
        call = self.call(api, at, dur, **options)
        if gpu_start is not None:
            call.ops.append(
                self.process.copy(
                    kind, gpu_start, gpu_dur, bytes=bytes, pageable=pageable, stream=stream, device=device,
                    correlation=call.correlation,
                )
            )  # fmt: skip
        return call

    def memset(
        self, at: int, dur: int = 5, *, bytes: int = 4, gpu_start: int | None = None, gpu_dur: int = 100, stream: int = 7,
        device: int = 0, api: str = "cudaMemsetAsync_v3020", **options: Any,
    ) -> Call:  # fmt: skip
        """Add a memset call and its GPU op."""
        call = self.call(api, at, dur, **options)
        if gpu_start is not None:
            call.ops.append(
                self.process.set_memory(
                    gpu_start, gpu_dur, bytes=bytes, stream=stream, device=device, correlation=call.correlation
                )
            )
        return call

    def graph_launch(
        self, at: int, dur: int = 10, *, nodes: Sequence[tuple[str, int, int]] = (), opaque: tuple[int, int] | None = None,
        graph: int = 1, stream: int = 7, device: int = 0, api: str = "cudaGraphLaunch_v10000", **options: Any,
    ) -> Call:  # fmt: skip
        """Add a graph launch: ``nodes`` of (kernel, start, duration) in node mode, one ``opaque`` (start, duration) else."""
        call = self.call(api, at, dur, **options)
        place = {"stream": stream, "device": device, "correlation": call.correlation}
        for number, (name, start, length) in enumerate(nodes):
            call.ops.append(
                self.process.kernel(name, start, length, graphNodeId=graph * 10_000 + number, graphId=graph, **place)
            )
        if opaque is not None:
            call.ops.append(self.process.graph_trace(*opaque, graph=graph, **place))
        return call

    def graph_node(self, at: int, node: int, *, dur: int = 1, original: int | None = None) -> None:
        """Add the creation of a graph node, inside the call that is captured."""
        table = "CUDA_GRAPH_NODE_EVENTS" if "CUDA_GRAPH_NODE_EVENTS" in self.report.layout else "CUDA_GRAPH_EVENTS"
        name = self.report.string("CUDA Graph Node Creation")
        self.report.add(
            table, start=at, end=at + dur, eventClass=77, globalTid=self.global_tid, nameId=name, graphNodeId=node,
            originalGraphNodeId=original,
        )  # fmt: skip

    def sync(
        self, api: str = "cudaStreamSynchronize_v3020", *, at: int, dur: int, stream: int | None = 7, event: int | None = None,
        device: int = 0, recorded: bool = True, **options: Any,
    ) -> Call:  # fmt: skip
        """Add a call that waits and, when ``recorded``, its CUPTI row; a stream or event that it does not name is dropped.

        Like nsys, the row says device 0 whatever the device is: only its context tells.
        """
        call = self.call(api, at, dur, **options)
        kind = 1 if "Event" in api else 2 if "Stream" in api else 4
        if recorded:
            self.report.add(
                "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=at, end=at + dur, deviceId=0, contextId=device + 1,
                streamId=stream if kind == 2 and stream is not None else NO_STREAM, correlationId=call.correlation,
                globalPid=self.process.global_pid, syncType=kind,
                eventId=event if kind == 1 and event is not None else NO_STREAM,
            )  # fmt: skip
        return call

    def event_record(
        self, event: int, *, at: int, dur: int = 2, stream: int = 7, device: int = 0, api: str = "cudaEventRecord_v3020"
    ) -> Call:
        """Add the record of a CUDA event on a stream."""
        call = self.call(api, at, dur)
        self.report.add(
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT", deviceId=device, contextId=device + 1, streamId=stream,
            correlationId=call.correlation, globalPid=self.process.global_pid, eventId=event,
        )  # fmt: skip
        return call

    def wait_event(
        self,
        event: int,
        *,
        at: int,
        dur: int = 2,
        stream: int = 7,
        device: int = 0,
        api: str = "cudaStreamWaitEvent_v3020",
    ) -> Call:
        """Make a stream wait for an event: the call returns at once, the stream holds."""
        call = self.call(api, at, dur)
        self.report.add(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=at, end=at + dur, contextId=device + 1, streamId=stream,
            correlationId=call.correlation, globalPid=self.process.global_pid, syncType=2, eventId=event,
        )  # fmt: skip
        return call

    # -- NVTX -------------------------------------------------------------------------------------------------------

    @contextmanager
    def range(
        self, name: str | bytes | None, *, domain: str = "", registered: bool = False, pad: int = 10
    ) -> Iterator[None]:
        """Open a push/pop range around what is added to this thread inside: its hull, ``pad`` ns wider on each side."""
        hull: list[int] = []
        self._open.append(hull)
        yield
        self._open.pop()
        start, end = min(hull, default=0) - pad, max(hull, default=0) + pad
        self.add_range(name, start, end, domain=domain, registered=registered)

    def add_range(
        self, name: str | bytes | None, start: int, end: int | None, *, domain: str = "", registered: bool = False,
        start_end: bool = False, ends_on: Thread | None = None,
    ) -> Row:  # fmt: skip
        """Add a range with explicit times.

        ``end=None`` leaves it unclosed, ``start_end`` makes it a start/end range, ``ends_on`` lets another thread close it,
        ``registered`` puts its name into StringIds, and ``name=None`` leaves it without one.
        """
        text = {"textId": self.report.string(name)} if registered and name is not None else {"text": name}
        for hull in self._open:
            hull += [start, start if end is None else end]
        return self.report.add(
            "NVTX_EVENTS", start=start, end=end, eventType=60 if start_end or ends_on else 59, globalTid=self.global_tid,
            endGlobalTid=ends_on.global_tid if ends_on else None, domainId=self.process.domain(domain, at=start), **text,
        )  # fmt: skip

    def line(self, place: str, start: int, end: int) -> Row:
        """Add a line of Python, "FILE:LINE FUNCTION", as an X-ray notes it: open from its begin to that of the next of its frame."""
        return self.add_range(place, start, end, domain="nsysx-lines", registered=True)

    def mark(self, name: str | bytes, at: int, *, domain: str = "", json: str | None = None) -> Row:
        """Add a mark: an instant with a name."""
        domain_id = self.process.domain(domain, at=at)
        return self.report.add(
            "NVTX_EVENTS",
            start=at,
            eventType=34,
            text=name,
            globalTid=self.global_tid,
            domainId=domain_id,
            jsonText=json,
        )

    def sample(self, at: int, frames: Sequence[str], *, domain: str = "Python Periodic Sampling") -> Row:
        """Add a sample of the Python stack: frames of "file:line function", innermost first."""
        listed = []
        for frame in frames:
            place, _, function = frame.rpartition(" ")
            file, _, line = place.rpartition(":")
            ids = {"Function": self.report.string(function), "File": self.report.string(file), "Line": int(line)}
            listed.append(ids)
        said = {"Thread state ID": 1, "Thread state": "Running", "Frames count": len(listed), "Frames": listed}
        row = self.mark("", at, domain=domain, json=json.dumps({domain: said}, separators=(",", ":")))
        row["text"] = None
        return row

    # -- what is not the program's own ------------------------------------------------------------------------------

    def profiler_overhead(self, at: int, dur: int, name: str = "CUPTI Buffer flush") -> Row:
        """Add time that nsys itself took on this thread."""
        return self.report.add(
            "PROFILER_OVERHEAD", start=at, end=at + dur, globalTid=self.global_tid, nameId=self.report.string(name)
        )

    def overhead(self, call: Call, at: int, dur: int, kind: int = 7) -> Row:
        """Add a CUPTI overhead inside a call: 6 module loading, 7 lazy function loading, 8 launch queue full."""
        return self.report.add(
            "CUPTI_ACTIVITY_KIND_OVERHEAD", start=at, end=at + dur, eventClass=103, globalTid=self.global_tid,
            correlationId=call.correlation, nameId=self.report.string("CUPTI overhead"), overheadType=kind,
        )  # fmt: skip

    def osrt(self, name: str, at: int, dur: int) -> Row:
        """Add a call of the operating system's runtime library."""
        return self.report.add(
            "OSRT_API", start=at, end=at + dur, eventClass=27, globalTid=self.global_tid, nameId=self.report.string(name),
            nestingLevel=0, callchainId=0,
        )  # fmt: skip

    def communicates(self, table: str, name: str, at: int, dur: int, **more: Any) -> Row:
        """Add a call of MPI or UCX to one of their tables; ``more`` are further columns of it, as nsys names them."""
        return self.report.add(
            table, start=at, end=at + dur, globalTid=self.global_tid, textId=self.report.string(name), **more
        )

    def is_mpi_rank(self, rank: int, size: int, *, handle: int, at: int = 0) -> None:
        """Note that this thread called MPI_Init: its rank in MPI_COMM_WORLD, which has this handle in its process."""
        self.report.add("MPI_RANKS", globalTid=self.global_tid, rank=rank)
        self.report.add(
            "MPI_COMMUNICATORS", rank=rank, timestamp=at, commHandle=handle, parentHandle=0, localRank=rank, size=size
        )


# -- canned cases --------------------------------------------------------------------------------------------------------
# Times in the comments are us. Each case is one small program whose truth can be worked out by hand.


def training_step(*, backward: Sequence[int] = (400,) * 100, malloc: int = 0) -> Report:
    """One training step; by default bound by the GPU, with an ``.item()`` whose long wait is worth nothing.

    Forward launches 100 kernels of 200 us, one every 10 us; the first runs from 10, the last ends at 20,010. ``.item()`` is
    a pageable 4-byte copy that blocks from 1,000 (later by ``malloc``) to 20,014 around its 2 us on the GPU. Backward
    launches ``backward`` kernels from the autograd thread, one every 10 us from 20,022 on. The optimizer launches 10 kernels
    of 50 us from 2 us after that. An event is recorded, and its synchronize starts 106 us after the optimizer.

    ``malloc`` puts a cudaMalloc of that many us behind the 50th forward launch: it overlaps GPU work and waits for none.
    """
    report = Report()
    report.gpu(pids=[(100, 0)])
    process = report.process(100)
    process.context()
    main, autograd = process.thread(100, "python"), process.thread(101, "pt_autograd_0")
    free = 0

    def launches(thread: Thread, at: int, name: str, durations: Sequence[int]) -> int:
        nonlocal free
        for dur in durations:
            start = max(free, at + 10)
            thread.launch(at * 1000, 10_000, kernel=name, gpu_start=start * 1000, gpu_dur=dur * 1000)
            free, at = start + dur, at + 10
        return at

    with main.range("forward"):
        at = launches(main, 0, "fwd_gemm", [200] * 50)
        if malloc:
            main.call("cudaMalloc_v3020", at * 1000, malloc * 1000)
        at = launches(main, at + malloc, "fwd_gemm", [200] * 50)
    with main.range("loss.item"):
        main.memcpy(
            at * 1000, (free + 4 - at) * 1000, kind="DtoH", pageable=True, gpu_start=free * 1000, gpu_dur=2000, bytes=4
        )
    at, free = free + 12, free + 2
    begin = at - 2
    at = launches(autograd, at, "bwd_gemm", backward) + 2
    main.add_range("backward", begin * 1000, (at - 1) * 1000)
    with main.range("optimizer"):
        launches(main, at, "adam", [50] * 10)
    main.event_record(1, at=(at + 102) * 1000)
    at += 106
    main.sync("cudaEventSynchronize_v3020", at=at * 1000, dur=(free + 2 - at) * 1000, event=1)
    return report


def case_a() -> Report:
    """Bound by the GPU: busy 60.502 of 60.522 ms; waits of 19.010 and 39.402 ms that are worth nothing."""
    return training_step()


def case_b() -> Report:
    """The same, bound by launches: backward is 1000 kernels of 5 us; busy 25.502 of 30.524 ms."""
    return training_step(backward=(5,) * 1000)


def case_malloc_trap() -> Report:
    """Case A with a cudaMalloc of 1 ms amid the queued forward kernels: it is no wait."""
    return training_step(malloc=1000)


def case_equal_ids() -> Report:
    """Two ranks whose calls have equal correlation ids: rank 0 launched only ``alpha``, rank 1 only ``beta``."""
    report = Report()
    for rank, name in enumerate(("alpha", "beta")):
        process = report.process(200 + rank)
        report.gpu(rank, pids=[(200 + rank, 0)])
        main = process.thread(name=f"rank{rank}")
        with main.range(f"rank {rank}"):
            for i in range(3):
                main.launch(100 * i, 10, kernel=name, gpu_start=100 * i + 20 + rank, gpu_dur=50 + rank)
    return report


def case_graph() -> Report:
    """One cudaGraphLaunch with 486 kernels of 10 ns each, one every 12 ns from 1,000 on."""
    report = Report()
    report.capture("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node")
    main = report.process(300).thread(name="python")
    with main.range("replay"):
        main.graph_launch(100, 50, nodes=[(f"node{i % 3}", 1000 + 12 * i, 10) for i in range(486)])
    main.sync("cudaDeviceSynchronize_v3020", at=200, dur=7000)
    return report


def case_opaque_graph() -> Report:
    """The same launch in graph mode: one bar from 1,000 to 6,830, no kernel."""
    report = Report()
    report.capture("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph")
    main = report.process(300).thread(name="python")
    main.graph_launch(100, 50, opaque=(1000, 5830))
    main.sync("cudaDeviceSynchronize_v3020", at=200, dur=7000)
    return report


def case_kernel_before_call() -> Report:
    """The clocks disagree: the second kernel starts 3 ns before the call that launched it, inside the idle time."""
    report = Report()
    main = report.process(400).thread(name="python")
    main.launch(100, 10, kernel="first", gpu_start=120, gpu_dur=30)
    main.launch(203, 10, kernel="early", gpu_start=200, gpu_dur=50)
    return report


def case_autograd_without_ranges() -> Report:
    """Backward launches from an autograd thread without any range, while ``backward`` is open on the main thread."""
    report = Report()
    process = report.process(500)
    main, autograd = process.thread(500, "python"), process.thread(501, "pt_autograd_0")
    with main.range("forward"):
        main.launch(100, 10, kernel="fwd", gpu_start=120, gpu_dur=30)
    main.add_range("backward", 200, 400)
    autograd.launch(250, 10, kernel="bwd", gpu_start=270, gpu_dur=60)
    main.sync(at=390, dur=5)
    return report


def case_nested_same_name() -> Report:
    """Two ranges of one name, nested: the outer from 0 to 1,000, the inner from 100 to 300, a launch in each."""
    report = Report()
    main = report.process(600).thread(name="python")
    main.add_range("block", 0, 1000)
    main.add_range("block", 100, 300)
    main.launch(150, 10, kernel="inner", gpu_start=170, gpu_dur=20)
    main.launch(500, 10, kernel="outer", gpu_start=520, gpu_dur=20)
    return report


def case_load_inside_launch() -> Report:
    """A first launch of 1,000 ns which holds cuLibraryLoadData for 700 of them; the second one takes 10."""
    report = Report()
    main = report.process(700).thread(name="python")
    main.launch(0, 1000, kernel="gemm", gpu_start=1010, gpu_dur=40)
    main.call("cuLibraryLoadData", 100, 700)
    main.launch(1100, 10, kernel="gemm", gpu_start=1120, gpu_dur=40)
    return report


def case_copies_of_calls() -> Report:
    """Four calls in nine rows: a backtrace copy, an alias, both, and the copy of a driver call, whose names are equal."""
    report = Report()
    main = report.process(800).thread(name="python")
    main.call("cudaMalloc_v3020", 1000, 100, backtrace=[("at::native::empty", "libtorch.so")])
    main.launch(2000, 10, kernel="gemm", gpu_start=2020, gpu_dur=30, api="cudaLaunchKernel_ptsz_v7000", alias=True)
    main.sync(at=3000, dur=50, backtrace=[("c10::cuda::stream_synchronize", "libc10.so")], alias=True)
    main.call("cuMemAlloc_v2", 4000, 70, backtrace=[("cub::alloc", "libcub.so")])
    return report


def case_odd_ranges() -> Report:
    """Ranges that do not nest in one thread: unclosed, closed by another thread, nameless, registered, and not UTF-8."""
    report = Report()
    process = report.process(900)
    main, other = process.thread(900, "python"), process.thread(901)
    main.add_range("epoch", 0, None)
    main.add_range("handed over", 10, 500, ends_on=other)
    main.add_range(None, 100, 200)
    main.add_range("ncclAllReduce", 300, 400, domain="NCCL", registered=True)
    main.add_range(b"caf\xe9 \xff", 600, 700)
    for at in (50, 150, 350, 650):
        main.launch(at, 10, kernel=b"k\xff", gpu_start=at + 20, gpu_dur=10)
    return report


CASES = {name.removeprefix("case_"): make for name, make in list(globals().items()) if name.startswith("case_")}
