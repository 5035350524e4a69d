"""bf16 autocast around the forward of each outermost network. What comes after it, such as the loss, stays as it is."""

from __future__ import annotations

from typing import Any

from . import Change, Remedy, Watch
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
        'with torch.autocast("cuda", dtype=torch.bfloat16):\n    output = model(inputs)', _arm,
        alters="numerics", beware="products and convolutions keep 7 bits of the mantissa",
        advice="torch.autocast('cuda', torch.bfloat16)", label="BF16",
        example='with torch.autocast("cuda", torch.bfloat16):\n    loss = model(x).sum()',
        condition="BF16 keeps 7 bits of the mantissa: the loss must still converge.",
    ),
)  # fmt: skip
UNTRIED = (
    Remedy(
        "autocast-fp16", "torch.autocast('cuda', torch.float16) with a GradScaler",
        untried="a GradScaler is part of the program's own loop",
    ),
    Remedy(
        "float32-where-needed",
        "Switch autocast off only around what needs float32 (router, softmax, norms, losses): the rest of this region can run outside of "
        "it, on tensors of bfloat16",
        'with torch.autocast("cuda", enabled=False):\n    routing = self.route(x.float())  # float32 where it is needed\n'
        "y = self.experts(x.to(torch.bfloat16), routing)  # outside: products, copies and messages in 16 bits",
        "BF16 keeps 7 bits of the mantissa: the loss must still converge.",
        untried="what needs float32, the program's own code says",
    ),
    Remedy(
        "converted-once",
        "Convert this once, where it is made, and give all that read it the result",
        "half = x.to(torch.bfloat16)  # once\nq, k, v = self.q(half), self.k(half), self.v(half)",
        "Nothing may write into it in between.", untried="where it is made, the program's own code says",
    ),
)  # fmt: skip
