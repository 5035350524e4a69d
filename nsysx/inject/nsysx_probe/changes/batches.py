"""A bound: each DataLoader gives its first batch again and again, so that data cost nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from . import Change, Remedy, Watch


def _arm(torch: Any, watch: Watch) -> None:
    watch.why_not = "no DataLoader was iterated over"
    owner = torch.utils.data.DataLoader
    original = owner.__iter__
    first: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807
        try:
            length = len(self)
        except TypeError:  # nobody knows when an epoch ends
            watch.why_not = "its length is not known"
            return original(self)  # type: ignore[no-any-return]
        return repeated(self, length)

    def repeated(loader: Any, length: int) -> Iterator[Any]:
        if loader not in first:
            batch = next(original(loader), None)
            if batch is None:
                return
            first[loader] = batch
        for _ in range(length):
            watch.took()
            yield first[loader]

    owner.__iter__ = __iter__


CHANGES = (
    Change(
        "bound-data", "the first batch of each DataLoader again and again", "", _arm,
        alters="computation", beware="a bound: the program learns from one batch",
    ),
)  # fmt: skip
_OWN_CODE = "what goes into one call is the program's own code"
UNTRIED = (
    Remedy(
        "batched-inputs", "Batch incoming inputs: one forward makes as many launches for several of them as for one",
        condition="Inputs of one batch need one shape (pad them), and each waits until its batch is full or a short timeout ends.",
        untried=_OWN_CODE,
    ),
    Remedy(
        "larger-batches", "Use fewer, larger batches: one call makes the same launches for all of their inputs",
        condition="The activations of a larger micro-batch need more memory.", untried=_OWN_CODE, for_anything=True,
    ),
    Remedy("batched-operation", "Use one batched or fused operation instead of a loop", untried=_OWN_CODE, for_anything=True),
    Remedy("own-kernel", "Use a fused or Triton kernel that splits the work along another axis", untried="a kernel has to be written"),
    Remedy(
        "even-sizes", "Make this size a multiple of 64", "nn.Linear(width, 50304)  # not 50257",
        "The added outputs stay unused: targets stay below the old size.", untried=_OWN_CODE,
    ),
    Remedy("fewer-conversions", "Avoid copies and conversions between formats", untried=_OWN_CODE),
    Remedy(
        "rounds-graphed",
        'Launch all rounds of this loop as one CUDA graph: torch.compile of its function with mode="reduce-overhead", or '
        "torch.cuda.make_graphed_callables",
        'rollout = torch.compile(rollout, mode="reduce-overhead")  # the function with the loop; once, before the steps',
        "Sizes and the number of rounds must stay the same, and no round may read a value back.",
        untried=_OWN_CODE,
    ),
    Remedy("sequence-at-once", "Run a recurrent cell over the whole sequence in one call", untried=_OWN_CODE),
    Remedy(
        "larger-graphs", "Put more of the step into the CUDA graphs that the program already replays", untried=_OWN_CODE,
        for_anything=True,
    ),
)  # fmt: skip
