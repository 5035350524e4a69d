"""Calls of einsum with three or more tensors: which are told, how they read in the other order, and what stays silent."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsysx.events.einsum_orders import einsum_of
from nsysx.model import Finding
from tests.findings.recorded_programs import recorded

EDGES, MUL, WIDE = 64, 16, 7
torch.manual_seed(0)
Y, R, OF_MUL = torch.randn(EDGES, WIDE), torch.randn(EDGES, 8), torch.randn(MUL, MUL)


class Net(nn.Module):
    """Layers that the lines below use; ``body``: what it does."""

    def __init__(self, body: Callable[[Any, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.lin, self.weights = nn.Linear(MUL, MUL), nn.Linear(8, MUL)
        self.register_buffer("cg", torch.randn(WIDE, WIDE, WIDE))
        self.body = body

    def forward(self, given: Tensor) -> Tensor:
        return self.body(self, self.lin(given).transpose(1, 2), self.weights(R))


def four(self: Net, x: Tensor, w: Tensor) -> Tensor:
    m = torch.einsum("eui,ej,ijk,eu->euk", x, Y, self.cg, w)
    return 2 * m


def three(self: Net, x: Tensor, w: Tensor) -> Tensor:
    m = torch.tanh(torch.einsum("eui, ej, ijk -> euk", x, Y, self.cg)) * w[..., None]
    return 2 * m


def in_order(self: Net, x: Tensor, w: Tensor) -> Tensor:
    m = torch.einsum("ej,ijk,eui,eu->euk", Y, self.cg, x, w)
    return 2 * m


def of_two(self: Net, x: Tensor, w: Tensor) -> Tensor:
    m = torch.einsum("eui,eu->eui", x, w)
    return 2 * m


def a_chain(self: Net, x: Tensor, w: Tensor) -> Tensor:
    m = torch.einsum("eui,uv,vw->ewi", x, OF_MUL, OF_MUL)
    return 2 * m


def spread(self: Net, x: Tensor, w: Tensor) -> Tensor:
    m = torch.einsum("eui,ej,eu->euij", x, Y, w)
    return 2 * m


PASTES = {
    four: 'm = torch.einsum("eik,eui->euk", torch.einsum("ej,ijk->eik", Y, self.cg), torch.einsum("eui,eu->eui", x, w))',
    three: 'm = torch.tanh(torch.einsum("eik,eui->euk", torch.einsum("ej,ijk->eik", Y, self.cg), x)) * w[..., None]',
}  # fmt: skip


def found(body: Callable[[Any, Tensor, Tensor], Tensor], folder: Path) -> list[Finding]:
    """Return what is told of a program."""
    net, given = Net(body), torch.randn(EDGES, WIDE, MUL)

    def step() -> None:
        net(given).square().mean().backward()

    program = recorded(step, net, __file__, folder)
    return [f for f in program.found(folder, "NSX131") if "einsum-order" in [way.name for way in f.remedies]]


@pytest.mark.parametrize("body", PASTES, ids=lambda body: body.__name__)
def test_small_tensors_are_multiplied_first(body: Any, tmp_path: Path) -> None:
    (finding,) = found(body, tmp_path)
    assert finding.paste == PASTES[body] and finding.where["line"] == body.__code__.co_firstlineno + 1
    # Of 64 x 16 x 7 x 7 numbers on the way; 64 x 16 x 7 are the most that is needed.
    assert "50,176 numbers, 7,168 in the best order" in finding.detail
    assert 0 < (finding.saving.likely_ns or 0) < finding.cost_ns_per_step
    x, w = (torch.randn(size, requires_grad=True) for size in ((EDGES, MUL, WIDE), (EDGES, MUL)))
    results = []
    for text in (linecache.getline(__file__, body.__code__.co_firstlineno + 1).strip(), finding.paste):
        names: dict[str, Any] = {"self": Net(body).requires_grad_(requires_grad=False), "x": x, "w": w}
        names["self"].cg = torch.linspace(0, 1, WIDE**3).view(WIDE, WIDE, WIDE)
        exec(text, globals(), names)
        results.append((names["m"], *torch.autograd.grad(names["m"].square().sum(), (x, w))))
    for now, then in zip(*results, strict=True):
        torch.testing.assert_close(now, then, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("body", [in_order, of_two, a_chain, spread], ids=lambda body: body.__name__)
def test_what_has_the_least_work_already_is_silent(body: Any, tmp_path: Path) -> None:
    assert not found(body, tmp_path)


def test_what_another_order_has_computed_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with opt_einsum: the operators within handle nothing that the written order would make."""

    def other_order(equation: str, *given: Tensor) -> Tensor:
        assert equation.startswith("eui")
        x, y, cg, w = given
        return real("eui,eik,eu->euk", x, real("ej,ijk->eik", y, cg), w)

    real = torch.einsum
    monkeypatch.setattr(torch, "einsum", other_order)
    assert not found(four, tmp_path)


def test_equations_that_are_not_of_letters_alone_are_left() -> None:
    sizes = [(4, 5), (5, 6), (6, 7)]
    assert einsum_of("ab,bc,cd->ad", sizes) is not None
    for equation in ("ab,bc,cd", "...ab,bc,cd->ad", "aa,bc,cd->ad", "ab,bc->ac", "ab,bc,ce->ad", "ab,ac,cd->ad"):
        assert einsum_of(equation, sizes) is None, equation
