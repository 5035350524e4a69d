"""Passes of autograd over one graph: those that one does for all, those for norms alone, and those that are needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsysx.model import Finding
from tests.findings.recorded_programs import recorded

torch.manual_seed(0)
X, TARGET, POS = torch.randn(32, 8), torch.randn(32, 3), torch.randn(32, 8)
OF = torch.arange(4).repeat_interleave(8)


class Net(nn.Module):
    """A trunk of layers and what each task makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.SiLU()) for _ in range(4)))
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.trunk(x))


NET, CRITIC = Net(), nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 1)).requires_grad_(requires_grad=False)
SGD = torch.optim.SGD(NET.parameters(), 0.01)


def by_loss() -> None:
    y = NET(X)
    losses = [(y[:, i] - TARGET[:, i]).square().mean() for i in range(3)]
    for loss in losses:
        loss.backward(retain_graph=True)


def by_head() -> None:
    h = NET.trunk(X)
    for i in range(3):
        loss = (NET.last(h)[:, i] - TARGET[:, i]).square().mean()
        loss.backward(retain_graph=True)


def by_name() -> None:
    y = NET(X)
    far, wide = (y - TARGET).abs().mean(), (y - TARGET).square().mean()
    far.backward(retain_graph=True)
    wide.backward()


def by_molecule() -> None:
    pos = POS.clone().requires_grad_()
    energy = torch.zeros(4).index_add(0, OF, NET(pos).sum(1))
    forces = torch.zeros_like(pos)
    for m in range(4):
        (g,) = torch.autograd.grad(energy[m], pos, retain_graph=True, create_graph=True)
        forces = forces - g
    forces.square().mean().backward()


def for_norms() -> None:
    y = NET(X)
    near, real = (y - TARGET).abs().mean(), -CRITIC(y).mean()
    ps = list(NET.parameters())
    g1 = torch.autograd.grad(near, ps, retain_graph=True)
    g2 = torch.autograd.grad(real, ps, retain_graph=True)
    weight = (sum(g.norm() for g in g1) / (sum(g.norm() for g in g2) + 1e-4)).clamp(0, 1e4).detach()
    (near + weight * real).backward()


def for_norms_of_the_last_layer() -> None:
    y = NET(X)
    near, real = (y - TARGET).abs().mean(), -CRITIC(y).mean()
    g1 = torch.autograd.grad(near, NET.last.weight, retain_graph=True)[0]
    g2 = torch.autograd.grad(real, NET.last.weight, retain_graph=True)[0]
    weight = (g1.norm() / (g2.norm() + 1e-4)).clamp(0, 1e4).detach()
    (near + weight * real).backward()


def with_a_jacobian() -> None:
    pos = POS.clone().requires_grad_()
    y = NET(pos)
    rows = [torch.autograd.grad(y[:, i].sum(), pos, retain_graph=True, create_graph=True)[0] for i in range(3)]
    torch.stack(rows).square().mean().backward()


def with_projected_gradients() -> None:
    y = NET(X)
    losses = [(y[:, i] - TARGET[:, i]).square().mean() for i in range(3)]
    flat = [
        torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(NET.parameters()), retain_graph=True)])
        for loss in losses
    ]
    first, *others = flat
    for other in others:
        first = first - torch.dot(first, other).clamp(max=0) / other.square().sum() * other
    begin = 0
    for p in NET.parameters():
        p.grad = first[begin : begin + p.numel()].view_as(p).clone()
        begin += p.numel()


def clipped_in_between() -> None:
    y = NET(X)
    for i in range(3):
        (y[:, i] - TARGET[:, i]).square().mean().backward(retain_graph=True)
        nn.utils.clip_grad_norm_(NET.parameters(), 1.0)


def cleared_in_between() -> None:
    y = NET(X)
    (y - TARGET).abs().mean().backward(retain_graph=True)
    SGD.zero_grad()  # what the first one added is thrown away
    (y - TARGET).square().mean().backward()


def chosen_of_all() -> None:
    y, kept = NET(X), []
    for i in range(3):
        SGD.zero_grad()
        (y[:, i] - TARGET[:, i]).square().mean().backward(retain_graph=True)
        kept.append([p.grad.clone() for p in NET.parameters()])  # type: ignore[union-attr]
    for p, *theirs in zip(NET.parameters(), *kept, strict=True):
        p.grad = torch.stack(theirs).median(0)[0]


def cut_from_its_graph() -> None:
    h = NET.trunk(X)
    cut = h.detach().requires_grad_()
    for i in range(3):
        (NET.last(cut)[:, i] - TARGET[:, i]).square().mean().backward()
    h.backward(cut.grad)


def with_a_penalty() -> None:
    x = X.clone().requires_grad_()
    loss = (NET(x) - TARGET).square().mean()
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + slope.square().sum()).backward()


def of_parts_of_a_batch() -> None:
    for rows, target in zip(X.chunk(4), TARGET.chunk(4), strict=True):
        (NET(rows) - target).square().mean().backward()


def told(body: Callable[[], None], folder: Path) -> list[Finding]:
    def step() -> None:
        body()
        SGD.step()
        SGD.zero_grad()

    names = {"one-backward", "last-layer-gradients"}
    found = recorded(step, NET, __file__, folder).found(folder, "NSX137")
    return [f for f in found if names & {way.name for way in f.remedies}]


PASTES = {
    by_loss: "sum(losses).backward()  # once, not loss.backward(retain_graph=True) for each",
    by_head: "sum(losses).backward()  # once, not loss.backward(retain_graph=True) for each",
    by_name: "(far + wide).backward()  # in place of 2",
    by_molecule: (
        "(g,) = torch.autograd.grad(energy.sum(), pos, create_graph=True)  # once, in place of the loop\nforces = forces - g"
    ),
    for_norms: (
        'w = net.get_submodule("last").weight\n'
        "g = torch.autograd.grad(loss, w, retain_graph=True)[0]  # for each loss; its norm in place of the sum of all norms"
    ),
}  # fmt: skip


@pytest.mark.parametrize("body", PASTES, ids=lambda body: body.__name__)
def test_what_one_backward_does_is_told(body: Callable[[], None], tmp_path: Path) -> None:
    (finding,) = told(body, tmp_path)
    assert finding.paste == PASTES[body]
    assert (finding.saving.likely_ns or 0) > 0 and re.search("[23] more times|[234] backwards", finding.title)


def test_the_pasted_backward_gives_the_same_gradients() -> None:
    results = []
    for code in ("for loss in losses: loss.backward(retain_graph=True)", PASTES[by_loss]):
        NET.zero_grad()
        y = NET(X)
        exec(code, {}, {"losses": [y[:, i].square().mean() for i in range(3)]})
        results.append([p.grad.clone() for p in NET.parameters()])
    pos = POS.clone().requires_grad_()
    for once in (False, True):
        names = {
            "torch": torch,
            "pos": pos,
            "energy": torch.zeros(4).index_add(0, OF, NET(pos).sum(1)),
            "forces": torch.zeros_like(pos),
        }
        one = "(g,) = torch.autograd.grad(energy[m], pos, retain_graph=True, create_graph=True)"
        exec(PASTES[by_molecule] if once else f"for m in range(4):\n    {one}\n    forces = forces - g", names)
        results[once].append(names["forces"])
    for now, then in zip(*results, strict=True):
        torch.testing.assert_close(now, then)


@pytest.mark.parametrize(
    "body",
    [
        for_norms_of_the_last_layer, with_a_jacobian, with_projected_gradients, clipped_in_between, cleared_in_between, chosen_of_all,
        cut_from_its_graph, with_a_penalty, of_parts_of_a_batch,
    ],
    ids=lambda body: body.__name__,
)  # fmt: skip
def test_passes_that_are_needed_are_left(body: Callable[[], None], tmp_path: Path) -> None:
    assert not told(body, tmp_path)
