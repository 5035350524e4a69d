"""How nsys traced CUDA, what it lost because of that, and what to do; the messages themselves are explained in `nsys_messages`."""

from __future__ import annotations

import re

from nsysx import nsys_messages, units
from nsysx.model import Check
from nsysx.nsys_messages import FoundMessage
from nsysx.reading.capture_facts import CUPTI_LEFT
from nsysx.reading.trace import Trace

_HARDWARE = re.compile(r"hardware tracing used", re.IGNORECASE)
_SOFTWARE = re.compile(r"legacy \(software", re.IGNORECASE)
REMEDY = nsys_messages.WHOLE_PROGRAM
#: What to do about a program that traces itself.
WITHOUT_PROFILER = "leave torch.profiler out while nsys records: CUPTI serves one tool at a time"


def _texts(trace: Trace) -> list[str]:
    return [d["text"] for d in trace.capture.diagnostics]


def is_explained(text: str) -> bool:
    """Return whether the checks in this file already cover a message from nsys."""
    explained = nsys_messages.recognized(text)
    dropped = explained is not None and explained.message.name == "hardware-dropped"
    return dropped or any(pattern.search(text) for pattern in (_HARDWARE, _SOFTWARE, CUPTI_LEFT))


def by_hardware(trace: Trace) -> bool:
    """Return whether nsys says that the hardware of the GPU traced CUDA."""
    return any(map(_HARDWARE.search, _texts(trace)))


def dropped(trace: Trace) -> int:
    """Return how many GPU events nsys reports as dropped because it never learned their times."""
    message = next(m for m in nsys_messages.MESSAGES if m.name == "hardware-dropped")
    return sum(int(match[1]) for match in map(message.match, _texts(trace)) if match)


def why_empty(trace: Trace) -> FoundMessage | None:
    """Return why the report holds no CUDA, by what nsys wrote into it and what it did not; None if neither tells."""
    return nsys_messages.why_empty(_texts(trace), nsys_messages.named(trace.capture.never))


def causes(trace: Trace) -> list[FoundMessage]:
    """Return what nsys says that takes GPU work away whose calls were recorded, the strongest cause first.

    That a process made no CUDA call, and that events might be missing as at the end of any window, explains nothing here.
    """
    messages = nsys_messages.in_order(_texts(trace), "cuda", "some")
    return [each for each in messages if each.message.name not in ("no-cuda", "cuda-might-lack", "range-never-opened")]


def _own_profilers(trace: Trace) -> tuple[int, bool]:
    """Return how often the program started torch.profiler itself, as its probe saw it, and whether it asked for CUDA."""
    noted = [p["own_profiler"] for p in trace.capture.probe if isinstance(p.get("own_profiler"), dict)]
    times = sum(n["times"] for n in noted if isinstance(n.get("times"), int))
    return times, any(n.get("cuda") is True for n in noted)


def remedy(trace: Trace) -> str:
    """Return what to do if calls were recorded and the work they started was not, by what nsys and the probe say about it."""
    if dropped(trace):
        return REMEDY
    if _own_profilers(trace)[1]:
        return WITHOUT_PROFILER
    return "; ".join(dict.fromkeys(each.remedy for each in causes(trace))) or nsys_messages.SILENT


def checks(trace: Trace) -> list[Check]:
    """Return how CUDA was traced, if nsys says so, and what was dropped."""
    hardware, software = by_hardware(trace), any(map(_SOFTWARE.search, _texts(trace)))
    results = []
    if hardware or software:
        how = "by both" if hardware and software else "by the hardware of the GPU" if hardware else "by software"
        results.append(Check("cuda tracing", "ok", f"nsys says that CUDA was traced {how}"))
    if count := dropped(trace):
        why = ": hardware tracing delivers them only when the program ends" if hardware else ""
        detail = f"nsys dropped {units.count(count)} GPU events whose times it never got{why}"
        results.append(Check("dropped GPU events", "warn", detail, REMEDY, doubt="numbers"))
    times, cuda = _own_profilers(trace)
    if times:
        detail = f"the program starts torch.profiler itself ({units.several(times, 'time')}): steps under it are slower"
        detail += ", and kernels may be in its trace instead of this report" if cuda else ""
        results.append(Check("torch.profiler", "warn", detail, WITHOUT_PROFILER, doubt="numbers" if cuda else ""))
    return results
