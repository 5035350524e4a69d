"""How nsys traced CUDA, and what it dropped because of that: in its own words, with what to do."""

from __future__ import annotations

import re

from nsysx import units
from nsysx.model import Check
from nsysx.reading.trace import Trace

_HARDWARE = re.compile(r"hardware tracing used", re.IGNORECASE)
_SOFTWARE = re.compile(r"legacy \(software", re.IGNORECASE)
_INCOMPLETE = re.compile(r"incomplete CUPTI events dropped:\s*(\d{1,18})\b", re.IGNORECASE)

#: Hardware tracing learns the times of kernels when the program ends, so what ends before loses them.
REMEDY = (
    "nsys profile -t cuda-sw,nvtx --cuda-graph-trace=node CMD (nsysx run --steps does it by itself), "
    "or let the program end inside the capture"
)


def is_told(text: str) -> bool:
    """Return whether the checks of this file tell what a message of nsys says."""
    return any(pattern.search(text) for pattern in (_HARDWARE, _SOFTWARE, _INCOMPLETE))


def dropped(trace: Trace) -> int:
    """Return how many GPU events nsys says that it dropped because it never learned their times."""
    found = (_INCOMPLETE.search(d["text"]) for d in trace.capture.diagnostics)
    return sum(int(match[1]) for match in found if match)


def checks(trace: Trace) -> list[Check]:
    """Return how CUDA was traced, where nsys says it, and what was dropped."""
    texts = [d["text"] for d in trace.capture.diagnostics]
    hardware, software = (any(map(mode.search, texts)) for mode in (_HARDWARE, _SOFTWARE))
    found = []
    if hardware or software:
        how = "by both" if hardware and software else "by the hardware of the GPU" if hardware else "by software"
        found.append(Check("cuda tracing", "ok", f"CUDA was traced {how}, nsys says"))
    if count := dropped(trace):
        why = ": hardware tracing gives them only when the program ends" if hardware else ""
        detail = f"nsys dropped {units.count(count)} GPU events whose times it never got{why}"
        found.append(Check("dropped GPU events", "warn", detail, REMEDY))
    return found
