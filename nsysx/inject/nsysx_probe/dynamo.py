"""Keeps torch.compile from compiling the probe's functions, which run among those of the program."""

from __future__ import annotations

import sys
from types import CodeType, FunctionType
from typing import Any


def hide(torch: Any) -> None:
    """Tell Dynamo's frame evaluator never to compile a function of the probe or what it calls."""
    native = torch._C._dynamo.eval_frame
    if hasattr(native, "set_code_exec_strategy"):
        plain = native._FrameExecStrategy(native._FrameAction.SKIP, native._FrameAction.SKIP)

        def skip(code: CodeType) -> None:
            native.set_code_exec_strategy(code, plain)
    else:
        skip = native.skip_code  # torch < 2.7
    todo: list[Any] = [vars(m) for name, m in list(sys.modules.items()) if name.startswith("nsysx_probe.")]
    seen: set[int] = set()  # most classes and functions stand in several modules
    while todo:
        item = todo.pop()
        if isinstance(item, (FunctionType, type)):
            if id(item) in seen:
                continue
            seen.add(id(item))
        if isinstance(item, CodeType):
            skip(item)
            todo.extend(item.co_consts)
        elif isinstance(item, dict):
            todo.extend(v for v in item.values() if str(getattr(v, "__module__", "nsysx")).startswith("nsysx"))
        elif isinstance(item, FunctionType):
            todo.append(item.__code__)
        elif isinstance(item, property):
            todo.append(item.fget)
        elif isinstance(item, (staticmethod, classmethod)):
            todo.append(item.__func__)
        elif isinstance(item, type):
            todo.append(dict(vars(item)))


def compilations(modules: Any) -> int:
    """Return how many frames Dynamo has looked at so far; ``modules`` are Python's, so that nothing is imported for it."""
    utils = modules.get("torch._dynamo.utils")
    return int(utils.counters["frames"]["total"]) if utils is not None else 0
