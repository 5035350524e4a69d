"""What nsys and CUPTI write about a recording: the cause in plain words, what it hides, and what to do about it.

The one table of their messages: an empty report's error, the checks of a page, ``nsysx doctor`` and ``nsysx explain`` read it.
The texts are those that nsys 2021 to 2026 writes into DIAGNOSTIC_EVENT, and the names of CUPTI's error codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

#: What a message says is missing: the GPU's side and its calls, part of the GPU's work, ranges, samples of the CPU, or nothing.
Hides = Literal["cuda", "some", "ranges", "samples", ""]


@dataclass(frozen=True, slots=True)
class NsysMessage:
    """One message: how it is recognized, its cause and its remedy, each a clause without a full stop.

    ``{0}`` in cause and remedy is the first group of the pattern. ``always`` means that nsys may call it mere information and that
    it matters all the same. ``certain`` means that what it says happened; the others only name what might have.
    """

    name: str
    pattern: str
    hides: Hides
    cause: str
    remedy: str
    always: bool = False
    certain: bool = True

    def match(self, text: str) -> re.Match[str] | None:
        """Return the match in a text of nsys, or None."""
        return re.search(self.pattern, text, re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message in a report, with its cause and remedy filled in, and the first line of nsys' own words."""

    message: NsysMessage
    cause: str
    remedy: str
    words: str


#: Hardware tracing learns the times of kernels when the program ends, so a capture that ends earlier loses them.
WHOLE_PROGRAM = (
    "nsys profile -t cuda-sw,nvtx --cuda-graph-trace=node CMD (nsysx run --steps does so by itself), "
    "or let the program end inside the capture"
)
#: What to do if the GPU's side is missing, the calls are there, and nsys says nothing about it.
SILENT = "stop other tools that use CUPTI (torch.profiler, ncu, DCGM), and let the program end inside the capture"
_ONE_TOOL = "stop the other tool that uses CUPTI (torch.profiler, ncu, DCGM, another nsys), and record again"
_WRAP = "put nsys directly before the program: inside the container, in the job step, after ssh or sudo"

#: In the order in which they explain a report without CUDA: what makes tracing impossible comes first.
MESSAGES = (
    NsysMessage(
        "protected-memory",
        r"Protected Memory mode|Confidential Compute mode",
        "cuda",
        "the GPU is in protected memory (confidential computing) mode, in which nsys cannot trace CUDA",
        "record on a GPU that is not in this mode (nvidia-smi conf-compute -f shows it)",
        always=True,
    ),
    NsysMessage(
        "mining-card",
        r"Crypto Mining Processors|ERR_NVCMPGPU",
        "cuda",
        "the card is a mining processor, on which NVIDIA allows no CUDA tracing",
        "record on another GPU",
        always=True,
    ),
    NsysMessage(
        "multiple-subscribers",
        r"already subscribed to CUPTI|multiple (?:concurrent )?subscribers?|CUPTI_ERROR_MULTIPLE_SUBSCRIBERS\w*",
        "cuda",
        "another tool traces CUDA in the same program, and CUPTI serves one at a time",
        _ONE_TOOL,
        always=True,
    ),
    NsysMessage(
        "no-permission",
        r"ERR_NVGPUCTRPERM|CUPTI_ERROR_INSUFFICIENT_PRIVILEGES|CUPTI_ERROR_VIRTUALIZED_DEVICE\w*",
        "cuda",
        "the driver lets only administrators read the GPU's counters, or the GPU is a virtual one",
        "set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module, or give the container CAP_SYS_ADMIN; tracing "
        "without --gpu-metrics needs neither",
        always=True,
    ),
    NsysMessage(
        "subscribe-failed",
        r"Subscribe returned \d+: (\w+)|CUPTI_ERROR_(?!MULTIPLE|INSUFFICIENT|VIRTUALIZED)\w+",
        "cuda",
        "CUPTI, the part of CUDA that records, could not be started",
        "install an nsys as new as the driver, stop other tools that use CUPTI, and try again",
        always=True,
    ),
    NsysMessage(
        "driver-injects-another",
        r"CUDA driver is configured to inject all processes",
        "cuda",
        "the driver is told to load another tool's library into every program",
        "remove the file that nsys names, and record again",
        always=True,
    ),
    NsysMessage(
        "library-not-loaded",
        r"library is missing from the LD_PRELOAD|(?:Common|CUDA) injection (?:library )?initialization failed"
        r"|Cannot retrieve injection library",
        "cuda",
        "the program did not load the library of nsys that records it",
        f"{_WRAP}, and keep LD_PRELOAD and CUDA_INJECTION64_PATH in its environment",
        always=True,
    ),
    NsysMessage(
        "could-not-parse",
        r"Could not parse (\d+) CUPTI activity records?",
        "cuda",
        "nsys could not read what CUPTI wrote ({0} activity records): driver and profiler do not fit together",
        "record with a newer nsys, or update the CUDA driver",
    ),
    NsysMessage(
        "driver-newer",
        r"driver version \(([\d.]{1,12})\) is not supported by this build",
        "cuda",
        "the CUDA driver ({0}) is newer than this nsys knows",
        "install an nsys as new as the driver (CUDA {0})",
        certain=False,
    ),
    NsysMessage(
        "hardware-dropped",
        r"incomplete CUPTI events dropped:\s*(\d{1,18})\b",
        "some",
        "nsys dropped {0} GPU events whose times it never got",
        WHOLE_PROGRAM,
    ),
    NsysMessage(
        "records-dropped",
        r"CUPTI dropped (\d+) records|CUPTI buffer allocation limit",
        "some",
        "CUPTI ran out of buffers and dropped records",
        "record fewer steps, or write events earlier: nsys profile --cuda-flush-interval=1000",
        always=True,
    ),
    NsysMessage(
        "events-cut",
        r"CUPTI events might be missing",
        "some",
        "the program ended, or was killed, before all events were written",
        "let the program end inside the capture, or write events earlier: nsys profile --cuda-flush-interval=1000",
        always=True,
        certain=False,
    ),
    NsysMessage(
        "dynamic-parallelism",
        r"CUDA Dynamic Parallelism \(CDP\) kernel",
        "some",
        "kernels that start kernels (dynamic parallelism) are not traced on this card",
        "time these kernels with CUDA events",
        always=True,
    ),
    NsysMessage(
        "stopped-early",
        r"profiling stopped unexpectedly: (.{1,80})",
        "cuda",
        "the recording stopped by itself: {0}",
        "let the program run to its end inside the capture",
    ),
    NsysMessage(
        "range-never-opened",
        r"times because (?:cudaProfilerStart API was not called yet|corresponding \w+ trigger was not triggered)",
        "cuda",
        "the part of the program to record never began",
        "call torch.cuda.profiler.start() (or open the NVTX range) before that part, or record without --capture-range",
        always=True,
    ),
    NsysMessage(
        "perf-paranoid",
        r"perf event paranoid level is (\d+)|perf_event_paranoid",
        "samples",
        "the kernel allows no samples of the CPU (perf_event_paranoid); CUDA and ranges are recorded all the same",
        "sudo sysctl kernel.perf_event_paranoid=1, if CPU samples are wanted",
    ),
    NsysMessage(
        "no-cuda",
        r"No CUDA events collected|CUDA profiling might have not been started correctly",
        "cuda",
        "the program made no CUDA call while it was recorded",
        "run it where it finds a CUDA GPU (nvidia-smi lists it, in PyTorch torch.cuda.is_available() is True), and let the "
        "capture cover the part that uses it",
        certain=False,
    ),
    NsysMessage(
        "cuda-might-lack",
        r"Not all CUDA events might have been collected",
        "some",
        "nsys cannot tell whether it got all GPU events, as it does at the end of every window",
        "let the program end inside the capture",
        certain=False,
    ),
    NsysMessage(
        "no-ranges",
        r"No NVTX events collected|Not all NVTX events might have been collected",
        "ranges",
        "the program marked no NVTX range, or nsys lost them",
        "nsysx run -- CMD marks steps, modules and phases by itself",
        certain=False,
    ),
)
#: How a report names the events of CUDA among those that nsys was told to record.
_CUDA_EVENTS = "Cuda"
#: What a report shows by what nsys did not write. The first two need the other lines of a recording: a report without any says nothing.
NEVER_STARTED = NsysMessage(
    "never-started",
    "",
    "cuda",
    "profiling never started: the program ended before its capture range was opened",
    "call torch.cuda.profiler.start() (or open the NVTX range) in the program, or record without --capture-range",
)
NEVER_LOADED = NsysMessage(
    "never-loaded",
    "",
    "cuda",
    "no program loaded the library of nsys that records it: it ran elsewhere (docker, srun, ssh, a server that was already "
    "running), as another user, or cleared its environment",
    _WRAP,
)


NOT_TRACED = NsysMessage(
    "not-traced",
    "",
    "cuda",
    "CUDA was not traced: nsys was told to record other things only",
    "record with cuda among what follows -t: nsys profile -t cuda,nvtx CMD, or nsysx run -- CMD",
)


CALLS_LOST = NsysMessage(
    "calls-lost",
    "",
    "cuda",
    "the program set CUDA up (the driver's thread cuda-EvtHandlr ran in it), and none of its calls is in the report",
    "let the program end by itself inside the capture: nsys writes what it traced when it ends, and nothing of one that is killed or "
    "crashes; under WSL and with a driver newer than nsys, record with the newest nsys",
    certain=False,
)


def named(name: str | None) -> NsysMessage | None:
    """Return the message of this name, None if there is none."""
    messages = (*MESSAGES, NEVER_STARTED, NEVER_LOADED, NOT_TRACED, CALLS_LOST)
    return next((each for each in messages if each.name == name), None)


def _filled(message: NsysMessage, match: re.Match[str] | None, words: str) -> FoundMessage:
    value = next((g for g in match.groups() if g), "") if match else ""
    return FoundMessage(message, message.cause.format(value), message.remedy.format(value), words)


def recognized(text: str) -> FoundMessage | None:
    """Return what a text of nsys means, None where the table does not have it."""
    for message in MESSAGES:
        if match := message.match(text):
            return _filled(message, match, text.strip().partition("\n")[0])
    return None


def in_order(texts: Iterable[str], *hides: Hides) -> list[FoundMessage]:
    """Return the messages of a report that hide one of ``hides``, each once, the strongest cause first."""
    by_name: dict[str, FoundMessage] = {}
    for text in texts:
        if (each := recognized(text)) and each.message.hides in hides:
            by_name.setdefault(each.message.name, each)
    names = [message.name for message in MESSAGES]
    return sorted(by_name.values(), key=lambda each: names.index(each.message.name))


def absent(texts: Iterable[str], traced: Iterable[str] = (), *, set_up: bool = False) -> NsysMessage | None:
    """Return why a recording without CUDA is empty by what stands in every whole one: lines of nsys, and what was ``traced``.

    ``traced`` are the kinds of events that nsys was told to record, none where the report does not list them; ``set_up``: a
    recorded program has a thread of the CUDA driver.
    """
    lines, kinds = list(texts), set(traced)
    if kinds and _CUDA_EVENTS not in kinds:
        return NOT_TRACED
    if any(re.search(r"launched by the profiler|attached to the process|Profiling has", line) for line in lines):
        if not any("Profiling has started" in line for line in lines):
            return NEVER_STARTED
        if not any(re.search("injection", line, re.IGNORECASE) for line in lines):
            return NEVER_LOADED
    if set_up:
        return CALLS_LOST
    return named("no-cuda") if kinds else None


def why_empty(texts: Iterable[str], unwritten: NsysMessage | None = None) -> FoundMessage | None:
    """Return why a report holds no CUDA at all; ``unwritten`` is what ``absent`` found. None where nothing in it tells."""
    causes = in_order(texts, "cuda", "some")
    sure = [each for each in causes if each.message.certain and each.message.hides == "cuda"]
    likely = [each for each in causes if each.message.name != "cuda-might-lack"]
    # That no call was made is what nsys asks itself: a cause that the report shows is stronger than the question.
    doubts = [each for each in likely if each.message.name != "no-cuda" or unwritten is each.message]
    if unwritten is not None and not sure and (unwritten.certain or not doubts):
        return _filled(unwritten, None, "")
    return next(iter(sure or likely), None)
