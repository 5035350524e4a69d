"""NSX137: Jacobians of every sample by every sample, of which the samples' own blocks are read, and such as are needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from nsysx.findings._own_jacobians import _fix
from nsysx.model import Finding
from tests.findings.recorded_programs import recorded

SAMPLES, INPUTS, OUTPUTS = 8, 3, 2
NET = nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, OUTPUTS))
X = torch.randn(SAMPLES, INPUTS)


def of_batch() -> None:
    J = torch.autograd.functional.jacobian(NET, X, create_graph=True)
    J = torch.einsum("bibj->bij", J)
    J.square().mean().backward()


def by_diagonal() -> None:
    jacobian = torch.autograd.functional.jacobian(NET, X, create_graph=True)
    jacobian.diagonal(dim1=0, dim2=2).square().mean().backward()


def whole() -> None:
    J = torch.autograd.functional.jacobian(NET, X, create_graph=True)
    J.square().mean().backward()


def by_output() -> None:
    x = X.clone().requires_grad_()
    y = NET(x)
    J = torch.stack([torch.autograd.grad(y[:, k].sum(), x, create_graph=True)[0] for k in range(OUTPUTS)], 1)
    J.square().mean().backward()


def found(body: Callable[[], None], folder: Path) -> list[Finding]:
    def step() -> None:
        body()
        NET.zero_grad()

    findings = recorded(step, NET, __file__, folder).found(folder, "NSX137")
    return [each for each in findings if each.remedies and each.remedies[0].name == "own-jacobians"]


@pytest.mark.parametrize("body", [of_batch, by_diagonal])
def test_blocks_of_a_whole_jacobian(body: Callable[[], None], tmp_path: Path) -> None:
    (finding,) = found(body, tmp_path)
    assert "each number of 8 samples by all samples" in finding.title and "2 passes" in finding.detail
    assert finding.where["line"] == body.__code__.co_firstlineno + 1
    assert 0 < (finding.saving.likely_ns or 0) <= (finding.cost_ns_per_step or 0)
    assert ("NET(X)" in finding.paste) and ("jacobian = " in finding.paste) == (body is by_diagonal)


@pytest.mark.parametrize("body", [whole, by_output])
def test_jacobians_that_are_needed(body: Callable[[], None], tmp_path: Path) -> None:
    assert not found(body, tmp_path)


def test_the_paste_gives_the_same_blocks() -> None:
    given = {"torch": torch, "model": NET, "points": X.clone()}
    exec(_fix("blocks = torch.autograd.functional.jacobian(model, points, create_graph=True)").paste, given)
    blocks = torch.autograd.functional.jacobian(NET, X)
    assert torch.allclose(given["blocks"], torch.einsum("bibj->bij", blocks), atol=1e-6)
