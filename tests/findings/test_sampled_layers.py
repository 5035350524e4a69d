"""NSX131: layers that compute all nodes of a sampled subgraph, of which the seeds are read, and graphs all of which is needed."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsysx.events.operator_flow import ModuleCall
from nsysx.events.sampled_layers import SampledLayers
from nsysx.findings._sampled_layers import paste_of
from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

NODES, EDGES, SEEDS, CLASSES = 640, 700, 10, 5
FIXED = torch.randint(NODES, (2, EDGES))


class Conv(nn.Module):
    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.near, self.own = nn.Linear(given, made), nn.Linear(given, made)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        added = torch.zeros_like(x).index_add_(0, dst, x.index_select(0, src))
        return cast(Tensor, self.near(added) + self.own(x))


class Sage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([Conv(8, 16), Conv(16, 16), Conv(16, CLASSES)])

    def forward(self, x: Tensor, edge_index: Tensor, hops: list[int] | None = None) -> Tensor:
        for i, conv in enumerate(self.convs):
            if hops:
                x = x[: hops[i]]
                edge_index = edge_index % hops[i]
            x = conv(x, edge_index)
            if i < 2:
                x = x.relu()
        return x


def told(kind: str, folder: Path) -> list[Finding]:
    net = Sage()

    def step() -> None:
        x, edges = from_host(torch.randn(NODES, 8)), from_host(torch.randint(NODES, (2, EDGES)))
        batch_size, mask = SEEDS, torch.arange(NODES) < SEEDS
        y = from_host(torch.randint(CLASSES, (NODES,)))
        if kind == "trimmed":
            loss = F.cross_entropy(net(x, edges, [NODES, NODES // 4, NODES // 16])[:batch_size], y[:batch_size])
        elif kind == "whole graph":
            loss = F.cross_entropy(net(x, FIXED)[:batch_size], y[:batch_size])
        elif kind == "all nodes":
            loss = F.cross_entropy(net(x, edges), y)
        elif kind == "mask":
            loss = F.cross_entropy(net(x, edges)[mask], y[mask])
        elif kind == "regularized":
            out = net(x, edges)
            loss = F.cross_entropy(out[:batch_size], y[:batch_size]) + out.square().mean()
        else:
            loss = F.cross_entropy(net(x, edges)[:batch_size], y[:batch_size])
        loss.backward()

    return recorded(step, net, __file__, folder, slow=("linear", "index_select", "index_add_")).found(folder, "NSX131")


def named(findings: list[Finding], name: str) -> list[Finding]:
    return [f for f in findings if f.remedies and f.remedies[0].name == name]


def test_layers_that_compute_all_sampled_nodes(tmp_path: Path) -> None:
    findings = told("", tmp_path)
    (finding,) = named(findings, "trimmed-to-layer")
    assert "each of 3 layers computes 640 sampled nodes, and 10 are read of the last" in finding.title
    assert finding.saving.bound
    # Two of three layers with their gradients: three quarters of the second stay out, and nearly all of the third.
    assert 300_000 < (finding.saving_ns_per_step or 0) < 2 * 500_000
    assert (
        finding.paste.startswith("x, edge_index, _ = trim_to_layer(i, ") and "x = conv(x, edge_index)" in finding.paste
    )
    assert not named(findings, "narrowed-first")


@pytest.mark.parametrize("kind", ["trimmed", "whole graph", "all nodes", "mask", "regularized"])
def test_what_is_needed(kind: str, tmp_path: Path) -> None:
    assert not named(told(kind, tmp_path), "trimmed-to-layer")


def test_the_share_of_each_layer() -> None:
    call = ModuleCall("conv", "Conv", 0, 0, 1, 0, 1)
    sampled = SampledLayers((call, call, call), 64_000, 64, 0)
    assert [round(sampled.share(layer), 6) for layer in range(3)] == [1, 0.1, 0.01]


def test_the_paste_goes_with_the_line() -> None:
    paste = paste_of("h = layer(h, edges)", "for n, layer in enumerate(self.layers):\n    h = layer(h, edges)")
    assert paste == "h, edges, _ = trim_to_layer(n, nodes_per_hop, edges_per_hop, h, edges)\nh = layer(h, edges)"
    assert paste_of("out = self.net(batch)", "") is None
