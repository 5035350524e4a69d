"""NSX137: a network that is called and differentiated anew for each second derivative, and programs that only look so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.recorded_programs import recorded

Residual = Callable[[nn.Module], Tensor]


def network(*, drops: bool = False) -> nn.Module:
    torch.manual_seed(0)
    between = nn.Dropout(0.1) if drops else nn.Tanh()
    return nn.Sequential(nn.Linear(4, 24), between, nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))


def points(columns: int = 4) -> Tensor:
    return torch.rand(32, columns).requires_grad_()


def d(u: Tensor, x: Tensor, i: int) -> Tensor:
    return torch.autograd.grad(u.sum(), x, create_graph=True)[0][:, i]


def anew(net: nn.Module) -> Tensor:
    x = points()
    lap = torch.zeros(())
    for i in range(3):
        lap = lap + d(d(net(x), x, i), x, i)
    return d(net(x), x, 3) - 0.1 * lap


def once(net: nn.Module) -> Tensor:
    x = points()
    u = net(x)
    first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
    second = [torch.autograd.grad(first[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(3)]
    return first[:, 3] - 0.1 * sum(second)


def joined_anew(net: nn.Module) -> Tensor:
    x, t = points(3), points(1)
    u_t = torch.autograd.grad(net(torch.cat([x, t], 1)).sum(), t, create_graph=True)[0]
    u_x = torch.autograd.grad(net(torch.cat([x, t], 1)).sum(), x, create_graph=True)[0]
    u_xx = torch.autograd.grad(u_x.sum(), x, create_graph=True)[0]
    return u_t + net(torch.cat([x, t], 1)) * u_x[:, :1] - u_xx[:, :1]


def of_other_points(net: nn.Module) -> Tensor:
    inside, border, start = points(), points(), points()
    return d(net(inside), inside, 0) + net(border)[:, 0] + net(start)[:, 0]


def joined_otherwise(net: nn.Module) -> Tensor:
    x, t = points(3), points(1)
    late = net(torch.cat([x, t + 1], 1))
    return d(net(torch.cat([x, t], 1)), x, 0) + late[:, 0] + net(torch.cat([x, t.detach()], 1).square())[:, 0]


def moved_between(net: nn.Module) -> Tensor:
    with torch.no_grad():
        x = torch.rand(32, 4)
        total = net(x)[:, 0]
        for _ in range(2):
            x.add_(0.1)
            total = total + net(x)[:, 0]
    return total * next(net.parameters()).sum()


def normed(
    norm: Callable[[nn.Module], object], calls: int, *, cached: bool = False, steps: bool = False
) -> Callable[[], None]:
    """Return steps in which layers with parametrized weights are called so often."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24)), torch.randn(4, 24)
    for layer in (net[0], net[2]):
        norm(layer)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step() -> None:
        y = x
        with parametrize.cached() if cached else nullcontext():
            for _ in range(calls):
                y = y + net(y)
                if steps:
                    y.square().mean().backward()
                    optimizer.step()
                    y = y.detach()
        if not steps:
            y.square().mean().backward()

    step.net = net  # type: ignore[attr-defined]
    return step


def made_again(step: Callable[[], None], folder: Path) -> list[Finding]:
    program = recorded(step, step.net, __file__, folder)  # type: ignore[attr-defined]
    return [f for f in program.found(folder, "NSX137") if f.remedies[0].name == "parametrized-once"]


def test_weights_that_each_call_normalizes_are_shared(tmp_path: Path) -> None:
    (finding,) = made_again(normed(parametrizations.weight_norm, 4), tmp_path)
    assert "parametrizations (_WeightNorm) make each weight about 4 times a step" in finding.title
    assert finding.paste.startswith("with torch.nn.utils.parametrize.cached():")
    assert finding.where["line"]


@pytest.mark.parametrize(
    ("norm", "calls", "how"),
    [
        (parametrizations.weight_norm, 4, {"cached": True}),
        (parametrizations.weight_norm, 1, {}),
        (parametrizations.spectral_norm, 4, {}),
        (parametrizations.weight_norm, 3, {"steps": True}),
        (lambda layer: layer, 4, {}),
    ],
    ids=["cached", "one call", "spectral norm", "an optimizer between", "none"],
)
def test_weights_that_are_made_once_or_change(
    norm: Callable[[nn.Module], object], calls: int, how: dict[str, bool], tmp_path: Path
) -> None:
    assert made_again(normed(norm, calls, **how), tmp_path) == []


def found(residual: Residual, folder: Path, net: nn.Module | None = None) -> list[Finding]:
    net = network() if net is None else net

    def step() -> None:
        residual(net).square().mean().backward()

    program: Lined = recorded(step, net, __file__, folder)
    return [f for f in program.found(folder, "NSX137") if " times on " in f.title]


def test_one_call_and_its_first_derivatives_are_enough(tmp_path: Path) -> None:
    (finding,) = found(anew, tmp_path)
    assert "calls Sequential 4 times on the same input" in finding.title
    assert [way.name for way in finding.remedies] == ["derivatives-once"]
    assert finding.paste.splitlines()[0] == "u = net(x)  # once"
    # Three calls: kernels of five layers, and of the nodes of their gradients, which are run in the second pass again.
    assert finding.saving.bound and 3 * 5 * 10_000 < (finding.saving_ns_per_step or 0) <= 3 * (5 * 10_000 + 15 * 20_000)


def test_inputs_that_are_joined_again_for_each_call(tmp_path: Path) -> None:
    (finding,) = found(joined_anew, tmp_path)
    assert "3 times on the same input" in finding.title


def adapted(net: nn.Module, *, kept: bool, whole: bool = False) -> Tensor:
    """Adapt a head to two tasks in four rounds each; with ``whole`` the network adapts with it, so that each round has other weights."""
    head = nn.Linear(1, 3)
    total = torch.zeros(())
    for _ in range(2):
        x, y = torch.rand(32, 4), torch.arange(32) % 3
        once_made = net(x) if kept else None
        fast = dict(head.named_parameters())
        weights = dict(net.named_parameters())
        for _ in range(4):
            if whole:
                z = torch.func.functional_call(net, weights, (x,))
            else:
                z = once_made if kept else net(x)
            loss = nn.functional.cross_entropy(torch.func.functional_call(head, fast, (z,)), y)
            fast_grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {k: v - 0.1 * g for (k, v), g in zip(fast.items(), fast_grads, strict=True)}
            if whole:
                weights = {k: v - 0.1 * v.detach() for k, v in weights.items()}
        total = total + nn.functional.cross_entropy(
            torch.func.functional_call(head, fast, (net(torch.rand(32, 4)),)), y
        )
    return total


def test_features_of_a_network_that_no_round_adapts_are_made_once(tmp_path: Path) -> None:
    """The gradients with a graph are those of the head's weights: no derivative of the network is asked for."""
    (finding,) = found(lambda net: adapted(net, kept=False), tmp_path)
    assert "calls Sequential 4 times on each of 2 inputs" in finding.title
    assert [way.name for way in finding.remedies] == ["result-kept"] and "before the loop" in finding.fix
    assert finding.paste.splitlines()[0] == "kept = net(x)  # once, before the loop"


@pytest.mark.parametrize("kept", [True, False])
def test_rounds_with_features_of_their_own_are_silent(kept: bool, tmp_path: Path) -> None:
    assert found(lambda net: adapted(net, kept=kept, whole=not kept), tmp_path) == []


@pytest.mark.parametrize("residual", [once, of_other_points, joined_otherwise, moved_between])
def test_calls_on_other_inputs_or_one_call_are_silent(residual: Residual, tmp_path: Path) -> None:
    assert found(residual, tmp_path) == []


def test_a_network_that_draws_is_no_such_one(tmp_path: Path) -> None:
    assert found(anew, tmp_path, network(drops=True)) == []


def test_what_is_pasted_gives_the_same() -> None:
    gradients = []
    for residual in (anew, once):
        net = network()
        torch.manual_seed(1)
        residual(net).square().mean().backward()
        gradients.append([p.grad for p in net.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
