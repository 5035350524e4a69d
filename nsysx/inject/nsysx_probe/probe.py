"""The probe: adds NVTX ranges for steps, phases and modules to a PyTorch program that is not changed for it.

``arm(torch)`` is called once, right after torch was imported. Everything in this folder keeps these rules:

- Functions of torch are not wrapped. Their code is exchanged (`patch`), so tracebacks, warnings and bindings do not change.
- In a step the probe reads no values of tensors on a device, never synchronizes and allocates nothing there. It walks the stack only to
  turn lines on.
- The probe never raises into the program and never prints. A failure is noted in the probe file and ends the part that failed,
  or the whole probe. What a signal's handler of the program raises meanwhile is the program's and goes on to it (`interrupts`).
- The probe's parts import from known places only (`import_places`).
- The probe puts nothing on the user's modules or tensors, so pickle, deepcopy and state dicts do not change.
- The probe handles no signals.

What stays visible to a program that looks for it: an object of ours among the constants of functions whose code was exchanged (and the
name ``_nsysx_compiling`` in the module of a function that has no ``torch``, because Dynamo reads globals only); two local variables of
such functions while they run (``sys._getframe().f_back.f_locals``; a traceback has none); the key ``nsysx`` in the metadata of autograd
nodes that carry a mark (their Python objects are made anew at each look, so a weak table cannot hold them); one function in
``gc.callbacks`` (Python tells of collections nowhere else; NSYSX_PAUSES=0 leaves it out); the thread that looks for the limit
(`at_limit`), in dumps of all threads; built-in functions that start other programs, until torch is imported (`ahead`); and the probe's
functions, for ``sys.settrace`` and ``sys.setprofile``, which see every Python function that runs.

The parts: `step_follower` finds steps from the events that `phase_ranges` and `calls` see; `borders` does the work between steps;
`marking` chooses the steps whose modules are marked, `capture_window` those that are captured; `qualified_names` knows modules by path;
`backward` marks autograd nodes; `xray` turns on what marked steps carry beside their modules: `line_ranges` of the program, torch's own
`operator_ranges` and `kernel_launches` of Triton; `pauses` records garbage collections and compilations; `output` sends.

Environment: NSYSX_PROBE_DIR (the folder of probe-<pid>.json), NSYSX_XRAY=all|lines|none (what marked steps carry),
NSYSX_SOURCE=PREFIX:!PREFIX (code that has lines, too, or has none), NSYSX_NO_SOURCE=1 (the probe file holds no text of lines),
NSYSX_MARKS=few|all|off (in which steps modules are marked; for tests), NSYSX_DEPTH=N (modules at most N path parts deep), NSYSX_ONLY=REGEX
(modules whose path matches), NSYSX_BACKWARD=marks|ops|off (for tests), NSYSX_STEPS=A:B|auto|windows (only these steps are captured, all
others run without ranges), NSYSX_LIMIT=1 (a recording ends when ``nsysx run`` asks for it), NSYSX_WINDOWS=NAME (where windows are asked
for), NSYSX_PAUSES=0 (collections and compilations are not recorded), NSYSX_TIMING=1 (no ranges at all, only the length of each step),
NSYSX_TRIAL (the same for ``nsysx try``: see `trial`).
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Literal

from . import at_limit, capture_range, draining, dynamo, engine_calls, patch, probe_parts, worker_lines
from . import backend as backends
from .backward import BackwardMarks
from .borders import Borders
from .calls import ModuleCalls
from .fetches import Fetches
from .interrupts import shielded
from .output import Output
from .phase_ranges import Phases
from .qualified_names import Naming
from .resting import Resting
from .roots import Roots
from .status import Status
from .trial import TrialRecorder


class Probe:
    """All parts of the probe in one process."""

    def __init__(self, torch: Any, backend: backends.Backend | None, environ: dict[str, str]) -> None:
        self.torch = torch
        self.pid = os.getpid()
        self.armed = False
        self.out = Output(backend or backends.nowhere("off"), environ, self.disarm)
        self.parts = probe_parts.make(torch, self.out)
        self.operators = self.parts.operators
        self.naming = Naming(torch, self.out)
        self.calls = ModuleCalls(torch, self.out, self.naming)
        self.backward = BackwardMarks(torch, self.out, self.calls.without_backward)
        self.status = Status(torch, self.out, self.parts, self.backward, self.naming, lambda: self.borders.steps)
        self.borders = Borders(torch, self.out, self.parts, self.calls, self.status)
        self.steps = self.borders.steps
        self.settings = self.status.settings = self.borders.settings
        self.phases = Phases(torch, self.out, self.borders, self.operators, self.backward)
        self.settings.graphs = lambda: self.phases.graphs
        self.settings.outputs = self.backward.outputs
        self.settings.saved_tensors.given.looks = self.calls.given
        self.resting = Resting(torch, self.out, self.borders, self.phases, self.calls)
        self.roots = Roots(self.out, self.calls, self.phases)
        self.trial = self.parts.timing if isinstance(self.parts.timing, TrialRecorder) else None
        if self.trial is not None:
            self.trial.optimizers = self.borders.optimizers
            self.operators.before_backward = self.trial.before_backward  # type: ignore[method-assign]
        self.steps.compilations = lambda: dynamo.compilations(sys.modules)
        self.patcher = patch.Patcher(torch.compiler.is_dynamo_compiling, self.out.wrong)
        self._removers: list[Callable[[], object]] = []
        self._optimizer_steps: set[int] = set()
        self._of_optimizers: list[patch.Patch] = []  # see that optimizers are made and step
        self.borders.step_aside = self.step_aside

    # ---- failure, exit, fork ----------------------------------------------------------------------------------------

    def disarm(self) -> None:
        """Give every function its own code back. Running calls still end their ranges."""
        self.armed = self.calls.armed = False
        self.resting.stop()
        self.phases.main_loop.stop()
        self.patcher.off()
        self.parts.xray.turn_off()
        self.parts.xray.launches.unfollow()
        self.operators.turn(False)
        for remove in self._removers:
            remove()
        self._removers.clear()

    def step_aside(self) -> None:
        """Do the same, but go on to see that optimizers are made and step."""
        self.disarm()
        for kept in self._of_optimizers:
            kept.on_again()

    def _come_back(self, optimizer: Any) -> bool:
        """An optimizer is about to step while nothing else is followed: return whether everything is from here on."""
        try:
            if not self.borders.comes_back(optimizer):
                return False
            self.calls.turn(False)
            for exchanged in self.patcher.patches:
                exchanged.on_again()
            self.calls.armed = self.armed = self.resting.possible = True
            self._follow_more()
            self.borders.begin_anew(optimizer)
        except BaseException as error:
            self.out.fail("later kind", error)
        return self.armed

    def forked(self) -> None:
        """Disarm in a forked child, which nsys does not record, and leave the parent's probe file alone.

        Python prints and drops an exception here, that of a handler for a signal in the child's first microseconds, too: whatever
        comes, nothing may be sent from the child, which would kill it.
        """
        for part in (self.disarm, self.disarm, self._in_worker):
            try:
                part()
            except BaseException:
                continue

    def _in_worker(self) -> None:
        """Count what the first worker of a loader does for one batch."""
        if self.parts.xray.wanted != "none":
            worker_lines.follow(self.torch, self.out.environ.get("NSYSX_PROBE_DIR"), self.parts.xray.sources)

    def exit(self) -> None:
        """End what is open and write the final counts. Runs at the exit of the armed process, not at that of its forks."""
        if os.getpid() != self.pid:
            return None
        # An exception of a signal's handler would be printed here and lost: the interpreter ends as it would have without us.
        for part in (self._end, self._end, self.status.finish):
            try:
                return part()
            except BaseException:
                continue
        return None

    def _end(self) -> None:
        if self.armed:
            self.steps.exit()
            self.borders.leave()
            self.parts.pauses.send()
            self.disarm()
            if self.out.recording:
                self.out.info(self.status.counts())
                self.out.flush(last=True)  # Ctrl-C ends Python by the signal itself: nsys gets nothing more
        self.patcher.off()  # the steps of the rest of the run are counted
        if self.parts.timing is not None:
            self.parts.timing.ended = True
        self.status.finish()
        if self.trial is not None:
            self.trial.write("exit")

    # ---- arming -----------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Exchange the code of every function that the probe follows."""
        torch, phases, around = self.torch, self.phases, self.patcher.around
        try:
            dynamo.hide(torch)
        except Exception as error:
            self.out.wrong("dynamo", error)
        self.calls.arm(self.patcher, self.roots.enter, self.roots.leave, self.backward)
        self._arm_loader()
        backward = torch.autograd.graph._engine_run_backward
        around(backward, "backward", "t_outputs", phases.enter_backward, phases.leave_backward, each_step=True)
        around(torch.nn.Module.compile, "compile", "self", lambda module: module, self.naming.recompiled)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            clip = _plain(getattr(torch.nn.utils, name))
            around(clip, name, "None", phases.enter_clip, phases.leave_simple, each_step=True)
        for owner in (torch.optim.Optimizer, torch.nn.Module):
            zero_grad = _plain(owner.zero_grad)
            around(zero_grad, "zero_grad", "None", phases.enter_zero_grad, phases.leave_simple, each_step=True)
        self.settings.arm(self.patcher)
        self._arm_optimizers()
        self._arm_graphs()
        look = self.parts.xray.launches.look
        around(self.torch.cuda.get_device_capability, "capability", "None", look, patch.nothing)
        self.resting.arm(self.patcher)
        self.parts.odometer.arm(self.patcher, self.status.write)
        if self.resting.possible:
            around(torch.nn.Module.eval, "eval", "self", self.resting.evaluates, patch.nothing)
        around(
            torch.autograd.profiler.profile._start_trace, "trace", "self", self.status.profiler_starts, patch.nothing
        )
        if self.operators.wanted != "off":
            around(
                torch.autograd.profiler._run_on_profiler_start,
                "profiler",
                "None",
                self.operators.give_way,
                patch.nothing,
            )
            if self.operators.wanted == "names":
                self.operators.turn(True)
        self._follow_more()
        self.armed = True
        if self.parts.window.two:
            phases.main_loop.start()

    def _follow_more(self) -> None:
        """Follow what needs no exchange of code."""
        phases = self.phases
        self.parts.xray.launches.follow(phases.sole_work.enter_launch, phases.sole_work.leave)
        try:
            self._removers.append(engine_calls.follow(self.torch, phases.enter_backward, phases.leave_backward))
        except Exception as error:
            self.out.wrong("engine", error)
        if self.parts.timing is None and self.out.environ.get("NSYSX_PAUSES") != "0":
            end = self.parts.pauses.arm()
            if end is not None:
                self._removers.append(end)

    def _arm_loader(self) -> None:
        """Follow the DataLoader, if the program has one."""
        around = self.patcher.around
        loader = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None:
            fetches = Fetches(self.phases, self.resting, self.parts.clock)
            around(loader._BaseDataLoaderIter.__next__, "fetch", "self", fetches.enter, fetches.leave)
            around(loader.DataLoader.__iter__, "loader", "self", self._enter_loader, self.phases.leave_fetch)

    def _arm_graphs(self) -> None:
        """Follow the capture and the replay of CUDA graphs."""
        phases, around = self.phases, self.patcher.around
        graph = self.torch.cuda.CUDAGraph
        around(graph.capture_begin, "capture_begin", "self", self._begin_capture, lambda _token: None)
        around(graph.capture_end, "capture_end", "self", lambda graph: graph, self._end_capture)
        around(graph.replay, "replay", "self", phases.enter_replay, phases.leave_replay, each_step=True)

    def _enter_loader(self, loader: Any) -> int:
        self.resting.interrupted()
        self.settings.iterates(loader, self.steps.index + 1)
        level: int = self.phases.enter_loader(loader)
        return level

    def _begin_capture(self, graph: Any) -> None:
        """Turn marks on for the capture of a CUDA graph: it is replayed without Python, so its modules show only now."""
        draining.captured.add(id(graph))
        try:
            self.resting.wake()
            self.phases.begin_capture(graph)
            self.borders.pause()
        except Exception as error:
            self.out.fail("capture", error)

    def _end_capture(self, graph: Any) -> None:
        draining.captured.discard(id(graph))
        try:
            self.phases.end_capture(graph)
            self.borders.resume()
        except Exception as error:
            self.out.fail("capture", error)

    def _arm_optimizers(self) -> None:
        phases, resting, later = self.phases, self.resting, self.parts.later

        def begin(optimizer: Any) -> tuple[int, Any] | Literal[""] | None:
            if later.on and not self._come_back(optimizer):
                return ""
            if resting.on and resting.enters(optimizer):
                return None
            return phases.enter_optimizer(optimizer), optimizer

        @shielded
        def end(token: tuple[int, Any] | Literal[""] | None) -> None:
            if token is None:
                resting.leaves()
            elif token:
                phases.leave_optimizer(*token)
                if resting.possible and not resting.on:
                    resting.look()

        def made(optimizer: Any) -> None:
            """Patch the step of a new optimizer's class, once; by now torch has put its own wrapper around that step."""
            try:
                self.borders.made_optimizer(optimizer)
                if not later.on:
                    self.steps.made_optimizer(id(optimizer))
                step = type(optimizer).step
                if id(step) not in self._optimizer_steps:
                    self._of_optimizers += around(step, "optimizer", "args[0]", begin, end)
                    self._optimizer_steps.add(id(step))
            except Exception as error:
                self.out.fail("optimizer", error)

        around = self.patcher.around
        self._of_optimizers += around(
            self.torch.optim.Optimizer.__init__, "made", "self", lambda optimizer: optimizer, made
        )
        scaler = sys.modules.get("torch.amp.grad_scaler")
        if scaler is not None:

            def scaled(both: tuple[Any, Any]) -> tuple[int, Any] | None:
                scaler, optimizer = both
                if resting.on and resting.enters(optimizer):
                    return None
                self.settings.stepping(optimizer, scaler)
                return self.phases.enter_optimizer(optimizer, "GradScaler"), optimizer

            around(scaler.GradScaler.step, "scaler", "(self, optimizer)", scaled, end)

    def calibrate(self) -> None:
        """Measure what a range costs in this process, in a separate domain; without a result the cost stays None."""
        try:
            scratch = backends.scratch(self.torch, self.out.backend)
            self.status.pair_cost_ns = backends.pair_cost_ns(scratch)
        except Exception as error:
            self.out.wrong("calibration", error)


def _plain(function: Any) -> Any:
    """Return the function under its decorators."""
    return getattr(function, "__wrapped__", function)


_probe: Probe | None = None


def arm(torch: Any) -> None:
    """Arm the probe in this process. The bootstrap calls it after ``import torch``; a second call does nothing."""
    global _probe
    if _probe is not None:
        return
    environ = dict(os.environ)
    backend: backends.Backend | None
    why: list[str] = []
    if environ.get("NSYSX_TIMING") == "1":
        backend = backends.nowhere("timing")
    else:
        if environ.get("NSYSX_STEPS") != capture_range.MODE:
            at_limit.watch_whole()
        backend, why = backends.choose(torch, environ.get("NSYSX_BACKEND", ""))
        if backend is not None:
            capture_range.here()
    probe = _probe = Probe(torch, backend, environ)
    if backend is None:
        probe.status.reason = "no NVTX backend: " + "; ".join(why)
        probe.status.lacks = "nvtx"
        probe.status.write()
        return
    if why:
        probe.status.reason = "; ".join(why)
    try:
        probe.arm()
        if probe.trial is not None:
            probe.trial.make_changes()
        os.register_at_fork(after_in_parent=probe.status.forked, after_in_child=probe.forked)
        atexit.register(probe.exit)
        if probe.parts.timing is None:
            probe.calibrate()
        if probe.out.recording:
            probe.status.hello()
    except Exception as error:
        probe.out.fail("arm", error)
    probe.status.write()


def step() -> None:
    """Begin the next step here; ``nsysx.step()`` calls this."""
    probe = _probe
    if probe is None or not probe.armed:
        return
    try:
        thread, phases = probe.out.thread, probe.phases
        if not thread.phases and not thread.open:
            phases.driver = phases.driver or threading.get_ident()
            probe.resting.wake()
            probe.steps.step()
    except Exception as error:
        probe.out.fail("step", error)
