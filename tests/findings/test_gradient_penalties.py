"""NSX137: penalties on a discriminator's gradient in each step, and gradients that are a loss of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        conv = nn.Conv2d
        self.layers = nn.Sequential(
            conv(3, 8, 3, padding=1),
            nn.SiLU(),
            conv(8, 8, 3, padding=1),
            nn.SiLU(),
            conv(8, 8, 3),
            nn.SiLU(),
            conv(8, 1, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean((1, 2, 3))  # type: ignore[no-any-return]


def told(kind: str, folder: Path) -> list[Finding]:
    critic = Critic()
    field = nn.Sequential(
        nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    )

    def step() -> None:
        real, fake = from_host(torch.randn(4, 3, 8, 8)), torch.randn(4, 3, 8, 8)
        loss = F.softplus(critic(fake)).mean()
        score = critic(real.requires_grad_(True))
        loss = loss + F.softplus(-score).mean()
        if kind == "r1":
            score = critic(real)
            (g,) = torch.autograd.grad(score.sum(), real, create_graph=True)
            loss = loss + 5.0 * g.square().sum((1, 2, 3)).mean()
        elif kind == "shared":
            (g,) = torch.autograd.grad(score.sum(), real, create_graph=True)
            loss = loss + 5.0 * g.square().sum((1, 2, 3)).mean()
        elif kind == "norm of one":
            mixed = (0.3 * real.detach() + 0.7 * fake).requires_grad_(True)
            (g,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
            loss = loss + 10.0 * ((g.flatten(1).norm(2, 1) - 1) ** 2).mean()
        elif kind == "matched":
            (g,) = torch.autograd.grad(score.sum(), real, create_graph=True)
            loss = loss + F.mse_loss(g, fake)
        elif kind == "energy":
            x = from_host(torch.rand(64, 3)).requires_grad_(True)
            (g,) = torch.autograd.grad(field(x).sum(), x, create_graph=True)
            loss = loss + 0.5 * g.square().sum(-1).mean()
        loss.backward()

    net = nn.ModuleList([critic, field])
    found = recorded(step, net, __file__, folder, slow=("conv2d", "linear")).found(folder, "NSX137")
    return [f for f in found if f.remedies and f.remedies[0].name == "penalty-at-times"]


@pytest.mark.parametrize("kind", ["r1", "norm of one", "shared"])
def test_a_penalty_in_each_step(kind: str, tmp_path: Path) -> None:
    (finding,) = told(kind, tmp_path)
    assert "takes a penalty on the gradient of a score in each step" in finding.title
    assert (finding.fix or "").startswith("Try") is (kind == "norm of one")
    forward, saved = 4 * 60_000, finding.saving_ns_per_step or 0
    # With a score of its own its forward goes, too; of a shared one some gradients alone.
    assert (saved > 0.9 * forward) is (kind != "shared")


@pytest.mark.parametrize("kind", ["", "matched", "energy"])
def test_other_gradients(kind: str, tmp_path: Path) -> None:
    assert told(kind, tmp_path) == []
