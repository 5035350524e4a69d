"""CUDA graphs of the forward and the backward of each outermost network, by ``torch.cuda.make_graphed_callables``."""

from __future__ import annotations

from typing import Any

from . import Change, Watch
from ._wrapping import Forwards, Networks


def _arm(torch: Any, watch: Watch) -> None:
    watch.why_not = "no module with parameters was called in the first two steps"

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        if kwargs or not all(isinstance(a, torch.Tensor) and a.is_cuda for a in args):
            watch.why_not = "the network is called with something else than tensors on the GPU"
        elif not module.training or not torch.is_grad_enabled():
            watch.why_not = "the network is not trained"
        else:
            samples = tuple(a.detach().clone().requires_grad_(a.requires_grad) for a in args)
            before = module.forward
            torch.cuda.make_graphed_callables(module, samples)
            forwards.replaced(module, before)
            watch.took()

    forwards = Forwards(watch)
    Networks(torch, watch, meet)


CHANGES = (
    Change(
        "cuda-graph", "CUDA graphs of the network", "model = torch.cuda.make_graphed_callables(model, (sample_input,))  # before the loop",
        _arm, alters="numerics", needs="cuda", group="compile",
        advice="Capture the step in a CUDA graph", for_anything=True,
        beware="the network is run before the first step; each step must have the same shapes, and reads nothing back",
    ),
)  # fmt: skip
