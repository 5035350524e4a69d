"""What the nodes of autograd's graph have saved, as long as no hook has packed it: what is packed away (checkpoints, offloading) is not
unpacked.
"""

from __future__ import annotations

from typing import Any

from . import patch
from .output import Output
from .settings_state import asked


class SavedTensors:
    """Of the step whose backward begins."""

    def __init__(self, torch: Any, out: Output) -> None:
        self.torch, self.out = torch, out
        self._tells_hooks = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")
        self._hooked = False  # of a torch that does not tell: hooks were entered in the step
        self._patches: list[patch.Patch] | None = None

    def begin(self, *, last: bool) -> None:
        """A recorded step begins, the window's ``last`` one in which tensors are looked at."""
        if not self._tells_hooks and (last or self._patches is not None):
            asked(self._follow_hooks, last)

    def may_be_read(self) -> bool:
        """Return whether nothing follows the operators of this thread, or captures them."""
        native, cuda = self.torch._C, self.torch.cuda
        if native._len_torch_dispatch_stack() or native._len_torch_function_stack():
            return False
        return not (cuda.is_initialized() and cuda.is_current_stream_capturing())

    def has(self, node: Any, name: str) -> bool:
        """Return whether nodes of this kind save a tensor of this name."""
        return hasattr(type(node), f"_raw_saved_{name}")

    def is_packed(self, node: Any, name: str) -> bool:
        """Return whether a hook has, or may have, packed what a node has saved."""
        if self._tells_hooks:
            return getattr(node, f"_raw_saved_{name}").unpack_hook is not None
        return self._packs()

    def tensor(self, node: Any, name: str) -> Any:
        """Return what a node has saved and no hook has packed, None for nothing."""
        return getattr(node, f"_raw_saved_{name}").data if self._tells_hooks else getattr(node, f"_saved_{name}")

    def _packs(self) -> bool:
        """Return whether hooks may have packed what this step has saved; of those around all steps the outermost still are there."""
        return self._hooked or self.torch._C._autograd._top_saved_tensors_default_hooks(True) is not None

    def _follow_hooks(self, on: bool) -> None:
        self._hooked = False
        if self._patches is None:
            patcher = patch.Patcher(self.torch.compiler.is_dynamo_compiling, self.out.wrong)
            hooks = self.torch.autograd.graph.saved_tensors_hooks
            patcher.around(hooks.__enter__, "saved_hooks", "None", self._enters_hooks, patch.nothing)
            self._patches = patcher.patches
        for each in self._patches:
            each.on() if on else each.off()
        self._hooked = not self._patches

    def _enters_hooks(self, _nothing: Any) -> None:
        self._hooked = True
