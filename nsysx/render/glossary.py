"""CUDA calls and the words of a report in plain language: data for the page and for ``nsysx explain``.

Written for somebody who knows PyTorch and not CUDA: what a call does, when it is normal to see it, what makes it cheaper.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nsysx.model import Summary
from nsysx.render.entries import Entry as Entry
from nsysx.render.operations import OPERATIONS


def _call(name: str, what: str, normal: str = "", cheaper: str = "", *aliases: str) -> Entry:
    return Entry(name, "call", what, normal, cheaper, aliases)


def _word(name: str, what: str, cheaper: str = "") -> Entry:
    return Entry(name, "word", what, "", cheaper)


CALLS = (
    _call(
        "cudaLaunchKernel",
        "Puts one GPU function (a kernel) into a stream's queue and returns; the GPU runs it later. It does not "
        "wait for the kernel.",
        "One to a few per PyTorch operation. A few microseconds each is the usual price; the first launch of each "
        "kernel also loads its code, which takes far longer. A launch that takes milliseconds in the middle of "
        "training usually met a full launch queue: the GPU is the limit and the CPU is merely ahead.",
        "Fewer, larger operations: torch.compile, CUDA graphs, fused or foreach optimizers, larger batches. It "
        "only matters when the GPU is idle because launches come too slowly.",
        "cudaLaunchKernelExC",
        "cuLaunchKernel",
        "cuLaunchKernelEx",
    ),
    _call(
        "cudaLaunchCooperativeKernel",
        "Launches a kernel whose blocks may synchronize with each other; otherwise like cudaLaunchKernel.",
        "Used by some reductions and communication kernels.",
        "As for cudaLaunchKernel.",
        "cuLaunchCooperativeKernel",
    ),
    _call(
        "cudaGraphLaunch",
        "Starts a recorded graph of many kernels with one call.",
        "One per step or per captured region. The call replaces hundreds of launches.",
        "Already the cheap form. Keep shapes fixed, so that graphs are reused and not captured again.",
        "cuGraphLaunch",
    ),
    _call(
        "cudaGraphInstantiate",
        "Turns a captured graph into one that can be launched.",
        "Once per graph, in warm-up. It can take milliseconds.",
        "Avoid recapture: fixed shapes, and dynamic shapes padded to a few sizes.",
        "cudaGraphInstantiateWithFlags",
        "cuGraphInstantiate",
        "cuGraphInstantiateWithFlags",
    ),
    _call(
        "cudaStreamBeginCapture",
        "Begins to record the work of a stream into a graph and does not run it.",
        "Once per captured graph, in warm-up.",
        "Capture once, launch often.",
        "cudaStreamEndCapture",
        "cuStreamBeginCapture",
        "cuStreamEndCapture",
    ),
    _call(
        "cudaMemcpyAsync",
        "Queues a copy between host and device or within a device. From or to pinned host memory it returns at "
        "once. With ordinary (pageable) host memory the CPU is held up: while the data is staged on the way to the "
        "device, and until the copy is done on the way back.",
        "Batches going to the GPU, and single values coming back. A very long one is almost always not a slow "
        "copy: .item(), nonzero, a boolean mask or unique copy a size back to the CPU, and the call waits for "
        "everything queued before it.",
        "Host to device: pin_memory=True and non_blocking=True. Device to host: do it less often, or later. But "
        "look at the saving first: the wait may only move to the next call.",
        "cudaMemcpy2DAsync",
        "cuMemcpyAsync",
        "cuMemcpyHtoDAsync",
        "cuMemcpyDtoHAsync",
        "cuMemcpyDtoDAsync",
    ),
    _call(
        "cudaMemcpy",
        "Copies, and as a rule waits until the copy is done.",
        "Rare in PyTorch; usual in hand-written extensions.",
        "cudaMemcpyAsync on the current stream with pinned memory.",
        "cuMemcpy",
        "cuMemcpyHtoD",
        "cuMemcpyDtoH",
        "cudaMemcpy2D",
    ),
    _call(
        "cudaMemsetAsync",
        "Queues filling device memory with one byte value.",
        "torch.zeros, zero_(), and libraries that clear their work space.",
        "torch.empty where every value is written anyway; zero_grad(set_to_none=True).",
        "cudaMemset",
        "cuMemsetD8Async",
        "cuMemsetD32Async",
        "cuMemsetD8",
        "cuMemsetD32",
    ),
    _call(
        "cudaStreamSynchronize",
        "The CPU waits until everything queued in one stream has finished.",
        "After copying a value to the CPU: .item(), .cpu(), nonzero, masks, printing a tensor. Its length says how "
        "far the CPU was ahead of the GPU, not what the call costs: in a GPU-bound program it is long and "
        "harmless.",
        "Ask for values less often (log every n steps), keep decisions on the GPU (torch.where instead of a mask), "
        "or copy with non_blocking=True and read the value one step later. Worth it only when the GPU is idle "
        "after the wait.",
        "cuStreamSynchronize",
    ),
    _call(
        "cudaDeviceSynchronize",
        "The CPU waits until all streams of the device have finished.",
        "torch.cuda.synchronize(), for timing, and at the end of a program.",
        "Take it out of the training loop; for timing use torch.cuda.Event or torch.utils.benchmark.",
        "cuCtxSynchronize",
    ),
    _call(
        "cudaEventSynchronize",
        "The CPU waits until the GPU has passed a recorded event.",
        "event.synchronize(), the pinned-memory allocator, and libraries that limit how far they run ahead.",
        "Wait for an older event, or ask with event.query().",
        "cuEventSynchronize",
    ),
    _call(
        "cudaEventRecord",
        "Puts a marker into a stream; the GPU notes the time when it gets there.",
        "torch.cuda.Event.record(), stream synchronization, communication. About as cheap as a small launch.",
        "An event pair times everything between the two markers, also the time in which the GPU waited for the "
        "next launch: put several operations between them, or make the GPU busy first.",
        "cudaEventRecordWithFlags",
        "cuEventRecord",
        "cuEventRecordWithFlags",
    ),
    _call(
        "cudaEventQuery",
        "Asks whether the GPU has passed an event, without waiting.",
        "The caching allocator and NCCL's watchdog do it often.",
        "Cheap each; thousands per step mean that something is polling.",
        "cuEventQuery",
    ),
    _call(
        "cudaStreamQuery",
        "Asks whether a stream has finished, without waiting.",
        "Polling loops.",
        "Cheap each; wait for an event where a program polls in a tight loop.",
        "cuStreamQuery",
    ),
    _call(
        "cudaEventCreate",
        "Makes an event.",
        "A few at the start.",
        "Make events once and use them again.",
        "cudaEventCreateWithFlags",
        "cudaEventDestroy",
        "cuEventCreate",
        "cuEventDestroy",
    ),
    _call(
        "cudaEventElapsedTime",
        "Returns the time between two recorded events.",
        "Timing code.",
        "",
        "cuEventElapsedTime",
    ),
    _call(
        "cudaStreamWaitEvent",
        "Makes a stream wait, on the GPU, for an event of another stream. The CPU does not wait.",
        "Whenever work is spread over streams: communication, prefetch, side streams.",
        "It costs the CPU little. If the GPU is idle there, start the work that is waited for earlier.",
        "cuStreamWaitEvent",
    ),
    _call(
        "cudaMalloc",
        "Takes device memory from the driver. It may wait for running GPU work.",
        "In the first steps, while PyTorch's caching allocator grows. Later, memory is reused and this call "
        "disappears.",
        "In steady steps it means that shapes change or memory is short: fixed or bucketed shapes, "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, a smaller batch.",
        "cuMemAlloc",
        "cudaMallocPitch",
    ),
    _call(
        "cudaFree",
        "Gives device memory back to the driver and as a rule waits for the GPU to finish first.",
        "At the end, and once at the start (cudaFree(0) is a common way to create the context, which is slow).",
        "In steady steps it is the caching allocator under memory pressure: it frees everything cached and "
        "allocates again. Use less memory, fixed shapes, or expandable segments; do not call "
        "torch.cuda.empty_cache() in the loop.",
        "cuMemFree",
    ),
    _call(
        "cudaMallocAsync",
        "Takes device memory from a pool in stream order, without waiting.",
        "With PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync, in graphs, and in other libraries.",
        "Cheap when the pool keeps its memory.",
        "cudaFreeAsync",
        "cuMemAllocAsync",
        "cuMemFreeAsync",
        "cudaMallocFromPoolAsync",
    ),
    _call(
        "cuMemCreate",
        "Takes physical device memory without an address; cuMemMap then gives it one.",
        "PyTorch with expandable_segments:True, and NCCL.",
        "In steady steps memory still grows: see cudaMalloc.",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemAddressReserve",
        "cuMemUnmap",
        "cuMemRelease",
    ),
    _call(
        "cudaHostAlloc",
        "Allocates pinned host memory, which the GPU can read directly. The operating system must lock every page, "
        "so it is slow: milliseconds for large buffers.",
        "The first batches with pin_memory=True, and the first .to('cpu', non_blocking=True). PyTorch keeps the "
        "buffers and uses them again.",
        "In steady steps: batches of changing size ask for new buffers. Use fixed sizes or one buffer that is reused.",
        "cudaMallocHost",
        "cuMemHostAlloc",
        "cuMemAllocHost",
    ),
    _call(
        "cudaFreeHost",
        "Gives pinned host memory back.",
        "At the end of a program.",
        "Reuse pinned buffers.",
        "cuMemFreeHost",
    ),
    _call(
        "cudaHostRegister",
        "Pins memory that the program already has.",
        "Libraries that share memory between processes or with a network card.",
        "Once per buffer, not per step.",
        "cudaHostUnregister",
        "cuMemHostRegister",
        "cuMemHostUnregister",
    ),
    _call(
        "cuLibraryLoadData",
        "Loads GPU code into the device. With lazy loading, the default on Linux since CUDA 12.2, this happens "
        "inside the first launch of a kernel.",
        "Once per library or module, in the first steps. It makes first launches take milliseconds.",
        "It is no part of a steady step. Warm up before timing; torch.compile caches and fewer different kernels "
        "shorten it.",
        "cuLibraryLoadFromFile",
        "cuModuleLoadData",
        "cuModuleLoadDataEx",
        "cuModuleLoad",
        "cuModuleLoadFatBinary",
        "cudaLibraryLoadData",
        "cuLibraryGetKernel",
        "cuLibraryGetModule",
        "cuModuleGetFunction",
        "cuKernelGetFunction",
        "cuModuleGetLoadingMode",
    ),
    _call(
        "cuLibraryUnload",
        "Removes GPU code from the device.",
        "At the end of a program.",
        "",
        "cuModuleUnload",
        "cudaLibraryUnload",
    ),
    _call(
        "cuInit",
        "Starts the CUDA driver in this process.",
        "Once. Up to some hundred milliseconds, more with many GPUs.",
        "Hide devices that are not needed (CUDA_VISIBLE_DEVICES); keep the driver loaded with persistence mode.",
    ),
    _call(
        "cuDevicePrimaryCtxRetain",
        "Creates, at first use, the context that holds all that a process has on a device.",
        "Once per process and device; hundreds of milliseconds.",
        "It is no part of a steady step; keep processes alive.",
        "cuCtxCreate",
        "cudaSetDevice",
        "cudaInitDevice",
    ),
    _call(
        "cudaGetDeviceProperties",
        "Reads what a device can do.",
        "At the start.",
        "Slow enough to matter when called in a loop: read it once.",
        "cudaDeviceGetAttribute",
        "cuDeviceGetAttribute",
    ),
    _call(
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
        "Computes how many blocks of a kernel fit on one multiprocessor.",
        "Libraries ask before a launch.",
        "Cheap; nothing to do.",
        "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        "cudaOccupancyMaxActiveClusters",
        "cuOccupancyMaxActiveClusters",
        "cudaOccupancyAvailableDynamicSMemPerBlock",
        "cuOccupancyAvailableDynamicSMemPerBlock",
    ),
    _call(
        "cudaFuncSetAttribute",
        "Sets a property of a kernel, such as how much shared memory it may use. The first call for a kernel loads "
        "its code.",
        "Before launches of matrix and attention kernels.",
        "Cheap after the first time.",
        "cudaFuncGetAttributes",
        "cuFuncSetAttribute",
        "cuFuncGetAttribute",
    ),
    _call(
        "cudaStreamCreateWithPriority",
        "Makes a stream: a queue of GPU work.",
        "At the start.",
        "Make streams once.",
        "cudaStreamCreate",
        "cudaStreamCreateWithFlags",
        "cudaStreamDestroy",
        "cuStreamCreate",
        "cuStreamCreateWithPriority",
        "cuStreamDestroy",
    ),
    _call(
        "cudaStreamIsCapturing",
        "Asks whether a stream is being captured into a graph.",
        "PyTorch asks before many allocations and waits.",
        "Very cheap; nothing to do.",
        "cudaStreamGetCaptureInfo",
        "cuStreamIsCapturing",
        "cuStreamGetCaptureInfo",
    ),
    _call(
        "cudaProfilerStart",
        "Opens or closes the part of the run that a profiler records.",
        "In profiled runs only.",
        "",
        "cudaProfilerStop",
        "cuProfilerStart",
        "cuProfilerStop",
    ),
    _call(
        "cudaDeviceGetStreamPriorityRange",
        "Reads the stream priorities that a device knows.",
        "At the start.",
        "",
    ),
    _call(
        "cudaHostGetDevicePointer",
        "Returns the device's address of pinned host memory.",
        "NCCL and extensions, at the start.",
        "",
        "cudaPointerGetAttributes",
        "cuPointerGetAttribute",
        "cuPointerGetAttributes",
    ),
    _call(
        "cudaMemGetInfo",
        "Asks the driver how much device memory is free.",
        "torch.cuda.mem_get_info(), and allocators that are short of memory.",
        "Not in the training loop: use torch.cuda.memory_stats(), which asks nobody.",
        "cuMemGetInfo",
    ),
    _call(
        "cuTensorMapEncodeTiled",
        "Describes a tensor's layout for the copy engine of Hopper and newer GPUs.",
        "Before launches of matrix and attention kernels on such GPUs.",
        "Cheap; nothing to do.",
        "cuTensorMapEncodeIm2col",
    ),
    _call(
        "cudaGetDriverEntryPoint",
        "Looks up a function of the driver.",
        "Libraries, at the start.",
        "",
        "cuGetProcAddress",
        "cudaGetDriverEntryPointByVersion",
    ),
    _call(
        "cudaLaunchHostFunc",
        "Queues a function that the CPU runs when the GPU gets there; the stream waits for it.",
        "Callbacks in libraries.",
        "Keep such functions short: the stream stands still meanwhile.",
        "cudaStreamAddCallback",
        "cuLaunchHostFunc",
        "cuStreamAddCallback",
    ),
    _call(
        "cudaMemPrefetchAsync",
        "Moves unified memory to a device before it is used.",
        "Programs with unified memory.",
        "It makes page faults disappear.",
        "cuMemPrefetchAsync",
        "cudaMallocManaged",
        "cuMemAllocManaged",
    ),
    _call(
        "cudaIpcOpenMemHandle",
        "Opens device memory of another process.",
        "Sharing tensors between processes, and NCCL at the start.",
        "Once per buffer.",
        "cudaIpcGetMemHandle",
        "cuIpcOpenMemHandle",
        "cuIpcGetMemHandle",
    ),
)

WORDS = (
    _word(
        "step",
        "One pass of the training loop. The CPU step is the range on the thread that drives it; the GPU step runs "
        "from the first GPU work launched in one step to that of the next.",
    ),
    _word(
        "steady step",
        "A step after warm-up. Averages on this page are over steady steps only.",
    ),
    _word(
        "warm-up",
        "The first steps, which load code, fill caches and allocate memory. They say nothing about the rest of a run.",
    ),
    _word(
        "kernel",
        "A function that runs on the GPU. Kernel time is its end minus its start on the GPU.",
    ),
    _word(
        "GPU busy",
        "Time in which at least one kernel, copy or fill ran on the device. Work that overlaps counts once.",
    ),
    _word(
        "ledger",
        "A list in which every nanosecond of a window stands in exactly one place, so that its parts sum to the whole.",
    ),
    _word(
        "idle",
        "Time in which the device ran nothing. Each gap is charged to what the CPU thread did that launched the "
        "work after it.",
    ),
    _word(
        "launch latency",
        "Time from the start of a launch call to the start of its kernel on a GPU that had nothing else to do.",
    ),
    _word(
        "queue time",
        "Time that launched work waited for its turn on the GPU. Long queues mean that the GPU is the limit.",
    ),
    _word(
        "stream",
        "A queue of GPU work that runs in order. Different streams may run at the same time.",
    ),
    _word(
        "wait",
        "A call in which the CPU stands still until the GPU has done something.",
    ),
    _word(
        "backlog",
        "The part of a wait that was spent on GPU work launched before the call. It is the GPU's time, not the call's.",
    ),
    _word(
        "own work",
        "The part of a blocking call spent on the GPU work that the call itself asked for, such as its copy.",
    ),
    _word(
        "host cost",
        "What is left of a call: driver and operating system.",
    ),
    _word(
        "saving",
        "By how much the step gets shorter, from a replay of the recorded step with the change made. It is not the "
        "length of the wait.",
    ),
    _word(
        "replay",
        "A simulation that runs the recorded step again. Unchanged it must give the recorded time; the difference "
        "is its error bar.",
    ),
    _word(
        "pageable memory",
        "Ordinary host memory. The GPU cannot read it directly, so copies go through a staging buffer and hold up "
        "the CPU.",
        "Pin it: pin_memory=True in DataLoader.",
    ),
    _word(
        "pinned memory",
        "Host memory whose pages are locked, so that the GPU copies directly and the CPU need not wait.",
    ),
    _word(
        "self time",
        "Time of a call without the calls nested in it; GPU time of a module without its children.",
    ),
    _word(
        "grade",
        "How the work was matched to a module: thread (by the range open on the launching thread), seq (by "
        "autograd's sequence number), sequence (the call repeats that of a step whose modules were marked), time (by what "
        "was open at that time), none.",
    ),
    _word(
        "phase",
        "A part of the training loop: data, host-to-device copy, forward, loss, backward, optimizer.",
    ),
    _word(
        "exposed",
        "Communication or copying during which the GPU computes nothing; the hidden part runs beside computation "
        "and is free.",
    ),
    _word(
        "CUDA graph",
        "Many kernels recorded once and started with one call.",
    ),
    _word(
        "bandwidth",
        "Bytes moved divided by the time of the copy, in GB/s of 10^9 bytes.",
    ),
)

ENTRIES: tuple[Entry, ...] = CALLS + OPERATIONS + WORDS

_BY_NAME = {name.lower(): entry for entry in ENTRIES for name in (entry.name, *entry.aliases)}
_SUFFIX = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


def lookup(name: str) -> Entry | None:
    """Return what is known about a CUDA call (any version suffix), an operation or a word of the report, else None."""
    bare = _SUFFIX.sub("", name.strip())
    return _BY_NAME.get(bare.lower()) or _BY_NAME.get(re.sub(r"_v\d+", "", bare).lower())


def nearest(name: str) -> list[str]:
    """Return up to five explained names that look like ``name``, the likeliest first."""
    import difflib

    close = difflib.get_close_matches(_SUFFIX.sub("", name.strip()).lower()[:200], list(_BY_NAME), n=10, cutoff=0.5)
    found = dict.fromkeys(_BY_NAME[key].name for key in close)
    return list(found)[:5]


def manual(entry: Entry) -> str:
    """Return an entry as text for a terminal: name, what it does, when it is normal, what makes it cheaper."""
    import textwrap

    parts = [entry.name if not entry.aliases else f"{entry.name}  (also {', '.join(entry.aliases)})"]
    for title, text in (("", entry.what), ("When it is normal: ", entry.normal), ("Cheaper: ", entry.cheaper)):
        if text:
            parts.append(textwrap.fill(title + text, width=100, initial_indent="  ", subsequent_indent="  "))
    return "\n".join(parts)


def key(name: str) -> str:
    """Return the anchor of ``name`` in the glossary, "" when it is not explained. Made of our own words only."""
    entry = lookup(name)
    return anchor(entry) if entry else ""


def anchor(entry: Entry) -> str:
    """Return the id of an entry on the page."""
    return "g-" + entry.name.replace(" ", "-")


def used(summary: Summary) -> tuple[Entry, ...]:
    """Return the entries for the calls that ``summary`` names, then all the words."""
    names: Iterable[str] = (
        str(row.get(table.shown.terms) or "")[:200]
        for table in summary.tables.values()
        if table.shown.terms
        for row in table.rows or ()
    )
    found = {entry.name for name in names if (entry := lookup(name)) and entry.kind == "call"}
    return tuple(e for e in CALLS if e.name in found) + WORDS
