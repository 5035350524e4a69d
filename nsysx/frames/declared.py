"""Each frame that one room hands to others, once: the columns that it has at least, with dtype, unit and meaning.

Times are ns from the start of the session; ``process`` and ``thread`` are keys of `nsysx.ids`. ``HANDED_ON`` names every frame
by where a `Profile` holds it; the tests hold all samples against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from nsysx.model import Column


def _f(name: str, kind: str, unit: str, meaning: str) -> Column:
    return Column(name, kind, unit, meaning)


def _span(where: str) -> tuple[Column, Column]:
    return _f("start_ns", "Int64", "ns", f"begin on the {where}"), _f("end_ns", "Int64", "ns", f"end on the {where}")


_PROCESS = _f("process", "Int64", "", "process")
_THREAD = _f("thread", "Int64", "", "thread")
_DEVICE = _f("device", "Int64", "", "CUDA ordinal inside the process")
_INDEX = _f("index", "Int64", "", "place of the step in its process, from 0")

#: What ``correlate`` hands on: one row per API call, sorted by (thread, start).
API_CALLS = (
    _f("call", "Int64", "", "row number, the key that GPU ops refer to"),
    _f("process", "Int64", "", "upper 40 bits of the thread key"),
    _f("thread", "Int64", "", "thread key"),
    _f("start_ns", "Int64", "ns", "begin of the call on the CPU"),
    _f("end_ns", "Int64", "ns", "end of the call on the CPU"),
    _f("name", "Categorical", "", "API function without _v3020, _ptsz, _ptds"),
    _f(
        "kind",
        "Categorical",
        "",
        "launch, graph_launch, copy, memset, sync, alloc, free, host_alloc, load, event, other",
    ),
    _f("correlation_id", "Int64", "", "joins to GPU ops within the process"),
    _f("self_ns", "Int64", "ns", "duration minus what nested calls of the same thread cover"),
    _f("gpu_ops", "Int64", "", "number of GPU ops it launched"),
    _f("failed", "Boolean", "", "CUDA returned an error code"),
)

#: What ``correlate`` hands on: one row per GPU op, sorted by start.
GPU_OPS = (
    _f("op", "Int64", "", "row number"),
    _f("process", "Int64", "", "process"),
    _f("device", "Int64", "", "CUDA ordinal inside the process"),
    _f("context", "Int64", "", "CUDA context, null when not recorded"),
    _f("stream", "Int64", "", "stream"),
    _f("start_ns", "Int64", "ns", "begin on the device"),
    _f("end_ns", "Int64", "ns", "end on the device"),
    _f("op_kind", "Categorical", "", "kernel, memcpy, memset, graph"),
    _f("cls", "Categorical", "", "ledger class: compute, comm, copy, memset"),
    _f("family", "Categorical", "", "kernel family: gemm, attention, ... ; the op kind for what is no kernel"),
    _f("name", "Categorical", "", "kernel name, copy direction, memset or graph"),
    _f("bytes", "Int64", "bytes", "bytes copied or set, null for kernels"),
    _f("copy_kind", "Int64", "", "direction code, null but for copies"),
    _f("src_kind", "Int64", "", "source memory code, null but for copies"),
    _f("dst_kind", "Int64", "", "destination memory code, null but for copies"),
    _f("graph_node", "Int64", "", "node of a CUDA graph, null outside graphs"),
    _f("grid", "Int64", "", "grid of a kernel, packed, see GRID; null where not recorded"),
    _f("block", "Int64", "", "block, registers and shared memory of a kernel, packed, see BLOCK; null likewise"),
    _f("call", "Int64", "", "API call that launched it, null for launched outside the trace"),
    _f("thread", "Int64", "", "thread of that call"),
    _f("call_start_ns", "Int64", "ns", "begin of that call"),
    _f("call_end_ns", "Int64", "ns", "end of that call"),
    _f("queue_ns", "Int64", "ns", "max(0, start - call end)"),
    _f("latency_ns", "Int64", "ns", "max(0, start - call start)"),
)

#: What ``attribute`` adds to calls and ops.
PLACE = (
    _f("phase", "Categorical", "", "phase of the step in which it was called; null for none"),
    _f(
        "module",
        "Categorical",
        "",
        "module in which it was called, by its path; its phase in parentheses outside all; null",
    ),
    _f("grade", "Categorical", "", "how that is known: thread, seq, sequence, time, none"),
    _f("recompute", "Boolean", "", "called by a forward that checkpointing runs again in backward"),
)

#: What ``nvtx_ranges`` hands on: marks are ranges without length.
MARKS = (
    _PROCESS,
    _THREAD,
    *_span("CPU"),
    _f("label", "Categorical", "", "the text"),
    _f("kind", "Categorical", "", "step, phase, module, backward_module, op, range"),
    _f("name", "Categorical", "", "path of the module, name of the phase or operator, text without its counter"),
    _f("cls", "Categorical", "", "class of the module"),
    _f("number", "Int64", "", "number of the step or sequence number of the operator, -1 without"),
    _f("recompute", "Boolean", "", "a forward that checkpointing runs again in backward"),
    _f("own", "Boolean", "", "written by the probe of nsysx run"),
    _f("crossing", "Boolean", "", "ended by another thread"),
    _f("open", "Boolean", "", "never closed: ends with the capture"),
    _f("repeated", "Boolean", "", "taken over from a marked step that made the same calls"),
)
RANGES = (_f("range", "UInt32", "", "row number"), *MARKS)
NOTES = (
    _PROCESS,
    _f("start_ns", "Int64", "ns", "when it was written"),
    _f("name", "String", "", "what the probe says about itself, JSON"),
)
PAUSES = (
    _PROCESS,
    _THREAD,
    *_span("CPU"),
    _f("kind", "String", "", "gc or compile"),
    _f("generation", "Int64", "", "generation that was collected; null but for gc"),
    _f("collected", "Int64", "", "objects collected; null but for gc"),
    _f("id", "String", "", "number that torch gave the compilation, as 3/1 for the second of function 3"),
    _f("function", "String", "", "function that was compiled"),
    _f("file", "String", "", "its file"),
    _f("line", "Int64", "", "its first line"),
    _f("backward", "Boolean", "", "its backward was compiled; null but for compile"),
    _f("reason", "String", "", "why it was compiled again; null for the first time"),
    _f("failed", "String", "", "what kind of error ended it; null where none did"),
)

#: What ``attribute`` hands on besides calls and ops.
MODULES = (
    _f("module", "String", "", "path"),
    _f("cls", "String", "", "class"),
    _f("parent", "String", "", "path of the module that calls it most; null at a root"),
    _f("calls", "Int64", "", "forward ranges"),
    _f("first_ns", "Int64", "ns", "begin of the first"),
)
PHASE_SPANS = (
    _PROCESS,
    _THREAD,
    *_span("CPU"),
    _f("phase", "String", "", "innermost phase; spans of a thread are disjoint"),
)

#: What ``steps`` hands on.
CPU_STEPS = (
    _PROCESS,
    _THREAD,
    _INDEX,
    _f("number", "Int64", "", "number that the program gave it, -1 without"),
    *_span("CPU"),
    _f("warmup", "Boolean", "", "before the steady steps"),
    _f("steady", "Boolean", "", "one of those that averages are taken over"),
    _f("cut", "Boolean", "", "the last one, whose end is not seen"),
)
GPU_STEPS = (_PROCESS, _DEVICE, _INDEX, *_span("device"))
BETWEEN_STEPS = (
    *GPU_STEPS,
    _f("cpu_start_ns", "Int64", "ns", "begin on the CPU"),
    _f("cpu_end_ns", "Int64", "ns", "end on the CPU"),
    _f("evaluation", "Boolean", "", "forwards without backward lie in it"),
)
GPU_WINDOWS = (_PROCESS, _DEVICE, *_span("device"))
CPU_WINDOWS = (_PROCESS, *_span("CPU"))

#: What ``ledger`` hands on.
IDLE = (
    _PROCESS,
    _DEVICE,
    *_span("device"),
    _f("cause", "Int64", "", "what the host did, as a place in CAUSES"),
    _f("gap", "Int64", "", "number of the gap that it is a piece of"),
    _f("op", "Int64", "", "GPU op that ended the gap, null at the end"),
    _f("began_in", "Int64", "", "API call in which the device ran dry, null for none"),
    _f("thread", "Int64", "", "thread that kept the device waiting before the launch, null for what no thread did"),
    _f("waited_device", "Int64", "", "device of the work that was waited for, null for none"),
    _f("waited_stream", "Int64", "", "stream of that work, null for none"),
)
WAITS = (
    _f("call", "Int64", "", "the API call"),
    _f("awaited", "String", "", "event, stream or device"),
    _f("backlog_ns", "Int64", "ns", "waiting for work that was queued before"),
    _f("own_op_ns", "Int64", "ns", "waiting for its own copy"),
    _f("host_ns", "Int64", "ns", "the rest; the three sum to the call"),
    _f("site", "Int64", "", "shared by a copy and the synchronize that waits for it"),
    _f("idle_caused_ns", "Int64", "ns", "idle time of the device that began in it"),
)

#: What ``reading`` hands on of Python's stacks: who was sampled when, and the frames of each distinct stack.
SAMPLES = (
    _THREAD,
    _f("time_ns", "Int64", "ns", "when it was sampled"),
    _f("stack", "Int64", "", "number of its stack"),
    _PROCESS,
)
STACKS = (
    _f("stack", "Int64", "", "number of the stack"),
    _f("depth", "Int64", "", "place of the frame, 0 for the innermost"),
    _f("function", "Categorical", "", "function as Python names it; null when not recorded"),
    _f("file", "Categorical", "", "its file; null when not recorded"),
    _f("line", "Int64", "", "line that runs; null when not recorded"),
)

#: Where a `Profile` holds a frame -> its columns.
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


def schema(columns: Iterable[Column]) -> dict[str, pl.DataType]:
    """Return name -> dtype of declared columns, for a frame that is made of rows."""
    return {c.name: getattr(pl, c.dtype)() for c in columns}


def undeclared(frame: pl.DataFrame, columns: tuple[Column, ...]) -> list[str]:
    """Return what a frame has against its declaration: columns that are missing, too many or of another type."""
    has, wants = {name: str(kind) for name, kind in frame.schema.items()}, {c.name: c.dtype for c in columns}
    return [
        f"{name}: {has.get(name, 'missing')} instead of {wants.get(name, 'nothing')}"
        for name in sorted(has.keys() | wants.keys())
        if has.get(name) != wants.get(name)
    ]
