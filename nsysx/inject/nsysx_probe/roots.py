"""What happens around the call of a root network, of a loss, or of the inside of a compiled region."""

from __future__ import annotations

from typing import Any

from .calls import ModuleCalls
from .interrupts import shielded
from .output import Output
from .phase_ranges import Phases
from .qualified_names import SOLE, ModuleEntry


class Roots:
    """The functions that ``Module.__call__`` calls then."""

    def __init__(self, out: Output, calls: ModuleCalls, phases: Phases) -> None:
        self.out = out
        self.calls = calls
        self.phases = phases

    def enter(self, entry: ModuleEntry, module: Any, *given: Any) -> int:
        """Open phase and range of a call with the arguments ``given`` (args, kwargs); return the token that ``leave`` needs.

        Bit 0: a range was opened. Bit 1: backward is marked. Bit 2: calls inside cost one look. Bit 3: the call is followed as the
        program's sole work. Bit 4: a network inside of it is an outermost one. The other bits are the level of the phase.
        """
        out, calls, thread = self.out, self.calls, self.out.thread
        token, nested = 0, thread.open
        before = len(thread.phases)
        try:
            if entry.root == SOLE:
                token = 0 if entry.always else 16
                if not nested and self.phases.sole_work.enter_module(entry):
                    token |= 8
            elif entry.root and (not nested or entry.root == "loss"):
                token = self.phases.root(entry, module, given) << 5
                if nested:
                    calls.losses.add(type(module))
            if calls.marks and out.recording and not (entry.quiet and nested):
                token |= 2 if calls.backward else 0
                if entry.text is not None:
                    token |= 1
                    out.backend.push(entry.text)
                    next(out.counts["module"])
            elif token >= 32 and not nested and not calls.counting:
                token |= 4
                calls.inside += [1]
        except BaseException as error:
            if token & 1:
                out.backend.pop()
            if token & 4:
                calls.inside.clear()
            if token & 8:
                self.phases.sole_work.leave()
            token = out.fail("enter", error, before + 1)
        thread.open = nested + (not token & 16)
        return token

    @shielded
    def leave(self, token: int) -> None:
        """Close what ``enter`` opened."""
        try:
            out, thread = self.out, self.out.thread
            thread.open -= not token & 16
            if token & 4:
                del self.calls.inside[-1:]
            if token & 1:
                out.backend.pop()
            if token & 8:
                self.phases.sole_work.leave()
            if token >= 32:
                out.close(token >> 5)
                if not thread.phases and not thread.open:
                    self.phases.after_root()
        except BaseException as error:
            if token & 4:
                self.calls.inside.clear()
            self.out.fail("leave", error, token >> 5)
