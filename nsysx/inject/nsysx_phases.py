"""Phases: a root network is called, a batch is fetched, backward runs, an optimizer steps. They tell ``Steps`` what happens."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from nsysx_names import Entry
from nsysx_output import Output
from nsysx_steps import Steps


class Phases:
    """Enter and leave of each phase. ``driver`` is the thread whose events make steps, as soon as it is known."""

    def __init__(self, torch: Any, out: Output, steps: Steps) -> None:
        self.torch = torch
        self.out = out
        self.steps = steps
        self.driver: int | None = None
        self.before_backward: Callable[[Any], None] = lambda _roots: None
        self.capturing: list[int | None] | None = None  # ends of optimizer steps (their key) and backwards (None)
        self._trained_root: Any = None
        self._graphs: Any = weakref.WeakKeyDictionary()  # CUDA graph -> what was captured in it

    def _alone(self) -> bool:
        """Say whether this is the driving thread, outside of every phase and root."""
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
        """A network or a loss is called outside of others: open its phase and return its level, 0 for none."""
        phases: list[str] = self.out.thread.phases
        me = threading.get_ident()
        if self.driver is None and me == threading.main_thread().ident:
            self.driver = me
        if self.driver not in (None, me):
            return 0
        if entry.root == "loss":
            return 0 if "loss" in phases else self._open("loss", entry.cls)
        if "data" in phases:  # a transform that is a module
            return 0
        grad = self.torch.is_grad_enabled()
        if not phases and self.driver == me:
            if grad:
                self._trained_root = weakref.ref(module)
            self.steps.forward(grad)
        return self._open("forward" if grad else "evaluation", entry.cls)

    def after_root(self) -> None:
        """The outermost network has returned."""
        if self.driver == threading.get_ident():
            self.steps.forward_end()

    # ---- batches ----------------------------------------------------------------------------------------------------

    def enter_fetch(self, loader: Any) -> int:
        """A DataLoader iterator is asked for a batch."""
        try:
            if not self._alone():
                return 0
            self.steps.fetch(self._training(), _exhausted(loader))
            return self._open("data", "DataLoader")
        except Exception as error:
            self.out.fail("fetch", error)
            return 0

    def leave_fetch(self, level: int) -> None:
        """The batch is there, or the loader is at its end."""
        try:
            if level:
                self.out.close(level)
                if sys.exc_info()[0] is StopIteration:  # this runs inside the finally of the loader's own __next__
                    self.steps.epoch_end()
        except Exception as error:
            self.out.fail("fetch", error)

    def enter_loader(self, _first: Any) -> int:
        """A DataLoader makes an iterator: it may start worker processes and fill their queues."""
        try:
            if not self._alone():
                return 0
            if self.steps.index >= 0:  # before that it is preparation, not a step
                self.steps.fetch(self._training())
            return self._open("data", "DataLoader.__iter__")
        except Exception as error:
            self.out.fail("loader", error)
            return 0

    def _training(self) -> bool:
        root = self._trained_root() if self._trained_root is not None else None
        return bool(self.torch.is_grad_enabled()) and (root is None or root.__dict__.get("training") is not False)

    # ---- backward ---------------------------------------------------------------------------------------------------

    def enter_backward(self, roots: Any) -> int:
        """The autograd engine is started for ``roots``, from Python, on this thread."""
        try:
            thread = self.out.thread
            if self._traced():
                return 0
            if self.torch._C._current_graph_task_id() == -1 and not thread.open:
                self.driver = self.driver or threading.get_ident()
                if not thread.phases and self.driver == threading.get_ident():
                    self.steps.backward()
            self.before_backward(roots)
            return self._open("backward")
        except Exception as error:
            self.out.fail("backward", error)
            return 0

    def _traced(self) -> bool:
        """Say whether tensors are fake: torch.compile looks at a backward here and runs none."""
        native = self.torch._C
        try:
            return native._get_dispatch_mode(native._TorchDispatchModeKey.FAKE) is not None
        except AttributeError:
            return False

    def leave_backward(self, level: int) -> None:
        """Backward has returned."""
        try:
            if not level:
                return
            self.out.close(level)
            if not self.out.thread.phases and self.driver == threading.get_ident():
                self.steps.backward_end()
                if self.capturing is not None:
                    self.capturing.append(None)
        except Exception as error:
            self.out.fail("backward", error)

    # ---- optimizers -------------------------------------------------------------------------------------------------

    def enter_optimizer(self, optimizer: Any, detail: str = "") -> int:
        """An optimizer, or a scaler that may skip it, begins its step."""
        try:
            thread = self.out.thread
            if not thread.phases and not thread.open and self.driver in (None, threading.get_ident()):
                self.steps.optimizer(id(optimizer))
            return self._open("optimizer", detail or type(optimizer).__name__)
        except Exception as error:
            self.out.fail("optimizer", error)
            return 0

    def leave_optimizer(self, level: int, optimizer: Any) -> None:
        """An optimizer's step has returned."""
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
        except Exception as error:
            self.out.fail("optimizer", error)

    def enter_zero_grad(self, _first: Any) -> int:
        """Gradients are taken away."""
        try:
            if not self.out.thread.phases and self.driver in (None, threading.get_ident()):
                self.steps.zero_grad()
            return self._open("zero_grad")
        except Exception as error:
            self.out.fail("zero_grad", error)
            return 0

    def leave_simple(self, level: int) -> None:
        """A phase that has no influence on steps ends."""
        try:
            self.out.close(level)
        except Exception as error:
            self.out.fail("phase", error)

    def enter_clip(self, _first: Any) -> int:
        """Gradients are clipped."""
        try:
            return self._open("clip")
        except Exception as error:
            self.out.fail("clip", error)
            return 0

    # ---- CUDA graphs ------------------------------------------------------------------------------------------------

    def begin_capture(self, _graph: Any) -> None:
        """Work is captured from here on: what it completes is what each replay completes."""
        self.capturing = []

    def end_capture(self, graph: Any) -> None:
        """The capture ended."""
        try:
            self._graphs[graph], self.capturing = self.capturing or [], None
        except Exception as error:
            self.out.fail("capture", error)

    def enter_replay(self, graph: Any) -> Any:
        """A graph is launched. Outside of everything else no module is called for it: it stands for what was captured."""
        try:
            if not self._alone():
                return None
            self.steps.forward(self.torch.is_grad_enabled())
        except Exception as error:
            self.out.fail("replay", error)
            return None
        return graph

    def leave_replay(self, graph: Any) -> None:
        """The launch has returned."""
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
    """Say whether the next fetch is known to end the loader: a map-style loader knows how many batches it has."""
    try:
        return loader._sampler_iter is not None and loader._num_yielded >= len(loader._index_sampler)
    except Exception:
        return False
