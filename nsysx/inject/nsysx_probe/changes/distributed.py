"""How DistributedDataParallel keeps and reduces gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import Change, Watch
from ._wrapping import with_arguments

_LARGE_MB = 100


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


def _change(name: str, argument: str, value: Any, alters: str, beware: str) -> Change:
    text = f"{argument}={value}"
    return Change(
        name, f"{text} for DistributedDataParallel", f"{text},  # one more argument of DistributedDataParallel",
        _with(argument, value), alters=alters, beware=beware, group=name,
    )  # fmt: skip


CHANGES = (
    _change("ddp-bucket-view", "gradient_as_bucket_view", True, "memory", "gradients are views and cannot be detached in place"),
    _change("ddp-static-graph", "static_graph", True, "speed", "each step must use the same parameters"),
    _change("ddp-large-buckets", "bucket_cap_mb", _LARGE_MB, "numerics", "sums of gradients may round in another order"),
)  # fmt: skip
