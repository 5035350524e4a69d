"""Frames that are made of the declared ones where they are asked for, and that another room reads: their columns, once.

As in `declared`, times are ns from the start of the session. The tests hold each against what makes it.
"""

from __future__ import annotations

from nsysx.frames import declared
from nsysx.frames.declared import column
from nsysx.model import Column


def _one(columns: tuple[Column, ...], *names: str) -> tuple[Column, ...]:
    return tuple(c for c in columns if c.name in names)


_CALL = column("call", "Int64", "", "the API call")
_OP = column("op", "Int64", "", "the GPU op")
_START, _END = column("start_ns", "Int64", "ns", "begin"), column("end_ns", "Int64", "ns", "end")
_THREAD, _PROCESS = column("thread", "Int64", "", "thread"), column("process", "Int64", "", "process")
_INSIDE = column("ns", "Int64", "ns", "length inside the window")
_MODULE = column("module", "String", "", "module, null for none")
_PHASE = column("phase", "String", "", "phase of the step, null for none")
_SHARES = (
    column("sm_active", "Float32", "", "SMs with a warp, share of all cycles, 0 to 1"),
    column("tensor_active", "Float32", "", "tensor cores at work, likewise"),
    column("dram_read", "Float32", "", "bandwidth of the memory that is read, share of what there is, 0 to 1"),
    column("dram_write", "Float32", "", "likewise, written"),
)
_CLOCK = column("clock_hz", "Float64", "Hz", "clock of the SMs")

#: ``Trace``: domains of NVTX, NCCL's own ranges, stacks inside CUDA calls, samples of the GPUs' counters.
DOMAINS = (_PROCESS, column("domain", "Int64", "", "its number"), column("domain_name", "Categorical", "", "its name"))
NCCL_RANGES = (
    _THREAD,
    _START,
    _END,
    column("operation", "String", "", "function of NCCL"),
    column(
        "communicator", "String", "", "NCCL's id of it, the same on all its ranks; null where the export is without"
    ),
    column("bytes", "Int64", "bytes", "size of the message, null where it is not known"),
    column("peer", "Int64", "", "rank that is sent to or received from, null for others"),
    column("size", "Int64", "", "ranks of the communicator, where it is made or ended; else null"),
    column("rank", "Int64", "", "number of this one in it, likewise"),
)
BACKTRACES = (
    _THREAD,
    column("time_ns", "Int64", "ns", "when it was taken"),
    column("frames", "List(String)", "", "file:line function, innermost first"),
)
COUNTERS = (
    column("gpu", "Int64", "", "number by which nsys knows the device"),
    column("time_ns", "Int64", "ns", "end of the interval that was sampled"),
    *_SHARES,
    _CLOCK,
)

#: ``Ranges.gil``: who holds Python's lock and who waits for it.
GIL = (_PROCESS, _THREAD, _START, _END, column("holds", "Boolean", "", "has the lock, else waits for it"))

#: ``Profile.lines``: the first frame of the user's own code in which a call was made.
LINES = (
    _CALL,
    column("file", "String", "", "its file"),
    column("line", "Int64", "", "its line, null where it is not known"),
    column("function", "String", "", "its function"),
)
#: ``Profile.wait_sites``: the blocking calls of the steady steps with what each waits for and where it is made.
WAIT_SITES = (
    *declared.API_CALLS,
    _PHASE,
    _MODULE,
    column("grade", "Categorical", "", "how the module is known"),
    column("recompute", "Boolean", "", "called by a forward that checkpointing runs again in backward"),
    *(c for c in declared.WAITS if c.name not in ("call", "site")),
    column("site", "String", "", "function, file, line, module and phase in words"),
    *LINES[1:],
    column("api", "String", "", "API function"),
)
#: ``Profile.shown_idle``: the idle pieces of a device, cut to its steady window.
IDLE_PIECES = (
    column("op", "Int64", "", "GPU op that ended the gap, -1 at the end"),
    *_one(declared.IDLE, "cause"),
    column("began_in", "Int64", "", "API call in which the device ran dry, -1 for none"),
    _INSIDE,
)
#: ``engine.idle_of``: idle pieces of the shown device, and what is left of each without tracing.
REAL_IDLE = (
    *declared.IDLE,
    _INSIDE,
    column("real_ns", "Int64", "ns", "length without the profiler"),
)
#: ``host_pieces``: idle pieces of the shown device that are the host's doing, cut to the window, in order of time.
HOST_PIECES = (
    _START,
    _END,
    *_one(declared.IDLE, "cause"),
    column("op", "Int64", "", "GPU op that ended the gap, null at the end"),
    column("thread", "Int64", "", "thread that was late, -1 for none"),
    column("module", "Categorical", "", "module of that op"),
    column("phase", "Categorical", "", "phase of that op"),
)
#: ``gpu_samples.of_ops``: one row per sample of the counters that lies wholly in an op.
OP_COUNTERS = (
    _OP,
    *_SHARES,
    _CLOCK,
    column("dram", "Float32", "", "read and write together, null without one of them"),
)
#: ``Operators.rows``: one row per operator that work belongs to.
OPERATORS = (
    column("name", "String", "", "operator as torch names it"),
    column("shapes", "String", "", "sizes of its inputs as torch wrote them, null where not recorded"),
    column("caller", "String", "", "outermost of torch's own operators around it, null without"),
    column("flops", "Int64", "", "floating point operations of one execution, null where they cannot be told"),
    column("why_not", "String", "", "then the reason; null for operators that multiply nothing"),
    column("gradient_flops", "Int64", "", "of one gradient, where it is not known which a backward made"),
)
#: ``Lines.rows``: idle time of the shown device by the Python line that kept it waiting; ``Lines.seen``: the samples behind it.
HOST_LINES = (
    column("place", "Int64", "", "row of PLACES, null for what was not sampled"),
    _MODULE,
    _PHASE,
    _THREAD,
    column("idle_ns", "Int64", "ns", "idle time of the device while the step ran"),
    column("loader_idle_ns", "Int64", "ns", "idle time of the device while the loader was waited for"),
    column("host_ns", "Int64", "ns", "both together"),
    column("samples", "Int64", "", "samples of it"),
    column("low_ns", "Int64", "ns", "least that it can be, with 95 % confidence"),
    column("high_ns", "Int64", "ns", "most that it can be, likewise"),
)
IDLE_SAMPLES = (
    column("stack", "Int64", "", "number of the stack"),
    *HOST_LINES[:1],
    column("op", "Int64", "", "GPU op that ended the gap"),
    *_one(declared.IDLE, "cause"),
    _MODULE,
    _PHASE,
    column("ns", "Float64", "ns", "part of the idle time that the sample stands for"),
)
PLACES = (
    column("function", "String", "", "function of the user's own code, else the innermost"),
    column("file", "String", "", "its file"),
    column("line", "Int64", "", "its line"),
    column(
        "framework", "String", "", "file:function of the library that was called there, null in the user's own code"
    ),
)
#: ``one_time_cost.costs``: the calls that cost something once, in order of time.
ONE_TIME_COSTS = (
    *_one(declared.API_CALLS, "call", "process", "start_ns", "name", "kind"),
    column("module", "Categorical", "", "module in which it was called"),
    column("phase", "Categorical", "", "phase in which it was called"),
    column("kernel", "String", "", "the one that it launched, null for none or several"),
    column("one_time_ns", "Int64", "ns", "time that no later call of the kind takes"),
    column("loading_ns", "Int64", "ns", "what the report measured of it, null where it has no such rows"),
    column("evidence", "String", "", "in full, measured, only call, above median"),
    column("bill", "Int64", "", "row of the bills"),
)
#: ``kernel_shapes.shapes``: the kernels of the steady steps by name, grid, block and card, longest total first.
KERNEL_SHAPES = (
    column("name", "Categorical", "", "kernel"),
    column("grid", "Int64", "", "grid, packed"),
    column("block", "Int64", "", "block, registers and shared memory, packed"),
    column("card", "Int64", "", "number of the device's limits"),
    column("family", "Categorical", "", "kernel family"),
    column("cls", "Categorical", "", "compute or comm"),
    column("count", "Int64", "", "executions"),
    column("total_ns", "Int64", "ns", "their time together"),
    column("median_ns", "Float64", "ns", "median of one"),
    column("number_format", "String", "", "number format that its name tells, null where it does not"),
    column("blocks", "Int64", "", "blocks of the grid"),
    column("threads", "Int64", "", "threads of a block"),
    column("registers", "Int64", "", "registers of a thread"),
    column("shared_bytes", "Int64", "bytes", "shared memory of a block"),
    column("grid_text", "String", "", "grid, for people"),
    column("block_text", "String", "", "block, for people"),
    column("waves", "Float64", "", "blocks over what the device holds at once"),
    column("tail_share", "Float64", "", "share of the last wave that stays empty"),
    column("occupancy", "Float64", "", "warps on an SM over what it can hold, in theory"),
    column("occupancy_limit", "String", "", "what limits that"),
    column("sm_count", "Int64", "", "SMs of the device"),
    column("limit", "String", "", "what limits the kernel, null where nothing is known to"),
    column("samples", "Int64", "", "samples of the counters inside it, null where none were taken"),
    column("dram", "Float64", "", "mean of the memory bandwidth, 0 to 1, null for too few samples"),
    column("tensor_active", "Float64", "", "mean of the tensor cores, likewise"),
    column("sm_active", "Float64", "", "mean of the SMs, likewise"),
)
