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
        "autocast-left-on",
        "Take this decorator off, and switch autocast off only around what needs float32 within the function (softmax, norms, losses)",
        "def blend(x, weight):  # without @torch.autocast(\"cuda\", enabled=False)\n"
        "    y = x @ weight  # products in 16 bits, if nothing calls .float() before\n"
        "    with torch.autocast(\"cuda\", enabled=False):\n"
        "        return y.float().softmax(-1)  # float32 where it is needed",
        "BF16 keeps 7 bits of the mantissa: the loss must still converge.",
        untried="what needs float32, the program's own code says",
    ),
    Remedy(
        "cast-inputs-in-16-bits",
        "Let custom_fwd cast what this Function is given to bfloat16: with cast_inputs=torch.float32 all products are float32, those of "
        "its backward, too",
        "@staticmethod\n@torch.amp.custom_fwd(device_type=\"cuda\", cast_inputs=torch.bfloat16)\n"
        "def forward(ctx, x, weight):  # as before\n"
        "    ctx.save_for_backward(x, weight)\n    return x @ weight",
        "BF16 keeps 7 bits of the mantissa: sums, exponentials and losses within stay exact by .float() before them.",
        untried="what needs float32, the program's own code says",
    ),
    Remedy(
        "inside-autocast",
        "Enter autocast around this call, too: it runs outside of the region that the rest of the step runs in. Autocast itself keeps "
        "softmax, norms and losses in float32",
        "with torch.autocast(\"cuda\", torch.bfloat16):\n    z = head(y)  # whatever this line calls",
        "BF16 keeps 7 bits of the mantissa of products: the loss must still converge.",
        untried="where it belongs, the program's own code says",
    ),
    Remedy(
        "autocast-in-thread",
        "Enter autocast in the function that this thread runs: it is on for the thread alone that enters it",
        "def work(batch):  # what the thread runs\n    with torch.autocast(\"cuda\", torch.bfloat16):\n        return model(batch)",
        "BF16 keeps 7 bits of the mantissa of products: the loss must still converge.",
        untried="what the thread runs, the program's own code says",
    ),
    Remedy(
        "autocast-in-backward",
        "Decorate forward and backward of this Function: backward runs outside of autocast, custom_bwd gives it that of its forward",
        "@staticmethod\n@torch.amp.custom_fwd(device_type=\"cuda\")\ndef forward(ctx, x, weight):  # as before\n"
        "    ctx.save_for_backward(x, weight)\n    return x @ weight\n\n"
        "@staticmethod\n@torch.amp.custom_bwd(device_type=\"cuda\")\ndef backward(ctx, gradient):  # without .float()\n"
        "    x, weight = ctx.saved_tensors\n    return gradient @ weight.t(), x.t() @ gradient",
        "BF16 keeps 7 bits of the mantissa of products: the loss must still converge.",
        untried="what backward computes, the program's own code says",
    ),
    Remedy(
        "cast-by-hand",
        "Give this line tensors of bfloat16: autocast is on, but leaves products as they are that write into a tensor (out=, addmm_) or "
        "are operators of their own",
        "y = torch.mm(a, b)  # in place of torch.mm(a, b, out=y); or a.to(torch.bfloat16), b.to(torch.bfloat16)",
        "BF16 keeps 7 bits of the mantissa of products: the loss must still converge.",
        untried="what it needs, the program's own code says",
    ),
    Remedy(
        "one-policy",
        "Give all wrappers the MixedPrecisionPolicy that the others have: what one without it holds, such as the root, "
        "is computed and sent as float32",
        "policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)\n"
        "for block in model.blocks:\n    fully_shard(block, mp_policy=policy)\n"
        "fully_shard(model, mp_policy=policy)  # the root, too: embedding, last norm, head",
        "BF16 keeps 7 bits of the mantissa of products: the loss must still converge.",
        untried="how a network is wrapped, the program's own code says",
    ),
    Remedy(
        "converted-once",
        "Convert this once, where it is made, and give all that read it the result",
        "half = x.to(torch.bfloat16)  # once\nq, k, v = self.q(half), self.k(half), self.v(half)",
        "Nothing may write into it in between.", untried="where it is made, the program's own code says",
    ),
)  # fmt: skip
