"""Waits for the whole device, and how the allocator and cuDNN work."""

from __future__ import annotations

import functools
from typing import Any

from . import Change, Remedy, Watch
from ._wrapping import Networks, convolutions


def _without(torch: Any, name: str, watch: Watch) -> None:
    """Let a function of ``torch.cuda`` do nothing."""
    watch.why_not = f"torch.cuda.{name} is not called"
    original = getattr(torch.cuda, name)

    @functools.wraps(original)
    def nothing(*args: Any, **kwargs: Any) -> None:
        if not watch.on:
            return original(*args, **kwargs)  # type: ignore[no-any-return]
        return watch.took()

    setattr(torch.cuda, name, nothing)
    watch.can_turn()


def _no_synchronize(torch: Any, watch: Watch) -> None:
    _without(torch, "synchronize", watch)


def _no_empty_cache(torch: Any, watch: Watch) -> None:
    _without(torch, "empty_cache", watch)


def _expandable(torch: Any, watch: Watch) -> None:
    watch.took(here=False)  # the variable was set before torch was imported


def _with_segments(before: str) -> str:
    return before if "expandable_segments" in before else ",".join(filter(None, (before, "expandable_segments:True")))


def _benchmark(torch: Any, watch: Watch) -> None:
    watch.why_not = "no network has a convolution"
    if torch.backends.cudnn.benchmark:
        watch.why_not = "it is on already"
        return
    torch.backends.cudnn.benchmark = True

    def meet(module: Any, _args: Any, _kwargs: Any) -> None:
        if convolutions(torch, module):
            watch.took()

    def look() -> None:
        if not torch.backends.cudnn.benchmark:
            watch.count, watch.why_not = 0, "the program turns it off itself"

    Networks(torch, watch, meet)
    watch.at_end.append(look)


def _channels_last(torch: Any, watch: Watch) -> None:
    watch.why_not = "no network has a 2D convolution"

    def meet(module: Any, _args: Any, _kwargs: Any) -> None:
        flat = [part for part in convolutions(torch, module) if part.weight.dim() == 4]
        if not flat:
            return
        if all(part.weight.is_contiguous(memory_format=torch.channels_last) for part in flat):
            watch.why_not = "its weights are channels last already"
            return
        module.to(memory_format=torch.channels_last)
        changed.append(module)
        watch.took()

    def turn(on: bool) -> None:
        for module in changed:
            module.to(memory_format=torch.channels_last if on else torch.contiguous_format)

    changed: list[Any] = []
    Networks(torch, watch, meet)
    watch.can_turn(turn)


CHANGES = (
    Change(
        "no-synchronize", "no torch.cuda.synchronize", "# delete torch.cuda.synchronize() here", _no_synchronize,
        needs="cuda", beware="times that the program takes itself are wrong without it",
        advice="Remove torch.cuda.synchronize() from the loop: no value is read after it; for timing, record torch.cuda.Event pairs",
        example="", condition="Clocks read on the CPU then no longer include the GPU's work.",
    ),
    Change(
        "no-empty-cache", "no torch.cuda.empty_cache", "# delete torch.cuda.empty_cache() here", _no_empty_cache,
        alters="memory", needs="cuda",
    ),
    Change(
        "expandable-segments", "expandable segments in the allocator",
        'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # before import torch', _expandable,
        alters="memory", needs="cuda", environment={"PYTORCH_CUDA_ALLOC_CONF": _with_segments},
        advice="Let segments of the allocator grow: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        example="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
        condition="No torch.cuda.empty_cache() in the loop.",
    ),
    Change(
        "cudnn-benchmark", "cuDNN tries its algorithms", "torch.backends.cudnn.benchmark = True", _benchmark,
        advice="torch.backends.cudnn.benchmark = True",
        alters="numerics", needs="cuda", beware="another algorithm rounds in another order",
    ),
    Change(
        "channels-last", "channels last for convolutions", "model = model.to(memory_format=torch.channels_last)",
        _channels_last, alters="numerics", beware="another algorithm rounds in another order",
        advice="Keep model and input in torch.channels_last (memory_format), so that nothing is converted",
        example="model = model.to(memory_format=torch.channels_last)\ny = model(images.to(memory_format=torch.channels_last))",
        condition="Every layer in between must keep the layout.",
    ),
)  # fmt: skip
UNTRIED = (
    Remedy(
        "channels-last-kept",
        "Keep the order of channels_last through this line: turn the channels last (a view), do the work on the last dimensions, and turn "
        "them back (a view)",
        "x = x.permute(0, 2, 3, 1)  # N H W C: a view of channels_last, without a copy\n"
        "x = work(x)  # what this line does, with the channels as the last dimension\n"
        "x = x.permute(0, 3, 1, 2)  # N C H W in channels_last, without a copy",
        "The numbers stay the same: only their order in memory differs.",
        untried="what this line computes, the program says",
    ),
    Remedy(
        "order-streams",
        "Remove this synchronize: no value is read after it; to order work of two streams, stream.wait_stream(other) or "
        "stream.wait_event(event) does not hold Python", untried="which streams wait for which, the program says",
    ),
    Remedy(
        "larger-memory-share", "Let the process use more of the memory: each time its share is full the allocator frees all that it keeps",
        "torch.cuda.set_per_process_memory_fraction(0.9)", "Other processes on this GPU must leave it that much.",
        untried="what else needs the memory, the program says",
    ),
    Remedy("fixed-sizes", "Pad to a few fixed shapes, or use less memory", untried="what a shape may be padded to, the program says"),
)  # fmt: skip
