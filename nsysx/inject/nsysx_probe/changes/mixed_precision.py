"""bf16 autocast around the forward of each outermost network. What comes after it, such as the loss, stays as it is."""

from __future__ import annotations

from typing import Any

from . import Change, Watch
from ._wrapping import Networks


def _arm(torch: Any, watch: Watch) -> None:
    watch.why_not = "no module with parameters was called in the first two steps"

    def meet(module: Any, _args: Any, _kwargs: Any) -> None:
        kind = next(module.parameters()).device.type
        if torch.is_autocast_enabled(kind):
            watch.why_not = "autocast is on already"
            return
        forwards.append((module, module.forward, torch.autocast(kind, dtype=torch.bfloat16)(module.forward)))
        module.forward = forwards[-1][2]
        watch.took()

    def turn(on: bool) -> None:
        for module, before, cast in forwards:
            module.forward = cast if on else before

    forwards: list[tuple[Any, Any, Any]] = []
    Networks(torch, watch, meet)
    watch.can_turn(turn)


CHANGES = (
    Change(
        "autocast-bf16", "bf16 autocast around the forward",
        'with torch.autocast("cuda", dtype=torch.bfloat16):\n    output = model(...)', _arm,
        findings=("NSX116", "NSX124"), alters="numerics", beware="products and convolutions keep 8 bits of the mantissa",
    ),
)  # fmt: skip
