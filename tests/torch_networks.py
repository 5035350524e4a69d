"""Small networks of everyday kinds: each function makes one and returns a function that computes its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Loss = Callable[[], Any]


class Block(nn.Module):
    """A transformer's layer with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)).masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


def gpt() -> Loss:
    """Two layers, tied head."""
    embedding, blocks, norm = nn.Embedding(97, 32), nn.Sequential(Block(32, 4), Block(32, 4)), nn.LayerNorm(32)
    ids = torch.randint(0, 97, (3, 17))
    return lambda: F.cross_entropy((norm(blocks(embedding(ids))) @ embedding.weight.T).flatten(0, 1), ids.flatten())


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, inside: int, middle: int, outside: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inside, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(),
            nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(),
            nn.Conv2d(middle, outside, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.down = (
            nn.Conv2d(inside, outside, 1, stride, bias=False) if stride > 1 or inside != outside else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.convolutions(x) + self.down(x))


def resnet50() -> Loss:
    """All 16 blocks of ResNet-50, an eighth as wide, on pictures of 64 x 64."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 8, 7, 2, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    inside = 8
    for number, (blocks, middle) in enumerate(((3, 8), (4, 16), (6, 32), (3, 64))):
        for block in range(blocks):
            layers.append(Bottleneck(inside, middle, 4 * middle, 2 if block == 0 and number else 1))
            inside = 4 * middle
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10))
    x, y = torch.randn(2, 3, 64, 64), torch.randint(0, 10, (2,))
    return lambda: F.cross_entropy(net(x), y)


def lstm() -> Loss:
    """An LSTM cell over a sequence, and its head: torch counts no operations of cuDNN's own layers."""
    cell, head, x = nn.LSTMCell(12, 24), nn.Linear(24, 5), torch.randn(7, 4, 12)

    def loss() -> Any:
        state = torch.zeros(4, 24), torch.zeros(4, 24)
        for inputs in x:
            state = cell(inputs, state)
        return head(state[0]).square().mean()

    return loss


def gcn() -> Loss:
    """Two graph convolutions over edges."""
    first, second, x = nn.Linear(20, 16), nn.Linear(16, 4), torch.randn(50, 20)
    source, target = torch.randint(0, 50, (2, 200))

    def spread(h: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(h).index_add(0, target, h[source])

    return lambda: spread(second(F.relu(spread(first(x))))).square().mean()


def diffusion() -> Loss:
    """A small U-Net with attention in its middle, and a time embedding."""
    time, enter, down = nn.Linear(8, 16), nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
    norm, qkv, out = nn.GroupNorm(4, 32), nn.Conv1d(32, 96, 1), nn.Conv1d(32, 32, 1)
    up, leave = nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.Conv2d(32, 3, 3, padding=1)
    x, t = torch.randn(2, 3, 16, 16), torch.randn(2, 8)

    def loss() -> Any:
        h = F.silu(enter(x) + time(t)[:, :, None, None])
        deep = down(h)
        q, k, v = qkv(norm(deep).flatten(2)).chunk(3, 1)
        deep = deep + out(v @ (q.transpose(1, 2) @ k).softmax(-1).transpose(1, 2)).view_as(deep)
        return (leave(torch.cat([up(deep), h], 1)) - x).square().mean()

    return loss


NETWORKS = (gpt, resnet50, lstm, gcn, diffusion)


class Residual(nn.Module):
    """Layers in turn, each of which adds to what it is given."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x
