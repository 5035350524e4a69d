"""Declares the columns of frames that are made on demand from the `declared` ones and read by another room.

As in `declared`, times are ns from the start of the session. The tests check each frame against its declaration.
"""

from __future__ import annotations

from nsysx.frames import frame_columns
from nsysx.frames.frame_columns import column
from nsysx.model import Column


def _chosen(columns: tuple[Column, ...], *names: str) -> tuple[Column, ...]:
    return tuple(c for c in columns if c.name in names)


_CALL = column("call", "Int64", "", "the API call")
_START, _END = column("start_ns", "Int64", "ns", "start"), column("end_ns", "Int64", "ns", "end")
_THREAD, _PROCESS = column("thread", "Int64", "", "thread"), column("process", "Int64", "", "process")
_INSIDE = column("ns", "Int64", "ns", "length inside the window")
_MODULE = column("module", "String", "", "module, null for none")
_PHASE = column("phase", "String", "", "phase of the step, null for none")
_SHARES = (
    column("sm_active", "Float32", "", "share of cycles in which SMs had a warp, 0 to 1"),
    column("sm_issue", "Float32", "", "share of cycles in which SMs issued an instruction, 0 to 1"),
    column("tensor_active", "Float32", "", "share of cycles in which tensor cores worked, 0 to 1"),
    column("dram_read", "Float32", "", "read bandwidth of the device memory as a share of the maximum, 0 to 1"),
    column("dram_write", "Float32", "", "write bandwidth, likewise"),
)
_LINKS = (
    column("pcie_rx", "Float32", "", "what comes over PCIe as a share of the maximum, 0 to 1; sampled more seldom"),
    column("pcie_tx", "Float32", "", "what leaves over PCIe, likewise"),
    column("nvlink_rx", "Float32", "", "what comes over NVLink (data of requests and responses), likewise"),
    column("nvlink_tx", "Float32", "", "what leaves over NVLink, likewise"),
)
_CLOCK = column("clock_hz", "Float64", "Hz", "clock of the SMs")

#: Frames of ``Trace``: NVTX domains, NCCL's own ranges, stacks inside CUDA calls, samples of the GPUs' counters.
DOMAINS = (_PROCESS, column("domain", "Int64", "", "its number"), column("domain_name", "Categorical", "", "its name"))
NCCL_RANGES = (
    _THREAD,
    _START,
    _END,
    column("operation", "String", "", "function of NCCL"),
    column("communicator", "String", "", "NCCL's id, the same on all its ranks; null if the export lacks payloads"),
    column("bytes", "Int64", "bytes", "size of the message, null if not known"),
    column("peer", "Int64", "", "rank that is sent to or received from, null for other operations"),
    column(
        "root", "Int64", "", "rank that a broadcast comes from, or that a reduction goes to, null for other operations"
    ),
    column("size", "Int64", "", "number of ranks, when a communicator is made or destroyed; else null"),
    column("rank", "Int64", "", "rank of this process in it, likewise"),
)
BACKTRACES = (
    _THREAD,
    column("time_ns", "Int64", "ns", "when it was taken"),
    column("frames", "List(String)", "", "file:line function, innermost first"),
)
COUNTERS = (
    column("gpu", "Int64", "", "nsys's number of the device"),
    column("time_ns", "Int64", "ns", "begin of the interval that was sampled"),
    *_SHARES,
    _CLOCK,
    *_LINKS,
)

#: ``Ranges.gil``: which threads hold Python's global lock and which wait for it.
GIL = (_PROCESS, _THREAD, _START, _END, column("holds", "Boolean", "", "true: holds the lock; false: waits for it"))

#: ``Ranges.lines``: the lines of Python that an X-ray recorded, as nested ranges.
LINE_RANGES = (_THREAD, _START, _END, column("label", "Categorical", "", "FILE:LINE FUNCTION"))
#: ``Profile.lines``: the innermost frame of the user's own code in which a call was made.
LINES = (
    _CALL,
    column("file", "String", "", "its file"),
    column("line", "Int64", "", "its line, null if not known"),
    column("function", "String", "", "its function"),
)
#: ``Profile.wait_sites``: the blocking calls of the steady steps, with what each waits for and where it was made.
WAIT_SITES = (
    *frame_columns.API_CALLS,
    _PHASE,
    _MODULE,
    column("grade", "Categorical", "", "how the module is known"),
    column("recompute", "Boolean", "", "called by a forward that checkpointing runs again in backward"),
    *(c for c in frame_columns.WAITS if c.name not in ("call", "site")),
    column("thread_role", "String", "", "role of the thread, null where it works for the module"),
    column("site", "String", "", "function, file, line, module and phase as text"),
    *LINES[1:],
    column("api", "String", "", "API function"),
)
#: ``Profile.shown_idle``: the idle pieces of a device, cut to its steady window.
IDLE_PIECES = (
    column("op", "Int64", "", "GPU op that ended the gap, -1 at the end"),
    *_chosen(frame_columns.IDLE, "cause"),
    column("began_in", "Int64", "", "API call during which the device ran out of work, -1 for none"),
    _INSIDE,
)
#: ``engine.idle_of``: idle pieces of the shown device, with what remains of each without tracing.
REAL_IDLE = (
    *frame_columns.IDLE,
    _INSIDE,
    column("real_ns", "Int64", "ns", "length without the profiler"),
)
#: ``host_pieces``: idle pieces of the shown device that the host caused, cut to the window, in order of time.
HOST_PIECES = (
    _START,
    _END,
    *_chosen(frame_columns.IDLE, "cause"),
    column("op", "Int64", "", "GPU op that ended the gap, null at the end"),
    column("thread", "Int64", "", "thread that was late, -1 for none"),
    column("module", "Categorical", "", "module of that op"),
    column("phase", "Categorical", "", "phase of that op"),
)
#: ``Operators.rows``: one row per operator to which work belongs.
OPERATORS = (
    column("name", "String", "", "torch's name of the operator"),
    column("shapes", "String", "", "sizes of its inputs as torch wrote them, null if not recorded"),
    column("caller", "String", "", "outermost of torch's own operators around it, null for none"),
    column("node", "String", "", "autograd's node around it, null in a forward"),
    column("read", "String", "", "shapes as the operator reads them, see events.operator_reads"),
    column("other_sizes", "Boolean", "", "the step has other sizes than the one whose sizes were recorded"),
    column("flops", "Int64", "", "floating point operations of one execution, null if unknown"),
    column("why_not", "String", "", "why flops is null; null for operators that do not multiply"),
    column("gradient_flops", "Int64", "", "flops of one gradient, if it is unknown which ones a backward computed"),
    column("tensor_bytes", "Int64", "bytes", "what the tensors of a Triton kernel hold, null for all others"),
    column("kind", "Int64", "", "number of all operators that are alike in every column before"),
)
#: ``Lines.rows``: idle time of the shown device by the Python line that kept it waiting; ``Lines.seen``: the samples behind it.
HOST_LINES = (
    column("place", "Int64", "", "row of PLACES, null for time without samples"),
    _MODULE,
    _PHASE,
    _THREAD,
    column("idle_ns", "Int64", "ns", "idle time of the device while the step ran"),
    column("loader_idle_ns", "Int64", "ns", "idle time of the device while the program waited for the loader"),
    column("host_ns", "Int64", "ns", "both together"),
    column("samples", "Int64", "", "number of samples"),
    column("low_ns", "Int64", "ns", "lower end of the 95 % confidence interval of host_ns"),
    column("high_ns", "Int64", "ns", "upper end of that interval"),
)
IDLE_SAMPLES = (
    column("stack", "Int64", "", "number of the stack"),
    *HOST_LINES[:1],
    column("op", "Int64", "", "GPU op that ended the gap"),
    *_chosen(frame_columns.IDLE, "cause"),
    _MODULE,
    _PHASE,
    column("ns", "Float64", "ns", "idle time that the sample represents"),
)
PLACES = (
    column("function", "String", "", "function of the user's own code, else the innermost function"),
    column("file", "String", "", "its file"),
    column("line", "Int64", "", "its line"),
    column(
        "framework", "String", "", "file:function of the library that was called there, null in the user's own code"
    ),
)
#: ``one_time_cost.costs``: the calls with a one-time cost, in order of time.
ONE_TIME_COSTS = (
    *_chosen(frame_columns.API_CALLS, "call", "process", "thread", "start_ns", "name", "kind"),
    column("module", "Categorical", "", "module in which it was called"),
    column("phase", "Categorical", "", "phase in which it was called"),
    column("kernel", "String", "", "the kernel that it launched, null for none or several"),
    column("one_time_ns", "Int64", "ns", "time that later calls of the kind do not take"),
    column("loading_ns", "Int64", "ns", "the part of it that the report measured, null if the report has no such rows"),
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
    column("total_ns", "Int64", "ns", "their total time"),
    column("median_ns", "Float64", "ns", "median time of one"),
    column("number_format", "String", "", "number format in its name, null if the name has none"),
    column("blocks", "Int64", "", "blocks of the grid"),
    column("threads", "Int64", "", "threads per block"),
    column("registers", "Int64", "", "registers per thread"),
    column("shared_bytes", "Int64", "bytes", "shared memory per block"),
    column("grid_text", "String", "", "grid as text"),
    column("block_text", "String", "", "block as text"),
    column("waves", "Float64", "", "blocks divided by the blocks that the device holds at once"),
    column("tail_share", "Float64", "", "share of the last wave that stays empty"),
    column("occupancy", "Float64", "", "theoretical occupancy: warps on an SM divided by the most that it can hold"),
    column("occupancy_limit", "String", "", "what limits the occupancy"),
    column("sm_count", "Int64", "", "number of SMs of the device"),
    column("limit", "String", "", "what limits the kernel, null if not known"),
    column("samples", "Int64", "", "number of counter samples inside it, null if none were taken"),
    column("dram", "Float64", "", "mean share of the memory bandwidth, 0 to 1, null for too few samples"),
    column("tensor_active", "Float64", "", "mean of tensor_active, likewise"),
    column("sm_active", "Float64", "", "mean of sm_active, likewise"),
)
