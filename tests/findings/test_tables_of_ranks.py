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


def trained_step(program: Lined, number: int, *, tied: bool, frozen: bool = False, other: bool = False) -> None:
    """As above, with what autograd runs: a head of the table's size, whose gradient is added to the table's if it is ``tied``.

    ``frozen``: a copy of the table is looked up as well. ``other``: the table is looked up a second time.
    """
    rows, at = 1_000_000, 10_000 * number + 10
    whole = f"[{rows}, 64]"

    def noted(label: str, begin: float) -> None:
        if program.noted is not None:
            program.main.add_range(label, begin, program.t)

    def lookup(op: int, sequence: int | None) -> None:
        begin = program.t
        program.launch(20)
        seq = "" if sequence is None else f"seq = {sequence}, "
        noted(f"aten::embedding, {seq}op_id = {op}, sizes = [{whole}, [1000, 4], []], input_op_ids = [(0,-1)]", begin)

    def ran(name: str, op: int, made: tuple[int, ...], sizes: str, sequence: int | None = None) -> None:
        begin, seq = program.t, "" if sequence is None else f"seq = {sequence}, "
        program.host(5)
        given = ", ".join(f"({each},0)" for each in made)
        noted(f"{name}, {seq}op_id = {op}, sizes = [{sizes}], input_op_ids = [{given}]", begin)

    with program.range("forward"), program.range("net:Net"):
        with program.line(LOOKS_UP), program.range("net.table:Embedding"):
            lookup(at, 7 + number * 100)
        if other:
            with program.range("net.table:Embedding"):
                lookup(at + 1, 8 + number * 100)
        if frozen:
            with program.range("copy.table:Embedding"):
                lookup(at + 2, None)
        ran("aten::mm", at + 3, (at,), f"[4000, 64], [64, {rows}]", 9 + number * 100)
        program.launch(200)
    with program.line(21), program.range("backward"):
        program.launch(300)
        ran("MmBackward0", at + 20, (at + 3,), f"[4000, {rows}]", 9 + number * 100)
        ran("aten::mm", at + 21, (at + 20,), f"[{rows}, 4000], [4000, 64]")
        ran("EmbeddingBackward0", at + 22, (at + 20,), "[1000, 4, 64]", 7 + number * 100)
        ran("aten::embedding_backward", at + 23, (at + 20,), "[1000, 4, 64], [1000, 4]")
        if other:
            ran("EmbeddingBackward0", at + 24, (at + 20,), "[1000, 4, 64]", 8 + number * 100)
            ran("aten::embedding_backward", at + 25, (at + 20,), "[1000, 4, 64], [1000, 4]")
            ran("aten::add_", at + 26, (at + 23, at + 25), f"{whole}, {whole}, []")
        if tied:
            ran("aten::add_", at + 27, (at + 21, at + 23), f"{whole}, {whole}, []")
        ran("torch::autograd::AccumulateGrad", at + 28, (at + 23,), whole)
        program.launch(800, REDUCE)
    with program.line(22), program.range("optimizer Adam"):
        program.launch(500)
    program.sync()


@pytest.mark.parametrize(
    ("tied", "frozen", "other", "told"),
    [(False, False, False, True), (True, False, False, False), (False, True, False, True), (False, False, True, True)],
)
def test_a_weight_that_is_a_head_as_well_has_a_gradient_of_all_rows(
    tied: bool, frozen: bool, other: bool, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head of its own, a frozen copy and a second lookup change nothing; rows of the copy are not counted."""
    all_is_transfer(monkeypatch, _tables_of_ranks)
    settings = {"wrappers": [{"kind": "DDP"}], "optimizers": [{"elements": 70_000_000, "dtypes": {"float32": 1}}]}
    program = Lined(SOURCE, settings).run(
        lambda program, number: trained_step(program, number, tied=tied, frozen=frozen, other=other)
    )
    (finding,) = program.found(tmp_path, "NSX110")
    assert ("rows-of-tables" in [way.name for way in finding.remedies]) is told
    if told:
        assert f"looks up {8_000 if other else 4_000:,} of 1,000,000 rows at most" in finding.fix


def test_what_is_added_to_the_gradient_of_the_backward_before_ties_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Micro-batches: torch adds within the node of the weight."""
    all_is_transfer(monkeypatch, _tables_of_ranks)
    settings = {"wrappers": [{"kind": "DDP"}], "optimizers": [{"elements": 70_000_000, "dtypes": {"float32": 1}}]}

    def body(program: Lined, number: int) -> None:
        at, whole = 10_000 * number + 500, "[1000000, 64]"
        trained_step(program, number, tied=False)
        if program.noted is None:
            return
        for name, op, made in (("aten::embedding_backward", at, at - 1), ("aten::add_", at + 1, at)):
            begin = program.t
            program.host(5)
            given = f"sizes = [{whole}, {whole}, []], input_op_ids = [({made - 9},0), ({made},0), (0,-1)]"
            program.main.add_range(f"{name}, op_id = {op}, {given}", begin, program.t)
        label = f"torch::autograd::AccumulateGrad, op_id = {at + 2}, sizes = [{whole}], input_op_ids = [({at},0)]"
        program.main.add_range(label, begin - 1, program.t + 1)
        program.host(5)

    (finding,) = Lined(SOURCE, settings).run(body).found(tmp_path, "NSX110")
    assert "rows-of-tables" in [way.name for way in finding.remedies]
