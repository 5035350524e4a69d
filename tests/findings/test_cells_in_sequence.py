"""NSX123: cells of torch called for each position of a sequence that is there before, and loops that look alike."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import polars as pl
import pytest
import torch

from nsysx.events.operator_flow import ModuleCall, OperatorFlow
from nsysx.findings import _cells_in_sequence as room
from nsysx.findings._cell_pastes import loop_of_cells

STACKED = """
zeros = x.new_zeros(x.size(0), 8)
states = [(zeros, zeros) for _ in self.cells]
outputs = []
for h in x.unbind(1):
    for i, cell in enumerate(self.cells):
        states[i] = cell(h, states[i])
        h = states[i][0]
    outputs.append(h)
return torch.stack(outputs, dim=1)
"""
BY_NUMBER = """
h = [x.new_zeros(x.size(1), 8)] * 2
last = []
for t in range(x.shape[0]):
    for i in range(2):
        h[i] = self.cells[i](x[t] if i == 0 else h[i - 1], h[i])
    last.append(h[-1])
y = torch.stack(last)
return torch.cat((y, torch.stack(h)))
"""
ALONE = """
b, steps, _ = x.shape
h = c = torch.zeros(b, 8)
outs = []
for t in range(steps - 1):
    h, c = self.cell(x[:, t, :], (h, c))
    outs.append(h)
y = torch.stack(outs)
return y + h + c
"""
LAST = """
h = x.mean(0)
for x_t in x:
    h = self.cell(x_t, h)
return h
"""
CASES = [
    (STACKED, {"self.cells": 2}, "LSTMCell"),
    (BY_NUMBER, {"self.cells": 2}, "GRUCell"),
    (ALONE, {"self.cell": 0}, "LSTMCell"),
    (LAST, {"self.cell": 0}, "RNNCell"),
]


def numbered(body: str) -> dict[int, str]:
    lines = textwrap.indent(body.strip("\n"), " " * 8).split("\n")
    return dict(enumerate(lines, 20))


def network(body: str, groups: dict[str, int], cls: str, init: str = "") -> torch.nn.Module:
    """Return a network whose forward is a body."""
    torch.manual_seed(0)
    cells = "\n".join(
        f"{name} = torch.nn.ModuleList(torch.nn.{cls}(8, 8) for _ in range({count}))"
        if count
        else f"{name} = torch.nn.{cls}(8, 8)"
        for name, count in groups.items()
    )
    parts = ("super().__init__()", cells, init)
    code = "class Net(torch.nn.Module):\n    def __init__(self):\n" + textwrap.indent("\n".join(parts), " " * 8)
    code += "\n    def forward(self, x):\n" + textwrap.indent(body.strip("\n"), " " * 8)
    names: dict[str, Any] = {"torch": torch}
    exec(code, names)
    net: torch.nn.Module = names["Net"]()
    return net


@pytest.mark.parametrize(("body", "groups", "cls"), CASES)
def test_the_code_to_paste_computes_the_same(body: str, groups: dict[str, int], cls: str) -> None:
    texts = numbered(body)
    line = next(number for number, text in texts.items() if re.search(r"\bcells?(\[i\])?\(", text))
    loop = loop_of_cells(texts, line, groups, cls, "Net.forward")
    assert loop is not None and loop.paste
    init, _, call = loop.paste.partition("# in Net.forward, in place of lines ")
    place, _, call = call.partition(":\n")
    first, last = map(int, place.split(" to "))
    before, behind = ([textwrap.dedent(t) for n, t in texts.items() if side(n)] for side in (first.__gt__, last.__lt__))
    changed = "\n".join((*before, call, *behind))
    was = network(body, groups, cls)
    mended = network(changed, groups, cls, init)
    names = {"lstm": "LSTMCell", "gru": "GRUCell", "rnn": "RNNCell"}
    (layer,) = (child for name, child in mended.named_children() if name in names)
    for path, value in was.named_parameters():
        number = re.findall(r"\.(\d)\.", path)
        own = getattr(layer, f"{path.rpartition('.')[2]}_l{number[0] if number else 0}")
        own.data.copy_(value.data)
    x = torch.randn(8, 8, 8)
    assert torch.allclose(was(x), mended(x), atol=1e-6)


FED_BACK = ALONE.replace("self.cell(x[:, t, :], (h, c))", "self.cell(y, (h, c))").replace(
    "append(h)", "append(h); y = h"
)


@pytest.mark.parametrize(
    "body",
    [
        FED_BACK,
        ALONE.replace("x[:, t, :]", "torch.cat((x[:, t, :], h), 1)"),  # the input is made of an output
        ALONE.replace("    outs.append(h)", "    h = self.norm(h)\n    outs.append(h)"),
        ALONE.replace("    outs.append(h)", "    h = self.dropout(h)\n    outs.append(h)"),
        ALONE.replace("    outs.append(h)", "    h = torch.where(keep[t], h, before)\n    outs.append(h)"),
        ALONE.replace("x[:, t, :]", "self.attend(h, x)"),
        ALONE.replace("(h, c))", "(c, h))"),
        ALONE.replace("(h, c))", "(zeros, c))"),  # its state does not come from the round before
        ALONE.replace("range(steps - 1)", "reversed(range(steps))"),
        ALONE.replace("append(h)", "append(c)"),
    ],
)
def test_loops_that_look_alike_are_no_layer(body: str) -> None:
    texts = numbered(body)
    line = next(number for number, text in texts.items() if "self.cell(" in text)
    assert loop_of_cells(texts, line, {"self.cell": 0}, "LSTMCell", "Net.forward") is None


def test_code_is_given_only_where_the_rest_of_the_function_is_known() -> None:
    texts = numbered(ALONE.replace("return y + h + c", "return y + h + c + self.cell.bias_hh.sum()"))
    loop = loop_of_cells(texts, 24, {"self.cell": 0}, "LSTMCell", "Net.forward")
    assert loop is not None and not loop.paste


class Lines:
    """All operators lie at one line of a function."""

    places = pl.DataFrame({"file": ["a.py"], "line": [24], "function": ["Net.forward"]})

    def at(self, _: int, times: Any) -> Any:
        return times

    def passing(self, stacks: Any, _: frozenset[int]) -> Any:
        return stacks >= 0


def found(
    monkeypatch: pytest.MonkeyPatch, *, cls: str = "LSTMCell", body: str = ALONE, widths: tuple[int, int] = (8, 8)
) -> Any:
    """Return the loop that is found of a cell's calls in these lines."""
    flow = OperatorFlow(
        ["aten::lstm_cell"] * 4,
        range(4),
        [(-1, max(0, n - 1)) for n in range(4)],
        [f"[2, 8], [2, {widths[n % 2]}], [2, 8]" for n in range(4)],
        tuple(ModuleCall("net.cell", cls, 0, 10 * n, 10 * n + 5, n, n + 1) for n in range(4)),
    )
    object.__setattr__(flow, "start_ns", torch.arange(4).numpy() * 10)
    object.__setattr__(flow, "end_ns", torch.arange(4).numpy() * 10 + 5)
    texts = {str(number): text for number, text in numbered(body).items()}
    monkeypatch.setattr(room.lines, "texts", lambda _: {"a.py": texts})
    case: Any = type("Case", (), {"profile": None, "typed_rows": lambda *_: []})()
    code: Any = Lines()
    return room.loop_of(case, code, flow, 0)


def test_cells_of_torch_of_one_width_alone_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = found(monkeypatch)
    assert loop is not None and (loop.cls, loop.paths, loop.calls) == ("LSTMCell", ("net.cell",), 4)
    (told,) = room._fix(loop).ways
    assert told.name == "sequence-at-once" and "nn.LSTM over the whole sequence" in told.text
    assert "weight_ih of net.cell" in told.condition and "del self.cell" in told.paste
    assert found(monkeypatch, cls="Linear") is None, "a cell of the program's own"
    assert found(monkeypatch, body=FED_BACK) is None
    assert found(monkeypatch, widths=(8, 16)) is None
