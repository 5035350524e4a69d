"""Products with weights to which a product of small rank was added, as torch runs them, and those that are no such weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nsysx.events.low_rank_weights import low_rank_weights
from tests.events.traced import traced

THERE, BACK, RANK, TOKENS = 48, 64, 2, 32
torch.manual_seed(0)
W, BIAS = torch.randn(BACK, THERE), torch.randn(BACK)
A, B = torch.randn(RANK, THERE, requires_grad=True), torch.randn(BACK, RANK, requires_grad=True)
WIDE = torch.randn(BACK, THERE, requires_grad=True)
INPUT = torch.randn(4, TOKENS // 4, THERE)


class _Added(nn.Module):
    """As packages for adapters parametrize a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(RANK, THERE)), nn.Parameter(torch.randn(BACK, RANK))

    def forward(self, w: Tensor) -> Tensor:
        return w + (self.b @ self.a).view(w.shape) * 0.5


PARAMETRIZED = nn.Linear(THERE, BACK)
PARAMETRIZED.requires_grad_(requires_grad=False)
parametrize.register_parametrization(PARAMETRIZED, "weight", _Added())


def delta() -> Tensor:
    return (B @ A) * 2.0


def of_lists(x: Tensor) -> Tensor:
    made = W + torch.einsum("or,ri->oi", B, A)
    return F.linear(x, made, BIAS)


PUT_TOGETHER: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(x, W + 2.0 * (B @ A)),
    "with a bias": lambda x: F.linear(x, W + delta(), BIAS),
    "multiplied": lambda x: x @ (delta() + W).t(),
    "addmm": lambda x: F.linear(x, torch.addmm(W, B, A, alpha=2.0)),
    "einsum": of_lists,
    "parametrized": PARAMETRIZED,
    "converted": lambda x: F.linear(x.double(), (W + delta()).to(torch.float64)),
    "turned factors": lambda x: F.linear(x, W + (A.t() @ B.t()).t()),
}
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "apart": lambda x: F.linear(x, W) + 2.0 * F.linear(F.linear(x, A), B),
    "a whole matrix": lambda x: F.linear(x, W + 0.5 * WIDE),
    "of large rank": lambda x: F.linear(x, W + WIDE @ torch.eye(THERE)),
    "normalized": lambda x: F.linear(x, F.normalize(W + B @ A, dim=1)),
    "of two products": lambda x: F.linear(x, B @ A + B @ (A * 2)),
    "multiplied by it": lambda x: F.linear(x, W * (B @ A)),
    "a residual": lambda x: F.linear(x, W) + F.linear(F.linear(x, A), B) + BIAS,
}


@pytest.mark.parametrize("kind", PUT_TOGETHER)
def test_a_product_of_small_rank_in_a_weight(kind: str, tmp_path: Path) -> None:
    def step() -> None:
        PUT_TOGETHER[kind](INPUT * 1.5).square().sum().backward()

    flow, *_ = traced(step, tmp_path)
    (weight,) = low_rank_weights(flow)
    assert sorted(weight.size) == [THERE, BACK] and (weight.rank, weight.tokens) == (RANK, TOKENS)
    assert weight.turned and weight.added in weight.making and weight.row not in weight.making
    # One product of the factors is part of what goes.
    assert any(flow.names[row].endswith(("mm", "matmul", "einsum")) for row in weight.making)


@pytest.mark.parametrize("kind", OTHERS)
def test_weights_of_other_kinds(kind: str, tmp_path: Path) -> None:
    def step() -> None:
        OTHERS[kind](INPUT * 1.5).square().sum().backward()

    assert not low_rank_weights(traced(step, tmp_path)[0])
