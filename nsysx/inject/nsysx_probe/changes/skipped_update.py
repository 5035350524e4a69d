"""A bound: the optimizer updates nothing, so that what is left is forward, backward and data."""

from __future__ import annotations

import functools
from typing import Any

from . import Change, Watch


def _arm(torch: Any, watch: Watch) -> None:
    watch.why_not = "no optimizer made a step"
    watch.can_turn()

    def skipping(original: Any) -> Any:
        @functools.wraps(original)
        def step(self: Any, closure: Any = None, *more: Any, **named: Any) -> Any:
            if not watch.on:
                return original(self, *([] if closure is None else [closure]), *more, **named)
            watch.took()
            if closure is None:
                return None
            with torch.enable_grad():
                return closure()

        return step

    owner = torch.optim.Optimizer
    make = owner.__init__

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        kind = type(self)
        # torch puts its hooks around the step of a class when the first of its optimizers is made; they stay outermost.
        if not hasattr(kind.step, "hooked"):
            kind.step = skipping(kind.step)
        make(self, *args, **kwargs)

    owner.__init__ = __init__


CHANGES = (
    Change(
        "bound-optimizer", "an optimizer that updates nothing", "", _arm, alters="computation",
        needs="optimizer", beware="a bound: the program does not learn",
    ),
)  # fmt: skip
