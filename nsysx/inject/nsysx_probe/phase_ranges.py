"""Opens and closes phases (a root network is called, a batch is fetched, backward runs, ...) and tells `StepFollower` of each."""

from __future__ import annotations

import sys
import threading
import weakref
from itertools import islice
from typing import Any

from .backward import BackwardMarks
from .borders import Borders
from .interrupts import shielded
from .main_loop import MainLoop
from .operator_ranges import OperatorRanges
from .output import Output
from .probe_bounds import CALLS_OF_SERVER, MOST_FIRST_ROOTS, MOST_ROOT_PARAMETERS
from .qualified_names import ModuleEntry, held
from .settings_objects import parameters_in
from .sole_work import SoleWork

#: What a thread may do: call a network, run backward, step an optimizer.
_CALLED, _RAN_BACKWARD, _STEPPED = 1, 2, 3


class Phases:
    """The enter and leave functions of each phase. ``driver``: the thread whose events make steps, once it is known."""

    def __init__(
        self, torch: Any, out: Output, borders: Borders, operators: OperatorRanges, backward: BackwardMarks
    ) -> None:
        self.torch = torch
        self.out = out
        self.borders = borders
        self.steps = borders.steps
        self.operators = operators
        self.backward = backward
        self.driver: int | None = None
        #: During a capture: the key of each optimizer step that ended, and None for each backward that ended.
        self.capturing: list[int | None] | None = None
        self._trained_root: Any = None
        self._trains = False  # that root was in training mode when it was called
        self._rank = 0  # what the driver has done: called a network, run backward, stepped an optimizer
        self._calls_beside: dict[int, int] = {}  # thread -> the networks that it has called since the driver called one
        self._first: dict[int, tuple[Any, Any]] = {}  # id of a root -> weak references to it and to its first parameter
        self._called: tuple[int, dict[int, Any]] = (-1, {})  # a step, and the networks that it has called
        self.steps.related = self._related
        unfollow = borders.xray.launches.unfollow
        self.sole_work = SoleWork(torch, out, self.steps, lambda: self._drives(_CALLED), unfollow)
        self.main_loop = MainLoop(torch, out, borders.xray.sources, self.sole_work)
        self._graphs: Any = weakref.WeakKeyDictionary()  # CUDA graph -> what ended in its capture

    def _alone(self) -> bool:
        """Return whether this is the driving thread, outside every phase and root."""
        thread = self.out.thread
        return (
            not thread.phases
            and not thread.open
            and threading.get_ident() == (self.driver or threading.main_thread().ident)
        )

    def _open(self, name: str, detail: str = "") -> int:
        level: int = self.out.open_phase(name, detail)
        return level

    # ---- networks and losses ----------------------------------------------------------------------------------------

    def root(self, entry: ModuleEntry, module: Any, given: tuple[Any, ...] = ()) -> int:
        """Open the phase of an outermost network, or of a loss, and return its level, 0 if none was opened."""
        thread = self.out.thread
        this_thread = threading.get_ident()
        if not self._drives(_CALLED) and self.driver is not None:
            return 0
        if entry.root == "loss":
            return 0 if thread.within("loss") else self._open("loss", entry.cls)
        if thread.phases and thread.within("data"):  # a transform that is a module
            return 0
        grad = self.torch.is_grad_enabled()
        if not thread.phases and self.driver == this_thread:
            self._forward(entry, module, grad)
            self.borders.settings.network(module, *given)
            if not self.steps.is_open:
                self.borders.call_begins((entry.path, entry.cls, grad), module, given)
        return self._open("forward" if grad else "evaluation", entry.cls)

    def _forward(self, entry: ModuleEntry, module: Any, grad: bool) -> None:
        self.sole_work.give_way()
        training = held(module).get("training") is not False
        same = self._trained_root is not None and self._trained_root() is module
        if grad and same and self._trains and not training:
            self.steps.forward(False)  # evaluation that keeps gradients
            return
        if grad:
            self._trained_root, self._trains = weakref.ref(module), training
        if self.steps.optimizer_made:
            self.steps.turns_taken.networks.add(id(module))
            if self.steps.pending and self.steps.index == self.steps.first:  # the first round may not be over
                self._note(module)
            self.steps.forward(grad, acts=not grad and (training or not same))
        else:
            self.steps.forward(
                grad, (entry.path, entry.cls), self._version(module), acts=not grad and (training or not same)
            )
        if self.steps.pending:
            self._note(module)

    def _note(self, module: Any) -> None:
        """Remember that the open step has called this network."""
        step = self.steps.index + (not self.steps.is_open)  # what is called between two steps counts for the second
        if self._called[0] != step:
            self._called = (step, {})
        self._called[1][id(module)] = weakref.ref(module)

    def _version(self, module: Any) -> int | None:
        """Return how often the first parameter of a network was changed in place, None if it has none."""
        first = self._first.get(id(module))
        if first is None or first[0]() is not module:
            weights = next(parameters_in(module), None)
            if len(self._first) > MOST_FIRST_ROOTS:
                self._first.clear()
            first = self._first[id(module)] = (
                weakref.ref(module),
                weights if weights is None else weakref.ref(weights),
            )
        weights = first[1]() if first[1] is not None else None
        if weights is None:
            return None
        try:
            with self.torch._C.DisableTorchFunction():  # a mode of the user's sees no question of ours
                return int(weights._version)
        except RuntimeError:  # made in inference mode, which counts no changes
            return None

    def _related(self, key: object, ends: object) -> bool | None:
        """Return whether the optimizer ``key`` works on a network of the open step, and on other weights than ``ends`` does."""
        ids: dict[object, set[int]] = {}
        for ref in self.borders.optimizers():
            optimizer = ref()
            if optimizer is not None and id(optimizer) in (key, ends):
                groups = getattr(optimizer, "param_groups", ())
                ids[id(optimizer)] = {id(p) for group in groups for p in group["params"] if p.requires_grad}
        weights = ids.get(key, set())
        if weights & ids.get(ends, set()):
            return False
        step, modules = self._called
        if step != self.steps.index:
            return False
        roots = [root for ref in modules.values() if (root := ref()) is not None]
        return any(id(p) in weights for root in roots for p in islice(parameters_in(root), MOST_ROOT_PARAMETERS))

    def _drives(self, rank: int) -> bool:
        """Return whether this thread's events make steps: those of the one that does most, and of the main thread among equals.

        Of threads that only call networks it is the main one, or the one that goes on while the others call none: in a server the main
        thread at most warms the network up, and waits.
        """
        this_thread = threading.get_ident()
        is_main = this_thread == threading.main_thread().ident
        if self.driver != this_thread:
            if self.driver is None:
                if rank == _CALLED and not is_main and not self._serves(this_thread):
                    return False
            elif rank == self._rank == _CALLED and self._serves(this_thread):
                self.steps.restart()
            elif rank < self._rank or (rank == self._rank and not (is_main and rank > _CALLED)):
                if is_main:
                    self.borders.leave()
                return False
            else:
                self.steps.restart()
            self.driver, self._rank = this_thread, rank
        self._calls_beside.clear()
        self._rank = max(self._rank, rank)
        return True

    def _serves(self, thread: int) -> bool:
        """Count a call of a network by a thread that does not drive; return whether it has made enough while the driver made none."""
        count = self._calls_beside[thread] = self._calls_beside.get(thread, 0) + 1
        return count > CALLS_OF_SERVER

    def after_root(self) -> None:
        """Note that the outermost network has returned."""
        if self.driver == threading.get_ident():
            if not self.steps.is_open:
                self.borders.call_ended()
            self.steps.forward_end()

    # ---- batches ----------------------------------------------------------------------------------------------------

    def enter_fetch(self, loader: Any) -> int:
        """Open the phase of a DataLoader iterator's next batch; return its level, 0 if none was opened."""
        before = len(self.out.thread.phases)
        try:
            if not self._alone():
                return 0
            self.steps.fetch(self._training(), _exhausted(loader))
            return self._open("data", "DataLoader")
        except BaseException as error:
            return self.out.fail("fetch", error, before + 1)

    @shielded
    def leave_fetch(self, level: int) -> None:
        """Close the phase: the batch has arrived, or the loader is exhausted."""
        try:
            if level:
                self.out.close(level)
                if sys.exc_info()[0] is StopIteration:  # this runs inside the finally of the loader's own __next__
                    self.steps.epoch_end()
        except BaseException as error:
            self.out.fail("fetch", error, level)

    def enter_loader(self, _first: Any) -> int:
        """Open the phase in which a DataLoader makes an iterator: it may start workers and fill their queues."""
        before = len(self.out.thread.phases)
        try:
            if not self._alone():
                return 0
            if self.steps.index >= 0:  # before the first step it is preparation
                self.steps.fetch(self._training())
            return self._open("data", "DataLoader.__iter__")
        except BaseException as error:
            return self.out.fail("loader", error, before + 1)

    def _training(self) -> bool:
        root = self._trained_root() if self._trained_root is not None else None
        return bool(self.torch.is_grad_enabled()) and (root is None or held(root).get("training") is not False)

    # ---- backward ---------------------------------------------------------------------------------------------------

    def enter_backward(self, roots: Any) -> int:
        """Open the phase of a backward of ``roots`` that Python starts on this thread; return its level, 0 if none was opened."""
        before = len(self.out.thread.phases)
        try:
            thread = self.out.thread
            if self._traced():
                return 0
            outermost = not thread.phases and not thread.open and self.torch._C._current_graph_task_id() == -1
            if outermost and self._drives(_RAN_BACKWARD):
                self.steps.backward()
                self.borders.settings.backward()
            self.backward.begins()
            if self.backward.compiled():
                # What is traced has no shapes to record, and torch for CUDA prints that for each operator.
                self.operators.in_step(False)
            elif outermost:
                self.borders.settings.saved_tensors.backward(roots)
            self.operators.before_backward(roots)
            return self._open("backward")
        except BaseException as error:
            return self.out.fail("backward", error, before + 1)

    def _traced(self) -> bool:
        """Return whether tensors are fake, because torch.compile traces this backward and does not run it."""
        native = self.torch._C
        try:
            return native._get_dispatch_mode(native._TorchDispatchModeKey.FAKE) is not None
        except AttributeError:
            return False

    @shielded
    def leave_backward(self, level: int) -> None:
        """Close the phase of a backward that has returned."""
        try:
            if not level:
                return
            self.out.close(level)
            if not self.out.thread.phases and self.driver == threading.get_ident():
                self.steps.backward_end()
                self.borders.settings.backward_ended()
                if self.capturing is not None:
                    self.capturing.append(None)
        except BaseException as error:
            self.out.fail("backward", error, level)

    # ---- optimizers -------------------------------------------------------------------------------------------------

    def enter_optimizer(self, optimizer: Any, detail: str = "") -> int:
        """Open the phase of an optimizer's step, or of a scaler that may skip it; return its level."""
        before = len(self.out.thread.phases)
        try:
            thread = self.out.thread
            outermost = not thread.phases and not thread.open and self.torch._C._current_graph_task_id() == -1
            if outermost and self._drives(_STEPPED):
                self.steps.optimizer(id(optimizer))
                self.borders.settings.stepping(optimizer)
            return self._open("optimizer", detail or type(optimizer).__name__)
        except BaseException as error:
            return self.out.fail("optimizer", error, before + 1)

    @shielded
    def leave_optimizer(self, level: int, optimizer: Any) -> None:
        """Close the phase of an optimizer's step that has returned."""
        try:
            self.out.close(level)
            if self.out.thread.phases and self.out.thread.within("optimizer"):
                self.steps.inner_optimizer(id(optimizer))
                return
            in_backward = self.torch._C._current_graph_task_id() != -1
            if in_backward or self.driver in (None, threading.get_ident()):
                self.steps.optimizer_end(id(optimizer), in_backward)
                if self.capturing is not None:
                    self.capturing.append(id(optimizer))
                else:
                    self.borders.optimizer_ended()
        except BaseException as error:
            self.out.fail("optimizer", error, level)

    def enter_zero_grad(self, _first: Any) -> int:
        """Open the phase in which gradients are reset; return its level."""
        before = len(self.out.thread.phases)
        try:
            if not self.out.thread.phases and self.driver in (None, threading.get_ident()):
                self.steps.zero_grad()
                self.borders.settings.zeroes()
            return self._open("zero_grad")
        except BaseException as error:
            return self.out.fail("zero_grad", error, before + 1)

    @shielded
    def leave_simple(self, level: int) -> None:
        """Close a phase that has no influence on steps."""
        try:
            self.out.close(level)
        except BaseException as error:
            self.out.fail("phase", error, level)

    def enter_clip(self, _first: Any) -> int:
        """Open the phase in which gradients are clipped; return its level."""
        before = len(self.out.thread.phases)
        try:
            return self._open("clip")
        except BaseException as error:
            return self.out.fail("clip", error, before + 1)

    @property
    def has_graphs(self) -> bool:
        """Return whether a CUDA graph is being captured, or one that was captured may be replayed."""
        return self.capturing is not None or self.graphs > 0

    @property
    def graphs(self) -> int:
        """Return how many CUDA graphs that were captured live."""
        return len(self._graphs)

    # ---- CUDA graphs ------------------------------------------------------------------------------------------------

    def begin_capture(self, _graph: Any) -> None:
        """Begin to note what the capture completes, because each replay completes the same."""
        self.capturing = []

    def end_capture(self, graph: Any) -> None:
        """Keep what the capture completed, for the replays of ``graph``."""
        try:
            self._graphs[graph], self.capturing = self.capturing or [], None
        except Exception as error:
            self.out.fail("capture", error)

    def enter_replay(self, graph: Any) -> Any:
        """Treat an outermost graph launch, for which no module is called, as a forward; return the token for `leave_replay`."""
        try:
            if not self._alone():
                return None
            self.sole_work.give_way()
            self.steps.forward(self.torch.is_grad_enabled())
        except Exception as error:
            self.out.fail("replay", error)
            return None
        return graph

    @shielded
    def leave_replay(self, graph: Any) -> None:
        """Complete what the graph's capture completed, once its launch has returned."""
        try:
            if graph is None:
                return
            self.steps.forward_end()
            for key in self._graphs.get(graph, ()):
                if key is None:
                    self.steps.backward_end()
                else:
                    self.steps.optimizer_end(key)
        except Exception as error:
            self.out.fail("replay", error)


def _exhausted(loader: Any) -> bool:
    """Return whether the loader is known to have no more batches: a map-style loader knows how many it has."""
    try:
        return loader._sampler_iter is not None and loader._num_yielded >= len(loader._index_sampler)
    except Exception:
        return False
