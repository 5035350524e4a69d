"""NSX129: factors that an optimizer makes anew in each step, and optimizers that make them in turn or of something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsysx.model import Finding
from tests.findings.recorded_programs import recorded

WIDTH, LAYERS = 16, 10


class Rotated(torch.optim.Optimizer):
    """An optimizer that works in a basis of each matrix, which ``refresh`` makes."""

    def __init__(self, params: Any, refresh: Callable[[Tensor, Tensor, int, int], Tensor]) -> None:
        super().__init__(list(params), {"lr": 0.01})
        self.refresh, self.count = refresh, 0
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"average": torch.eye(len(p)), "basis": torch.eye(len(p))}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for i, p in enumerate(self.param_groups[0]["params"]):
            state, g = self.state[p], p.grad
            state["average"].lerp_(g @ g.T, 0.05)
            state["basis"] = self.refresh(state["average"], state["basis"], self.count, i)
            p.sub_(state["basis"] @ (state["basis"].T @ g), alpha=0.01)
        self.count += 1


def eigenvectors(average: Tensor, basis: Tensor, step: int, i: int) -> Tensor:
    return torch.linalg.eigh(average.float() + 1e-6 * torch.eye(len(average)))[1]


def singular(average: Tensor, basis: Tensor, step: int, i: int) -> Tensor:
    return torch.linalg.svd(average)[0]


def inverse(average: Tensor, basis: Tensor, step: int, i: int) -> Tensor:
    return torch.linalg.inv(average + 0.1 * torch.eye(len(average)))


def in_turn(average: Tensor, basis: Tensor, step: int, i: int) -> Tensor:
    return torch.linalg.eigh(average)[1] if step % 10 == i % 10 else basis


def iterated(average: Tensor, basis: Tensor, step: int, i: int) -> Tensor:
    return torch.linalg.qr(average @ basis)[0]


def newton_schulz(average: Tensor, basis: Tensor, step: int, i: int) -> Tensor:
    x = average / average.norm()
    for _ in range(3):
        x = 1.5 * x - 0.5 * x @ x @ x
    return x


def told(refresh: Callable[[Tensor, Tensor, int, int], Tensor], folder: Path) -> tuple[list[Finding], str]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    optimizer, data = Rotated(model.parameters(), refresh), torch.randn(12, WIDTH)

    def step() -> None:
        model(data * 1.0).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    summary = recorded(step, model, __file__, folder).summary(folder)
    found = [f for f in summary.findings or () if f.verdict == "found" and "factorizes" in f.title]
    return found, summary.answer.do[0].text


@pytest.mark.parametrize(("refresh", "paste"), [(eigenvectors, "qr("), (singular, "qr("), (inverse, "linalg.inv(")])
def test_factors_are_made_now_and_then(
    refresh: Callable[[Tensor, Tensor, int, int], Tensor], paste: str, tmp_path: Path
) -> None:
    (finding,), do = told(refresh, tmp_path)
    assert f"factorizes {LAYERS} matrices anew in each step" in finding.title and paste in finding.paste
    assert finding.where["line"] == refresh.__code__.co_firstlineno + 1
    # An inverse that is only multiplied on can also be a solution, whichever is made less often.
    assert do.startswith("Factorize each matrix now and then") or refresh is inverse


@pytest.mark.parametrize("refresh", [in_turn, iterated, newton_schulz])
def test_what_is_made_in_turn_or_multiplied(
    refresh: Callable[[Tensor, Tensor, int, int], Tensor], tmp_path: Path
) -> None:
    assert told(refresh, tmp_path)[0] == []
