"""Instruments ``Module.__call__``: in marked steps each call gets a range, elsewhere only calls that may begin a step are watched.

Inside a network that runs without marks, ``Module.__call__`` is torch's own code again, so that its modules cost nothing. The
exceptions are steps whose module calls are counted, and programs with a loss inside a network, whose phase would be missed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from . import patch
from .interrupts import shielded
from .names import Entry, Naming
from .output import Output, counted

#: The path of a call that may open a phase. It may also turn marks on or off; ``_nsysx_t`` tells what was opened.
_SLOW = """
    _nsysx_t = _nsysx_enter(_nsysx_e, self)
    if _nsysx_t & 2:
        try:
            _nsysx_in(_nsysx_e, args, kwargs)
            RESULT
        finally:
            _nsysx_leave(_nsysx_t)
    try:
        BODY
    finally:
        _nsysx_leave(_nsysx_t)
"""

MARKED = (
    """
if _nsysx_compiling():
    BODY
_nsysx_seen()
_nsysx_e = _nsysx_find(id(self)) or _nsysx_learn(self)
if _nsysx_task() != -1:
    _nsysx_e = _nsysx_e.again
if _nsysx_e.slow and (_nsysx_e.always or not _nsysx_thread.open):"""
    + _SLOW
    + """
if _nsysx_e.text is None:
    BODY
_nsysx_count()
if _nsysx_grad():
    try:
        _nsysx_push(_nsysx_e.text)
        _nsysx_in(_nsysx_e, args, kwargs)
        RESULT
    finally:
        _nsysx_pop()
try:
    _nsysx_push(_nsysx_e.text)
    BODY
finally:
    _nsysx_pop()
"""
)

#: Without backward marks.
RANGED = MARKED.replace("_nsysx_in(_nsysx_e, args, kwargs)", "pass").replace("RESULT", "BODY")
RANGED = RANGED.replace("if _nsysx_grad():", "if False:")

#: In steps without marks and outside the capture window. An unknown module is looked at only where it may begin a step.
IDLE = (
    """
if _nsysx_compiling():
    BODY
_nsysx_seen()
_nsysx_e = _nsysx_find(id(self))
if _nsysx_e is None:
    if _nsysx_thread.open:
        BODY
    _nsysx_e = _nsysx_learn(self)
if _nsysx_e.slow and (_nsysx_e.always or not _nsysx_thread.open) and _nsysx_task() == -1:"""
    + _SLOW
    + """
BODY
"""
)


class ModuleCalls:
    """Switches ``Module.__call__`` between MARKED, RANGED and IDLE. ``marks``: whether module ranges are sent."""

    def __init__(self, torch: Any, out: Output, naming: Naming, root: Callable[[Entry, Any], int]) -> None:
        self.torch = torch
        self.out = out
        self.naming = naming
        self.armed = True
        self.marks = True
        self.backward = True
        self.counting = False  # count the calls inside networks even without marks
        self._losses_inside = False
        self.after_root: Callable[[], None] = lambda: None
        self._root = root
        self._seen = itertools.count()
        self._patches: dict[str, patch.Patch] = {}

    def seen(self) -> int:
        """Return the number of module calls so far."""
        return int(counted(self._seen))

    def arm(self, patcher: patch.Patcher, entered: Any, returned: Any) -> None:
        """Build the three codes and install the one that is wanted now."""
        torch, backend = self.torch, self.out.backend
        names = {
            "_nsysx_compiling": torch.compiler.is_dynamo_compiling,
            "_nsysx_seen": self._seen.__next__,
            "_nsysx_find": self.naming.entries.get,
            "_nsysx_learn": self.naming.learn,
            "_nsysx_task": torch._C._current_graph_task_id,
            "_nsysx_thread": self.out.thread,
            "_nsysx_enter": self.enter,
            "_nsysx_leave": self.leave,
            "_nsysx_push": backend.push,
            "_nsysx_pop": backend.pop,
            "_nsysx_count": self.out.counts["module"].__next__,
            "_nsysx_grad": torch.is_grad_enabled,
            "_nsysx_in": entered,
            "_nsysx_out": returned,
        }
        templates = {"marked": MARKED, "ranged": RANGED, "idle": IDLE}
        call = torch.nn.Module.__call__
        self._patches = {k: patch.Patch(call, t, names) for k, t in templates.items()}
        patcher.patches.extend(self._patches.values())
        self.use()

    def use(self) -> None:
        """Install the code that is wanted now."""
        ranged = self.out.recording and self.marks
        which = ("marked" if self.backward else "ranged") if ranged else "idle"
        patch = self._patches.get(which)
        if patch is not None:
            patch.on()

    def back(self) -> None:
        """Instrument calls again after a network that ran torch's own code."""
        if self.armed:
            self.use()

    def enter(self, entry: Entry, module: Any) -> int:
        """Open phase and range of a root, a loss or the inside of a compiled region; return the token that ``leave`` needs.

        Bit 0: a range was opened. Bit 1: backward is marked. Bit 2: calls inside run torch's own code. The other bits are the
        level of the phase.
        """
        out, thread = self.out, self.out.thread
        level = ranged = marked = plain = 0
        before = len(thread.phases)
        try:
            nested = thread.open > 0
            if entry.root and (not nested or entry.root == "loss"):
                level = self._root(entry, module)
                if nested:
                    self._losses_inside = True
            if out.recording and self.marks:
                marked = 2 if self.backward else 0
                if entry.text is not None and not (entry.quiet and nested):
                    ranged = 1
                    out.backend.push(entry.text)
                    next(out.counts["module"])
            elif level and not nested and not self.counting and not self._losses_inside:
                plain = 4
                self._patches["idle"].off()
            thread.open += 1
        except BaseException as error:
            if ranged:
                out.backend.pop()
            if plain:
                self.back()
            level = ranged = marked = plain = out.fail("enter", error, before + 1)
            thread.open += 1
        return level << 3 | plain | marked | ranged

    @shielded
    def leave(self, token: int) -> None:
        """Close what ``enter`` opened."""
        try:
            out, thread = self.out, self.out.thread
            thread.open -= 1
            if token & 1:
                out.backend.pop()
            if token & 4:
                self.back()
            level = token >> 3
            if level:
                out.close(level)
                if not thread.phases and not thread.open:
                    self.after_root()
        except BaseException as error:
            if token & 4:
                self.back()
            self.out.fail("leave", error, token >> 3)
