"""NSX131: networks that each compute all rows, of which a mask keeps those of one group, and masks that leave no such rows out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
import torch
import torch.nn.functional as F

from nsysx.events.masked_runs import masked_runs
from nsysx.findings._kept_by_masks import _text_of
from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

ROWS, WIDTH, HEADS = 12, 8, 3


class Heads(torch.nn.Module):
    """A trunk, and a head for each group of samples."""

    def __init__(self, form: str = "selected", samples: int = ROWS) -> None:
        super().__init__()
        self.form = form
        self.trunk = torch.nn.Linear(WIDTH, WIDTH)
        make = torch.nn.Linear
        self.heads = torch.nn.ModuleList(
            torch.nn.Sequential(make(WIDTH, 16), torch.nn.ReLU(), make(16, WIDTH)) for _ in range(HEADS)
        )

    def forward(self, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        return getattr(self, self.form)(self.trunk(x), group)  # type: ignore[no-any-return]

    def selected(self, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for k, head in enumerate(self.heads):
            y = head(x)
            out = torch.where((group == k)[:, None], y, out)
        return out

    def multiplied(self, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for k in range(HEADS):
            mask = (group == k).float().unsqueeze(-1)
            out = out + self.heads[k](x) * mask
        return out

    def stacked(self, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        outs = torch.stack([head(x) for head in self.heads], 1)
        at = group[:, None, None].expand(-1, 1, WIDTH)
        return outs.gather(1, at).squeeze(1) * 2.0

    def best_experts(self, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        gates = F.softmax(x[:, :HEADS], -1)
        top = gates.topk(1, -1)
        out = torch.zeros_like(x)
        for k, head in enumerate(self.heads):
            gate = (top.values * (top.indices == k)).sum(-1, keepdim=True)
            out = out + gate * head(x)
        return out

    def by_number(self, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        rows = [(group == k).nonzero().squeeze(1) for k in range(HEADS)]
        out = torch.zeros_like(x)
        for k, head in enumerate(self.heads):
            part = head(x[rows[k]])
            out = out.index_copy(0, rows[k], part.to(out.dtype))
        return out

    def weighed(self, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        gates = F.softmax(x[:, :HEADS], -1)
        out = torch.zeros_like(x)
        for k, head in enumerate(self.heads):
            out = out + gates[:, k : k + 1] * head(x)
        return out

    def read_as_well(self, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        out, apart = torch.zeros_like(x), torch.zeros_like(x)
        for k, head in enumerate(self.heads):
            y = head(x)
            out = torch.where((group == k)[:, None], y, out)
            apart = apart + y.square()
        return out + apart

    def padded(self, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        out = x
        for head in self.heads:
            out = head(out) * (group != 0).float().unsqueeze(-1)
        return out

    def of_columns(self, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        out, column = torch.zeros_like(x), torch.arange(WIDTH) % HEADS
        for k, head in enumerate(self.heads):
            out = torch.where((column == k)[None, :], head(x), out)
        return out


def found(form: str, folder: Path) -> list[Finding]:
    net = Heads(form)

    def step() -> None:
        x, group = from_host(torch.randn(ROWS, WIDTH)), from_host(torch.arange(ROWS) % HEADS)
        net(x, group).square().sum().backward()
        net.zero_grad()

    findings = recorded(step, net, __file__, folder, slow=("linear",)).found(folder, "NSX131")
    return [each for each in findings if each.remedies and each.remedies[0].name == "rows-of-each-network"]


@pytest.mark.parametrize("form", ["selected", "multiplied", "stacked", "best_experts"])
def test_networks_that_compute_all_rows(form: str, tmp_path: Path) -> None:
    (finding,) = found(form, tmp_path)
    assert "3 networks each compute all rows, of which a mask keeps 33 %" in finding.title
    # Of six linear layers of 60 us and their gradients of 20 us two thirds go.
    assert 0.5 * 6 * 60_000 < (finding.saving_ns_per_step or 0) < 6 * 80_000


@pytest.mark.parametrize("form", ["by_number", "weighed", "read_as_well", "padded", "of_columns"])
def test_what_is_needed(form: str, tmp_path: Path) -> None:
    assert not found(form, tmp_path)


def texts_of(*lines: str) -> dict[str, str]:
    return {str(10 + number): text for number, text in enumerate(lines)}


@pytest.mark.parametrize(
    ("lines", "form"),
    [
        (("y = head(x)", "out = torch.where((group == k)[:, None], y, out)"), "where"),
        (("y = heads[k](x)", "mine = group == k", "out = torch.where(mine[:, None], y, out)"), "where"),
        (("mine = (group == k).float()", "out = out + heads[k](x) * mine[:, None]"), "times"),
    ],
)
def test_the_paste_gives_the_same(lines: Sequence[str], form: str) -> None:
    text = _text_of(texts_of(*lines), 10 + len(lines) - 1)
    assert text is not None
    once, *loop = text.paste(HEADS).splitlines()
    torch.manual_seed(0)
    heads = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(HEADS)]
    group, x = torch.randint(0, HEADS, (ROWS,)), torch.randn(ROWS, WIDTH)
    results = []
    for before, body in ((), lines), ((once,), loop):
        given = {"torch": torch, "heads": heads, "group": group, "x": x, "out": torch.zeros(ROWS, WIDTH)}
        exec("\n".join(before), given)
        for k, head in enumerate(heads):
            given |= {"k": k, "head": head}
            exec("\n".join(body), given)
        out = given["out"]
        assert isinstance(out, torch.Tensor)
        gradients = torch.autograd.grad(out.square().sum(), [head.weight for head in heads])
        results.append([out, *gradients])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(
    "lines",
    [
        ("y = net(x)", "loss = torch.where(labels == ignore_index, 0.0, y)"),
        ("y = net(x)", "y = y * 2.0", "hits = (group == k).sum()"),
        ("y = torch.relu(x)", "out = torch.where((group == k)[:, None], y, out)"),
    ],
)
def test_lines_that_keep_no_groups(lines: Sequence[str]) -> None:
    assert _text_of(texts_of(*lines), 10 + len(lines) - 1) is None


_EQUAL = "vectorized_elementwise_kernel<4, AUnaryFunctor<long, long, bool, at::native::CompareEqFunctor<long>>"
_WHERE = "elementwise_kernel<128, 2, where_kernel_impl(at::TensorIterator &)>"


def launched(*names: tuple[str, str | None]) -> pl.DataFrame:
    rows = [(n, n, name, phase) for n, (name, phase) in enumerate(names)]
    schema = {"op": pl.Int64, "call_start_ns": pl.Int64, "name": pl.Categorical, "phase": pl.Categorical}
    return pl.DataFrame(rows, schema=schema, orient="row")


def test_kernels_of_networks_that_masks_follow() -> None:
    network, masks = [("conv", "evaluation")] * 6, [(_EQUAL, None), (_WHERE, None)]
    (run,) = masked_runs(launched(*network, *masks, *network, *masks, *network, *masks, *[("fill", None)] * 20))
    assert (run.networks, len(run.ops)) == (3, 18)
    # One that acts first, with other kernels behind it, is none of them.
    (run,) = masked_runs(launched(*network, *[("fill", None)] * 9, *network, *masks, *network, *masks))
    assert run.networks == 2


@pytest.mark.parametrize(
    "between", [[(_WHERE, None)], [(_EQUAL, None)], [(_EQUAL, None), (_WHERE, None), ("reduce_kernel", None)]]
)
def test_kernels_of_networks_that_no_mask_follows(between: list[tuple[str, str | None]]) -> None:
    network = [("conv", "evaluation")] * 6
    assert not masked_runs(launched(*network, *between, *network, *between, *network, *between))
