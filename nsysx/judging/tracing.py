"""How nsys traced CUDA, and what it dropped because of that: in its own words, with what to do."""

from __future__ import annotations

import re

from nsysx import units
from nsysx.model import Check
from nsysx.reading.trace import Trace

_HARDWARE = re.compile(r"hardware tracing used", re.IGNORECASE)
_SOFTWARE = re.compile(r"legacy \(software", re.IGNORECASE)
_INCOMPLETE = re.compile(r"incomplete CUPTI events dropped:\s*(\d{1,18})\b", re.IGNORECASE)
_NEWER_DRIVER = re.compile(r"driver version \(([\d.]{1,12})\) is not supported by this build", re.IGNORECASE)
_CUT = re.compile(r"CUPTI events might be missing", re.IGNORECASE)

#: Hardware tracing learns the times of kernels when the program ends, so what ends before loses them.
REMEDY = (
    "nsys profile -t cuda-sw,nvtx --cuda-graph-trace=node CMD (nsysx run --steps does it by itself), "
    "or let the program end inside the capture"
)
#: What takes the GPU's side away while the calls are there, and nsys says nothing of it.
_SILENT = "end other tools that hold CUPTI (torch.profiler, ncu, DCGM), and let the program end inside the capture"


def is_told(text: str) -> bool:
    """Return whether the checks of this file tell what a message of nsys says."""
    return any(pattern.search(text) for pattern in (_HARDWARE, _SOFTWARE, _INCOMPLETE))


def is_lost(text: str) -> bool:
    """Return whether nsys says that it may have lost GPU events, and why."""
    return any(pattern.search(text) for pattern in (_INCOMPLETE, _NEWER_DRIVER, _CUT))


def dropped(trace: Trace) -> int:
    """Return how many GPU events nsys says that it dropped because it never learned their times."""
    matches = (_INCOMPLETE.search(d["text"]) for d in trace.capture.diagnostics)
    return sum(int(match[1]) for match in matches if match)


def remedy(trace: Trace) -> str:
    """Return what to do where calls were recorded and the work that they started was not: what nsys says of it, if it does."""
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
    """Return how CUDA was traced, where nsys says it, and what was dropped."""
    texts = [d["text"] for d in trace.capture.diagnostics]
    hardware, software = (any(map(mode.search, texts)) for mode in (_HARDWARE, _SOFTWARE))
    said = []
    if hardware or software:
        how = "by both" if hardware and software else "by the hardware of the GPU" if hardware else "by software"
        said.append(Check("cuda tracing", "ok", f"CUDA was traced {how}, nsys says"))
    if count := dropped(trace):
        why = ": hardware tracing gives them only when the program ends" if hardware else ""
        detail = f"nsys dropped {units.count(count)} GPU events whose times it never got{why}"
        said.append(Check("dropped GPU events", "warn", detail, REMEDY))
    return said
