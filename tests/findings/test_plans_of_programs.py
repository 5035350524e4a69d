"""NSX137: plans of static data that programs of several domains make anew, and programs whose plans are of each step's own data."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

NODES, EDGES, WIDTH, GRAPHS = 300, 2000, 16, 20
torch.manual_seed(0)
FEATURES, TOKENS = torch.randn(50, NODES, WIDTH), torch.randint(0, 100, (50, 4, 24))
EDGE = torch.randint(0, NODES, (2, EDGES))
POINTS, MEMBERS = torch.rand(NODES, 3), torch.sort(torch.randint(0, GRAPHS, (NODES,)))[0]


def sample(data: Tensor) -> Tensor:
    return data[torch.randint(0, 50, (1,))][0]


class SparseConv(nn.Module):
    """A layer that builds its own adjacency of a static graph."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def adjacency(self, edge: Tensor) -> Tensor:
        degree = torch.bincount(edge[1], minlength=NODES).clamp(min=1)
        return torch.sparse_coo_tensor(edge.flip(0), (1.0 / degree.float())[edge[1]], (NODES, NODES), check_invariants=False).coalesce()

    def forward(self, x: Tensor, edge: Tensor) -> Tensor:
        sparse = self.adjacency(edge)  # plan: SparseConv.adjacency
        return F.relu(torch.sparse.mm(sparse, self.lin(x)))


class Layers(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(2))

    def forward(self, x: Tensor, *given: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, *given)
        return x


class Neighbours(nn.Module):
    """A layer that searches the neighbours of fixed points."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        near = nearest(points, 4)  # plan: nearest
        return F.relu(self.lin(torch.cat([x, x[near].mean(1)], -1)))


def nearest(points: Tensor, count: int) -> Tensor:
    distance = torch.cdist(points, points)
    distance.fill_diagonal_(float("inf"))
    return distance.topk(count, largest=False)[1]


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, order: Tensor, segment: Tensor) -> Tensor:
        return torch.zeros(GRAPHS, WIDTH).index_add(0, segment, self.lin(x)[order])


def segments(members: Tensor) -> tuple[Tensor, Tensor]:
    order = torch.argsort(members, stable=True)
    counts = torch.bincount(members, minlength=GRAPHS)
    border = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return order, torch.searchsorted(border[1:].contiguous(), torch.arange(len(members)), right=True)


def receivers(edge: Tensor) -> tuple[Tensor, Tensor]:
    source, target = edge
    target = target[(source != edge[1]).nonzero().squeeze(1)]
    order = torch.argsort(target)
    return order[:NODES] % NODES, target[order][:NODES] % GRAPHS


class Rotary(nn.Module):
    """Attention with rotary tables and a causal mask that each call makes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 100)

    def tables(self, length: int) -> tuple[Tensor, Tensor]:
        inverse = 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8))
        angle = torch.outer(torch.arange(length).float(), inverse)
        angle = torch.cat([angle, angle], -1)
        return angle.cos()[None], angle.sin()[None]

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        cos, sin = self.tables(x.size(1))  # plan: Rotary.tables
        turned = h[..., :8] * cos + h[..., 8:] * sin
        scores = turned @ turned.transpose(1, 2)
        causal = torch.ones(x.size(1), x.size(1)).tril().bool()
        return self.out(scores.masked_fill(~causal, -1e9).softmax(-1) @ h)


class Windows(nn.Module):
    """Attention in shifted windows, whose regions are numbered in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, WIDTH)

    def mask(self, side: int, window: int, shift: int) -> Tensor:
        region = torch.zeros(1, side, side, 1)
        count = 0
        for rows in (slice(0, -window), slice(-window, -shift), slice(-shift, None)):
            for columns in (slice(0, -window), slice(-window, -shift), slice(-shift, None)):
                region[:, rows, columns, :] = count
                count += 1
        parts = region.view(1, side // window, window, side // window, window, 1).permute(0, 1, 3, 2, 4, 5)
        parts = parts.reshape(-1, window * window)
        apart = parts.unsqueeze(1) - parts.unsqueeze(2)
        return apart.masked_fill(apart != 0, -100.0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lin(x).view(-1, 2, 4, 2, 4, WIDTH).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 16, WIDTH)
        mask = self.mask(8, 4, 2)  # plan: Windows.mask
        return (h @ h.transpose(2, 3) + mask).softmax(-1) @ h


class Positions(nn.Module):
    """Tables of sines, written into a table by column, and buckets of distances."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.bias = nn.Linear(3, WIDTH), nn.Embedding(32, 1)

    def sines(self, length: int) -> Tensor:
        position = torch.arange(length).unsqueeze(1)
        scale = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
        table = torch.zeros(length, WIDTH)
        table[:, 0::2] = torch.sin(position * scale)
        table[:, 1::2] = torch.cos(position * scale)
        return table

    def forward(self, x: Tensor) -> Tensor:
        table = self.sines(x.size(1))  # plan: Positions.sines
        h = self.lin(x) + table
        return (h @ h.transpose(1, 2)).softmax(-1) @ h


IMAGES = torch.randn(50, 2, 64, 3)


def edges_plan(model: Any) -> Tensor:
    order, segment = receivers(EDGE)  # plan: receivers
    return model(sample(FEATURES), order, segment)


def members_plan(model: Any) -> Tensor:
    order, segment = segments(MEMBERS)  # plan: segments
    return model(sample(FEATURES), order, segment)


PLANS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Tensor]]] = {
    "adjacency": (lambda: Layers(SparseConv), lambda m: m(sample(FEATURES), EDGE)),
    "neighbours": (lambda: Layers(Neighbours), lambda m: m(sample(FEATURES), POINTS)),
    "members": (Pooled, members_plan),
    "edges": (Pooled, edges_plan),
    "rotary": (Rotary, lambda m: m(sample(TOKENS))),
    "windows": (Windows, lambda m: m(sample(IMAGES))),
    "positions": (Positions, lambda m: m(sample(IMAGES))),
    "from the host": (lambda: Layers(Neighbours), lambda m: m(from_host(FEATURES[0]), POINTS)),
}
LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def told(kind: tuple[Callable[[], nn.Module], Callable[[Any], Tensor]], folder: Path) -> list[Finding]:
    model, forward = kind[0](), kind[1]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        loss = forward(model).pow(2).mean()
        loss.backward()
        optimizer.step()

    return recorded(step, model, __file__, folder).findings(folder, "NSX137")


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan(kind: str, tmp_path: Path) -> None:
    for each in told(PLANS[kind], tmp_path):
        print(each.verdict, each.title, each.where, each.detail, each.remedies[0].text if each.remedies else "", each.paste)
        print(LINES[each.where["line"]-1] if each.where else "")
    raise AssertionError
