"""NSX131: deformable attention in operators of torch, and samples of images that something else reads."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

SHAPES = [(8, 8), (4, 4), (2, 2)]
PLACES, HEADS, WIDTH, POINTS = 84, 2, 4, 3
LEVELS = len(SHAPES)


class Deformable(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, size = kind, HEADS * WIDTH
        self.value, self.places = nn.Linear(size, size), nn.Linear(size, HEADS * LEVELS * POINTS * 2)
        self.weights = nn.Linear(size, HEADS * LEVELS * POINTS)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        value = self.value(x).view(batch, PLACES, HEADS, WIDTH)
        grids = 2 * self.places(x).view(batch, PLACES, HEADS, LEVELS, POINTS, 2).sigmoid() - 1
        weights = self.weights(x).view(batch, PLACES, HEADS, LEVELS * POINTS).softmax(-1)
        values, sampled = value.split([h * w for h, w in SHAPES], 1), list[Tensor]()
        for level, (h, w) in enumerate(SHAPES):
            image = values[level].flatten(2).transpose(1, 2).reshape(batch * HEADS, WIDTH, h, w)
            grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
            sampled.append(F.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
        weights = weights.transpose(1, 2).reshape(batch * HEADS, 1, PLACES, LEVELS * POINTS)
        if self.kind == "one level":
            return (sampled[0] * weights[..., :POINTS]).sum(-1).view(batch, HEADS * WIDTH, PLACES).transpose(1, 2)
        together = torch.stack(sampled, -2).flatten(-2)
        if self.kind == "through a layer":
            return torch.tanh(together).sum(-1).view(batch, HEADS * WIDTH, PLACES).transpose(1, 2)
        y = (together * weights).sum(-1).view(batch, HEADS * WIDTH, PLACES).transpose(1, 2)
        return y + together.square().mean() if self.kind == "read again" else y


def told(kind: str, folder: Path) -> list[Finding]:
    net = nn.Sequential(Deformable(kind), Deformable(kind))

    def step() -> None:
        cast(Tensor, net(from_host(torch.randn(2, PLACES, HEADS * WIDTH)))).square().mean().backward()

    found = recorded(step, net, __file__, folder, slow=("stack", "mul", "sum")).found(folder, "NSX131")
    return [f for f in found if f.remedies and f.remedies[0].name == "built-deformable-kernel"]


def test_levels_that_are_sampled_one_by_one(tmp_path: Path) -> None:
    (finding,) = told("", tmp_path)
    assert f"samples {LEVELS} levels one by one" in finding.title and "2 calls per step" in finding.detail
    # What joins, weighs and sums goes, with its gradients; what samples stays.
    assert finding.saving.bound and 2 * 3 * 60_000 < (finding.saving_ns_per_step or 0) < (finding.cost_ns_per_step or 0)


@pytest.mark.parametrize("kind", ["one level", "through a layer", "read again"])
def test_other_samples_are_silent(kind: str, tmp_path: Path) -> None:
    assert told(kind, tmp_path) == []
