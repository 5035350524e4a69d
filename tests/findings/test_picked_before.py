"""NSX131: items that a resampling or a pooling makes and a later line leaves out are picked before, where nothing else reads them."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsysx.model import Finding
from tests.findings import said_of
from tests.findings.recorded_programs import from_host, recorded

IMAGES, QUERIES, OBJECTS, SIDE = 4, 30, 3, 8
Masks = Callable[[Tensor, Tensor, Tensor], Tensor]


def one_name(masks: Tensor, idx: Tensor, gt: Tensor) -> Tensor:
    rows = torch.arange(idx.shape[0])[:, None]
    masks = F.interpolate(masks, size=gt.shape[-2:], mode="bilinear")
    masks = masks[rows, idx.clamp(max=masks.shape[1] - 1)].float()
    return (masks.sigmoid() - gt).square().mean()


def two_names(masks: Tensor, idx: Tensor, gt: Tensor) -> Tensor:
    large = F.interpolate(masks, size=gt.shape[-2:], mode="bilinear")
    rows = torch.arange(len(idx))[:, None]
    picked = large[rows, idx.clamp(max=large.shape[1] - 1)]
    return (picked.sigmoid() - gt).square().mean()


def pairs(masks: Tensor, idx: Tensor, gt: Tensor) -> Tensor:
    rows = torch.arange(len(idx))
    large = F.interpolate(masks, size=gt.shape[-2:], mode="bilinear").sigmoid()
    first = large[rows, idx[:, 0]]
    return (first - gt[:, 0]).square().mean()


def in_one_line(masks: Tensor, idx: Tensor, gt: Tensor) -> Tensor:
    first = F.interpolate(masks, size=gt.shape[-2:], mode="bilinear")[:, 0]
    return (first - gt[:, 0]).square().mean()


def pooled(masks: Tensor, idx: Tensor, gt: Tensor) -> Tensor:
    small = F.avg_pool2d(masks, 2)
    some = small.index_select(1, idx[0])
    return some.square().mean()


def made_of_result(masks: Tensor, idx: Tensor, gt: Tensor) -> Tensor:
    large = F.interpolate(masks, size=gt.shape[-2:], mode="bilinear")
    best = large.detach().amax((2, 3)).topk(OBJECTS).indices
    picked = large.gather(1, best[:, :, None, None].expand_as(gt))
    return (picked.sigmoid() - gt).square().mean()


def all_kept(masks: Tensor, idx: Tensor, gt: Tensor) -> Tensor:
    rows = torch.arange(len(idx))[:, None]
    masks = F.interpolate(masks, size=gt.shape[-2:], mode="bilinear")
    masks = masks[rows, torch.arange(QUERIES)]
    return masks.sigmoid().square().mean()


def read_beside(masks: Tensor, idx: Tensor, gt: Tensor) -> Tensor:
    rows = torch.arange(len(idx))[:, None]
    large = F.interpolate(masks, size=gt.shape[-2:], mode="bilinear")
    picked = large[rows, idx]
    return (picked.sigmoid() - gt).square().mean() + large.abs().mean()


def pixels(masks: Tensor, idx: Tensor, gt: Tensor) -> Tensor:
    large = F.interpolate(masks, size=gt.shape[-2:], mode="bilinear")
    some = large.flatten(2)[:, :, idx[0]]
    return some.sigmoid().square().mean()


def given() -> tuple[Tensor, Tensor, Tensor]:
    gt = torch.rand(IMAGES, OBJECTS, 2 * SIDE, 2 * SIDE)
    return torch.randn(IMAGES, QUERIES, SIDE, SIDE), torch.randint(0, QUERIES, (IMAGES, OBJECTS)), gt


def told(loss: Masks, folder: Path) -> list[Finding]:
    torch.manual_seed(0)
    decode = nn.Conv2d(QUERIES, QUERIES, 1)

    def step() -> None:
        masks, idx, gt = (from_host(each) for each in given())
        with torch.no_grad():
            loss(decode(masks), idx, gt)

    slow = ("upsample_bilinear2d", "avg_pool2d")
    program = recorded(step, decode, __file__, folder, slow=slow)
    said = said_of(program.write(folder))
    return [f for f in said if f.verdict == "found" and "narrowed-first" in [way.name for way in f.remedies]]


def pasted(loss: Masks, paste: str) -> Masks:
    """Return a function with the lines of a paste in the places that these name: a line, or before another one."""
    lines, begin = inspect.getsourcelines(loss)
    new: dict[int, list[str]] = {begin + n: [line.strip()] for n, line in enumerate(lines)}
    kept: dict[int, list[str]] = {}
    for line in paste.splitlines():
        code, _, remark = line.rpartition("#")
        from_line, *before = [int(number) for number in re.findall(r"(?:\.py:|line )(\d+)", remark)]
        new[from_line] = []
        kept.setdefault(before[0] if before else from_line, []).append(code.strip())
    body = "\n".join(line for number in sorted(new) for line in (*kept.get(number, ()), *new[number]))
    head, _, rest = body.partition("\n")
    names = dict(globals())
    exec(f"{head}\n{textwrap.indent(rest, '    ')}", names)
    changed: Masks = names[loss.__name__]
    return changed


@pytest.mark.parametrize(
    ("loss", "lines"),
    [
        (
            one_name,
            [
                "masks = masks[rows, idx.clamp(max=masks.shape[1] - 1)]",
                "masks = F.interpolate(masks, size=gt.shape[-2:], mode='bilinear')",
                "masks = masks.float()",
            ],
        ),
        (
            two_names,
            [
                "rows = torch.arange(len(idx))[:, None]",
                "large = F.interpolate(masks[rows, idx.clamp(max=masks.shape[1] - 1)], size=gt.shape[-2:], mode='bilinear')",
                "picked = large",
            ],
        ),
        (
            pairs,
            [
                "large = F.interpolate(masks[rows, idx[:, 0]][:, None], size=gt.shape[-2:], mode='bilinear')[:, 0].sigmoid()",
                "first = large",
            ],
        ),
        (in_one_line, ["first = F.interpolate(masks[:, 0][:, None], size=gt.shape[-2:], mode='bilinear')[:, 0]"]),
        (pooled, ["small = F.avg_pool2d(masks.index_select(1, idx[0]), 2)", "some = small"]),
    ],
)
def test_items_are_picked_before_they_are_made(loss: Masks, lines: list[str], tmp_path: Path) -> None:
    (found,) = told(loss, tmp_path)
    assert [line.partition("  #")[0] for line in found.paste.splitlines()] == lines
    assert "Nothing else may read the other items" in " ".join(way.condition for way in found.remedies)
    values = given()
    torch.testing.assert_close(pasted(loss, found.paste)(*values), loss(*values))


@pytest.mark.parametrize("loss", [made_of_result, all_kept, read_beside, pixels])
def test_items_that_are_all_read_and_places_that_are_made_of_each_other_stay(loss: Masks, tmp_path: Path) -> None:
    assert not told(loss, tmp_path)
