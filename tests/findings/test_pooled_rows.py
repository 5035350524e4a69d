"""NSX131: rows of a table that are written out and summed for each sample, and rows that something else needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from nsysx.findings._fix import Fix
from nsysx.findings._pooled_rows import _WEIGHTED
from nsysx.model import Finding
from tests.findings.recorded_programs import from_host, recorded

SAMPLES, LONGEST, ROWS, WIDTH = 8, 16, 50, 4


class Bag(torch.nn.Module):
    """A table of which histories pick rows."""

    def __init__(self, form: str = "masked") -> None:
        super().__init__()
        self.table, self.form = torch.nn.Parameter(torch.randn(ROWS, WIDTH)), form
        self.query = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return getattr(self, self.form)(ids)  # type: ignore[no-any-return]

    def masked(self, ids: torch.Tensor) -> torch.Tensor:
        e = F.embedding(ids, self.table)
        return (e * (ids > 0).unsqueeze(-1)).sum(1)

    def weighted(self, ids: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(ids.float(), 1)
        return (F.embedding(ids, self.table) * weights[:, :, None]).sum(dim=1)

    def plain(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.table).mean(1)

    def attended(self, ids: torch.Tensor) -> torch.Tensor:
        e = F.embedding(ids, self.table)
        return (self.query(e) * (ids > 0).unsqueeze(-1)).sum(1)

    def read_twice(self, ids: torch.Tensor) -> torch.Tensor:
        e = F.embedding(ids, self.table)
        return (e * (ids > 0).unsqueeze(-1)).sum(1) + e[:, 0]

    def mean_of_masked(self, ids: torch.Tensor) -> torch.Tensor:
        return (F.embedding(ids, self.table) * (ids > 0).unsqueeze(-1)).mean(1)

    def of_all(self, ids: torch.Tensor) -> torch.Tensor:
        return (F.embedding(ids, self.table) * (ids > 0).unsqueeze(-1)).sum(2)


def histories() -> torch.Tensor:
    ids = torch.randint(1, ROWS, (SAMPLES, LONGEST))
    return ids * (torch.arange(LONGEST) < torch.randint(1, LONGEST, (SAMPLES, 1)))


def found(form: str, folder: Path) -> list[Finding]:
    net = Bag(form)

    def step() -> None:
        net(from_host(histories())).sum().backward()
        net.zero_grad()

    findings = recorded(step, net, __file__, folder, slow=("mul", "sum", "mean")).found(folder, "NSX131")
    return [each for each in findings if each.remedies[0].name == "rows-added-as-read"]


@pytest.mark.parametrize("form", ["masked", "weighted", "plain"])
def test_rows_that_are_written_out_and_summed(form: str, tmp_path: Path) -> None:
    (finding,) = found(form, tmp_path)
    assert "16 rows for each of 8 samples are written out" in finding.title and finding.saving.bound
    assert finding.where["line"] == getattr(Bag, form).__code__.co_firstlineno + (2 if form == "weighted" else 1)
    assert ("per_sample_weights" in finding.paste) == (form == "weighted")
    assert ("padding_idx=0" in finding.paste) == (form == "masked") and ('mode="mean"' in finding.paste) == (
        form == "plain"
    )


@pytest.mark.parametrize("form", ["attended", "read_twice", "of_all", "mean_of_masked"])
def test_rows_that_are_needed(form: str, tmp_path: Path) -> None:
    assert not found(form, tmp_path)


@pytest.mark.parametrize("form", ["masked", "weighted"])
def test_the_paste_gives_the_same_sums_and_gradients(form: str) -> None:
    net, ids = Bag(form), histories()
    results = []
    for pasted in (False, True):
        net.zero_grad()
        given = {"F": F, "ids": ids, "table": net.table, "weights": torch.softmax(ids.float(), 1), "sums": net(ids)}
        if pasted:
            exec(_WEIGHTED if form == "weighted" else Fix.by_name("rows-added-as-read").paste, given)
        sums = given["sums"]
        sums.square().sum().backward()
        assert net.table.grad is not None
        results.append((sums.detach(), net.table.grad.clone()))
    for before, after in zip(*results, strict=True):
        assert torch.allclose(before, after, atol=1e-5)
