"""NSX110: tables that are reduced whole although few rows are looked up, and networks whose parameters are mostly used."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.findings import _tables_of_ranks
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined, all_is_transfer
from tests.findings.test_smaller_operators import operator
from tests.findings.test_widened_messages import REDUCE

LOOKS_UP = 20
SOURCE = {LOOKS_UP: "x = self.table(ids)", 21: "loss.backward()", 22: "opt.step()"}


def step(program: Lined, number: int, *, ids: int, rows: int = 1_000_000) -> None:
    """A lookup, a product (200 us), a backward whose reduction of 800 us nothing hides, and an update of 500 us."""
    at = 1000 * number + 10
    with program.range("forward"), program.range("net:Net"):
        with program.line(LOOKS_UP), program.range("net.table:Embedding"):
            operator(program, "embedding", at, [-1, -1], f"[{rows}, 64], [{ids}, 4], []", 20)
        operator(program, "mm", at + 1, [at, -1], "[64, 64], [64, 64]", 200)
    with program.line(21), program.range("backward"):
        program.launch(300)
        program.launch(800, REDUCE)
    with program.line(22), program.range("optimizer Adam"):
        program.launch(500)
    program.sync()


def found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, ids: int, elements: int = 70_000_000, transfers: float = 1
) -> Finding:
    all_is_transfer(monkeypatch, _tables_of_ranks, share=transfers)
    settings = {"wrappers": [{"kind": "DDP"}], "optimizers": [{"elements": elements, "dtypes": {"float32": 1}}]}
    program = Lined(SOURCE, settings).run(lambda program, number: step(program, number, ids=ids))
    (finding,) = program.found(folder, "NSX110")
    return finding


def test_a_table_of_which_few_rows_are_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = found(tmp_path, monkeypatch, ids=1000)
    assert [way.name for way in finding.remedies] == ["rows-of-tables"]
    assert (finding.where["file"], finding.where["line"]) == (FILE, LOOKS_UP)
    assert "a step looks up 4,000 of 1,000,000 rows at most" in finding.fix
    sent, share = 800_000, 64 / 70
    least, most = 0.992 * share * sent, share * (0.992 * sent + 0.8 * 500_000)
    assert finding.saving_ns_per_step == pytest.approx((least + most) / 2, rel=0.05) and not finding.saving.bound


@pytest.mark.parametrize(
    ("ids", "elements", "transfers"),
    [
        (50_000, 70_000_000, 1),  # a fifth of the rows
        (1000, 200_000_000, 1),  # a third of the parameters
        (1000, 70_000_000, 0),  # the ranks wait for each other
    ],
)
def test_tables_that_cost_little(
    ids: int, elements: int, transfers: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = found(tmp_path, monkeypatch, ids=ids, elements=elements, transfers=transfers)
    assert "rows-of-tables" not in [way.name for way in finding.remedies]
