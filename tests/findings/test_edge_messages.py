"""NSX131: messages of a graph that are written out for each edge, and such as have no other form."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from nsysx.findings._edge_messages import pasted
from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

NODES, EDGES, WIDTH = 20, 120, 4
Graph = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Layer(torch.nn.Module):
    """A layer of a graph network."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.lin, self.form = torch.nn.Linear(WIDTH, WIDTH), form
        self.weigh = torch.nn.Linear(2 * WIDTH, 1)

    def forward(self, x: torch.Tensor, graph: Graph) -> torch.Tensor:
        return getattr(self, self.form)(self.lin(x), *graph)  # type: ignore[no-any-return]

    def by_hand(self, x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add_(0, dst, x[src] * w[:, None])

    def scattered(self, x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        messages = w.view(-1, 1) * x.index_select(0, src)
        return torch.zeros(x.shape).scatter_add_(0, dst.view(-1, 1).expand_as(messages), messages)

    def unweighted(self, x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add_(0, dst, x[src])

    def attended(self, x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        weights = self.weigh(torch.cat([x[src], x[dst]], 1)).sigmoid()
        return torch.zeros_like(x).index_add_(0, dst, x.relu()[src] * weights)

    def computed(self, x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add_(0, dst, (x[src] * w[:, None]).relu())

    def gated(self, x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add_(0, dst, x[src] * w[:, None].expand(-1, WIDTH).contiguous())

    def few(self, x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add_(0, dst[:30], x[src[:30]] * w[:30, None])


def graph() -> Graph:
    src, dst = (torch.randint(0, NODES, (EDGES,)) for _ in "sd")
    return src, dst, torch.rand(EDGES)


def found(form: str, folder: Path) -> list[Finding]:
    net = Layer(form)

    def step() -> None:
        src, dst, w = (from_host(each) for each in graph())
        net(from_host(torch.randn(NODES, WIDTH)), (src, dst, w)).square().sum().backward()
        net.zero_grad()

    slow = ("index", "index_select", "index_add_", "scatter_add_", "mul")
    findings = recorded(step, net, __file__, folder, slow=slow).found(folder, "NSX131")
    return [each for each in findings if each.remedies[0].name == "edges-as-product"]


@pytest.mark.parametrize("form", ["by_hand", "scattered", "unweighted"])
def test_messages_that_are_written_out(form: str, tmp_path: Path) -> None:
    (finding,) = found(form, tmp_path)
    assert "messages of 120 edges are written out and added up for 20 nodes" in finding.title and finding.saving.bound
    assert 0 < (finding.saving.likely_ns or 0) <= (finding.cost_ns_per_step or 0)
    assert finding.where["line"] == getattr(Layer, form).__code__.co_firstlineno + (2 if form == "scattered" else 1)
    assert ("torch.ones(len(src)" in finding.paste) == (form == "unweighted")
    compile(finding.paste, "paste", "exec")


@pytest.mark.parametrize("form", ["attended", "computed", "gated", "few"])
def test_messages_that_have_no_other_form(form: str, tmp_path: Path) -> None:
    assert not found(form, tmp_path)


@pytest.mark.parametrize("weighted", [True, False])
def test_the_paste_gives_the_same_sums_and_gradients(weighted: bool) -> None:
    net, (src, dst, w), x = Layer("by_hand"), graph(), torch.randn(NODES, WIDTH, requires_grad=True)
    given = {"torch": torch, "dst": dst, "src": src, "w": w, "x": x}
    with warnings.catch_warnings(action="ignore"):  # torch tells once that sparse matrices are not checked
        exec(pasted("dst", "src", "w" if weighted else None, "x"), given)
    for sums in (net.by_hand(x, src, dst, w) if weighted else net.unweighted(x, src, dst, w), given["out"]):
        sums.square().sum().backward()
    assert x.grad is not None
    whole = x.grad.clone()
    x.grad = None
    again = net.by_hand(x, src, dst, w) if weighted else net.unweighted(x, src, dst, w)
    again.square().sum().backward()
    assert torch.allclose(again, given["out"], atol=1e-5) and torch.allclose(whole, 2 * x.grad, atol=1e-4)
