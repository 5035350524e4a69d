"""NSX131: scores compared with each threshold of a grid to be counted, and comparisons whose masks are read number by number."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nsysx.findings._counts_in_text import counted_in_cells
from nsysx.findings._fix import Fix
from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

ROWS, COLUMNS, STEPS = 96, 3, 80
Sums = list[torch.Tensor]


def curves(score: torch.Tensor, label: torch.Tensor, grid: torch.Tensor) -> Sums:
    hit = (label * 0.5)[:, :, None]
    miss = (1 - label)[:, :, None]
    above = score[:, :, None] >= grid
    below = ~above
    tp = (above * hit).sum(0)
    fp = (above * miss).sum(0)
    fn = (below * hit).sum(0)
    tn = (below * miss).sum(0)
    return [tp, fp, fn, tn]


def flat(p: torch.Tensor, y: torch.Tensor, cuts: torch.Tensor) -> Sums:
    p, y = p.flatten(), y.flatten()
    taken = (cuts < p.unsqueeze(-1)) & y.unsqueeze(-1).bool()
    kept = taken.sum(0)
    return [kept]


def in_place(p: torch.Tensor, y: torch.Tensor, cuts: torch.Tensor) -> Sums:
    tp = ((p[..., None] > cuts) * y[..., None]).sum(0)
    rest = (p[..., None] <= cuts).sum(dim=0)
    return [tp, rest]


def intervals(p: torch.Tensor, y: torch.Tensor, cuts: torch.Tensor) -> Sums:
    within = (p[..., None] >= cuts[:-1]) & (p[..., None] < cuts[1:])
    return [(within * y[..., None]).sum(0), within.sum(0)]


def masked(score: torch.Tensor, label: torch.Tensor, grid: torch.Tensor) -> Sums:
    seen = score[:, :, None] >= grid
    return [torch.where(seen, label[:, :, None] * grid, 0.0).softmax(-1).sum(0)]


def of_rows(score: torch.Tensor, label: torch.Tensor, grid: torch.Tensor) -> Sums:
    lengths = (score[:, :1] * STEPS).long()
    mask = torch.arange(STEPS)[None] < lengths
    return [(mask * (label[:, :1] * grid)).sum(0)]  # numbers of each place


def numbered(score: torch.Tensor, label: torch.Tensor, grid: torch.Tensor) -> Sums:
    return [(score[:, :, None] >= grid).sum(-1)]  # which cell each score lies in, not how many lie in a cell


def ranked(score: torch.Tensor, label: torch.Tensor, grid: torch.Tensor) -> Sums:
    one = score.flatten()
    return [(one[:, None] >= one[None]).sum(0)]


def nearest(score: torch.Tensor, label: torch.Tensor, grid: torch.Tensor) -> Sums:
    return [(score[:, :, None] - grid).abs().argmin(-1)]


def kept(score: torch.Tensor, label: torch.Tensor, grid: torch.Tensor) -> Sums:
    above = score[:, :, None] >= grid
    return [(above * label[:, :, None]).sum(0), above.float().cumsum(-1)]


def few(score: torch.Tensor, label: torch.Tensor, grid: torch.Tensor) -> Sums:
    return [(score[:, :, None] >= grid[:8]).sum(0)]


def given() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grid = torch.linspace(0, 1, STEPS)
    score = torch.rand(ROWS, COLUMNS)
    score[:20] = grid[:20, None]  # scores at a threshold
    return score, (torch.rand(ROWS, COLUMNS) < 0.3).float(), grid


def found(counts: Callable[..., Sums], folder: Path) -> list[Finding]:
    net = torch.nn.Linear(COLUMNS, COLUMNS)
    score, label, grid = given()

    def step() -> None:
        made = net(from_host(score)).sigmoid()
        made.sum().backward()
        total = counts(made.detach(), from_host(label), grid)
        torch.stack([each.float().sum() for each in total]).add(1)
        net.zero_grad()

    findings = recorded(step, net, __file__, folder, slow=("ge", "gt", "lt", "le", "mul", "sum")).found(
        folder, "NSX131"
    )
    return [each for each in findings if each.remedies[0].name == "counts-by-histogram"]


@pytest.mark.parametrize(("counts", "own_lines"), [(curves, True), (flat, False), (in_place, True), (intervals, False)])
def test_counts_at_thresholds(counts: Callable[..., Sums], own_lines: bool, tmp_path: Path) -> None:
    (finding,) = found(counts, tmp_path)
    assert f"with each of {STEPS - (counts is intervals)} thresholds" in finding.title
    lines, first = inspect.getsourcelines(counts)
    assert "cuts" in lines[finding.where["line"] - first] or "grid" in lines[finding.where["line"] - first]
    assert 0 < (finding.saving.likely_ns or 0) < (finding.cost_ns_per_step or 0)
    assert ("in_cells" in finding.paste) == own_lines
    compile(finding.paste, "paste", "exec")
    if own_lines:
        score, label, grid = given()
        own = {"torch": torch, **dict(zip(inspect.signature(counts).parameters, (score, label, grid), strict=True))}
        exec(finding.paste, own)
        names = [name.strip() for name in lines[-1].partition("[")[2].partition("]")[0].split(",")]
        for name, expected in zip(names, counts(score, label, grid), strict=True):
            assert torch.allclose(own[name], expected, atol=1e-4)  # numbers stay whole


@pytest.mark.parametrize("counts", [masked, of_rows, numbered, ranked, nearest, kept, few])
def test_other_comparisons(counts: Callable[..., Sums], tmp_path: Path) -> None:
    assert not found(counts, tmp_path)


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">="])
@pytest.mark.parametrize("grid_first", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_each_comparison_counts_the_same_in_cells(sign: str, grid_first: bool, other: bool) -> None:
    score, label, grid = given()
    compared = f"m = grid {sign} score[:, :, None]" if grid_first else f"m = score[:, :, None] {sign} grid"
    lines = ["w = (label + 1)[:, :, None]", compared, f"out += ({'~m' if other else 'm'} * w).sum(0)  # counted"]
    paste = counted_in_cells([compared], lines[-1:], lines, 1)
    results = []
    for code in ("\n".join(lines), paste):
        names = {"torch": torch, "score": score, "label": label, "grid": grid, "out": torch.ones(COLUMNS, STEPS)}
        exec(code, names)
        results.append(names["out"])
    assert torch.allclose(*results)


@pytest.mark.parametrize(
    ("compared", "summed"),
    [
        ("m = torch.ge(score[:, :, None], grid)", "out += (m * w).sum(0)"),
        ("m = score[:, :, None] >= grid", "out += torch.einsum('btk,bt->tk', m, w)"),
        ("m = score[:, :, None] >= grid", "out += (m * w).sum(1)"),
        ("m = score[:, :, None] >= grid", "out += (m * unknown).sum(0)"),
        ("m = score[:, :, None] >= grid", "size = (m * w).sum(0)"),
    ],
)
def test_lines_that_do_not_say_what_is_summed(compared: str, summed: str) -> None:
    assert not counted_in_cells([compared], [summed], ["w = label[:, :, None]", compared, summed], 1)


def test_the_paste_counts_the_same() -> None:
    scores, weights, grid = torch.rand(ROWS), torch.rand(ROWS), torch.linspace(0, 1, STEPS)
    names = {"torch": torch, "scores": scores, "weights": weights, "grid": grid}
    exec(textwrap.dedent(Fix.by_name("counts-by-histogram").paste), names)
    above = scores[:, None] >= grid
    assert torch.allclose(names["above"], (above * weights[:, None]).sum(0), atol=1e-4)  # type: ignore[arg-type]
    assert torch.allclose(names["below"], (~above * weights[:, None]).sum(0), atol=1e-4)  # type: ignore[arg-type]
