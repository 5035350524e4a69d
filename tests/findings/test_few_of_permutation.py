"""NSX131: an order of all numbers that is made for a few of them, and orders of which all, many or none are cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsysx.findings._smaller_operators import _drawn
from nsysx.model import Finding
from tests.findings.recorded_programs import recorded

ITEMS, FEW = 20_480, 64
X = torch.randn(FEW, 8)


def sampled() -> Tensor:
    return torch.randperm(ITEMS)[:FEW]


def by_name() -> Tensor:
    order = torch.randperm(ITEMS, device="cpu")
    return order[:FEW]


def in_epochs() -> Tensor:
    order = torch.randperm(ITEMS)
    return order.view(FEW, -1).sum(1) % ITEMS


def of_half() -> Tensor:
    return torch.randperm(2 * FEW)[:FEW]


def whole_too() -> Tensor:
    order = torch.randperm(ITEMS)
    return (order[:FEW] + order.sum()) % ITEMS


def by_themselves() -> Tensor:
    return torch.randint(ITEMS, (FEW,))


def found(draw: Callable[[], Tensor], folder: Path) -> list[Finding]:
    torch.manual_seed(0)
    net = nn.Embedding(ITEMS, 8)

    def step() -> None:
        (net(draw()) * X).square().mean().backward()

    program = recorded(step, net, __file__, folder)
    return [f for f in program.found(folder, "NSX131") if f.remedies and f.remedies[0].name == "drawn-one-by-one"]


@pytest.mark.parametrize("draw", [sampled, by_name])
def test_few_are_drawn_by_themselves(draw: Callable[[], Tensor], tmp_path: Path) -> None:
    (finding,) = found(draw, tmp_path)
    assert "puts 20,480 numbers in random order and takes 64" in finding.title
    assert "0.098 of 64" in finding.condition
    if draw is sampled:
        assert finding.paste == "return torch.randint(ITEMS, (FEW,))  # not randperm(...)[: ...]"
    assert 30_000 < (finding.saving_ns_per_step or 0) <= 60_000, "the kernel of the order, as far as the host lets it"


@pytest.mark.parametrize("draw", [in_epochs, of_half, whole_too, by_themselves])
def test_orders_that_are_needed_are_silent(draw: Callable[[], Tensor], tmp_path: Path) -> None:
    assert found(draw, tmp_path) == []


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("neg = torch.randperm(n, device=dev)[:n_neg]", "neg = torch.randint(n, (n_neg,), device=dev)"),
        ("i = torch.randperm(len(x))[:k].sort().values", "i = torch.randint(len(x), (k,)).sort().values"),
        ("i = torch.randperm(x.size(0), device=x.device)[: self.k]", "i = torch.randint(x.size(0), (self.k,), device=x.device)"),
        ("i = order[:k]", None),
        ("i = torch.randperm(n)[k:]", None),
    ],
)  # fmt: skip
def test_the_line_is_written_anew(text: str, new: str | None) -> None:
    assert _drawn(text) == (new and f"{new}  # not randperm(...)[: ...]")
