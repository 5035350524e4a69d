"""NSX135: normalizations by constants in passes of their own, and constants that are something else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from nsysx.findings._fix import Fix
from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

CHANNELS = 4


class FrozenNorm(nn.Module):
    """A batch norm whose numbers are buffers."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.eps = form, 1e-5
        for name, value in (("weight", 1.5), ("bias", 0.1), ("running_mean", 0.2), ("running_var", 2.0)):
            self.register_buffer(name, torch.full((CHANNELS,), value))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.weight.reshape(1, -1, 1, 1) * (self.running_var.reshape(1, -1, 1, 1) + self.eps).rsqrt()
        bias = self.bias.reshape(1, -1, 1, 1) - self.running_mean.reshape(1, -1, 1, 1) * scale
        if self.form == "norm":
            return x * scale + bias
        if self.form == "gate":
            return x * (x * scale + bias).sigmoid()  # more than a norm
        return x - bias + scale


def network(form: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(6):
        norm = FrozenNorm(form)
        layers += [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False), norm, nn.ReLU()]
    return nn.Sequential(*layers)


def found(form: str, folder: Path) -> Finding:
    net = network(form)

    def step() -> None:
        net(from_host(torch.randn(2, CHANNELS, 8, 8))).square().mean().backward()
        net.zero_grad()

    (finding,) = recorded(step, net, __file__, folder, slow=("mul", "add")).found(folder, "NSX135")
    return finding


def test_norms_that_convolutions_can_do(tmp_path: Path) -> None:
    finding = found("norm", tmp_path)
    assert [way.name for way in finding.remedies] == ["norms-folded"]
    assert "6 calls of FrozenNorm normalize by constants" in finding.title and "FrozenNorm" in finding.fix
    (tmp_path / "b").mkdir()
    other = found("gate", tmp_path / "b")
    assert (finding.saving.likely_ns or 0) > 1.3 * (other.saving.likely_ns or 0), "the passes over activations go, too"


@pytest.mark.parametrize("form", ["gate", "shift"])
def test_constants_of_something_else(form: str, tmp_path: Path) -> None:
    finding = found(form, tmp_path)
    assert [way.name for way in finding.remedies] == [
        "constants-of-layers"
    ] and "computes the same constants" in finding.title


def test_folded_convolutions_give_the_same() -> None:
    conv, norm, x = nn.Conv2d(CHANNELS, CHANNELS, 3, bias=False), FrozenNorm("norm"), torch.randn(2, CHANNELS, 8, 8)
    before, given = norm(conv(x)), dict[str, object]()
    exec(Fix.by_name("norms-folded").paste, given)
    folded = given["folded"]
    assert callable(folded) and torch.allclose(folded(conv, norm)(x), before, atol=1e-5)
