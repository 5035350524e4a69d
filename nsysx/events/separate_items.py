"""Dimensions of a tensor whose items an operator treats each by itself, by its name and by sizes: they may be picked before it, too.

A resampling treats each channel of each image alone, a convolution and a group norm each image, a pooling all that lies before its windows.
"""

from __future__ import annotations

import re

Size = tuple[int, ...]
_RESAMPLES = re.compile(r"^aten::upsample_\w+$")
_POOLS = re.compile(r"^aten::(?:adaptive_)?(?:max|avg)_pool(\d)d(?:_with_indices)?$")
_PADS_BORDERS = re.compile(r"^aten::(?:reflection|replication)_pad(\d)d$")
_PADS = re.compile(r"^aten::(pad|constant_pad_nd)$")
_CONVOLVES = re.compile(r"^aten::conv(?:_transpose)?(\d)d$")
#: Over which dimension a softmax is, sizes do not say: of samples of their own it seldom is.
_BY_SAMPLE = re.compile(r"^aten::((log_)?softmax|group_norm)$")
_INSTANCE_NORM, _GRID_SAMPLER, _SHUFFLES = (
    "aten::instance_norm",
    "aten::grid_sampler",
    re.compile(r"^aten::pixel_(un)?shuffle$"),
)
_TURNS = re.compile(r"^aten::(t|numpy_T|mT|transpose|permute|movedim|swapaxes)$")


def separate_dimensions(name: str, sizes: list[Size], result: Size) -> frozenset[int]:
    """Return the dimensions whose items an operator treats each by itself, with all of its other arguments.

    They are the same in its first argument (``sizes``: of all of them) and in its result.
    """
    before = sizes[0]
    leading = 0
    if _RESAMPLES.match(name):
        leading = 2
    elif name == _GRID_SAMPLER:  # each image has a grid of its own
        return frozenset({1})
    elif (windows := _POOLS.match(name) or _PADS_BORDERS.match(name)) is not None:
        leading = len(before) - int(windows[1])
    elif (
        windows := _CONVOLVES.match(name)
    ) is not None:  # without a dimension of images the first one is that of channels
        leading = 1 if len(before) == int(windows[1]) + 2 else 0
    elif _SHUFFLES.match(name):
        leading = len(before) - 3
    elif name == _INSTANCE_NORM:  # with statistics that it keeps, it takes the mean of all images
        leading = _of_instances(sizes)
    elif _BY_SAMPLE.match(name):
        leading = 1
    elif _PADS.match(name) and len(before) == len(result):
        return frozenset(d for d, (b, a) in enumerate(zip(before, result, strict=True)) if b == a)
    return frozenset(range(leading))


def _of_instances(sizes: list[Size]) -> int:
    """Return how many of the first dimensions an instance norm keeps apart: with a weight for each channel the images alone."""
    weight, _, *kept_statistics = [*sizes[1:5], (), (), (), ()][:4]
    return 0 if any(kept_statistics) else 1 if weight else 2


def before_turning(name: str, before: Size, after: Size, dimensions: frozenset[int]) -> frozenset[int] | None:
    """Return which dimensions of a tensor these of what an operator turns it into are; None where it turns none, or sizes do not say."""
    if not _TURNS.match(name) or sorted(before) != sorted(after):
        return None
    lengths = [after[d] for d in dimensions]
    if any(before.count(length) > 1 for length in lengths):
        return None
    return frozenset(before.index(length) for length in lengths)
