"""NSX136: pooling in large windows that overlap, and pooling that is as short as it can be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from nsysx.events.overlapping_pools import overlapping_pools
from nsysx.findings._pool_pastes import pooled_in_turn
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.test_product_forms import Called, flow_of_called
from tests.findings.test_smaller_operators import operator

LINE = 25
PLANES = "[8, 19, 512, 512]"
POOLS = "void at::native::max_pool_forward_nchw<float, int>(int, float const*, long, long, long)"


def step(us: float, made: str) -> Callable[[Lined, int], None]:
    """Return a step of a network (20 ms) and of a pooling that takes so long, whose result has a size."""

    def body(program: Lined, number: int) -> None:
        first = 1000 * number + 10
        with program.range("forward"), program.range("net:Net"):
            operator(program, "linear", first, [-1, -1], "[64, 64], [64, 64]", 20_000)
            with program.line(LINE):
                operator(program, "max_pool2d", first + 1, [-1], f"{PLANES}, [], [], [], [], []", us, POOLS)
            operator(program, "relu", first + 2, [first + 1], made, 5)
        program.sync()

    return body


def found(folder: Path, us: float, made: str, text: str) -> list[Finding]:
    findings = Lined({LINE: text}).run(step(us, made)).found(folder, "NSX136")
    return [each for each in findings if any(way.name == "pooled-in-turn" for way in each.remedies)]


LARGE = "y = F.max_pool2d(m, 21, stride=1, padding=10)"


def test_a_large_window_is_pooled_along_one_dimension_after_the_other(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, 12_300, PLANES, LARGE)
    assert finding.where["line"] == LINE and "in windows of 21 numbers a side takes 12.30 ms" in finding.title
    assert finding.paste.startswith("y = F.max_pool2d(F.max_pool2d(m, (1, 21), stride=1, padding=(0, 10)), (21, 1)")
    assert not finding.saving.bound
    assert 0.8 * 12_300_000 < (finding.saving.likely_ns or 0) < 12_300_000 * (1 - 2 / 21)


@pytest.mark.parametrize(
    ("us", "made", "text"),
    [
        (12_300, "[8, 19, 256, 256]", "y = F.max_pool2d(m, 2, stride=2)"),
        (12_300, "[8, 19, 256, 256]", "y = F.max_pool2d(m, 3, stride=2, padding=1)"),
        (12_300, "[8, 19, 32, 32]", "y = F.max_pool2d(m, 16, stride=16)"),
        (300, PLANES, LARGE),
    ],
    ids=["side by side", "a stem", "large, side by side", "little of the step"],
)
def test_healthy_poolings(us: float, made: str, text: str, tmp_path: Path) -> None:
    assert not found(tmp_path, us, made, text)


@pytest.mark.parametrize(
    ("called", "classes"),
    [
        ([("eq", 1, (-1, -1), "[8, 1, 64, 64], [1, 19, 1, 1]"), ("_to_copy", 2, (1,), "[8, 19, 64, 64]"),
          ("max_pool2d", 3, (2,), "[8, 19, 64, 64]"), ("rsub", 4, (3,), "[8, 19, 64, 64]"), ("amax", 5, (4,), "[8, 19, 64, 64]")], 19),
        ([("eq", 1, (-1, -1), "[8, 1, 64, 64], [1, 19, 1, 1]"), ("max_pool2d", 3, (1,), "[8, 19, 64, 64]"),
          ("sum", 5, (3,), "[8, 19, 64, 64]")], 0),
        ([("sigmoid", 1, (-1,), "[8, 19, 64, 64]"), ("max_pool2d", 3, (1,), "[8, 19, 64, 64]"), ("amax", 5, (3,), "[8, 19, 64, 64]")], 0),
        ([("max_pool2d", 3, (-1,), "[8, 19, 64, 64]"), ("amax", 5, (3,), "[8, 19, 64, 64]")], 0),
    ],
    ids=["labels", "how many classes are near", "probabilities", "given"],
)  # fmt: skip
def test_planes_of_labels(called: list[Called], classes: int) -> None:
    (pool,) = overlapping_pools(flow_of_called(*called))
    assert (pool.classes, pool.stride, pool.kind, pool.dimensions) == (classes, 1, "max", 2)


@pytest.mark.parametrize("call", ["F.adaptive_max_pool2d(x, 1)", "F.adaptive_avg_pool2d(x, 7)"])
def test_adaptive_poolings_are_none(call: str) -> None:
    name = call[2:].partition("(")[0]
    assert not list(
        overlapping_pools(flow_of_called((name, 1, (-1,), "[8, 4, 64, 64]"), ("relu", 2, (1,), "[8, 4, 7, 7]")))
    )


EXACT = [
    ("y = F.max_pool2d(x, 21, stride=1, padding=10)", 2),
    ("y = F.max_pool2d(x, side, 1, side // 2) + 1", 2),
    ("y = F.max_pool2d(x, (7, 5), stride=(2, 1), padding=(3, 2))", 2),
    ("y = F.max_pool2d(x, 7, 3, ceil_mode=True)", 2),
    ("y = F.max_pool3d(v, 5, stride=1, padding=2)", 3),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize(("text", "dimensions"), EXACT)
def test_the_largest_are_exactly_the_same_with_the_same_gradient(
    text: str, dimensions: int, dtype: torch.dtype
) -> None:
    told = pooled_in_turn(text, "max", dimensions)
    assert told is not None and told.line != text
    torch.manual_seed(0)
    given = {
        "x": torch.randint(-9, 0, (2, 3, 40, 37)),
        "v": torch.randint(-9, 0, (1, 2, 12, 11, 13)),
    }  # padding is never largest
    results = []
    for line in (text, told.line):
        names: dict[str, object] = {"F": F, "side": 9}
        leaves = {name: each.to(dtype).requires_grad_(dtype.is_floating_point) for name, each in given.items()}
        try:
            exec(line, names | leaves, names)
        except RuntimeError as missing:
            pytest.skip(str(missing))
        y = names["y"]
        assert isinstance(y, torch.Tensor)
        if dtype.is_floating_point:
            y.sum().backward()
        results.append((y, leaves["v" if dimensions == 3 else "x"].grad))
    (before, its_gradient), (after, new_gradient) = results
    assert torch.equal(before, after)
    if its_gradient is not None and new_gradient is not None and dtype.itemsize > 2:
        assert torch.equal(its_gradient, new_gradient)  # ties, too


@pytest.mark.parametrize(
    "text",
    [
        "y = F.avg_pool2d(x, 9, stride=1, padding=4)",
        "y = F.avg_pool2d(x, 9, 1, 4, count_include_pad=False)",
        "y = F.avg_pool2d(x, 9, 4, 2, True)",
        "y = F.avg_pool2d(x, 9, 4, 2, True, False)",
    ],
)
def test_averages_are_the_same(text: str) -> None:
    told = pooled_in_turn(text, "avg", 2)
    assert told is not None and told.window == 9
    results = []
    for line in (text, told.line):
        names: dict[str, object] = {"F": F, "x": torch.arange(3 * 40 * 37.0).view(1, 3, 40, 37).sin()}
        exec(line, names)
        results.append(names["y"])
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize(
    "text",
    [
        "y = self.pool(x)",
        "y = F.max_pool2d(x, 5)",
        "y = F.max_pool2d(x, side, stride=1)",  # side may be two numbers
        "y = F.max_pool2d(x, 5, stride=1, dilation=2)",
        "y, n = F.max_pool2d(x, 5, stride=1, return_indices=True)",
        "y = F.max_pool2d(x, *sides)",
        "y = F.max_pool2d(F.max_pool2d(x, 5, 1, 2), 5, 1, 2)",
    ],
)
def test_lines_that_do_not_tell_how_they_pool(text: str) -> None:
    assert pooled_in_turn(text, "max", 2) is None
