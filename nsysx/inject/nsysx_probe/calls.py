"""Instruments ``Module.__call__``: in marked steps each call gets a range, elsewhere only calls that may begin a step are watched.

While a network runs without marks, the list ``inside`` is not empty, and each call in the network costs one look at it. The code
is exchanged only when marks go on or off, not in each step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from . import patch
from .backward import BackwardMarks
from .output import Output, counted
from .qualified_names import Naming

#: The path of a call that may open a phase. It may also turn marks on or off; ``_nsysx_t`` tells what was opened.
_SLOW = """
    _nsysx_t = _nsysx_enter(_nsysx_e, self, args, kwargs)
    if _nsysx_t & 2:
        try:
            _nsysx_in(_nsysx_e, args, kwargs)
            RESULT
        finally:
            _nsysx_leave(_nsysx_t)
            del _nsysx_t, _nsysx_e
    try:
        BODY
    finally:
        _nsysx_leave(_nsysx_t)
        del _nsysx_t, _nsysx_e
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
    del _nsysx_e
    BODY
_nsysx_count()
if _nsysx_grad():
    try:
        _nsysx_push(_nsysx_e.text)
        _nsysx_in(_nsysx_e, args, kwargs)
        RESULT
    finally:
        _nsysx_pop()
        del _nsysx_e
try:
    _nsysx_push(_nsysx_e.text)
    if _nsysx_given:
        _nsysx_given[0](args, kwargs)
    BODY
finally:
    _nsysx_pop()
    del _nsysx_e
"""
)

#: Without backward marks.
RANGED = MARKED.replace("_nsysx_in(_nsysx_e, args, kwargs)", "pass").replace("RESULT", "BODY")
RANGED = RANGED.replace("if _nsysx_grad():", "if False:")

#: Without marks. An unknown module is looked at only where it may begin a step. A loss inside a network has a phase of its own.
IDLE = (
    """
if _nsysx_compiling():
    BODY
if _nsysx_inside and type(self) not in _nsysx_losses:
    BODY
_nsysx_seen()
_nsysx_e = _nsysx_find(id(self))
if _nsysx_e is None:
    if _nsysx_thread.open and type(self) not in _nsysx_losses:
        del _nsysx_e
        BODY
    _nsysx_e = _nsysx_learn(self)
if _nsysx_e.slow and (_nsysx_e.always or not _nsysx_thread.open) and _nsysx_task() == -1:"""
    + _SLOW
    + """
del _nsysx_e
BODY
"""
)


class ModuleCalls:
    """Switches ``Module.__call__`` between MARKED, RANGED and IDLE. ``marks``: whether module ranges are sent."""

    def __init__(self, torch: Any, out: Output, naming: Naming) -> None:
        self.torch = torch
        self.out = out
        self.naming = naming
        self.armed = False
        self.marks = True
        self.backward = True
        self.inside: list[int] = []  # not empty: a network runs without marks
        self.given: list[Callable[..., None]] = []  # what looks at the arguments of calls without gradients now
        self.counting = False  # calls inside networks are counted even without marks
        members = vars(torch.nn.modules.loss).values()
        self.losses = {c for c in members if isinstance(c, type)}  # and those that were called inside networks
        self._seen = itertools.count()
        self._patches: dict[str, patch.Patch] = {}

    def seen(self) -> int | None:
        """Return the number of module calls so far; None while they are not counted."""
        return counted(self._seen) if self.counting or (self.marks and self.out.recording) else None

    def arm(
        self,
        patcher: patch.Patcher,
        enter: Callable[..., int],
        leave: Callable[[int], None],
        backward: BackwardMarks,
    ) -> None:
        """Build the three codes and install the one that is wanted now. ``enter`` and ``leave``: those of ``Roots``."""
        torch, out = self.torch, self.out
        entered, returned = backward.around_call()
        names = {
            "_nsysx_compiling": torch.compiler.is_dynamo_compiling,
            "_nsysx_inside": self.inside,
            "_nsysx_losses": self.losses,
            "_nsysx_seen": self._seen.__next__,
            "_nsysx_find": self.naming.entries.get,
            "_nsysx_learn": self.naming.learn,
            "_nsysx_task": torch._C._current_graph_task_id,
            "_nsysx_thread": out.thread,
            "_nsysx_enter": enter,
            "_nsysx_leave": leave,
            "_nsysx_push": out.backend.push,
            "_nsysx_pop": out.backend.pop,
            "_nsysx_count": out.counts["module"].__next__,
            "_nsysx_grad": torch.is_grad_enabled,
            "_nsysx_given": self.given,
            "_nsysx_in": entered,
            "_nsysx_out": returned,
        }
        templates = {"marked": MARKED, "ranged": RANGED, "idle": IDLE}
        call = torch.nn.Module.__call__
        self._patches = {k: patch.Patch(call, t, dict(names)) for k, t in templates.items()}
        patcher.patches.extend(self._patches.values())
        self.backward = backward.active
        self.armed = True
        self.use()

    def use(self) -> None:
        """Install the code that is wanted now."""
        ranged = self.out.recording and self.marks
        which = ("marked" if self.backward else "ranged") if ranged else "idle"
        patch = self._patches.get(which)
        if patch is not None:
            patch.on()

    def turn(self, marks: bool) -> None:
        """Send module ranges from now on, or do not."""
        self.marks = marks
        self.use()

    def without_backward(self) -> None:
        """Go on without backward marks."""
        self.backward = False
        if self.armed:
            self.use()
