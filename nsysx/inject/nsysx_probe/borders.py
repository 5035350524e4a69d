"""What happens at the border between two steps: the step's range, marks on or off, the capture window, the clock."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from . import ranges
from .calls import ModuleCalls
from .interrupts import shielded
from .marking import Shape
from .output import Output
from .probe_bounds import LOOK_EVERY
from .probe_parts import ProbeParts
from .qualified_names import held
from .returning_steps import next_long
from .settings_reader import SettingsReader
from .settings_state import asked
from .status import Status
from .step_follower import StepFollower


class Borders:
    """`StepFollower` calls ``begin`` and ``end``; `Phases` calls ``call_begins`` and ``call_ended`` for networks outside of steps."""

    def __init__(self, torch: Any, out: Output, parts: ProbeParts, calls: ModuleCalls, status: Status) -> None:
        self.torch = torch
        self.out = out
        (
            self.window,
            self.marking,
            self.clock,
            self.pauses,
            self.timing,
            _,
            self.odometer,
            self.xray,
            self.long_steps,
            self.later,
        ) = parts
        self.calls = calls
        self.status = status
        self.steps = StepFollower(self.begin, self.end, self._states)
        self.steps.restarted = self._restarted
        self.step_aside: Callable[[], None] = out.disarm  # all but what shows that optimizers step leaves the program
        self.window.kind = lambda: self.steps.rule.partition("/")[0]
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self.settings = SettingsReader(torch, out, self.optimizers)
        self._settings_due = True  # they are read in this window
        self._compared = False  # weights were, before the window that opens next
        self._step_end: Callable[[], object] | None = None
        self._main_open = 0  # ranges of the main thread that another thread could not end
        self._seen: int | None = None
        self._told = False  # what the last info mark says of the X-ray

    def made_optimizer(self, optimizer: Any) -> None:
        """Remember an optimizer for as long as it lives."""
        self.later.made(optimizer)
        self.settings.places.made(optimizer)
        key, optimizers = id(optimizer), self._optimizers

        def gone(ref: weakref.ref[Any]) -> None:
            if optimizers.get(key) is ref:
                del optimizers[key]

        optimizers[key] = weakref.ref(optimizer, gone)

    def optimizers(self) -> list[weakref.ref[Any]]:
        """Return weak references to all optimizers that live."""
        return list(self._optimizers.values())

    def _restarted(self) -> None:
        """What came before the step that is open, or the next one, was no step."""
        self.later.begins(recorded=self.window.restart(self.steps.first))

    def _states(self) -> int:
        """Return the number of parameters for which optimizers hold state."""
        alive = [ref() for ref in list(self._optimizers.values())]
        return sum(len(optimizer.state) for optimizer in alive if optimizer is not None)

    def _follow(self) -> None:
        """If marks or the X-ray go on or off now, say so in an info mark; switch the module calls."""
        on, xray = self.marking.on, self.xray.on
        if (on, xray) == (self.calls.marks, self._told):
            return
        self._told = xray
        if self.out.recording:
            self.out.info({"marks": on, "xray": True} if xray else {"marks": on})
        if on != self.calls.marks:
            self.calls.turn(on)

    def pause(self) -> None:
        """Mark what must not be missed: the capture of a CUDA graph."""
        self.marking.pause()
        if self.out.recording:
            self.xray.begin_capture()
        self._follow()

    def resume(self) -> None:
        """Return to the marks of the open step after `pause`."""
        self.marking.resume(self.steps.index)
        if not self._is_xray(self.steps.index):
            self.xray.turn_off()
        self._follow()

    def _is_xray(self, index: int) -> bool:
        """Return whether step ``index`` carries everything: one whose modules are marked, but not the very first, which compiles."""
        return self.out.recording and self.marking.on and index > 0

    # ---- steps ------------------------------------------------------------------------------------------------------

    def begin(self, index: int) -> None:
        """Begin step ``index`` on this thread."""
        if self.timing is not None:
            self.timing.border(index)
            return
        if self._step_end is not None or self._main_open:
            self._end_open()
        self.settings.evaluations.step_begins()
        out, window = self.out, self.window
        if not index:
            self.later.begins(recorded=False)
        if self.steps.closed_by != "border":
            self.pauses.send()
        if window.wanted and window.opens(index):
            self._start_capture()
        if not out.recording:
            self.clock.begin(index, event=window.near(index))
            out.shape = 0
            return
        self.marking.step_begins(index, window.left(index))
        # The very first step does work that no other does. Our own recorder of operators must not be taken for the program's.
        if self._settings_due and self.marking.on and index > 0 and not self.xray.on:
            self._settings_due = False
            self.settings.begin(index)
        is_xray = self._is_xray(index)
        self.settings.recorded(index, last=is_xray and window.left(index) == 0, cold=is_xray and window.cold)
        if is_xray:
            self.xray.begin(index)
        elif self.xray.on:
            self.xray.turn_off()
        self._follow()
        self.clock.begin(index, recorded=True, marked=self.marking.on)
        self._count(index)
        backend = out.backend
        text = backend.numbered(ranges.STEP, index)
        if threading.current_thread() is threading.main_thread():
            self._step_end = self._pop  # noted before the push, with no call in between
            backend.push(text)
        else:  # at exit another thread may have to end it
            token = backend.start(text)
            self._step_end = lambda: backend.end(token)
        next(out.counts["step"])

    @shielded
    def end(self) -> None:
        """End the open step."""
        if self.timing is not None:
            self.timing.border(None)
            if self.timing.window and self.steps.index + 1 >= self.timing.window[1]:
                self.out.disarm()
            return
        self._end_open()
        self.settings.end()
        self.pauses.send()
        border = self.steps.closed_by == "border"
        if not border:
            self.xray.turn_off()
            self.clock.stop()
        if not self.out.recording:
            self.window.step_ended(self.out.shape)
            if self.window.over:
                self._leave()
            return
        self._end_recorded(last=not border)

    def _end_recorded(self, *, last: bool) -> None:
        """Settle what a recorded step has left, and end the capture if this was its last step."""
        self.out.flush(last=last)
        index, marked = self.steps.index, self.marking.on and self.marking.wanted == "few"
        self.window.step_ended(self.out.shape)
        self.marking.step_ended(index, self._shape())
        if self.window.wanted and self.window.closes(index, marked=marked):
            self._stop_capture()

    def optimizer_ended(self) -> None:
        """An optimizer has stepped. Where it alone ends each step, ranks of a job open and close their windows here.

        At the border, which is the next forward or fetch, a rank may already wait for another one on its device: that of a pipeline's
        later stage receives the next batch first.
        """
        window, steps = self.window, self.steps
        if not window.together or not steps.alone or steps.done != 1 or self.timing is not None:
            return
        if not self.out.recording:
            if window.opens(steps.index + 1):
                self._before_window()
                window.begin()
        elif window.is_last(steps.index) and window.comes_together(steps.index):
            self._end_open()
            self.settings.end()
            self.pauses.send()
            self._end_recorded(last=False)

    @shielded
    def _end_open(self) -> None:
        """End the range of the last step, at the latest where the next one begins: a signal's exception may come before it has ended."""
        end, self._step_end = self._step_end, None
        if end is not None:
            end()
        elif threading.current_thread() is threading.main_thread():
            self.leave()

    @shielded
    def _pop(self) -> None:
        """End the range on the main thread, by that thread itself."""
        self._main_open += 1
        if threading.current_thread() is threading.main_thread():
            self.leave()

    @shielded
    def leave(self) -> None:
        """End what only the main thread, which is this one, can end."""
        while self._main_open:
            self._main_open -= 1
            self.out.backend.pop()

    def _count(self, number: int) -> None:
        """Begin a step or a call: what came before does not belong to it, and now and then its module calls are counted."""
        self.calls.counting = number % LOOK_EVERY == 0
        self._seen = self.calls.seen()
        self.out.shape = 0

    def _shape(self) -> Shape:
        """Return the shape of what ran since `_count`: number of module calls, if they were counted, and a hash over the phases."""
        before, now = self._seen, self.calls.seen()
        return None if before is None or now is None else now - before, self.out.shape

    # ---- networks outside of steps ----------------------------------------------------------------------------------

    def call_begins(self, network: Hashable, module: Any, given: tuple[Any, ...]) -> None:
        """A network is about to be called outside of every step: mark its calls if it needs more references. ``given``: args, kwargs."""
        learns = held(module).get("training") and self.torch.is_grad_enabled()
        if given and self.timing is None and self.steps.trains and self.steps.index >= 0 and not learns:
            self.settings.evaluates(module, given, self.steps.index)
        if self.out.recording:
            number = self.marking.call_begins(network)
            self._follow()
            self._count(number)

    def call_ended(self) -> None:
        """It has returned."""
        if self.out.recording:
            self.marking.call_ended(self._shape())
            self.calls.counting = False
            self.out.flush(last=False)

    # ---- the capture window -----------------------------------------------------------------------------------------

    def _before_window(self) -> None:
        """Compare what is compared while nothing is recorded, once before a window."""
        if not self._compared:
            self._compared = True
            asked(self.settings.untrained.window_opens)

    def _start_capture(self) -> None:
        self.long_steps.stop()
        self._before_window()
        self._compared = False
        self.status.kept = None
        stepped = [self._optimizers.get(key) for key in self.steps.keys]  # type: ignore[call-overload]
        self.later.opens([optimizer for ref in stepped if ref is not None and (optimizer := ref()) is not None])
        self.window.open(self.torch)
        self.window.opened = self._settings_due = True
        self.out.recording = True
        long = next_long(self.clock.periods, self.steps.index, self.clock.by_device())
        self.marking.start(self.window.steps, long)
        self.xray.start()
        self.status.hello()
        self.calls.turn(self.marking.on)
        if self.later.earlier:
            self.status.write()  # which recordings are whose must be known if the program is killed

    def _stop_capture(self) -> None:
        self.xray.turn_off()
        self.out.info(self.status.counts())
        self.out.recording = False
        goes_on = self.window.close(self.torch)
        self.settings.window_closed()
        if goes_on:
            self.calls.turn(False)
            self.clock.start_bare(self.steps.index + 1)
            self.long_steps.start()
            self.status.write()
            return
        self._leave()

    def _leave(self) -> None:
        """Nothing is left to do: the rest of the program runs without the probe, which at most counts its steps.

        It may come back for steps of another kind.
        """
        self.long_steps.stop()
        if self.later.left and not self.steps.user and self.window.may_reopen():
            self.step_aside()
            self.later.leaves(sum(self.window.pauses_ns or ()))
        else:
            self.out.disarm()
        self.status.closed()
        if self.window.after and self.steps.alone and self.steps.done == 1:
            ref = self._optimizers.get(self.steps.key)  # type: ignore[call-overload]
            self.odometer.start(ref and ref(), told=self.later.on)

    def comes_back(self, optimizer: Any) -> bool:
        """The probe has stepped aside, and an optimizer is about to step: return whether it shows steps of another kind, to be followed."""
        self.odometer.step(optimizer)
        if not self.later.goes_over(optimizer):
            return False
        self.status.kept = self.status.record()
        self.later.come(self.steps.count, self.steps.rule)
        self.window.reopen(self.steps.index + 1)
        return True

    def begin_anew(self, optimizer: Any) -> None:
        """All is followed again."""
        self.steps.restart()
        self.steps.made_optimizer(id(optimizer))
        self.long_steps.start()
