"""NSX137: masks of blocks that each layer builds for itself, and those that are built once or differ."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask

from nsysx.model import Finding
from tests.findings import said_of
from tests.findings.recorded_programs import recorded

WIDTH, LENGTH, LAYERS = 16, 256, 3


class Layer(nn.Module):
    def __init__(self, kind: str, number: int) -> None:
        super().__init__()
        self.lin, self.kind, self.number = nn.Linear(WIDTH, WIDTH), kind, number

    def forward(self, x: Tensor, doc: Tensor, given: Tensor | None) -> Tensor:
        if given is None:

            def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                alike = (doc[b, i] == doc[b, j]) & (i >= j)
                return alike & (i - j < 32) if self.kind == "windows" and self.number else alike

            mask = create_block_mask(seen, len(x), None, LENGTH, LENGTH, device="cpu")  # told here
            given = mask.kv_indices
        return torch.tanh(self.lin(x)) + given.float().mean()


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList(Layer(kind, number) for number in range(2 if kind == "windows" else LAYERS))

    def forward(self, x: Tensor, doc: Tensor) -> Tensor:
        given = None
        if self.kind == "once":

            def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return (doc[b, i] == doc[b, j]) & (i >= j)

            given = create_block_mask(seen, len(x), None, LENGTH, LENGTH, device="cpu").kv_indices
        for layer in self.layers[: 1 if self.kind == "one layer" else None]:
            x = layer(x, doc, given)
        return x


def told(kind: str, folder: Path) -> list[Finding]:
    torch.manual_seed(0)
    net, data = Net(kind), torch.randn(5, 2, LENGTH, WIDTH)
    doc = torch.randint(0, 4, (5, 2, LENGTH)).sort(-1)[0]
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step() -> None:
        i = torch.randint(0, 5, (1,))
        net(data[i][0], doc[i][0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    said = said_of(recorded(step, net, __file__, folder).write(folder))
    return [f for f in said if f.verdict == "found" and "mask of blocks" in f.title]


def test_layers_are_handed_one_mask(tmp_path: Path) -> None:
    (finding,) = told("each", tmp_path)
    (line,) = (n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# told here"))
    assert finding.where["line"] == line and f"each of {LAYERS} layers" in finding.title
    assert [r.name for r in finding.remedies] == ["result-handed-on"] and "x = block(x, block_mask)" in finding.paste


@pytest.mark.parametrize("kind", ["once", "windows", "one layer"])
def test_masks_that_are_built_once_or_differ(kind: str, tmp_path: Path) -> None:
    assert told(kind, tmp_path) == []
