"""bf16 autocast around the forward of each outermost network. What comes after it, such as the loss, stays as it is."""

from __future__ import annotations

from typing import Any

from . import Change, Watch
from ._wrapping import Forwards, Networks


def _arm(torch: Any, watch: Watch) -> None:
    watch.why_not = "no module with parameters was called in the first two steps"

    def meet(module: Any, _args: Any, _kwargs: Any) -> None:
        kind = next(module.parameters()).device.type
        if torch.is_autocast_enabled(kind):
            watch.why_not = "autocast is on already"
            return
        before = module.forward
        module.forward = torch.autocast(kind, dtype=torch.bfloat16)(before)
        forwards.replaced(module, before)
        watch.took()

    forwards = Forwards(watch)
    Networks(torch, watch, meet)


CHANGES = (
    Change(
        "autocast-bf16", "bf16 autocast around the forward",
        'with torch.autocast("cuda", dtype=torch.bfloat16):\n    output = model(...)', _arm,
        findings=("NSX116", "NSX124"), alters="numerics", beware="products and convolutions keep 8 bits of the mantissa",
    ),
)  # fmt: skip
