"""Which dimensions of a tensor an operator keeps apart, by its name and by sizes."""

from __future__ import annotations

import pytest

from nsysx.events.separate_items import before_turning, separate_dimensions

IMAGES = (4, 30, 64, 64)


@pytest.mark.parametrize(
    ("name", "others", "result", "separate"),
    [
        ("upsample_bilinear2d", [()], (4, 30, 128, 128), {0, 1}),
        ("upsample_nearest3d", [()], (4, 30, 64, 128), {0, 1}),
        ("avg_pool2d", [()], (4, 30, 32, 32), {0, 1}),
        ("max_pool2d_with_indices", [()], (4, 30, 32, 32), {0, 1}),
        ("adaptive_avg_pool3d", [()], (4, 30, 1, 1), {0}),
        ("conv2d", [(8, 30, 3, 3)], (4, 8, 64, 64), {0}),
        ("conv3d", [(8, 4, 3, 3, 3)], (8, 30, 64, 64), set()),  # one sample, whose channels come first
        ("grid_sampler", [(4, 16, 16, 2)], (4, 30, 16, 16), {1}),  # a grid for each image
        ("group_norm", [(), (30,), (30,)], IMAGES, {0}),
        ("instance_norm", [(), (), (), ()], IMAGES, {0, 1}),
        ("instance_norm", [(30,), (30,), (), ()], IMAGES, {0}),
        ("instance_norm", [(), (), (30,), (30,)], IMAGES, set()),  # statistics of all images
        ("pad", [()], (4, 30, 66, 66), {0, 1}),
        ("pixel_shuffle", [()], (4, 3, 640, 640), {0}),
        ("batch_norm", [(30,), (30,), (30,), (30,)], IMAGES, set()),
        ("cumsum", [()], IMAGES, set()),
    ],
)
def test_what_each_operator_keeps_apart(
    name: str, others: list[tuple[int, ...]], result: tuple[int, ...], separate: set[int]
) -> None:
    assert separate_dimensions(f"aten::{name}", [IMAGES, *others], result) == separate


@pytest.mark.parametrize(
    ("name", "after", "dimensions", "before"),
    [
        ("permute", (4, 64, 64, 30), {3}, {1}),
        ("transpose", (30, 4, 64, 64), {0}, {1}),
        ("permute", (4, 64, 64, 30), {1}, None),  # either of two
        ("view", (4, 30, 4096), {1}, None),
    ],
)
def test_where_dimensions_lay_before_a_tensor_was_turned(
    name: str, after: tuple[int, ...], dimensions: set[int], before: set[int] | None
) -> None:
    assert before_turning(f"aten::{name}", IMAGES, after, frozenset(dimensions)) == before
