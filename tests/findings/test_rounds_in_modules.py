"""NSX126: what is said about a loop that asks for the rows of each group is for what it does with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nsysx.findings import nsx126_round_trips
from nsysx.findings._fix import Fix
from nsysx.findings._segments_in_text import SEGMENTS, in_names_of_line
from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

ROWS, WIDTH, GROUPS = 96, 8, 12
torch.manual_seed(0)
X, OF = torch.randn(ROWS, WIDTH), torch.arange(GROUPS).repeat(ROWS // GROUPS)


class Pool(nn.Module):
    """A layer, and one row for each group."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(WIDTH, WIDTH), form
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(GROUPS))

    def forward(self, x: Tensor, group: Tensor, count: int) -> Tensor:
        return getattr(self, self.form)(self.layer(x), group, count)  # type: ignore[no-any-return]

    def summed(self, h: Tensor, group: Tensor, count: int) -> Tensor:
        return torch.stack([h[group == g].sum(dim=0) for g in range(count)])

    def averaged(self, h: Tensor, group: Tensor, count: int) -> Tensor:
        out = h.new_zeros(count, WIDTH)
        for g in range(count):
            mask = group == g
            out[g] = h[mask].mean(0)
        return out

    def through_experts(self, h: Tensor, group: Tensor, count: int) -> Tensor:
        out = torch.zeros_like(h)
        for g in range(count):
            rows = torch.where(group == g)[0]
            out[rows] = self.experts[g](h[rows])
        return out

    def scaled(self, h: Tensor, group: Tensor, count: int) -> Tensor:
        out = torch.zeros_like(h)
        for g in range(count):
            rows = torch.where(group == g)[0]
            out[rows] = h[rows] * (g + 1)
        return out


def found(form: str, folder: Path) -> list[Finding]:
    net = Pool(form)

    def step() -> None:
        net(from_host(X), OF, GROUPS).square().mean().backward()
        net.zero_grad()

    findings = recorded(step, net, __file__, folder, ranks=1).found(folder, "NSX126")
    return [each for each in findings if each.verdict == "found"]


@pytest.mark.parametrize(
    ("form", "remedy"),
    [
        ("summed", "segments-at-once"),
        ("averaged", "segments-at-once"),
        ("through_experts", "groups-at-once"),
        ("scaled", ""),
    ],
)
def test_what_is_done_with_the_rows_decides(
    form: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsx126_round_trips, "ROUND_TRIPS_SHARE", 0.01)  # the host of a recorded program is fast
    monkeypatch.setattr(nsx126_round_trips, "SIZES_ASKED_SHARE", 0.0)  # its kernels have the names of operators
    (finding,) = found(form, tmp_path)
    assert [way.name for way in finding.remedies] == ([remedy] if remedy else [])
    assert ("grouped product" in finding.fix) == (form == "through_experts")


SUM = "x.new_zeros(n, *x.shape[1:]).index_add_(0, group, x)"
LINES = {
    "pooled = torch.stack([x[group == g].sum(dim=0) for g in range(n)])": f"pooled = {SUM}",
    "pooled = torch.stack([x[group == g].mean(0) for g in range(n)])": (
        "pooled = x.new_zeros(n, *x.shape[1:]).index_reduce_(0, group, x, 'mean', include_self=False)"
    ),
    "pooled = torch.stack([x[group == g].max(dim=0).values for g in range(n)], dim=0) * 2": (
        "pooled = x.new_zeros(n, *x.shape[1:]).index_reduce_(0, group, x, 'amax', include_self=False) * 2"
    ),
    "pooled[g] = x[mask].sum(0)": f"pooled = {SUM}  # in place of the loop",
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("text", LINES)
def test_the_paste_has_the_names_of_the_line_and_gives_the_same(text: str) -> None:
    source = {"f.py": {"7": "for g in range(n):", "8": "mask = group == g", "9": text}}
    fix = in_names_of_line(source, "f.py", 9, SEGMENTS)
    assert fix.paste == LINES[text]
    names = [{"torch": torch, "x": X, "group": OF, "n": GROUPS, "pooled": torch.zeros(GROUPS, WIDTH)} for _ in range(2)]
    loop = f"for g in range(n):\n    mask = group == g\n    {text}" if "pooled[g]" in text else text
    for code, given in zip((loop, fix.paste), names, strict=True):
        exec(code, given)
    torch.testing.assert_close(names[0]["pooled"], names[1]["pooled"])


@pytest.mark.parametrize(
    "text",
    [
        "pooled = torch.stack([x[group == g].sum(dim=0) for g in range(n) if g % 2])",
        "pooled = torch.stack([x[group == g].sum(dim=0, keepdim=True) for g in range(n)])",
        "pooled = torch.stack([x[group == g].sum(0)[0] for g in range(n)])",
        "pooled = torch.stack([x[group <= g].sum(0) for g in range(n)])",
        "pooled = torch.stack([f(x[group == g].sum(0)) for g in range(n)])",
        "total += x[group == g].sum(0)",
    ],
)
def test_other_lines_keep_the_example(text: str) -> None:
    fix = in_names_of_line({"f.py": {"9": text}}, "f.py", 9, SEGMENTS)
    assert fix.paste == SEGMENTS.paste
    assert in_names_of_line(
        {"f.py": {"9": next(iter(LINES))}}, "f.py", 9, Fix.by_name("groups-at-once")
    ).paste.startswith("order")
