"""How DistributedDataParallel keeps and reduces gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..probe_bounds import LARGE_BUCKET_MB, USUAL_BUCKET_MB
from . import Change, Watch
from ._wrapping import with_arguments


def _with(argument: str, value: Any) -> Callable[[Any, Watch], None]:
    def arm(torch: Any, watch: Watch) -> None:
        watch.why_not = "no DistributedDataParallel was made"

        def change(named: dict[str, Any]) -> None:
            if named.get(argument) == value:
                watch.why_not = f"{argument}={value} is set already"
                return
            named[argument] = value
            watch.took()

        with_arguments(torch.nn.parallel.DistributedDataParallel, change)

    return arm


class _MicroSteps:
    """Lets a wrapper reduce gradients in the last backward of a step alone: a step has as many forwards as the one before."""

    def __init__(self, torch: Any, watch: Watch) -> None:
        self._watch, self._torch = watch, torch
        #: Of each wrapper: its forwards in this step, those in the one before, and the wrapper while it is held.
        self._counts: dict[int, list[Any]] = {}
        watch.why_not = "no DistributedDataParallel is called several times in a step, or no_sync() is used already"
        owner = torch.nn.parallel.DistributedDataParallel
        self._original = original = owner.forward
        micro_steps = self

        @functools.wraps(original)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            micro_steps.calls(self)
            return original(self, *args, **kwargs)

        owner.forward = forward
        watch.each_step.append(self.begins)
        watch.can_turn()

    def begins(self) -> None:
        """A step begins."""
        for count in self._counts.values():
            count[:2] = 0, count[0]

    def calls(self, wrapper: Any) -> None:
        """A wrapper is called: its next backward reduces gradients only if the call is the last of the step."""
        if not wrapper.training or not self._torch.is_grad_enabled():
            return
        count = self._counts.setdefault(id(wrapper), [0, 0, None])
        if count[2] is not None:
            count[2], wrapper.require_backward_grad_sync = None, True
        count[0] += 1
        if self._watch.on and count[0] < count[1] and wrapper.require_backward_grad_sync:
            count[2], wrapper.require_backward_grad_sync = wrapper, False
            self._watch.took()


def _change(
    name: str, argument: str, value: Any, alters: str, beware: str,
    advice: str = "", example: str | None = None, condition: str = "",
) -> Change:  # fmt: skip
    text = f"{argument}={value}"
    return Change(
        name, f"{text} for DistributedDataParallel", f"{text},  # one more argument of DistributedDataParallel",
        _with(argument, value), alters=alters, beware=beware, group=name, advice=advice, example=example, condition=condition,
    )  # fmt: skip


CHANGES = (
    _change("ddp-bucket-view", "gradient_as_bucket_view", True, "memory", "gradients are views and cannot be detached in place"),
    _change("ddp-static-graph", "static_graph", True, "speed", "each step must use the same parameters"),
    _change("ddp-large-buckets", "bucket_cap_mb", LARGE_BUCKET_MB, "numerics", "sums of gradients may round in another order"),
    _change(
        "usual-buckets", "bucket_cap_mb", USUAL_BUCKET_MB, "numerics", "sums of gradients may round in another order",
        "Reduce gradients in buckets of 25 MB, the usual size: fewer messages, which still overlap with backward",
        "model = DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True)",
    ),
    _change(
        "own-buffers", "broadcast_buffers", False, "numerics", "running statistics differ a little between ranks",
        "Let each rank keep its own buffers: broadcast_buffers=False",
        "model = DistributedDataParallel(model, broadcast_buffers=False)",
        "Running statistics then differ a little between ranks; those of rank 0 are what is saved anyway.",
    ),
    _change(
        "no-unused-search", "find_unused_parameters", False, "speed", "each step must use all parameters",
        "Leave find_unused_parameters out", "model = DistributedDataParallel(module, gradient_as_bucket_view=True)",
        "Every parameter must get a gradient in every step.",
    ),
    Change(
        "no-sync", "gradients reduced in the last micro-step alone",
        "with model.no_sync() if not last else contextlib.nullcontext():\n    model(x).backward()", _MicroSteps,
        alters="numerics", beware="sums of gradients round in another order",
        advice="Reduce gradients in the last micro-step alone: no_sync() around the others, forward and backward "
        "(fully_shard: set_requires_gradient_sync)",
        condition="Gradients of all micro-steps are kept until then; a sharded model keeps them whole.",
    ),
)  # fmt: skip
