"""NSX131: losses of the nearest points that are differentiated through the distances of all pairs, and distances that need it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from nsysx.events.nearest_pairs import NearestPairs
from nsysx.findings._nearest_pairs import paste_of
from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

BATCH, MADE, SCANNED = 2, 50, 60
SCAN = torch.randn(BATCH, SCANNED, 3)


def chamfer(a: Tensor, b: Tensor) -> Tensor:
    d = torch.cdist(a, b)
    return d.min(2).values.mean() + d.min(1).values.mean()


def squared(a: Tensor, b: Tensor) -> Tensor:
    d = ((a[:, :, None] - b[:, None]) ** 2).sum(-1)
    return d.amin(2).mean() + d.amin(1).mean()


def by_product(a: Tensor, b: Tensor) -> Tensor:
    d = (a * a).sum(-1)[:, :, None] + (b * b).sum(-1)[:, None] - 2 * torch.bmm(a, b.transpose(1, 2))
    return torch.min(d, 2)[0].mean() + torch.min(d, 1)[0].mean()


def one_way(a: Tensor, b: Tensor) -> Tensor:
    d = torch.cdist(a, b)
    return d.min(2).values.mean()


def search_apart(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        d = torch.cdist(a, b)
        i, j = d.min(2).indices, d.min(1).indices
    near = a.gather(1, j[..., None].expand(-1, -1, 3)), b.gather(1, i[..., None].expand(-1, -1, 3))
    return (a - near[1]).norm(dim=-1).mean() + (near[0] - b).norm(dim=-1).mean()


def soft(a: Tensor, b: Tensor) -> Tensor:
    d = torch.cdist(a, b)
    return d.min(2).values.mean() + (-d).softmax(2).square().mean()


def of_all(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b).min() + a.square().mean()


def of_features(a: Tensor, b: Tensor) -> Tensor:
    wide = a.repeat(1, 1, 8), b.repeat(1, 1, 8)
    return torch.bmm(wide[0], wide[1].transpose(1, 2)).max(2).values.mean()


def told(loss: Callable[[Tensor, Tensor], Tensor], folder: Path) -> list[Finding]:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3 * MADE))

    def step() -> None:
        loss(net(from_host(torch.randn(BATCH, 8))).view(BATCH, MADE, 3), from_host(SCAN)).backward()

    found = recorded(step, net, __file__, folder).found(folder, "NSX131")
    return [f for f in found if f.remedies and f.remedies[0].name == "nearest-without-gradients"]


@pytest.mark.parametrize("loss", [chamfer, squared, by_product, one_way])
def test_gradients_through_all_pairs(loss: Callable[[Tensor, Tensor], Tensor], tmp_path: Path) -> None:
    (finding,) = told(loss, tmp_path)
    assert "takes gradients through 6,000 distances" in finding.title
    assert finding.saving.bound and (finding.saving_ns_per_step or 0) > 0
    assert (".square()" in finding.paste) is (loss in (squared, by_product))
    assert ("argmin(-2)" in finding.paste) is (loss is not one_way)


@pytest.mark.parametrize("loss", [search_apart, soft, of_all, of_features])
def test_what_needs_its_gradients(loss: Callable[[Tensor, Tensor], Tensor], tmp_path: Path) -> None:
    assert told(loss, tmp_path) == []


@pytest.mark.parametrize("is_squared", [True, False])
def test_the_paste_gives_the_same_gradient(is_squared: bool) -> None:
    pairs = NearestPairs((), (), (BATCH, MADE, SCANNED), frozenset({-1, -2}), is_squared)
    *before, to_second, to_first = paste_of("d = torch.cdist(pred, scan)", pairs).splitlines()
    pred = torch.randn(BATCH, MADE, 3, requires_grad=True)
    names = {"torch": torch, "pred": pred, "scan": SCAN}
    exec("\n".join(before), names)
    loss = sum(cast(Tensor, eval(line, names)).mean() for line in (to_second, to_first))
    wanted = squared(pred, SCAN) if is_squared else chamfer(pred, SCAN)
    assert torch.allclose(cast(Tensor, loss), wanted)
    (gradient,), (same) = torch.autograd.grad(cast(Tensor, loss), pred), torch.autograd.grad(wanted, pred)[0]
    assert torch.allclose(gradient, same, atol=1e-6)
