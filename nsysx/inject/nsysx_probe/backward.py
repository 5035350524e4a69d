"""Attributes the backward pass to modules, with marks on the thread that runs it.

When a module returns, the autograd node of its output gets a hook that sends the mark ``bwd path:Cls``. The node of its input
gets the hook of the surrounding module, unless a module returned that input. A node gets one hook, that of the innermost
module. What runs between two marks belongs to the first of them. A tensor of ours hands the hook to the node: this is five
times cheaper than ``register_prehook`` and leaves the graph as it is. Compiled autograd would trace the hooks, so there are none
while it is on.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from .output import Output
from .probe_bounds import DEEPEST_RESULT, WIDEST_RESULT
from .qualified_names import ModuleEntry


class BackwardMarks:
    """``wanted`` is marks, ops or off, and "failed" after a failure ended the marks."""

    def __init__(self, torch: Any, out: Output, ended: Callable[[], None]) -> None:
        self.torch = torch
        self.out = out
        self.wanted = out.choice("NSYSX_BACKWARD", ("marks", "ops", "off", "phase"))
        if self.wanted == "phase":  # an older name for off
            self.wanted = "off"
        self.outputs: list[Callable[[ModuleEntry, Any], None]] = []  # who else looks at what modules return now
        self._ended = ended
        self._empty = torch.empty(0, device="cpu")
        self._hooks: Any = weakref.WeakKeyDictionary()  # entry -> what its carrier hands to nodes

    @property
    def active(self) -> bool:
        """Return whether nodes are marked."""
        return self.wanted in ("marks", "ops")

    def fail(self, error: BaseException) -> None:
        """Note the failure and go on without backward marks."""
        self.out.wrong("backward marks ended", error)
        self.wanted = "failed"
        self._ended()

    @staticmethod
    def compiled() -> bool:
        """Return whether compiled autograd is on: it traces the hooks of each node, and ours cannot be traced."""
        module = sys.modules.get("torch._dynamo.compiled_autograd")
        return bool(getattr(module, "compiled_autograd_enabled", False))

    def begins(self) -> None:
        """Before a backward: take the marks from all nodes if compiled autograd runs it. Later forwards make new ones."""
        if self._hooks and self.compiled():
            for entry, hooks in list(self._hooks.items()):
                hooks.clear()
                entry.hook = entry.again.hook = None
            self._hooks.clear()

    def carrier(self, entry: ModuleEntry) -> Any:
        """Return a tensor of ours whose hook sends this module's mark; None without a text, or while a dispatch mode or
        compiled autograd is on.
        """
        torch = self.torch
        if torch._C._len_torch_dispatch_stack() or entry.backward_text is None or self.compiled():
            return None
        text, mark = entry.backward_text, self.out.backend.mark
        count = self.out.counts["backward_module"].__next__

        def hook(_gradient: Any) -> None:
            mark(text)
            count()

        with torch._C.DisableTorchFunction():
            tensor = self._empty.data  # a new tensor, without an operator that a profiler of the program would see
            tensor._backward_hooks = hooks = {0: hook}
        self._hooks[entry] = hooks
        entry.hook = entry.again.hook = tensor
        return tensor

    def _mark(self, function: Any, entry: ModuleEntry | None) -> None:
        if entry is not None:
            hook = entry.hook
            if hook is None:
                hook = self.carrier(entry)
                if hook is None:
                    return
            function.metadata["nsysx"] = None
            function._register_hook_dict(hook)

    def _look(self, value: Any, entry: ModuleEntry | None, level: int = 0) -> None:
        """Mark the tensors in a result that is not a plain tensor."""
        tensor = self.torch.Tensor
        if isinstance(value, tensor):
            # The user's subclass or mode may watch every access.
            if type(value) is tensor or type(value).__module__.startswith("torch.distributed."):
                with self.torch._C.DisableTorchFunction():
                    function = value.grad_fn
                    if function is not None and "nsysx" not in function.metadata:
                        self._mark(function, entry)
        elif level < DEEPEST_RESULT:
            if isinstance(value, dict):
                value = list(value.values())
            elif hasattr(type(value), "__dataclass_fields__"):
                value = list(vars(value).values())
            if isinstance(value, (tuple, list)):
                for item in value[:WIDEST_RESULT]:
                    self._look(item, entry, level + 1)

    def around_call(self) -> tuple[Any, Any]:
        """Return the two functions that run before and after a module call and mark its autograd nodes.

        Both are hot, so the common case of a plain tensor is written out.
        """
        tensor = self.torch.Tensor
        modes = self.torch._C._len_torch_function_stack
        mark, look, fail, outputs = self._mark, self._look, self.fail, self.outputs

        def entered(entry: ModuleEntry, args: Any, kwargs: Any) -> None:
            try:
                for value in (*args, *kwargs.values()) if kwargs else args:
                    if type(value) is tensor:
                        if modes():
                            look(value, entry.up)
                            continue
                        function = value.grad_fn
                        if function is not None and "nsysx" not in function.metadata:
                            mark(function, entry.up)
            except Exception as error:
                fail(error)

        def returned(entry: ModuleEntry, value: Any) -> Any:
            try:
                if outputs:
                    outputs[0](entry, value)
                if type(value) is tensor and not modes():
                    function = value.grad_fn
                    if function is not None and "nsysx" not in (notes := function.metadata):
                        hook = entry.hook
                        if hook is None:
                            mark(function, entry)
                        else:
                            notes["nsysx"] = None
                            function._register_hook_dict(hook)
                elif value is not None:
                    look(value, entry)
            except Exception as error:
                fail(error)
            return value

        return entered, returned
