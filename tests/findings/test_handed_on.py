"""NSX137: what each layer of a network makes of what all are given, in several forms, among collectives of its ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist

from nsysx.findings._numbers_of_lines import numbers_beside_tensors_written_out
from nsysx.model import Finding
from tests.findings import said_of
from tests.findings.recorded_programs import from_host, recorded
from tests.findings.test_whole_tokens import ranks

__all__ = ["ranks"]
WIDTH, LENGTH, LAYERS = 16, 32, 3
SLOW = ("eq", "tril", "masked_fill")


@dataclass
class Batch:
    x: Tensor
    doc: Tensor

    @property
    def bias(self) -> Tensor:
        allowed = torch.tril(self.doc[:, :, None] == self.doc[:, None, :])
        return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)

    def make_bias(self) -> Tensor:
        allowed = torch.tril(self.doc[:, :, None] == self.doc[:, None, :])
        return torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))


def causal_bias(doc: Tensor, below: int = 0) -> Tensor:
    allowed = torch.tril(doc[:, :, None] == doc[:, None, :], below)
    return torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)


class Layer(nn.Module):
    def __init__(self, form: str, number: int) -> None:
        super().__init__()
        self.form, self.below, self.lin = form, -number, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, batch: Batch, given: Tensor | None) -> Tensor:
        if given is not None:
            bias = given
        elif self.form == "property":
            bias = batch.bias
        elif self.form == "method":
            bias = batch.make_bias()
        elif self.form == "its own":
            bias = causal_bias(batch.doc, self.below)
        else:
            allowed = torch.tril(batch.doc[:, :, None] == batch.doc[:, None, :])
            bias = torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)
        y = self.lin(torch.bmm(F.softmax(bias, -1), x))
        dist.all_reduce(y)
        return y


class Net(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.layers = form, nn.ModuleList(Layer(form, number) for number in range(LAYERS))

    def forward(self, batch: Batch) -> Tensor:
        x, given = batch.x, batch.bias if self.form == "once" else None
        for layer in self.layers:
            x = layer(x, batch, given)
        return x


def told(form: str, folder: Path) -> list[Finding]:
    torch.manual_seed(0)
    net = Net(form)
    x, doc = torch.randn(5, 2, LENGTH, WIDTH), torch.randint(0, 4, (5, 2, LENGTH)).sort(-1)[0]

    def step() -> None:
        i = int(torch.randint(0, 5, (1,)))
        with torch.inference_mode():
            net(Batch(from_host(x[i]), from_host(doc[i])))

    program = recorded(step, net, __file__, folder, slow=SLOW, ranks=4)
    said = said_of(program.write(folder))
    return [f for f in said if f.verdict == "found" and [way.name for way in f.remedies] == ["result-handed-on"]]


def line_of(text: str) -> int:
    (line,) = (n for n, each in enumerate(Path(__file__).read_text().splitlines(), 1) if each.strip() == text)
    return line


@pytest.mark.parametrize(
    ("form", "line", "paste"),
    [
        ("property", "bias = batch.bias", "@cached_property  # of Batch, in place of @property\ndef bias(self):"),
        ("method", "bias = batch.make_bias()", "make_bias = batch.make_bias()  # once, before the loop"),
    ],
)
def test_what_layers_ask_of_their_batch(form: str, line: str, paste: str, tmp_path: Path) -> None:
    (found,) = told(form, tmp_path)
    assert found.where["line"] == line_of(line) and f"computes the same {LAYERS} times" in found.title
    assert paste in found.paste
    # In each layer behind the first: three operators of 60 us, and zeros, the opposite of a mask.
    assert (LAYERS - 1) * 3 * 60_000 <= (found.saving_ns_per_step or 0) <= (LAYERS - 1) * 4 * 60_000


def test_lines_of_the_layer_itself(tmp_path: Path) -> None:
    (found,) = told("lines", tmp_path)
    where = line_of("allowed = torch.tril(batch.doc[:, :, None] == batch.doc[:, None, :])")
    assert found.where["line"] in (where, where + 1)
    assert [line.partition(" = ")[0] for line in found.paste.splitlines()] == ["allowed", "bias", "x"]
    assert found.paste.splitlines()[-1].startswith("x = layer(x, bias)")


def test_a_mask_that_is_made_once(tmp_path: Path) -> None:
    assert told("once", tmp_path) == []


def test_what_hangs_on_a_number_of_the_layer_stays(tmp_path: Path) -> None:
    # That rows are of the same document is the same in each; what lies below the layer's own diagonal is not.
    assert all((f.saving_ns_per_step or 0) <= (LAYERS - 1) * 60_000 for f in told("its own", tmp_path))


@pytest.mark.parametrize(
    ("text", "written_out"),
    [
        ("allowed = torch.tril(same)", True),
        ("allowed = same.tril(-1)", True),
        ("x.masked_fill(~allowed, torch.finfo(x.dtype).min)", True),
        ("rows = torch.arange(x.shape[1], device=x.device)", True),
        ("allowed = torch.tril(same, diagonal=-self.window)", False),
        ("x = x.masked_fill(mask, self.fill)", False),
        ("rows = torch.arange(begin, end)", False),
        ("x = torch.where(", False),
    ],
)
def test_lines_that_write_their_numbers_out(text: str, *, written_out: bool) -> None:
    assert numbers_beside_tensors_written_out(text) is written_out
