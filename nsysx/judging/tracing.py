"""How nsys traced CUDA, what it dropped because of that (in its own words), and what to do."""

from __future__ import annotations

import re

from nsysx import units
from nsysx.model import Check
from nsysx.reading.capture_facts import CUPTI_LEFT
from nsysx.reading.trace import Trace

_HARDWARE = re.compile(r"hardware tracing used", re.IGNORECASE)
_SOFTWARE = re.compile(r"legacy \(software", re.IGNORECASE)
_INCOMPLETE = re.compile(r"incomplete CUPTI events dropped:\s*(\d{1,18})\b", re.IGNORECASE)
_NEWER_DRIVER = re.compile(r"driver version \(([\d.]{1,12})\) is not supported by this build", re.IGNORECASE)
_CUT = re.compile(r"CUPTI events might be missing", re.IGNORECASE)

#: Hardware tracing learns the times of kernels when the program ends, so a capture that ends earlier loses them.
REMEDY = (
    "nsys profile -t cuda-sw,nvtx --cuda-graph-trace=node CMD (nsysx run --steps does so by itself), "
    "or let the program end inside the capture"
)
#: What to do if the GPU's side is missing, the calls are there, and nsys says nothing about it.
_SILENT = "stop other tools that use CUPTI (torch.profiler, ncu, DCGM), and let the program end inside the capture"


def is_told(text: str) -> bool:
    """Return whether the checks in this file already cover a message from nsys."""
    return any(pattern.search(text) for pattern in (_HARDWARE, _SOFTWARE, _INCOMPLETE, CUPTI_LEFT))


def is_lost(text: str) -> bool:
    """Return whether a message from nsys says that it may have lost GPU events."""
    return any(pattern.search(text) for pattern in (_INCOMPLETE, _NEWER_DRIVER, _CUT))


def by_hardware(trace: Trace) -> bool:
    """Return whether nsys says that the hardware of the GPU traced CUDA."""
    return any(_HARDWARE.search(d["text"]) for d in trace.capture.diagnostics)


def dropped(trace: Trace) -> int:
    """Return how many GPU events nsys reports as dropped because it never learned their times."""
    matches = (_INCOMPLETE.search(d["text"]) for d in trace.capture.diagnostics)
    return sum(int(match[1]) for match in matches if match)


def remedy(trace: Trace) -> str:
    """Return what to do if calls were recorded and the work they started was not, by what nsys says about it."""
    if dropped(trace):
        return REMEDY
    ways: list[str] = []
    texts = [d["text"] for d in trace.capture.diagnostics]
    if driver := next(filter(None, map(_NEWER_DRIVER.search, texts)), None):
        ways.append(f"install an nsys as new as the driver (CUDA {driver[1]})")
    if any(map(_CUT.search, texts)):
        ways.append(
            "let the program end inside the capture, or write events earlier: nsys profile --cuda-flush-interval=1000"
        )
    return "; ".join(ways) or _SILENT


def checks(trace: Trace) -> list[Check]:
    """Return how CUDA was traced, if nsys says so, and what was dropped."""
    texts = [d["text"] for d in trace.capture.diagnostics]
    hardware, software = by_hardware(trace), any(map(_SOFTWARE.search, texts))
    results = []
    if hardware or software:
        how = "by both" if hardware and software else "by the hardware of the GPU" if hardware else "by software"
        results.append(Check("cuda tracing", "ok", f"nsys says that CUDA was traced {how}"))
    if count := dropped(trace):
        why = ": hardware tracing delivers them only when the program ends" if hardware else ""
        detail = f"nsys dropped {units.count(count)} GPU events whose times it never got{why}"
        results.append(Check("dropped GPU events", "warn", detail, REMEDY, doubt="numbers"))
    return results
