"""Work on copies of rows: which line is told, how it reads with the copying behind, and what that saves."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsysx.model import Finding
from tests.findings.lined import Lined
from tests.findings.recorded_programs import recorded
from tests.findings.test_smaller_operators import operator

EDGES, NODES, WIDE, TOKENS = 640, 40, 16, 24
torch.manual_seed(0)
SRC, DST = torch.randint(0, NODES, (2, EDGES))
X, SEQUENCE, CONDITION = torch.randn(NODES, WIDE), torch.randn(4, TOKENS, WIDE), torch.randn(4, WIDE)


class Net(nn.Module):
    """Layers that the lines below use; ``body``: what it does."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.nbr = nn.Linear(WIDE, WIDE, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 2 * WIDE), nn.SiLU(), nn.Linear(2 * WIDE, WIDE))
        self.normed = nn.Sequential(nn.Linear(WIDE, WIDE), nn.BatchNorm1d(WIDE))
        self.kinds = nn.Embedding(NODES, WIDE)
        self.wider, self.norm = nn.Linear(WIDE, 2 * WIDE), nn.LayerNorm(WIDE)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def summed(msg: Tensor) -> Tensor:
    return torch.zeros(NODES, msg.shape[1]).index_add(0, DST, msg)


def by_index_select(self: Net, x: Tensor) -> Tensor:
    msg = self.nbr(x.index_select(0, SRC))
    return summed(msg)


def by_index(self: Net, x: Tensor) -> Tensor:
    msg = self.mlp(x[SRC])
    return summed(msg)


def named(self: Net, x: Tensor) -> Tensor:
    h = x[SRC]
    msg = F.relu(self.nbr(h))
    return summed(msg)


def multiplied(self: Net, x: Tensor) -> Tensor:
    msg = x[SRC] @ self.nbr.weight
    return summed(msg)


def looked_up(self: Net, x: Tensor) -> Tensor:
    msg = self.mlp(self.kinds(SRC))
    return summed(msg) + x


def expanded(self: Net, x: Tensor) -> Tensor:
    c = self.mlp(x.unsqueeze(1).expand(-1, TOKENS, -1))
    return SEQUENCE * c


def repeated(self: Net, x: Tensor) -> Tensor:
    states = x.repeat_interleave(6, dim=0)
    keys = self.nbr(self.norm(states))
    return keys.cumsum(0)


def in_lines(self: Net, x: Tensor) -> Tensor:
    h = x[SRC]
    h = F.relu(self.nbr(h))
    h = self.mlp(h)
    return summed(h)


def for_keys_and_values(self: Net, x: Tensor) -> Tensor:
    states = x.repeat_interleave(6, dim=0)
    keys = self.mlp(states)
    values = self.mlp(states)
    return keys.cumsum(0) * values.cumsum(0)


def normalized(self: Net, x: Tensor) -> Tensor:
    msg = self.normed(x[SRC])
    return summed(msg)


def first_the_layer(self: Net, x: Tensor) -> Tensor:
    msg = self.nbr(x)[SRC]
    return summed(msg)


def sampled(self: Net, x: Tensor) -> Tensor:
    msg = self.nbr(x[SRC[:20]])
    return msg.cumsum(0)


def of_edges(self: Net, x: Tensor) -> Tensor:
    msg = self.nbr(x[SRC] - x[DST])
    return summed(msg)


def dropped(self: Net, x: Tensor) -> Tensor:
    msg = self.nbr(F.dropout(x[SRC], 0.1))
    return summed(msg)


def found(body: Callable[[Any, Tensor], Tensor], x: Tensor, folder: Path, *, trained: bool = False) -> list[Finding]:
    """Return what is told of a program; ``trained``: what it is given has gradients, too."""
    net, factor = Net(body), torch.ones((), requires_grad=True)

    def step() -> None:
        net(x * factor if trained else x).square().mean().backward()

    program = recorded(step, net, __file__, folder)
    return [f for f in program.found(folder, "NSX131") if "rows-before-copies" in [way.name for way in f.remedies]]


TOLD: dict[Callable[[Any, Tensor], Tensor], tuple[Tensor, int, str]] = {
    by_index_select: (X, 1, "msg = self.nbr(x).index_select(0, SRC)  # not self.nbr(x.index_select(0, SRC))"),
    by_index: (X, 1, "msg = self.mlp(x)[SRC]  # not self.mlp(x[SRC])"),
    named: (X, 2, "msg = F.relu(self.nbr(x))[SRC]  # not F.relu(self.nbr(h))"),
    multiplied: (X, 1, "msg = (x @ self.nbr.weight)[SRC]  # not x[SRC] @ self.nbr.weight"),
    looked_up: (X, 1, "msg = F.embedding(SRC, self.mlp(self.kinds.weight))  # not self.mlp(self.kinds(SRC))"),
    expanded: (
        CONDITION,
        1,
        "c = self.mlp(x.unsqueeze(1)).expand(-1, TOKENS, -1)  # not self.mlp(x.unsqueeze(1).expand(-1, TOKENS, -1))",
    ),
    repeated: (X, 2, "keys = self.nbr(self.norm(x)).repeat_interleave(6, dim=0)  # not self.nbr(self.norm(states))"),
}  # fmt: skip


SEVERAL = {
    in_lines: ["h = x  # not x[SRC]", "h = F.relu(self.nbr(h))", "h = self.mlp(h)[SRC]"],
    for_keys_and_values: [
        "states = x  # not x.repeat_interleave(6, dim=0)",
        "keys = self.mlp(states).repeat_interleave(6, dim=0)",
        "values = self.mlp(states).repeat_interleave(6, dim=0)",
    ],
}


@pytest.mark.parametrize("body", SEVERAL, ids=lambda body: body.__name__)
def test_several_lines_are_pasted_together(body: Any, tmp_path: Path) -> None:
    (finding,) = found(body, X, tmp_path, trained=True)
    assert finding.paste.splitlines() == SEVERAL[body]
    net, results, begin = Net(body), [], body.__code__.co_firstlineno
    lines = [linecache.getline(__file__, begin + i).strip() for i in range(1, 4)]
    for text in (lines, finding.paste.splitlines()):
        at = X.clone().requires_grad_()
        names = {"self": net, "x": at}
        exec("\n".join(text), globals(), names)
        made = [names[name] for name in dict.fromkeys(line.split()[0] for line in text[1:])]
        torch.stack([each.square().sum() for each in made]).sum().backward()
        results.append((*(each.detach() for each in made), at.grad))
    for now, then in zip(*results, strict=True):
        torch.testing.assert_close(now, then)


@pytest.mark.parametrize("body", TOLD, ids=lambda body: body.__name__)
def test_the_line_reads_with_the_copying_behind_the_work(body: Any, tmp_path: Path) -> None:
    x, line, paste = TOLD[body]
    (finding,) = found(body, x, tmp_path, trained=True)
    begin = body.__code__.co_firstlineno
    assert finding.where["line"] == begin + line and finding.paste == paste
    assert finding.saving_ns_per_step

    # It computes the same, and the same gradients.
    net, results = Net(body), []
    lines = [linecache.getline(__file__, begin + i).strip() for i in range(1, line + 3)]
    for text in (lines[line - 1], paste):
        at = x.clone().requires_grad_()
        names = {"self": net, "x": at}
        exec("\n".join([*lines[: line - 1], text]), globals(), names)
        names[text.split()[0]].square().sum().backward()
        results.append((names[text.split()[0]].detach(), at.grad if at.grad is not None else net.kinds.weight.grad))
        net.kinds.weight.grad = None
    for now, then in zip(*results, strict=True):
        torch.testing.assert_close(now, then)


def test_a_part_of_a_module_is_told_by_its_operators(tmp_path: Path) -> None:
    (finding,) = found(normalized, X, tmp_path)
    assert ": linear runs on 640 rows, which are copies of 40" in finding.title
    assert finding.paste == "y = f(x)[index]  # not f(x[index])", "the module normalizes the batch, too"


@pytest.mark.parametrize("body", [first_the_layer, sampled, of_edges, dropped], ids=lambda body: body.__name__)
def test_what_is_as_large_as_it_must_be(body: Any, tmp_path: Path) -> None:
    assert not found(body, X, tmp_path)


def converted(self: Net, x: Tensor) -> Tensor:
    msg = self.nbr.bfloat16()(x[SRC].bfloat16())
    return summed(msg.float())


def test_sums_of_gradients_in_16_bits_are_told(tmp_path: Path) -> None:
    (finding,) = found(converted, X, tmp_path, trained=True)
    assert "16 bits" in finding.condition
    (finding,) = found(by_index, X, tmp_path, trained=True)
    assert "16 bits" not in finding.condition


LINE = 12


def messages(program: Lined, step: int, *, given: int) -> None:
    """Picks 80,000 of 8,000 rows (100 us), and a layer on those that makes 128 numbers of ``given`` (800 us), which are added (200 us)."""
    at, edges = 1000 * step + 10, f"[80000, {given}]"
    with program.range("forward"), program.range("net:Net"):
        with program.line(LINE):
            operator(program, "index_select", at, [-1, -1, -1], f"[8000, {given}], [], [80000]", 100, "gather")
            with program.range("net.nbr:Linear"):
                operator(program, "linear", at + 1, [at, -1], f"{edges}, [128, {given}]", 800)
        with program.line(LINE + 1):
            operator(
                program, "index_add", at + 2, [-1, -1, -1, at + 1], "[8000, 128], [], [80000], [80000, 128]", 200, "add"
            )
            operator(program, "sum", at + 3, [at + 2], "[8000, 128]", 10, "sum")
    program.sync()


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [(128, 80, 160), (64, 80 + 200, 160 + 200), (256, 80 + 50, 160 + 100), (16, None, None)],
    ids=["as wide", "twice as wide", "half as wide", "too wide"],
)
def test_what_is_left_follows_the_rows_and_the_copies_their_width(
    given: int, least: int | None, most: int | None, tmp_path: Path
) -> None:
    program = Lined({LINE: "msg = self.nbr(x.index_select(0, src))", LINE + 1: "out.index_add(0, dst, msg)"})
    program.run(lambda program, step: messages(program, step, given=given))
    told = [f for f in program.found(tmp_path, "NSX131") if "rows-before-copies" in [way.name for way in f.remedies]]
    if least is None or most is None:
        assert not told
        return
    (finding,) = told
    taken = 800 + (0 if given == 128 else 100)
    assert finding.saving.likely_ns == pytest.approx(1000 * (taken - (least * most) ** 0.5), rel=0.03)
    assert finding.where["line"] == LINE and finding.paste.startswith("msg = self.nbr(x).index_select(0, src)")
    assert finding.cost_ns_per_step == pytest.approx(800_000, rel=0.02) and "80,000 rows" in finding.title
