"""Keeps torch.compile away from our own functions: they run between those of the program."""

from __future__ import annotations

import sys
from types import CodeType, FunctionType
from typing import Any


def hide(torch: Any) -> None:
    """Tell the frame evaluator never to compile a function of ours, nor what it calls."""
    native = torch._C._dynamo.eval_frame
    if hasattr(native, "set_code_exec_strategy"):
        plain = native._FrameExecStrategy(native._FrameAction.SKIP, native._FrameAction.SKIP)

        def skip(code: CodeType) -> None:
            native.set_code_exec_strategy(code, plain)
    else:
        skip = native.skip_code  # torch < 2.7
    todo: list[Any] = [vars(m) for name, m in list(sys.modules.items()) if name.startswith("nsysx_")]
    while todo:
        one = todo.pop()
        if isinstance(one, CodeType):
            skip(one)
            todo.extend(one.co_consts)
        elif isinstance(one, dict):
            todo.extend(v for v in one.values() if getattr(v, "__module__", "nsysx").startswith("nsysx"))
        elif isinstance(one, FunctionType):
            todo.append(one.__code__)
        elif isinstance(one, property):
            todo.append(one.fget)
        elif isinstance(one, (staticmethod, classmethod)):
            todo.append(one.__func__)
        elif isinstance(one, type):
            todo.append(dict(vars(one)))
