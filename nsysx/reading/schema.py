"""Declares each table that is read: columns, dtype, unit, meaning, optional or not. For frames made from them see `frames.frame_columns`.

Exports differ by version, so columns are looked up by name and never by version: a missing optional column becomes null, and the
error names a missing required one. All integers are Int64; times are nanoseconds from the session start; names are Categorical.
"""

from __future__ import annotations

from functools import cache

import polars as pl

from nsysx.reading.communication_tables import COMMUNICATION
from nsysx.reading.source_table import END, START, Source, SourceColumn, source_column

#: eventClass of an API row that repeats a call in order to carry its backtrace.
BACKTRACE_CLASS = 67

#: NVTX eventType numbers.
NVTX_MARK, NVTX_PUSH_POP, NVTX_START_END, NVTX_DOMAIN = 34, 59, 60, 75

#: The NVTX domain in which ``--python-backtrace=cuda`` writes its marks.
PYTHON_BACKTRACE_DOMAIN = "Python Backtrace on CUDA"

#: The NVTX domains in which ``--python-sampling=true`` writes its marks, by version of nsys.
PYTHON_SAMPLING_DOMAINS = ("Python Periodic Sampling", "Python Backtrace")

#: The NVTX domain of ``-t python-gil``: who holds Python's lock, who waits for it.
GIL_DOMAIN = "GIL Trace"

#: The NVTX domain of NCCL's own ranges, and the fields of their payload that are read (our name -> NCCL's).
NCCL_DOMAIN = "NCCL"
NCCL_PAYLOAD = {
    "communicator": "NCCL communicator ID",
    "bytes": "Message size [bytes]",
    "peer": "Peer rank",
    "root": "Root",
    "size": "No. of ranks",
    "rank": "Rank",
}

COPY_KINDS = {
    0: "unknown",
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "UM HtoD",
    12: "UM DtoH",
    13: "UM DtoD",
}

MEMORY_KINDS = {
    0: "pageable",
    1: "pinned",
    2: "device",
    3: "array",
    4: "managed",
    5: "device static",
    6: "managed static",
    7: "unknown",
}

#: overheadType of CUPTI_ACTIVITY_KIND_OVERHEAD: compiling PTX, loading a module, loading a function, launch queue full.
OVERHEAD_ONE_TIME = (2, 6, 7)
OVERHEAD_QUEUE_FULL = 8

#: The stream id of a wait that names no stream: a device-side wait, or a wait for a whole context.
NO_STREAM = 0xFFFFFFFF


def _packed(name: str, fields: tuple[tuple[str, int], ...], meaning: str) -> SourceColumn:
    """Return a column that packs several small ones into one integer, the first in the lowest bits, so that one is read, not many.

    The integer is null if one of them does not fit into its bits, because it would change its neighbors.
    """
    terms, parts, fits, shift = [], [], [], 0
    for columns, bits in fields:
        names = columns.split("+")
        value = " + ".join(f'"{c}"' for c in names)
        terms.append(f"({value}) * {1 << shift}")
        fits.append(f"({value}) BETWEEN 0 AND {(1 << bits) - 1}")
        parts += names
        shift += bits
    assert shift <= 63
    sql = f"CASE WHEN {' AND '.join(fits)} THEN {' + '.join(terms)} END"
    return SourceColumn(name, sql, required=False, meaning=meaning, parts=tuple(parts))


def unpack(value: int, fields: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    """Return the values that ``_packed`` put into one integer, in the order of ``fields``."""
    parts = []
    for _, bits in fields:
        parts.append(value & ((1 << bits) - 1))
        value >>= bits
    return tuple(parts)


def _flag(name: str, sql: str, *parts: str, meaning: str) -> SourceColumn:
    return SourceColumn(name, sql, "flag", required=False, meaning=meaning, parts=parts, bits=1)


#: How the launch configuration of a kernel is packed: (column or sum of columns, bits). CUDA's limits fit into the bits.
GRID = (("gridX", 31), ("gridY", 16), ("gridZ", 16))
BLOCK = (
    ("blockX", 11),
    ("blockY", 11),
    ("blockZ", 7),
    ("registersPerThread", 9),
    ("staticSharedMemory+dynamicSharedMemory", 19),
)

_GPU_HEAD = (
    START,
    END,
    source_column("device", "deviceId", meaning="CUDA ordinal inside the process"),
    source_column("context", "contextId", required=False, meaning="CUDA context"),
    source_column("stream", "streamId", meaning="CUDA stream"),
    source_column("correlation_id", "correlationId", meaning="id of the API call, unique within the process only"),
    source_column("global_pid", "globalPid", required=False, meaning="process, with thread bits zero"),
)

SOURCES = {
    s.frame: s
    for s in (
        Source(
            "runtime",
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            (
                START,
                END,
                source_column("thread", "globalTid", meaning="thread key: hardware, VM, pid and tid bits"),
                source_column(
                    "correlation_id", "correlationId", meaning="joins the call to its GPU ops within the process"
                ),
                source_column("name", "nameId", "name", meaning="API function as recorded, with its version suffix"),
                _flag(
                    "copied",
                    f'"eventClass" = {BACKTRACE_CLASS}',
                    "eventClass",
                    meaning="the copy of a call that carries its backtrace",
                ),
                _flag("failed", '"returnValue" <> 0', "returnValue", meaning="CUDA returned an error code"),
            ),
            "-t cuda",
        ),
        Source(
            "kernel",
            "CUPTI_ACTIVITY_KIND_KERNEL",
            (
                *_GPU_HEAD,
                source_column("name", "demangledName", "name", meaning="kernel with its template arguments", bits=31),
                source_column("name", "shortName", "name", required=False, meaning="kernel without them", bits=31),
                _packed("grid", GRID, "grid, packed, see GRID"),
                _packed("block", BLOCK, "block, registers and shared memory, packed, see BLOCK"),
                source_column("graph_node", "graphNodeId", required=False, meaning="node of a CUDA graph"),
            ),
            "-t cuda",
        ),
        Source(
            "memcpy",
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            (
                *_GPU_HEAD,
                source_column("bytes", "bytes", unit="bytes", meaning="bytes copied"),
                source_column("copy_kind", "copyKind", meaning="direction, see COPY_KINDS"),
                source_column("src_kind", "srcKind", required=False, meaning="memory of the source, see MEMORY_KINDS"),
                source_column("dst_kind", "dstKind", required=False, meaning="memory of the destination"),
                source_column("graph_node", "graphNodeId", required=False, meaning="node of a CUDA graph"),
            ),
            "-t cuda",
        ),
        Source(
            "memset",
            "CUPTI_ACTIVITY_KIND_MEMSET",
            (
                *_GPU_HEAD,
                source_column("bytes", "bytes", unit="bytes", required=False, meaning="bytes set"),
                source_column("graph_node", "graphNodeId", required=False, meaning="node of a CUDA graph"),
            ),
            "-t cuda",
        ),
        Source(
            "graph",
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            (*_GPU_HEAD, source_column("graph_id", "graphId", required=False, meaning="the graph that ran as one bar")),
            "-t cuda --cuda-graph-trace=graph",
        ),
        Source(
            "sync",
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            (
                START,
                END,
                source_column("context", "contextId", required=False, meaning="CUDA context that is waited for"),
                source_column(
                    "stream", "streamId", required=False, meaning="stream that is waited for, 0xFFFFFFFF for none"
                ),
                source_column("correlation_id", "correlationId", meaning="the API call that waits"),
                source_column("global_pid", "globalPid", required=False, meaning="process"),
                source_column(
                    "event", "eventId", required=False, meaning="event that is waited for, 0xFFFFFFFF for none"
                ),
            ),
            "-t cuda",
            optional=True,
        ),
        Source(
            "event",
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
            (
                source_column("context", "contextId", required=False, meaning="CUDA context"),
                source_column("stream", "streamId", meaning="stream into which the event was recorded"),
                source_column("correlation_id", "correlationId", meaning="the cudaEventRecord call"),
                source_column("global_pid", "globalPid", required=False, meaning="process"),
                source_column("event", "eventId", meaning="event"),
                source_column(
                    "device_ns",
                    "timestamp",
                    unit="ns",
                    required=False,
                    meaning="when the device reached it, 0 if not noted",
                ),
            ),
            "-t cuda",
            optional=True,
        ),
        Source(
            "cupti_overhead",
            "CUPTI_ACTIVITY_KIND_OVERHEAD",
            (
                START,
                END,
                source_column("thread", "globalTid", required=False, meaning="thread"),
                source_column(
                    "correlation_id", "correlationId", required=False, meaning="the API call that it lies in"
                ),
                source_column("overhead_type", "overheadType", meaning="see OVERHEAD_*"),
            ),
            "-t cuda of nsys 2025.5 or newer",
            optional=True,
        ),
        Source(
            "memory_usage",
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            (
                source_column("time_ns", "start", unit="ns", meaning="when"),
                source_column("global_pid", "globalPid", meaning="process"),
                source_column("device", "deviceId", meaning="CUDA ordinal inside the process"),
                source_column("address", "address", required=False, meaning="address"),
                source_column("bytes", "bytes", unit="bytes", meaning="bytes allocated or freed"),
                source_column("memory_kind", "memKind", required=False, meaning="see MEMORY_KINDS"),
                source_column("freed", "memoryOperationType", meaning="0 allocation, 1 free"),
                source_column("correlation_id", "correlationId", required=False, meaning="the API call, 0 for none"),
            ),
            "nsysx run --memory",
            optional=True,
        ),
        Source(
            "nvtx",
            "NVTX_EVENTS",
            (
                START,
                END,
                source_column("thread", "globalTid", required=False, meaning="thread of the push"),
                source_column("domain", "domainId", required=False, meaning="0 is the default domain"),
                source_column("text", "text", "text", required=False, meaning="inline name"),
                source_column("text", "textId", "name", required=False, meaning="registered name"),
                source_column(
                    "payload", "int64Value", required=False, meaning="integer payload; with a step of nsysx: its number"
                ),
                source_column(
                    "event_type", "eventType", meaning="34 mark, 59 push/pop, 60 start/end, 75 domain", bits=8
                ),
                _flag(
                    "crossing",
                    '"endGlobalTid" <> "globalTid"',
                    "endGlobalTid",
                    "globalTid",
                    meaning="another thread ended it",
                ),
            ),
            "-t nvtx",
        ),
        Source(
            "overhead",
            "PROFILER_OVERHEAD",
            (
                START,
                END,
                source_column("thread", "globalTid", required=False, meaning="thread"),
                source_column("name", "nameId", "name", required=False, meaning="what the profiler did"),
            ),
            "any",
            optional=True,
        ),
        Source(
            "osrt",
            "OSRT_API",
            (
                START,
                END,
                source_column("thread", "globalTid", meaning="thread"),
                source_column("name", "nameId", "name", meaning="function of the operating system's library"),
            ),
            "nsysx run --osrt",
            optional=True,
        ),
        Source(
            "graph_node",
            "CUDA_GRAPH_NODE_EVENTS",
            (
                START,
                source_column("thread", "globalTid", meaning="thread that captured or cloned the node"),
                source_column("node", "graphNodeId", meaning="node"),
                source_column(
                    "original_node", "originalGraphNodeId", required=False, meaning="node it was cloned from"
                ),
            ),
            "--cuda-graph-trace=node",
            optional=True,
        ),
        Source(
            "cuda_stream",
            "TARGET_INFO_CUDA_STREAM",
            (
                source_column("pid", "processId", meaning="process, as the system numbers it"),
                source_column("context", "contextId", meaning="CUDA context"),
                source_column("stream", "streamId", meaning="CUDA stream"),
                source_column("creation", "flag", meaning="1 blocking, 2 non-blocking, 3 the legacy default stream"),
            ),
            "any",
            optional=True,
        ),
        Source(
            "thread_name",
            "ThreadNames",
            (
                source_column("thread", "globalTid", meaning="thread"),
                source_column("name", "nameId", "name", meaning="name the OS knows"),
            ),
            "any",
            optional=True,
        ),
        *COMMUNICATION,
    )
}


def dtype(column: SourceColumn) -> pl.DataType:
    """Return the polars type of a column in the frame that ``load`` makes."""
    return {"int": pl.Int64(), "flag": pl.Boolean()}.get(column.kind, pl.Categorical())


@cache
def _empty(frame: str) -> pl.DataFrame:
    types = {c.name: dtype(c) for c in SOURCES[frame].columns}
    if {"global_pid", "thread"} & types.keys():
        types = {name: kind for name, kind in types.items() if name != "global_pid"} | {"process": pl.Int64()}
    return pl.DataFrame(schema=types)


def empty(frame: str) -> pl.DataFrame:
    """Return a source frame without rows and with the declared types, for a report without that table.

    Its process stands in place of the key that tells it, as in all frames (``placing.with_process``).
    """
    return _empty(frame).clone()
