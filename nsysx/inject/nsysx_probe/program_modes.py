"""Whether the program looks on at what is asked of its tensors."""

from __future__ import annotations

from typing import Any


def looked_on(torch: Any) -> bool:
    """Return whether a mode of the program would see what is asked of a tensor now, or torch.func wraps it, which then lies nowhere."""
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return True
    transformed = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
    return transformed is not None and transformed() is not None
