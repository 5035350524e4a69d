"""Sends ranges through the ``nvtx`` package if that works, else through torch's own NVTX calls.

Every backend has the same eight calls. ``prepare(text)`` prepares a text for ``push``, ``mark`` and ``start``, and so does
``numbered(text, number)``, with a number that is no part of the text if the backend has payloads; ``pop`` ends the last pushed
range, and ``end`` a started one, which may end on another thread. ``flush`` makes nsys take what was sent so far out of the
process: it keeps up to 1,024 ranges of each thread there, and a process that is killed loses them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from . import ranges


class Backend:
    """Eight bound calls and a name. The calls are attributes, so that a hot path can bind them once."""

    def __init__(
        self,
        name: str,
        prepare: Callable[[str], Any],
        push: Callable[[Any], Any],
        pop: Callable[[], Any],
        mark: Callable[[Any], Any],
        start: Callable[[Any], Any],
        end: Callable[[Any], Any],
        numbered: Callable[[str, int], Any] | None = None,
        flush: Callable[[], object] | None = None,
    ) -> None:
        self.name = name
        self.prepare = prepare
        self.push = push
        self.pop = pop
        self.mark = mark
        self.start = start
        self.end = end
        self.numbered = numbered or (lambda text, number: prepare(f"{text} {number}"))
        self.flush = flush or (lambda: None)


def _domain(name: str) -> tuple[str, Any]:
    """Return the backend's name and a real ``nvtx.Domain``; raise if there is none."""
    import nvtx

    domain = nvtx.get_domain(name)
    if type(domain).__name__ == "Domain":
        return "nvtx", domain
    # nvtx >= 0.2.12 asks through an NVTX extension whether the domain is wanted. nsys 2023.4 does not know the extension, and
    # every range would be silently lost. So make the domain without asking.
    from nvtx._lib import lib

    domain = object.__new__(lib.Domain)
    domain.handle = lib.DomainHandle(name)
    domain.__init__(name)
    domain.get_event_attributes(message="probe")
    return "nvtx-bypass", domain


def _nvtx(name: str) -> Backend:
    how, domain = _domain(name)

    def prepare(text: str) -> Any:
        return domain.get_event_attributes(message=text)

    def numbered(text: str, number: int) -> Any:
        return domain.get_event_attributes(message=text, payload=number)

    def flush() -> None:
        # nsys 2023.4 sends the ranges that it has kept before it sends anything of another kind. A domain that is made and
        # destroyed leaves nothing behind in the process; a new text would (0.7 kB each).
        handle("nsysx-flush")

    calls = domain.push_range, domain.pop_range, domain.mark, domain.start_range, domain.end_range
    handle = type(domain.handle)
    try:
        numbered("probe", 0)
    except Exception:  # an nvtx without payloads
        return Backend(how, prepare, *calls, flush=flush)
    return Backend(how, prepare, *calls, numbered, flush)


def _torch(torch: Any, prefix: str) -> Backend:
    native = torch._C._nvtx
    return Backend(
        "torch",
        lambda text: prefix + text,
        native.rangePushA,
        native.rangePop,
        native.markA,
        native.rangeStartA,
        native.rangeEnd,
    )


def choose(torch: Any, wanted: str = "") -> tuple[Backend | None, list[str]]:
    """Return the first backend that works, or None, and why the others do not. ``wanted`` names the only one to try."""
    why: list[str] = []
    makers: dict[str, Callable[[], Backend]] = {
        "nvtx": lambda: _nvtx(ranges.DOMAIN),
        "torch": lambda: _torch(torch, ranges.PREFIX),
    }
    for name, make in makers.items():
        if wanted and wanted != name:
            continue
        try:
            return make(), why
        except Exception as error:
            why.append(f"{name}: {type(error).__name__}: {error}")
    return None, why


def nowhere(name: str) -> Backend:
    """Return a backend that sends nothing: for a run that is only timed, or where no other one works."""

    def nothing(_text: Any = None) -> None:
        pass

    return Backend(name, str, nothing, nothing, nothing, nothing, nothing)


def of_lines(backend: Backend) -> Backend | None:
    """Return a backend of the same kind for lines, in a domain of their own; None where there are no domains."""
    return _nvtx(ranges.LINES_DOMAIN) if backend.name.startswith("nvtx") else None


def scratch(torch: Any, backend: Backend) -> Backend:
    """Return a backend of the same kind with its own domain or prefix, for measuring."""
    other = "nsysx-calibration"
    return _torch(torch, other + ":") if backend.name == "torch" else _nvtx(other)


def pair_cost_ns(backend: Backend) -> int:
    """Return the ns that one push and pop takes in this process: the best of ten rounds of a hundred pairs."""
    push, pop, text = backend.push, backend.pop, backend.prepare("calibration")
    best = 1 << 62
    for _ in range(10):
        begin = time.perf_counter_ns()
        for _ in range(100):
            push(text)
            pop()
        best = min(best, time.perf_counter_ns() - begin)
    return best // 100
