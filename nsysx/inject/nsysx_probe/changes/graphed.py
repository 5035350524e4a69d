"""CUDA graphs of the forward and the backward of each outermost network, by ``torch.cuda.make_graphed_callables``.

They are made before the second step: the first one shows whether gradients of gradients are taken, which such a backward has not.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from . import Change, Watch, place
from ._wrapping import Forwards, Networks


def _arm(torch: Any, watch: Watch) -> None:
    watch.why_not = "no module with parameters was called in the first two steps"

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        if kwargs or not all(isinstance(a, torch.Tensor) and a.is_cuda for a in args):
            watch.why_not = "the network is called with something else than tensors on the GPU"
        elif not module.training or not torch.is_grad_enabled():
            watch.why_not = "the network is not trained"
        else:
            watch.where = watch.where or place()
            samples = tuple(a.detach().clone().requires_grad_(a.requires_grad) for a in args)
            met.append((module, samples))

    def graph() -> None:
        if twice:
            watch.why_not = (
                "the program takes gradients of gradients (create_graph=True), which a graphed backward does not have"
            )
            return
        for module, samples in met:
            before = module.forward
            with torch.enable_grad():
                torch.cuda.make_graphed_callables(module, samples)
            forwards.replaced(module, before)
            watch.took(here=False)

    met: list[tuple[Any, Any]] = []
    twice: list[bool] = []
    _seen_by(torch.autograd, ("grad", "backward"), twice)
    forwards = Forwards(watch)
    Networks(torch, watch, meet)
    watch.at_step.setdefault(1, []).append(graph)


def _seen_by(owner: Any, names: tuple[str, ...], twice: list[bool]) -> None:
    """Let functions of autograd note in ``twice`` that they are called with create_graph."""
    for name in names:
        original = getattr(owner, name)
        position = list(inspect.signature(original).parameters).index("create_graph")

        @functools.wraps(original)
        def gradients(*args: Any, _original: Any = original, _position: int = position, **kwargs: Any) -> Any:
            if kwargs.get("create_graph") or args[_position : _position + 1] == (True,):
                twice.append(True)
            return _original(*args, **kwargs)

        setattr(owner, name, gradients)


CHANGES = (
    Change(
        "cuda-graph", "CUDA graphs of the network", "model = torch.cuda.make_graphed_callables(model, (sample_input,))  # before the loop",
        _arm, alters="numerics", needs="cuda", group="compile",
        advice="Capture the step in a CUDA graph", for_anything=True,
        beware="the network is run before the first step; each step must have the same shapes, and reads nothing back",
    ),
)  # fmt: skip
