"""NSX137: a pass without gradients before the one that trains, and programs whose calls only look alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsysx.model import Finding
from tests.findings.recorded_programs import recorded

WIDTH, ROWS, PIECE = 16, 32, 8
torch.manual_seed(0)
DATA = torch.randn(5, ROWS, WIDTH)


def loss_of(rows: Tensor) -> Tensor:
    return F.cross_entropy(rows @ rows.T, torch.arange(len(rows)))


def cached(net: nn.Module, batch: Tensor) -> None:
    with torch.no_grad():
        rows = torch.cat([net(piece) for piece in batch.split(PIECE)])
    rows.requires_grad_()
    loss_of(rows).backward()
    for piece, gradient in zip(batch.split(PIECE), rows.grad.split(PIECE), strict=True):  # type: ignore[union-attr]
        (net(piece) * gradient).sum().backward()


def cached_chunks(net: nn.Module, batch: Tensor) -> None:
    pieces = batch.chunk(ROWS // PIECE)
    with torch.no_grad():
        rows = torch.cat([net(piece) for piece in pieces])
    rows.requires_grad_()
    loss_of(rows).backward()
    for piece, gradient in zip(pieces, rows.grad.chunk(ROWS // PIECE), strict=True):  # type: ignore[union-attr]
        torch.autograd.backward(net(piece), gradient)


def whole(net: nn.Module, batch: Tensor) -> None:
    loss_of(net(batch)).backward()


def pieces_once(net: nn.Module, batch: Tensor) -> None:
    loss_of(torch.cat([net(piece) for piece in batch.split(PIECE)])).backward()


def other_pieces(net: nn.Module, batch: Tensor) -> None:
    first, second = batch.split(ROWS // 2)
    with torch.no_grad():
        keys = torch.cat([net(piece) for piece in first.split(PIECE)])
    for piece in second.split(PIECE):
        loss_of(torch.cat([net(piece), keys])).backward()


def each_piece(net: nn.Module, batch: Tensor) -> None:
    for piece in batch.unbind(0)[:6]:
        net(piece[None]).square().mean().backward()


def told(step: Callable[[nn.Module, Tensor], None], folder: Path) -> tuple[list[Finding], str]:
    net = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(5)))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def run() -> None:
        step(net, DATA[torch.randint(0, 5, (1,))][0])
        optimizer.step()
        optimizer.zero_grad()

    summary = recorded(run, net, __file__, folder).summary(folder)
    found = [f for f in summary.findings or () if f.code == "NSX137" and f.verdict == "found"]
    return found, summary.answer.do[0].text


@pytest.mark.parametrize("step", [cached, cached_chunks])
def test_a_batch_that_fits_needs_one_pass(step: Callable[[nn.Module, Tensor], None], tmp_path: Path) -> None:
    (finding,), do = told(step, tmp_path)
    assert f"calls Sequential on {ROWS // PIECE} pieces of a batch without gradients" in finding.title
    assert do.startswith("Call it once, with gradients, on the whole batch")
    # Of the first pass alone: 4 pieces through 5 layers of two kernels and their views.
    assert 4 * 5 * 2 * 10_000 <= (finding.saving.likely_ns or 0) < 4 * 5 * 4 * 15_000


@pytest.mark.parametrize("step", [whole, pieces_once, other_pieces, each_piece])
def test_pieces_that_are_computed_once(step: Callable[[nn.Module, Tensor], None], tmp_path: Path) -> None:
    assert told(step, tmp_path)[0] == []


def test_one_pass_has_the_same_gradients() -> None:
    after = []
    for step in (cached, whole):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())
        step(net, DATA[0])
        after.append(torch.cat([p.grad.flatten() for p in net.parameters()]))  # type: ignore[union-attr]
    torch.testing.assert_close(*after)
