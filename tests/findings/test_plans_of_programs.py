"""NSX137: plans of static data that programs of several domains make anew, and programs whose plans are of each step's own data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64
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
        return torch.sparse_coo_tensor(
            edge.flip(0), (1.0 / degree.float())[edge[1]], (NODES, NODES), check_invariants=False
        ).coalesce()

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


def nearest_of(points: F64, count: int) -> I64:
    apart = ((points[:, None] - points[None]) ** 2).sum(2)
    near: I64 = apart.argsort(1)[:, 1 : count + 1]
    return np.ascontiguousarray(near)


LIBRARY = torch.library.Library("torch_cluster", "FRAGMENT")
LIBRARY.define("knn(Tensor x, int count) -> Tensor")
LIBRARY.impl("knn", lambda x, count: torch.from_numpy(nearest_of(x.numpy(), count)), "CPU")


class Clustered(nn.Module):
    """A layer that asks a package for the neighbours of fixed points."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        near = torch.ops.torch_cluster.knn(points, 4)  # plan: it
        return F.relu(self.lin(x[near].mean(1)))


class Direct(nn.Module):
    """A network whose first layer is given its data as it is, with the neighbours of its points."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        h = self.lin(x)
        near = nearest(points, 4)
        return h + h[near].mean(1)


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


def exchanged(edge: Tensor) -> dict[str, Tensor]:
    """Which rows this rank wants of which other one, as a partition of a graph tells it."""
    order = torch.argsort(edge[1], stable=True)
    names, place = torch.unique(edge[0][order], return_inverse=True)
    near = names < NODES // 2
    want = torch.bincount((~near).long(), minlength=1)[:1].contiguous()
    give = torch.empty_like(want)
    dist.all_to_all_single(give, want)
    wanted = torch.empty(give.tolist()[0], dtype=torch.long)
    dist.all_to_all_single(wanted, names[near][: wanted.numel()].contiguous())
    slot = torch.empty_like(names)
    slot[near] = names[near]
    slot[~near] = torch.arange(int((~near).sum())) + 1
    return {"source": slot[place], "target": edge[1][order], "send": wanted}


class Normed(nn.Module):
    """A layer that weighs the edges of a static graph with loops by their degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge: Tensor) -> Tensor:
        looped, weight = weighed(edge, x.size(0))  # plan: weighed
        message = self.lin(x)[looped[0]] * weight[:, None]
        return torch.zeros_like(x).index_add(0, looped[1], message)


def weighed(edge: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    edge = torch.cat([edge, torch.arange(nodes).unsqueeze(0).repeat(2, 1)], dim=1)
    row, column = edge[0], edge[1]
    degree = torch.zeros(nodes).scatter_add_(0, column, torch.ones(edge.size(1)))
    inverse = degree.pow_(-0.5)
    inverse.masked_fill_(inverse == float("inf"), 0)
    return edge, inverse[row] * inverse[column]


class Mel(nn.Module):
    """Spectra through a bank of filters."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(40, WIDTH)

    def bank(self, count: int, mels: int) -> Tensor:
        frequency = torch.linspace(0, 8000, count)
        border = 700.0 * (10.0 ** (torch.linspace(0, 3114, mels + 2) / 2595.0) - 1.0)
        width = border[1:] - border[:-1]
        slope = border.unsqueeze(0) - frequency.unsqueeze(1)
        return torch.clamp(torch.min(-1.0 * slope[:, :-2] / width[:-1], slope[:, 2:] / width[1:]), min=0)

    def forward(self, spectrum: Tensor) -> Tensor:
        bank = self.bank(129, 40)  # plan: Mel.bank
        return self.lin(spectrum @ bank)


class Halo(nn.Module):
    """A layer that makes the plan of a partitioned graph, with collectives and reads."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge: Tensor) -> Tensor:
        plan = exchanged(edge)  # plan: exchanged
        near = self.lin(x)[plan["source"]]
        return torch.zeros_like(x).index_add(0, plan["target"], near)


class Routed(nn.Module):
    """Experts: which rows go where is of the step's own data."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.lin = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        expert = self.gate(x).argmax(-1)
        order = torch.argsort(expert)
        border = torch.bincount(expert, minlength=4).cumsum(0)
        return self.lin(x[order]) * (1.0 / border.float())[expert[order]][:, None]


class Padded(nn.Module):
    """Attention under a mask of each batch's own lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, WIDTH)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        h = self.embed(x)
        mask = torch.arange(x.size(1))[None] < lengths[:, None]
        mask = mask[:, None] & mask[:, :, None]
        return (h @ h.transpose(1, 2)).masked_fill(~mask, -1e9).softmax(-1) @ h


def kernel_in_the_step(model: Any) -> Tensor:
    kernel = torch.exp(-(torch.cdist(POINTS, POINTS) ** 2)) + torch.eye(NODES)  # plan: it
    factor = torch.linalg.cholesky(kernel)
    return torch.cholesky_solve(model(sample(FEATURES)), factor)


def copied_positions(model: Any) -> Tensor:
    order = from_host(torch.arange(NODES).flip(0))  # plan: it
    return model(sample(FEATURES)[order])


def copied_order(model: Any) -> Tensor:
    order = from_host(torch.from_numpy(DRAWN.permutation(NODES)))
    return model(sample(FEATURES)[order])


DRAWN = np.random.default_rng(0)


def own_points(model: Any) -> Tensor:
    x = sample(FEATURES)
    return model(x, x[:, :3].contiguous())


def drawn_edges(model: Any) -> Tensor:
    kept = EDGE[:, torch.randperm(EDGES)[: EDGES // 2]]
    return model(sample(FEATURES), kept)


def rewired(model: Any) -> Tensor:
    REWIRED.copy_(REWIRED.roll(1, 1))
    return model(sample(FEATURES), REWIRED)


def queue_of_keys(model: Any) -> Tensor:
    query = F.normalize(model(sample(FEATURES)), dim=1)
    logits = query @ F.normalize(QUEUE.clone(), dim=0)
    with torch.no_grad():
        QUEUE[:, :NODES] = query.t()
    return logits


def next_rows(model: Any) -> Tensor:
    first = next(ROUNDS) * NODES
    members = ALL_MEMBERS[first : first + NODES]
    order, segment = segments(members)
    return model(sample(FEATURES), order, segment)


def moving_points(model: Any) -> Tensor:
    near = nearest(MOVING[0], 4)
    out = model(sample(FEATURES)[near].mean(1))
    MOVING[0] = MOVING[0] + 0.01 * out.detach()[:, :3]
    return out


QUEUE, ALL_MEMBERS, MOVING = torch.randn(WIDTH, 512), torch.arange(6000) // 300, [torch.rand(NODES, 3)]
ROUNDS = itertools.count()


def waiting_batch(model: Any) -> Tensor:
    features, points = WAITING.pop()
    return model(features, points)


SPECTRA = torch.rand(50, 4, 17, 129)
REWIRED = EDGE.clone()
WAITING = [(torch.randn(NODES, WIDTH), torch.rand(NODES, 3)) for _ in range(6)]
PLANS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Tensor]]] = {
    "adjacency": (lambda: Layers(SparseConv), lambda m: m(sample(FEATURES), EDGE)),
    "neighbours": (lambda: Layers(Neighbours), lambda m: m(sample(FEATURES), POINTS)),
    "a package": (lambda: Layers(Clustered), lambda m: m(sample(FEATURES), POINTS)),
    "members": (Pooled, members_plan),
    "edges": (Pooled, edges_plan),
    "halo": (lambda: Layers(Halo), lambda m: m(sample(FEATURES), EDGE)),
    "weighed": (lambda: Layers(Normed), lambda m: m(sample(FEATURES), EDGE)),
    "filters": (Mel, lambda m: m(sample(SPECTRA))),
    "lines of the step": (lambda: nn.Linear(WIDTH, WIDTH), kernel_in_the_step),
    "positions from the host": (lambda: nn.Linear(WIDTH, WIDTH), copied_positions),
    "rotary": (Rotary, lambda m: m(sample(TOKENS))),
    "windows": (Windows, lambda m: m(sample(IMAGES))),
    "positions": (Positions, lambda m: m(sample(IMAGES))),
    "from the host": (lambda: Layers(Neighbours), lambda m: m(from_host(FEATURES[0]), POINTS)),
}
#: What comes under the same names is of each step's own data all the same.
OTHERS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Tensor]]] = {
    "experts": (Routed, lambda m: m(sample(FEATURES))),
    "points of the sample": (lambda: Layers(Neighbours), own_points),
    "points of the sample, by a package": (lambda: Layers(Clustered), own_points),
    "drawn edges": (lambda: Layers(SparseConv), drawn_edges),
    "edges that are written": (lambda: Layers(SparseConv), rewired),
    "a queue that is written by parts": (lambda: nn.Linear(WIDTH, WIDTH), queue_of_keys),
    "the next rows": (Pooled, next_rows),
    "points that move": (lambda: nn.Linear(WIDTH, WIDTH), moving_points),
    "an order from the host": (lambda: nn.Linear(WIDTH, WIDTH), copied_order),
    "lengths from the host": (Padded, lambda m: m(sample(TOKENS), from_host(torch.tensor([24, 9, 3, 7])))),
    "batches that wait on the GPU": (Direct, waiting_batch),
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


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_is_found_where_it_is_made(kind: str, tmp_path: Path) -> None:
    found = told(PLANS[kind], tmp_path)[0]
    assert found.verdict == "found"
    text = LINES[int(found.where["line"]) - 1]
    made, _, function = text.partition("  # plan: ")
    assert function, text
    assert f"{function} comes out the same" in found.remedies[0].text
    assert made.split(" = ")[1] in found.paste


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_made_of_the_steps_own_data_is_not_told(kind: str, tmp_path: Path) -> None:
    assert [each.title for each in told(OTHERS[kind], tmp_path) if "the same" in each.title] == []


def test_lines_that_are_kept_together_make_the_same(tmp_path: Path) -> None:
    found = told(PLANS["lines of the step"], tmp_path)[0]
    assert "as does what line" in found.remedies[0].text
    kept, *lines = found.paste.splitlines()
    names = {**globals(), "kernel": None}
    exec(kept, names)
    for _ in range(2):
        exec("\n".join(lines), names)
    factor = names["factor"]
    assert torch.equal(factor @ factor.T, names["kernel"]) or torch.allclose(factor @ factor.T, names["kernel"])
    assert names["kept"]["kernel, factor"][1] is factor


WEIGHTS = [torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(2)]


def convolved(x: Tensor, weight: Tensor, edge: Tensor) -> Tensor:
    source, target = edge[0], edge[1]
    order = torch.argsort(target, stable=True)
    source, target = source[order], target[order]
    degree = torch.bincount(target, minlength=NODES).clamp(min=1).float()
    return torch.zeros(NODES, WIDTH).index_add(0, target, (x @ weight)[source]) / degree[:, None]


def test_a_program_of_functions(tmp_path: Path) -> None:
    """What stands between the lines that are kept together is kept with them: it gives the same names something else."""

    def step() -> None:
        x = sample(FEATURES)
        for weight in WEIGHTS:
            x = convolved(x, weight, EDGE)
        gradients = torch.autograd.grad(x.pow(2).mean(), WEIGHTS)
        with torch.no_grad():
            for weight, gradient in zip(WEIGHTS, gradients, strict=True):
                weight.sub_(0.01 * gradient)

    found = recorded(step, None, __file__, tmp_path).finding(tmp_path, "NSX137")
    assert "computes the same 2 times in each step" in found.title
    first, *lines = found.paste.splitlines()
    names = {**globals(), "source": EDGE[0], "target": EDGE[1]}
    exec(first, names)
    for _ in range(2):
        exec("\n".join(lines), names)
    order = torch.argsort(EDGE[1], stable=True)
    assert torch.equal(names["target"], EDGE[1][order]) and torch.equal(names["source"], EDGE[0][order])
    assert torch.equal(names["degree"], torch.bincount(EDGE[1], minlength=NODES).clamp(min=1).float())
