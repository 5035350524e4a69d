"""NSX137: gradients of one output that are asked for by one input at a time, and such as one call cannot give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsysx.model import Finding
from tests.findings.recorded_programs import recorded

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
POINTS = torch.randn(16, 3)


def slope(of: Tensor, by: Tensor) -> Tensor:
    return torch.autograd.grad(of, by, torch.ones_like(of), create_graph=True)[0]


def outputs() -> tuple[Tensor, ...]:
    a, b, c = (column.requires_grad_() for column in POINTS.clone().split(1, 1))
    u, w = NET(torch.cat([a, b, c], 1)).split(1, 1)
    return a, b, c, u, w


def by_helper() -> None:
    a, b, c, u, w = outputs()
    u_a = slope(u, a)
    u_b = slope(u, b)
    u_c = slope(u, c)
    w_a, w_b = slope(w, a), slope(w, b)
    (u_a * u_b + u_c + w_a * w_b).square().mean().backward()


def by_itself() -> None:
    a, b, _, u, _ = outputs()
    u_a = torch.autograd.grad(u.sum(), a, create_graph=True)[0]
    (u_b,) = torch.autograd.grad(u.sum(), b, create_graph=True)
    (u_a * u_b).square().mean().backward()


def in_rounds() -> None:
    a, b, c, u, _ = outputs()
    first = torch.cat([slope(u, x) for x in (a, b, c)], 1)
    first.square().mean().backward()


def without_a_graph() -> None:
    a, b, c, u, _ = outputs()
    ones = torch.ones_like(u)
    got = [torch.autograd.grad(u, x, ones, retain_graph=True)[0] for x in (a, b, c)]
    (u + sum(got)).square().mean().backward()


def mixed_second_ones() -> None:
    a, b, _, u, _ = outputs()
    u_a = slope(u, a)
    u_aa = slope(u_a, a)
    u_ab = slope(u_a, b)
    (u_aa * u_ab).square().mean().backward()


def in_one_call() -> None:
    a, b, c, u, w = outputs()
    u_a, u_b, u_c = torch.autograd.grad(u, (a, b, c), torch.ones_like(u), create_graph=True)
    w_a, w_b = torch.autograd.grad(w, (a, b), torch.ones_like(w), create_graph=True)
    (u_a * u_b + u_c + w_a * w_b).square().mean().backward()


def second_ones() -> None:
    a, b, _, u, _ = outputs()
    u_a, u_b = torch.autograd.grad(u, (a, b), torch.ones_like(u), create_graph=True)
    u_aa = slope(u_a, a)
    u_bb = slope(u_b, b)
    (u_aa + u_bb).square().mean().backward()


def of_each_output() -> None:
    x = POINTS.clone().requires_grad_()
    y = NET(x)
    rows = [torch.autograd.grad(y[:, k].sum(), x, create_graph=True)[0] for k in range(2)]
    torch.stack(rows).square().mean().backward()


def with_other_vectors() -> None:
    x = POINTS.clone().requires_grad_()
    y = NET(x)
    for _ in range(3):
        torch.autograd.grad(y, x, torch.randn_like(y), create_graph=True)
    y.square().mean().backward()


def adding_up() -> None:
    loss = NET(POINTS).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()


def told(body: Callable[[], None], folder: Path) -> list[Finding]:
    def step() -> None:
        body()
        NET.zero_grad()

    findings = recorded(step, NET, __file__, folder, within_nodes=True).found(folder, "NSX137")
    return [each for each in findings if each.remedies and each.remedies[0].name == "gradients-in-one-call"]


PASTES = {
    by_helper: (
        "u_a, u_b, u_c = torch.autograd.grad(u, (a, b, c), torch.ones_like(u), create_graph=True)  # in place of 3 calls\n"
        "w_a, w_b = torch.autograd.grad(w, (a, b), torch.ones_like(w), create_graph=True)"
    ),
    by_itself: "u_a, u_b = torch.autograd.grad(u.sum(), (a, b), create_graph=True)  # in place of 2 calls",
    in_rounds: (
        "first = torch.cat(torch.autograd.grad(u, (a, b, c), torch.ones_like(u), create_graph=True), 1)  # in place of 3 calls"
    ),
    without_a_graph: "got = torch.autograd.grad(u, (a, b, c), ones, retain_graph=True)  # in place of 3 calls",
    mixed_second_ones: (
        "u_aa, u_ab = torch.autograd.grad(u_a, (a, b), torch.ones_like(u_a), create_graph=True)  # in place of 2 calls"
    ),
}


@pytest.mark.parametrize("body", PASTES, ids=lambda body: body.__name__)
def test_gradients_by_one_input_each(body: Callable[[], None], tmp_path: Path) -> None:
    (finding,) = told(body, tmp_path)
    assert finding.paste == PASTES[body]
    assert (finding.saving.likely_ns or 0) > 0
    first = {mixed_second_ones: 3, without_a_graph: 3}.get(body, 2)
    assert finding.where["line"] == body.__code__.co_firstlineno + first
    assert ("create_graph" in finding.detail) == (body is not without_a_graph)


def test_a_later_backward_goes_through_one_graph(tmp_path: Path) -> None:
    """What is told to go is what a program takes less that asks in one call."""
    (finding,) = told(by_helper, tmp_path)
    launches = {}
    for body in (by_helper, in_one_call):
        (folder := tmp_path / body.__name__).mkdir()
        summary = recorded(body, NET, __file__, folder, within_nodes=True).summary(folder)
        assert summary.unprofiled is not None
        launches[body] = summary.unprofiled.step_ns
    gone = launches[by_helper] - launches[in_one_call]
    assert 0.6 * gone <= (finding.saving.likely_ns or 0) <= 1.2 * gone


@pytest.mark.parametrize(
    "body",
    [in_one_call, second_ones, of_each_output, with_other_vectors, adding_up],
    ids=lambda body: body.__name__,
)
def test_what_one_call_cannot_give_is_left(body: Callable[[], None], tmp_path: Path) -> None:
    assert not told(body, tmp_path)


@pytest.mark.parametrize("body", PASTES, ids=lambda body: body.__name__)
def test_the_pasted_call_gives_the_same(body: Callable[[], None]) -> None:
    a, b, c, u, w = outputs()
    names = {
        "torch": torch,
        "slope": slope,
        "a": a,
        "b": b,
        "c": c,
        "u": u,
        "w": w,
        "ones": torch.ones_like(u),
        "u_a": slope(u, a),
    }
    pasted = dict(names)
    exec(PASTES[body], pasted)
    for name, by in (("u_a", a), ("u_b", b), ("u_c", c)):
        if name in pasted and body is not mixed_second_ones:
            torch.testing.assert_close(pasted[name], slope(u, by))
    if body is mixed_second_ones:
        torch.testing.assert_close(pasted["u_ab"], slope(names["u_a"], b))
    if body is in_rounds:
        torch.testing.assert_close(pasted["first"], torch.cat([slope(u, x) for x in (a, b, c)], 1))
