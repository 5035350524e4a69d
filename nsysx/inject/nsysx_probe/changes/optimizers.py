"""Optimizers that update all parameters in few kernels, and gradients that are dropped instead of zeroed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from . import Change, Watch
from ._wrapping import with_arguments


def _with(argument: str, other: str) -> Callable[[Any, Watch], None]:
    def arm(torch: Any, watch: Watch) -> None:
        watch.why_not = f"no optimizer with the argument {argument} was made"

        def change(named: dict[str, Any]) -> None:
            if named.get(argument):
                watch.why_not = f"{argument}=True is set already"
                return
            named[argument] = True
            named.pop(other, None)
            watch.took()

        for name in dir(torch.optim):
            kind = getattr(torch.optim, name)
            if inspect.isclass(kind) and argument in inspect.signature(kind.__init__).parameters:
                with_arguments(kind, change)

    return arm


def _to_none(torch: Any, watch: Watch) -> None:
    watch.why_not = "zero_grad drops gradients already"
    for owner in (torch.optim.Optimizer, torch.nn.Module):

        def wrapped(original: Any) -> Any:
            @functools.wraps(original)
            def zero_grad(self: Any, set_to_none: bool = True) -> Any:
                if not set_to_none:
                    watch.took()
                return original(self, set_to_none=True)

            return zero_grad

        owner.zero_grad = wrapped(owner.zero_grad)


CHANGES = (
    Change(
        "fused", "fused=True for the optimizer", "fused=True,  # one more argument of the optimizer", _with("fused", "foreach"),
        findings=("NSX113", "NSX102", "NSX119", "NSX112"), alters="numerics", needs="optimizer", group="optimizer",
        beware="results differ by rounding",
    ),
    Change(
        "foreach", "foreach=True for the optimizer", "foreach=True,  # one more argument of the optimizer",
        _with("foreach", "fused"), findings=("NSX113", "NSX102", "NSX119"), alters="memory", needs="optimizer",
        group="optimizer",
    ),
    Change(
        "set-to-none", "zero_grad without zeroing", "optimizer.zero_grad(set_to_none=True)", _to_none,
        findings=("NSX113",), alters="memory", needs="optimizer",
        beware="code that reads .grad after zero_grad finds None",
    ),
)  # fmt: skip
