"""Linear layers on joined rows of which parts are copies: which line is told, how it reads with a layer for each part, what that saves."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsysx.findings import _joined_parts
from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.recorded_programs import recorded
from tests.findings.test_smaller_operators import operator

WIDE, FRAMES, LABELS, NODES, EDGES = 16, 20, 12, 24, 640
torch.manual_seed(0)
SRC, DST = torch.randint(0, NODES, (2, EDGES))
X, Y, TIME = torch.randn(2, FRAMES, WIDE), torch.randn(2, LABELS, WIDE), torch.randn(1)
STATES, OF_EDGES = torch.randn(NODES, WIDE), torch.randn(EDGES, 8)


class Net(nn.Module):
    """Layers that the lines below use; ``body``: what it does."""

    def __init__(self, body: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.enc, self.pred = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.both, self.timed = nn.Linear(2 * WIDE, WIDE), nn.Linear(WIDE + 1, WIDE)
        self.plain = nn.Linear(2 * WIDE, WIDE, bias=False)
        self.edge = nn.Sequential(nn.Linear(2 * WIDE + 8, WIDE), nn.SiLU(), nn.Linear(WIDE, WIDE))
        self.norm = nn.LayerNorm(2 * WIDE)
        self.body = body

    def forward(self) -> Tensor:
        return self.body(self)


def joint(self: Net) -> Tensor:
    enc, pred = self.enc(X), self.pred(Y)
    e = enc.unsqueeze(2).expand(-1, -1, LABELS, -1)
    p = pred.unsqueeze(1).expand(-1, FRAMES, -1, -1)
    h = torch.tanh(self.both(torch.cat([e, p], -1)))
    return 2 * h


def named(self: Net) -> Tensor:
    enc, pred = self.enc(X), self.pred(Y)
    e = enc.unsqueeze(2).expand(-1, -1, LABELS, -1)
    p = pred.unsqueeze(1).expand(-1, FRAMES, -1, -1)
    both = torch.cat([e, p], dim=-1)
    h = self.plain(both)
    return 2 * h


def edges(self: Net) -> Tensor:
    h = self.enc(STATES)
    msg = self.edge(torch.cat([h[SRC], h[DST], OF_EDGES], dim=-1))
    return torch.zeros(NODES, WIDE).index_add(0, DST, msg)


def timed(self: Net) -> Tensor:
    x = self.enc(X.flatten(0, 1))
    t = TIME.expand(x.shape[0], 1)
    h = self.timed(torch.cat([x, t], 1))
    return 2 * h


PASTES = {
    joint: (
        "w0, w1 = self.both.weight.split([16, 16], 1)\n"
        "h = torch.tanh(F.linear(enc.unsqueeze(2), w0) + F.linear(pred.unsqueeze(1), w1, self.both.bias))"
    ),
    named: (
        "w0, w1 = self.plain.weight.split([16, 16], 1)\nh = F.linear(enc.unsqueeze(2), w0) + F.linear(pred.unsqueeze(1), w1)"
    ),
    edges: (
        "w0, w1, w2 = self.edge[0].weight.split([16, 16, 8], 1)\n"
        "msg = self.edge[1:](F.linear(h, w0, self.edge[0].bias)[SRC] + F.linear(h, w1)[DST] + F.linear(OF_EDGES, w2))"
    ),
    timed: (
        "w0, w1 = (part.contiguous() for part in self.timed.weight.split([16, 1], 1))\n"
        "h = F.linear(x, w0) + F.linear(TIME, w1, self.timed.bias)"
    ),
}  # fmt: skip


def lifted(self: Net) -> Tensor:
    h = self.enc(STATES)

    def lift(index: Tensor) -> Tensor:
        return h.index_select(0, index)

    def message(to: Tensor, of: Tensor, given: Tensor) -> Tensor:
        return self.edge(torch.cat([to, of, given], -1))

    return torch.zeros(NODES, WIDE).index_add(0, DST, message(lift(DST), lift(SRC), OF_EDGES))


def handed_on(self: Net) -> Tensor:
    h = self.enc(STATES)

    def message(to: Tensor, of: Tensor) -> Tensor:
        return self.both(torch.cat([to, of], -1)).relu()

    return torch.zeros(NODES, WIDE).index_add(0, DST, message(h[DST], h[SRC]))


HANDED = {
    lifted: [
        "w0, w1, w2 = self.edge[0].weight.split([16, 16, 8], 1)  # before to and of are copied",
        "return self.edge[1:](to + of + F.linear(given, w2))",
        "# to: F.linear(h, w0, self.edge[0].bias).index_select(0, index)",
        "# of: F.linear(h, w1).index_select(0, index)",
    ],
    handed_on: [
        "w0, w1 = self.both.weight.split([16, 16], 1)  # before to and of are copied",
        "return (to + of).relu()",
        "# to: copies of F.linear(rows, w0, self.both.bias); rows: what",
        "# of: copies of F.linear(rows, w1); rows: what",
    ],
}


def read_twice(self: Net) -> Tensor:
    e = self.enc(X).unsqueeze(2).expand(-1, -1, LABELS, -1)
    p = self.pred(Y).unsqueeze(1).expand(-1, FRAMES, -1, -1)
    both = torch.cat([e, p], -1)
    return self.both(both) + both[..., :WIDE]


def normalized(self: Net) -> Tensor:
    e = self.enc(X).unsqueeze(2).expand(-1, -1, LABELS, -1)
    p = self.pred(Y).unsqueeze(1).expand(-1, FRAMES, -1, -1)
    return self.both(self.norm(torch.cat([e, p], -1)))


def rows_of_their_own(self: Net) -> Tensor:
    return self.both(torch.cat([self.enc(X), self.pred(X)], -1))


def below_each_other(self: Net) -> Tensor:
    return self.enc(torch.cat([self.enc(X), self.pred(Y)], 1))


def changed(self: Net) -> Tensor:
    e = self.enc(X).unsqueeze(2).expand(-1, -1, LABELS, -1) + torch.randn(2, FRAMES, LABELS, WIDE)
    p = self.pred(Y).unsqueeze(1).expand(-1, FRAMES, -1, -1) * torch.randn(2, FRAMES, LABELS, 1)
    return self.both(torch.cat([e, p], -1))


def found(body: Callable[[Any], Tensor], folder: Path) -> list[Finding]:
    """Return what is told of a program."""
    net = Net(body)

    def step() -> None:
        net().square().mean().backward()

    program = recorded(step, net, __file__, folder)
    return [f for f in program.found(folder, "NSX131") if "layer-of-parts" in [way.name for way in f.remedies]]


@pytest.mark.parametrize("body", PASTES, ids=lambda body: body.__name__)
def test_each_part_gets_a_layer_of_its_own(body: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_joined_parts, "SUMMED_PARTS_PASSES", (0, 0))  # kernels of all sizes take as long here
    monkeypatch.setattr(_joined_parts, "FEW_ROWS_NS", 0)
    monkeypatch.setattr(_joined_parts, "REPORTED_SHARE", 0.001)
    (finding,) = found(body, tmp_path)
    assert finding.paste == PASTES[body]
    begin, results = body.__code__.co_firstlineno, []
    lines = []
    while not (line := linecache.getline(__file__, begin + len(lines) + 1).strip()).startswith("return"):
        lines.append(line)
    last = finding.paste.splitlines()[1].split()[0]
    assert finding.where["line"] == begin + next(n for n, line in enumerate(lines, 1) if line.startswith(f"{last} ="))
    net = Net(body)
    for text in (lines, [*lines[:-1], *finding.paste.splitlines()]):
        names = {"self": net, "F": F}
        net.zero_grad()
        exec("\n".join(text), globals(), names)
        names[last].square().sum().backward()
        results.append([names[last], *(p.grad for p in net.parameters() if p.grad is not None)])
    assert len(results[0]) == len(results[1]) > 2
    for now, then in zip(*results, strict=True):
        torch.testing.assert_close(now, then, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("body", HANDED, ids=lambda body: body.__name__)
def test_copies_that_another_function_makes_are_said_beside_the_line(
    body: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_joined_parts, "SUMMED_PARTS_PASSES", (0, 0))
    monkeypatch.setattr(_joined_parts, "FEW_ROWS_NS", 0)
    monkeypatch.setattr(_joined_parts, "REPORTED_SHARE", 0.001)
    (finding,) = found(body, tmp_path)
    assert "torch.cat([to, of" in linecache.getline(__file__, finding.where["line"])
    lines = finding.paste.splitlines()
    assert lines[:2] == HANDED[body][:2]
    assert all(line.startswith(begin) for line, begin in zip(lines, HANDED[body], strict=True))


@pytest.mark.parametrize(
    "body", [read_twice, normalized, rows_of_their_own, below_each_other, changed], ids=lambda body: body.__name__
)
def test_what_needs_the_joined_rows_is_left(body: Any, tmp_path: Path) -> None:
    assert not found(body, tmp_path)


LINE = 7


def grid(program: Lined, step: int) -> None:
    """80 x 40 rows of two parts: the joining takes 400 us, the layer 1,000 us; its backward is not there."""
    at = 1000 * step + 10
    with program.range("forward"), program.range("net:Net"), program.line(LINE):
        operator(program, "linear", at, [-1, -1], "[4, 80, 512], [512, 512]", 50)
        operator(program, "linear", at + 1, [-1, -1], "[4, 40, 512], [512, 512]", 50)
        for n, size in enumerate(("[4, 80, 512]", "[4, 40, 512]")):
            operator(program, "unsqueeze", at + 2 + n, [at + n], size, 0)
            longer = "[4, 80, 1, 512]" if not n else "[4, 1, 40, 512]"
            operator(program, "expand", at + 4 + n, [at + 2 + n, -1], f"{longer}, []", 0)
        operator(program, "cat", at + 6, [at + 4, at + 5], "[4, 80, 40, 512], [4, 80, 40, 512]", 400, "copy")
        with program.range("net.fc:Linear"):
            operator(program, "linear", at + 7, [at + 6, -1], "[4, 80, 40, 1024], [512, 1024]", 1_000)
        operator(program, "tanh", at + 8, [at + 7], "[4, 80, 40, 512]", 100)
    program.sync()


def test_what_is_left_follows_the_rows_of_each_part(tmp_path: Path) -> None:
    program = Lined({LINE: "h = torch.tanh(fc(torch.cat([e, p], -1)))"}).run(grid)
    (finding,) = [f for f in program.found(tmp_path, "NSX131") if "layer-of-parts" in [way.name for way in f.remedies]]
    # Products of 1/40 and 1/80 of the rows, half as wide each; a sum over half of the joined numbers.
    least, most = 1_000 * (1 / 80 + 1 / 160) + 0.75 * 200, 1_000 * (1 / 80 + 1 / 160) + 2 * 200
    assert finding.saving.likely_ns == pytest.approx(1000 * (1_400 - (least * most) ** 0.5), rel=0.02)
    assert finding.cost_ns_per_step == pytest.approx(1_400_000, rel=0.02)
    assert "12,800 rows" in finding.title and "320 and 160" in finding.title
