"""Follows backward of callers that use the engine without ``torch.autograd`` (Megatron); all others get the engine itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def follow(torch: Any, enter: Callable[[Any], int], leave: Callable[[int], None]) -> Callable[[], None]:
    """Put ``enter`` and ``leave`` around each backward of such callers; return the function that ends that. Raises what torch raises."""
    variable = torch.autograd.Variable
    engine = variable._execution_engine
    runner = torch.autograd.graph._engine_run_backward.__name__

    class Engine(type(engine)):  # type: ignore[misc]
        @property
        def run_backward(self) -> Any:
            if sys._getframe(1).f_code.co_name == runner:
                return engine.run_backward

            def run_backward(*args: Any, **kwargs: Any) -> Any:
                level = enter(args[0] if args else None)
                try:
                    return engine.run_backward(*args, **kwargs)
                finally:
                    leave(level)

            return run_backward

    variable._execution_engine = Engine()

    def remove() -> None:
        if type(variable._execution_engine) is Engine:
            variable._execution_engine = engine

    return remove
