"""torch.compile of each outermost network, at its first call, as ``model = torch.compile(model)`` before the loop would do.

``model.compile()`` is not the same: torch 2.13 compiles nothing of a network whose forward is torch's own, such as a
``nn.Sequential``, or each of its parts by itself, because it leaves torch's own code out. ``torch.compile(model)`` calls it from
a function outside, and so does this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..probe_bounds import MAX_AUTOTUNE_START_S
from . import Change, Remedy, Watch
from ._wrapping import Networks

_BREAKS = "A graph break (print, .item(), a branch on data) splits what can be fused."
_FIXED_SHAPES = (
    "Shapes must stay the same from step to step, and nothing in the step may read a value back (.item(), x[mask])."
)


def whole(module: Any) -> Callable[..., Any]:
    """Return a function that calls a module: what is compiled with it is all of the module, whatever its class."""
    call = module._call_impl

    def model(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return model


def _with(**options: Any) -> Callable[[Any, Watch], None]:
    def arm(torch: Any, watch: Watch) -> None:
        watch.why_not = "no module with parameters was called in the first two steps"

        def meet(module: Any, _args: Any, _kwargs: Any) -> None:
            if options.get("dynamic"):
                torch._dynamo.config.optimize_ddp = False  # graphs that it splits take no changing shapes
            module._compiled_call_impl = torch.compile(whole(module), **options)
            compiled.append((module, module._compiled_call_impl))
            watch.took()

        def turn(on: bool) -> None:
            for module, call in compiled:
                module._compiled_call_impl = call if on else None

        def look() -> None:
            counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
            nothing = watch.count and not counters.get("stats", {}).get("unique_graphs")
            breaks = sum(counters.get("graph_break", {}).values())
            skips = counters.get("inductor", {}).get("cudagraph_skips", 0)
            notes = ["torch.compile compiled nothing"] if nothing else []
            notes += [f"{breaks} graph break{'s' if breaks > 1 else ''}"] if breaks else []
            notes += [f"CUDA graphs left out {skips} times"] if skips else []
            watch.note = ", ".join(notes)

        compiled: list[tuple[Any, Any]] = []
        Networks(torch, watch, meet)
        watch.at_end.append(look)
        watch.can_turn(turn)

    return arm


def _change(name: str, call: str, advice: str, condition: str, **options: Any) -> Change:
    return Change(
        name, f"{call} for the outermost module", f"model = {call}  # before the loop", _with(**options),
        alters="numerics", group="compile", start_s=MAX_AUTOTUNE_START_S, beware="results differ by rounding",
        advice=advice, example=f"model = {call}", condition=condition, for_anything=True,
    )  # fmt: skip


CHANGES = (
    _change("compile", "torch.compile(model)", "Fuse elementwise kernels with torch.compile(model)", _BREAKS),
    _change(
        "compile-reduce-overhead", 'torch.compile(model, mode="reduce-overhead")',
        "torch.compile(model, mode='reduce-overhead')", _FIXED_SHAPES, mode="reduce-overhead",
    ),
    _change(
        "compile-dynamic", "torch.compile(model, dynamic=True)",
        "torch.compile(model, dynamic=True), compiled once for all shapes, which change from step to step; padding the inputs to "
        "few lengths helps", _BREAKS, dynamic=True,
    ),
)  # fmt: skip
UNTRIED = (
    Remedy(
        "compile-wrapped", "torch.compile of the module before it is wrapped",
        "model = DistributedDataParallel(torch.compile(module))", _BREAKS,
        untried="what is wrapped is compiled before the wrapper is made", for_anything=True,
    ),
    Remedy(
        "compiled-behind-wrapping",
        "Call the compiled network first through DistributedDataParallel: torch.compile then cuts its graph at the borders of the buckets, "
        "and each is reduced as soon as its part of backward has run",
        "model = torch.compile(DistributedDataParallel(module))  # nothing calls the compiled module before",
        "What is fused across the cuts now is not then. A graph with checkpoints or of changing shapes cannot be cut: compile each block.",
        untried="what is wrapped is compiled before the wrapper is made",
    ),
    Remedy(
        "compile-blocks", "torch.compile of each block before fully_shard",
        "for name, block in model.blocks.named_children(): setattr(model.blocks, name, torch.compile(block))  # then fully_shard",
        _BREAKS, untried="which modules are blocks, the program says", for_anything=True,
    ),
    Remedy(
        "alike-inputs",
        "Keep the inputs of the compiled function alike: pad or bucket shapes, torch._dynamo.mark_dynamic for sizes that vary, "
        "tensors instead of Python numbers that vary", untried="what a shape may be padded to, the program says",
    ),
    Remedy(
        "graphs-for-few-shapes", "Round the lengths of each batch up to a few, and run each of these once before the loop",
        "more = -tokens.shape[1] % 64  # few lengths: each is recorded once\ntokens = F.pad(tokens, (0, more), value=padding)",
        "What is added must be masked, and left out of the loss.", untried="what a shape may be padded to, the program says",
    ),
)  # fmt: skip
