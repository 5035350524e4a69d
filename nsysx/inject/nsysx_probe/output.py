"""Sends the probe's ranges and marks, counts them, and keeps its errors. Nothing is decided here."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import ranges
from .backend import Backend
from .interrupts import of_program
from .probe_bounds import FLUSH_EVERY_NS, MOST_ERRORS, MOST_PHASES, MOST_TEXTS

KINDS = ("step", "phase", "module", "backward_module", "sync", "info", "gc", "compile")

#: Phases that tell steps of different work apart; a fetch or a loss may come or go although the work stays the same.
_SHAPE = frozenset(("forward", "evaluation", "backward", "optimizer"))


class Phase(NamedTuple):
    """A phase with its detail: its name, its prepared text, and what it adds to the shape of a step (0: nothing)."""

    name: str
    text: Any
    mixed: int


class Thread(threading.local):
    """The probe's open ranges on this thread, without those of ordinary modules."""

    def __init__(self) -> None:
        self.open = 0  # open calls of roots, direct children and losses
        self.phases: list[tuple[str, bool]] = []  # name, and whether its range was pushed

    def within(self, name: str) -> bool:
        """Return whether a phase of this name is open."""
        return any(phase == name for phase, _ in self.phases)


def counted(count: itertools.count[int]) -> int:
    """Return how often ``next`` was called on a count from 0. It reads the repr, because Python 3.14 cannot copy or pickle one."""
    return int(repr(count)[len("count(") : -1])


class Output:
    """The backend with counts. ``recording`` is False outside the capture window: then no range is sent."""

    def __init__(self, backend: Backend, environ: Mapping[str, str], disarm: Callable[[], None]) -> None:
        self.backend = backend
        self.environ = environ
        self.recording = True
        self.errors: list[str] = []
        self.counts = {kind: itertools.count() for kind in KINDS}
        self.texts: dict[str, Any] = {}
        self.thread = Thread()
        self.shape = 0  # a hash over the phases since it was last reset
        self.disarm = disarm
        self._phases: dict[tuple[str, str], Phase] = {}
        self._phase_opened = self.counts["phase"].__next__
        self._flushed_ns = 0

    # ---- options ----------------------------------------------------------------------------------------------------

    def number(self, name: str) -> int | None:
        """Return the number in an environment variable; note anything else as an error and return None."""
        text = self.environ.get(name, "")
        if text and not text.isdecimal():
            self.errors.append(f"{name}={text[:40]!r} is not a number")
        return int(text) if text.isdecimal() else None

    def pattern(self, name: str) -> re.Pattern[str] | None:
        """Return the regular expression in an environment variable; note an invalid one as an error and return None."""
        text = self.environ.get(name, "")
        try:
            return re.compile(text) if text else None
        except re.error as error:
            self.errors.append(f"{name} is not a regular expression: {error}")
            return None

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return the word in an environment variable if it is in ``choices``, else the first of them; note an unknown word."""
        text = self.environ.get(name, "")
        if text and text not in choices:
            self.errors.append(f"{name}={text[:40]!r} is not one of {', '.join(choices)}")
        return text if text in choices else choices[0]

    # ---- failure ----------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Keep an error message, up to a limit."""
        if len(self.errors) < MOST_ERRORS:
            self.errors.append(text[:300])

    def wrong(self, where: str, error: BaseException) -> None:
        """Note a failure that disables only one part of the probe. Raises ``error`` again if it is the program's."""
        if of_program(error):
            raise error
        self.note(f"{where}: {type(error).__name__}: {error}")

    def fail(self, where: str, error: BaseException, level: int = 0) -> int:
        """Close the phases down to ``level``, note a failure of the probe, end the probe for good and return 0.

        If ``error`` is the program's, it is raised again instead, and the probe goes on.
        """
        try:
            self.close(level)
        except Exception:
            pass
        self.wrong(where, error)
        try:
            self.disarm()
        except Exception:
            pass
        return 0

    # ---- ranges and marks -------------------------------------------------------------------------------------------

    def counted(self) -> dict[str, int]:
        """Return how many ranges and marks of each kind were sent."""
        return {kind: counted(count) for kind, count in self.counts.items()}

    def text(self, text: str) -> Any:
        """Return the prepared text. It is made once, because registered names are never freed and equal texts must share one."""
        prepared = self.texts.get(text)
        if prepared is None:
            prepared = self.backend.prepare(text)
            if len(self.texts) < MOST_TEXTS:
                self.texts[text] = prepared
        return prepared

    def info(self, about: dict[str, Any]) -> None:
        """Send a mark about the probe itself."""
        self.backend.mark(self.backend.prepare(ranges.info(json.dumps(about, separators=(",", ":")))))
        next(self.counts["info"])

    def pause(self, kind: str, about: dict[str, Any]) -> None:
        """Send a mark about a pause of Python that has ended; ``kind`` is gc or compile."""
        self.backend.mark(self.backend.prepare(ranges.pause(kind, json.dumps(about, separators=(",", ":")))))
        next(self.counts[kind])

    def flush(self, last: bool) -> None:
        """Send on what is kept in the process, so that it is not lost if the program is killed.

        ``last``: other work than a step may follow. If not, it is done only if the last time is long enough ago.
        """
        now = time.monotonic_ns()
        if last or now - self._flushed_ns > FLUSH_EVERY_NS:
            self._flushed_ns = now
            self.backend.flush()

    def phase(self, name: str, detail: str = "") -> Phase:
        """Return a phase with its prepared text. It is made once."""
        cached = self._phases.get((name, detail))
        if cached is None:
            mixed = hash((name, detail)) | 1 if name in _SHAPE else 0
            cached = Phase(name, self.text(ranges.phase(name, detail)), mixed)
            if len(self._phases) < MOST_PHASES:
                self._phases[name, detail] = cached
        return cached

    def open_phase(self, name: str, detail: str = "") -> int:
        """Open a phase on this thread and return the level that ``close`` needs."""
        name, text, mixed = self._phases.get((name, detail)) or self.phase(name, detail)
        thread, recording = self.thread, self.recording
        if mixed:
            self.shape = hash((self.shape, mixed))
        # No call from here to the push, so that no signal's exception comes between what is noted and what is sent.
        thread.phases += [(name, recording)]
        if recording:
            self.backend.push(text)
            self._phase_opened()
        return len(thread.phases)

    def close(self, level: int) -> None:
        """Close the phases of this thread down to ``level``, including those that an exception left open."""
        phases = self.thread.phases
        while len(phases) >= level > 0:
            pushed = phases[-1][1]
            del phases[-1]  # again no call before the pop
            if pushed:
                self.backend.pop()
