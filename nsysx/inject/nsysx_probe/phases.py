"""Opens and closes phases (a root network is called, a batch is fetched, backward runs, ...) and tells ``Steps`` of each."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .interrupts import shielded
from .names import Entry
from .output import Output
from .steps import Steps


class Phases:
    """The enter and leave functions of each phase. ``driver``: the thread whose events make steps, once it is known."""

    def __init__(self, torch: Any, out: Output, steps: Steps) -> None:
        self.torch = torch
        self.out = out
        self.steps = steps
        self.driver: int | None = None
        self.backward_begins: Callable[[], None] = lambda: None
        self.before_backward: Callable[[Any], None] = lambda _roots: None
        #: During a capture: the key of each optimizer step that ended, and None for each backward that ended.
        self.capturing: list[int | None] | None = None
        self._trained_root: Any = None
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

    def root(self, entry: Entry, module: Any) -> int:
        """Open the phase of an outermost network, or of a loss, and return its level, 0 if none was opened."""
        phases: list[str] = self.out.thread.phases
        this_thread = threading.get_ident()
        if self.driver is None and this_thread == threading.main_thread().ident:
            self.driver = this_thread
        if self.driver not in (None, this_thread):
            return 0
        if entry.root == "loss":
            return 0 if "loss" in phases else self._open("loss", entry.cls)
        if "data" in phases:  # a transform that is a module
            return 0
        grad = self.torch.is_grad_enabled()
        if not phases and self.driver == this_thread:
            if grad:
                self._trained_root = weakref.ref(module)
            self.steps.forward(grad)
        return self._open("forward" if grad else "evaluation", entry.cls)

    def after_root(self) -> None:
        """Note that the outermost network has returned."""
        if self.driver == threading.get_ident():
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
        return bool(self.torch.is_grad_enabled()) and (root is None or root.__dict__.get("training") is not False)

    # ---- backward ---------------------------------------------------------------------------------------------------

    def enter_backward(self, roots: Any) -> int:
        """Open the phase of a backward of ``roots`` that Python starts on this thread; return its level, 0 if none was opened."""
        before = len(self.out.thread.phases)
        try:
            thread = self.out.thread
            if self._traced():
                return 0
            if self.torch._C._current_graph_task_id() == -1 and not thread.open:
                self.driver = self.driver or threading.get_ident()
                if not thread.phases and self.driver == threading.get_ident():
                    self.steps.backward()
            self.backward_begins()
            self.before_backward(roots)
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
            if not thread.phases and not thread.open and self.driver in (None, threading.get_ident()):
                self.steps.optimizer(id(optimizer))
            return self._open("optimizer", detail or type(optimizer).__name__)
        except BaseException as error:
            return self.out.fail("optimizer", error, before + 1)

    @shielded
    def leave_optimizer(self, level: int, optimizer: Any) -> None:
        """Close the phase of an optimizer's step that has returned."""
        try:
            self.out.close(level)
            if "optimizer" in self.out.thread.phases:
                self.steps.inner_optimizer(id(optimizer))
                return
            in_backward = self.torch._C._current_graph_task_id() != -1
            if in_backward or self.driver in (None, threading.get_ident()):
                self.steps.optimizer_end(id(optimizer), in_backward)
                if self.capturing is not None:
                    self.capturing.append(id(optimizer))
        except BaseException as error:
            self.out.fail("optimizer", error, level)

    def enter_zero_grad(self, _first: Any) -> int:
        """Open the phase in which gradients are reset; return its level."""
        before = len(self.out.thread.phases)
        try:
            if not self.out.thread.phases and self.driver in (None, threading.get_ident()):
                self.steps.zero_grad()
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
