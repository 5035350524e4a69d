"""Declares each frame that a `Profile` holds: its columns with dtype, unit and meaning.

Times are ns from the start of the session; ``process`` and ``thread`` are keys of `nsysx.ids`. ``HANDED_ON`` names every frame
by its place in a `Profile`; the tests check the frames of all samples against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import polars as pl

from nsysx.model import Column


def column(name: str, kind: str, unit: str, meaning: str) -> Column:
    """Return a declared column; ``kind`` is polars's name of its dtype."""
    return Column(name, kind, unit, meaning)


def _span(where: str) -> tuple[Column, Column]:
    start = column("start_ns", "Int64", "ns", f"start on the {where}")
    return start, column("end_ns", "Int64", "ns", f"end on the {where}")


PROCESS = column("process", "Int64", "", "process key: the upper 40 bits of a thread key")
THREAD = column("thread", "Int64", "", "thread key; its lower 24 bits are the tid")
DEVICE = column("device", "Int64", "", "CUDA ordinal inside the process")
_INDEX = column("index", "Int64", "", "index of the step in its process, from 0")

#: What ``correlate`` hands on: one row per API call, sorted by (thread, start).
API_CALLS = (
    column("call", "Int64", "", "row number, the key that GPU ops refer to"),
    PROCESS,
    THREAD,
    column("start_ns", "Int64", "ns", "start of the call on the CPU"),
    column("end_ns", "Int64", "ns", "end of the call on the CPU"),
    column("name", "Categorical", "", "API function without _v3020, _ptsz, _ptds"),
    column(
        "kind",
        "Categorical",
        "",
        "launch, graph_launch, copy, memset, sync, alloc, free, host_alloc, load, event, other",
    ),
    column("correlation_id", "Int64", "", "joins to GPU ops within the process"),
    column("self_ns", "Int64", "ns", "duration without that of nested calls on the same thread"),
    column("gpu_ops", "Int64", "", "number of GPU ops it launched"),
    column("failed", "Boolean", "", "CUDA returned an error code"),
)

#: What ``correlate`` hands on: one row per GPU op, sorted by start.
GPU_OPS = (
    column("op", "Int64", "", "row number"),
    PROCESS,
    DEVICE,
    column("context", "Int64", "", "CUDA context, null if not recorded"),
    column("stream", "Int64", "", "stream"),
    column("start_ns", "Int64", "ns", "start on the device"),
    column("end_ns", "Int64", "ns", "end on the device"),
    column("op_kind", "Categorical", "", "kernel, memcpy, memset, graph"),
    column("cls", "Categorical", "", "part of the breakdown: compute, comm, copy, memset"),
    column("family", "Categorical", "", "kernel family: gemm, attention, ...; for other ops the op kind"),
    column("name", "Categorical", "", "kernel name, copy direction, memset or graph"),
    column("bytes", "Int64", "bytes", "bytes copied or set, null for kernels"),
    column("copy_kind", "Int64", "", "direction code, null except for copies"),
    column("src_kind", "Int64", "", "source memory code, null except for copies"),
    column("dst_kind", "Int64", "", "destination memory code, null except for copies"),
    column("graph_node", "Int64", "", "node of a CUDA graph, null outside graphs"),
    column("grid", "Int64", "", "grid of a kernel, packed, see GRID; null if not recorded"),
    column(
        "block",
        "Int64",
        "",
        "block, registers and shared memory of a kernel, packed, see BLOCK; else null",
    ),
    column("call", "Int64", "", "API call that launched it, null if launched outside the trace"),
    column("thread", "Int64", "", "thread of that call"),
    column("call_start_ns", "Int64", "ns", "start of that call"),
    column("call_end_ns", "Int64", "ns", "end of that call"),
    column("queue_ns", "Int64", "ns", "max(0, start - call end)"),
    column("latency_ns", "Int64", "ns", "max(0, start - call start)"),
)

#: What ``attribute`` adds to calls and ops.
PLACE = (
    column("phase", "Categorical", "", "phase of the step in which it was called, null for none"),
    column(
        "module",
        "Categorical",
        "",
        "path of the module in which it was called; outside all modules its phase in parentheses; else null",
    ),
    column("grade", "Categorical", "", "how the module is known: thread, seq, sequence, time, none"),
    column("recompute", "Boolean", "", "called by a forward that checkpointing runs again in backward"),
)

#: What ``nvtx_ranges`` hands on. Marks are ranges of length 0.
MARKS = (
    PROCESS,
    THREAD,
    *_span("CPU"),
    column("label", "Categorical", "", "the text"),
    column("kind", "Categorical", "", "step, phase, module, backward_module, op, range"),
    column(
        "name", "Categorical", "", "path of the module, name of the phase or operator, else text without its counter"
    ),
    column("cls", "Categorical", "", "class of the module"),
    column("number", "Int64", "", "number of the step or sequence number of the operator, -1 for none"),
    column("recompute", "Boolean", "", "a forward that checkpointing runs again in backward"),
    column("own", "Boolean", "", "written by the probe of nsysx run"),
    column("crossing", "Boolean", "", "ended by another thread"),
    column("open", "Boolean", "", "never closed, so it ends with the capture"),
    column("repeated", "Boolean", "", "copied from a marked step that made the same calls"),
)
RANGES = (column("range", "UInt32", "", "row number"), *MARKS)
NOTES = (
    PROCESS,
    column("start_ns", "Int64", "ns", "when it was written"),
    column("name", "String", "", "what the probe reports about itself, JSON"),
)
PAUSES = (
    PROCESS,
    THREAD,
    *_span("CPU"),
    column("kind", "String", "", "gc or compile"),
    column("generation", "Int64", "", "generation that was collected; null except for gc"),
    column("collected", "Int64", "", "objects collected; null except for gc"),
    column("id", "String", "", "torch's id of the compilation, such as 3/1 for the second one of function 3"),
    column("function", "String", "", "function that was compiled"),
    column("file", "String", "", "its file"),
    column("line", "Int64", "", "its first line"),
    column("backward", "Boolean", "", "its backward was compiled; null except for compile"),
    column("reason", "String", "", "why it was compiled again; null for the first time"),
    column("failed", "String", "", "type of the error that ended it; null without an error"),
)

#: What ``attribute`` hands on besides calls and ops.
MODULES = (
    column("module", "String", "", "path"),
    column("cls", "String", "", "Python class of the module"),
    column("parent", "String", "", "path of the module that calls it most; null for a root"),
    column("calls", "Int64", "", "number of forward ranges"),
    column("first_ns", "Int64", "ns", "start of the first one"),
)
PHASE_SPANS = (
    PROCESS,
    THREAD,
    *_span("CPU"),
    column("phase", "String", "", "innermost phase; the spans of a thread are disjoint"),
)

#: What ``steps`` hands on.
CPU_STEPS = (
    PROCESS,
    THREAD,
    _INDEX,
    column("number", "Int64", "", "number that the program gave it, -1 for none"),
    *_span("CPU"),
    column("warmup", "Boolean", "", "comes before the steady steps"),
    column("steady", "Boolean", "", "averages are taken over it"),
    column("cut", "Boolean", "", "the last step, whose end was not recorded"),
    column("parts", "Int64", "", "number of proposed steps that it is made of"),
)
GPU_STEPS = (PROCESS, DEVICE, _INDEX, *_span("device"))
BETWEEN_STEPS = (
    *GPU_STEPS,
    column("cpu_start_ns", "Int64", "ns", "start on the CPU"),
    column("cpu_end_ns", "Int64", "ns", "end on the CPU"),
    column("evaluation", "Boolean", "", "contains forwards without a backward"),
)
GPU_WINDOWS = (PROCESS, DEVICE, *_span("device"))
CPU_WINDOWS = (PROCESS, *_span("CPU"))

#: What ``ledger`` hands on.
IDLE = (
    PROCESS,
    DEVICE,
    *_span("device"),
    column("cause", "Int64", "", "what the host did, as an index into CAUSES"),
    column("gap", "Int64", "", "number of the gap that this is a piece of"),
    column("op", "Int64", "", "GPU op that ended the gap, null at the end"),
    column("began_in", "Int64", "", "API call during which the device ran out of work, null for none"),
    column("thread", "Int64", "", "thread that kept the device waiting before the launch, null for none"),
    column("waited_device", "Int64", "", "device of the work that the op waited for, null for none"),
    column("waited_stream", "Int64", "", "stream of that work, null for none"),
)
WAITS = (
    column("call", "Int64", "", "the API call"),
    column("awaited", "String", "", "event, stream or device"),
    column("backlog_ns", "Int64", "ns", "waiting for work that was queued before"),
    column("own_op_ns", "Int64", "ns", "waiting for its own copy"),
    column("host_ns", "Int64", "ns", "remaining time of the call; the three add up to its length"),
    column("site", "Int64", "", "number shared by a copy and the synchronize that waits for it"),
    column("idle_caused_ns", "Int64", "ns", "idle time of the device that began during the call"),
)

#: The sampled Python stacks that ``reading`` hands on: which thread was sampled when, and the frames of each distinct stack.
SAMPLES = (
    THREAD,
    column("time_ns", "Int64", "ns", "when it was sampled"),
    column("stack", "Int64", "", "number of its stack"),
    PROCESS,
)
STACKS = (
    column("stack", "Int64", "", "number of the stack"),
    column("depth", "Int64", "", "depth of the frame, 0 for the innermost"),
    column("function", "Categorical", "", "Python's name of the function; null if not recorded"),
    column("file", "Categorical", "", "its file; null if not recorded"),
    column("line", "Int64", "", "line that was running; null if not recorded"),
)

#: Place of a frame in a `Profile` -> its columns.
HANDED_ON: Mapping[str, tuple[Column, ...]] = {
    "trace.samples": SAMPLES,
    "trace.stacks": STACKS,
    "attributed.api_calls": (*API_CALLS, *PLACE),
    "attributed.gpu_ops": (*GPU_OPS, *PLACE),
    "attributed.modules": MODULES,
    "attributed.phase_spans": PHASE_SPANS,
    "ranges.ranges": RANGES,
    "ranges.marks": MARKS,
    "ranges.notes": NOTES,
    "ranges.pauses": PAUSES,
    "steps.cpu": CPU_STEPS,
    "steps.gpu": GPU_STEPS,
    "steps.between": BETWEEN_STEPS,
    "steps.windows": GPU_WINDOWS,
    "steps.cpu_windows": CPU_WINDOWS,
    "ledgers.idle": IDLE,
    "ledgers.waits": WAITS,
    "whole.calls": (*API_CALLS, *PLACE),
    "whole.ops": (*GPU_OPS, *PLACE),
    "steady.calls": (*API_CALLS, *PLACE),
    "steady.ops": (*GPU_OPS, *PLACE),
}


_LIST = re.compile(r"List\((\w+)\)")


def _dtype(name: str) -> pl.DataType:
    inner = _LIST.fullmatch(name)
    made: pl.DataType = pl.List(getattr(pl, inner[1])()) if inner else getattr(pl, name)()
    return made


def schema(columns: Iterable[Column], *names: str) -> dict[str, pl.DataType]:
    """Return name -> dtype of declared columns, for building a frame; of ``names`` in their order if any are given."""
    types = {c.name: _dtype(c.dtype) for c in columns}
    return {name: types[name] for name in names} if names else types


def undeclared(frame: pl.DataFrame, columns: tuple[Column, ...]) -> list[str]:
    """Return how a frame differs from its declaration, a line per column that is missing, undeclared or of another dtype."""
    has, wants = {name: str(kind) for name, kind in frame.schema.items()}, {c.name: c.dtype for c in columns}
    return [
        f"{name}: {has.get(name, 'missing')} instead of {wants.get(name, 'nothing')}"
        for name in sorted(has.keys() | wants.keys())
        if has.get(name) != wants.get(name)
    ]
