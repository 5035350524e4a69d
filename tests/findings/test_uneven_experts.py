"""NSX111: a rank that is late by what it computes of rows that it is sent, and ranks that have more rows, or other work, of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsysx import pipeline
from nsysx.catalogue import Late, Surplus
from nsysx.events.profile import Profile
from nsysx.findings import _uneven_experts
from nsysx.findings._case import Case, Fix
from nsysx.findings._uneven_experts import placed_by_load
from nsysx.model import Finding, Saving, Table
from tests.findings.lined import FILE, Lined
from tests.findings.test_smaller_operators import operator

WIDTH, OWN, MUCH, LITTLE = 64, 1000, 1600, 400
EXPERT, DENSE = 20, 30


def rank(
    folder: Path, received: int, sent: int = OWN, *, us: float = 0, back: bool = True, dense_us: float = 500
) -> Profile:
    """A rank that is sent ``received`` rows and computes of them for ``us`` (by default 1 us a row)."""

    def exchange(program: Lined, rows_in: int, rows_out: int, number: int) -> None:
        begin = program.t
        program.launch(20, "ncclDevKernel_SendRecv")
        if program.noted is not None:
            sizes = f"[{rows_out}, {WIDTH}], [{rows_in}, {WIDTH}], [], [], []"
            text = f"c10d::alltoall_base_, op_id = {number}, sizes = [{sizes}], input_op_ids = [(0,-1), (0,-1)]"
            program.main.add_range(text, begin, program.t)

    def body(program: Lined, number: int) -> None:
        at = 1000 * number + 10
        with program.range("forward"), program.range("net:Net"):
            with program.line(DENSE):
                operator(program, "linear", at, [-1, -1], f"[{OWN}, {WIDTH}], [{WIDTH}, {WIDTH}]", dense_us)
            exchange(program, sent, received, at + 1)
            with program.line(EXPERT):
                size = f"[{received}, {WIDTH}], [{WIDTH}, {WIDTH}]"
                operator(program, "linear", at + 2, [-1, -1], size, us or received)
            exchange(program, received, sent if back else sent + 1, at + 3)
            operator(program, "mm", at + 4, [-1, -1], f"[{OWN}, {WIDTH}], [{WIDTH}, {WIDTH}]", 200)
        program.sync()

    folder.mkdir()
    Lined({EXPERT: "y = self.expert(x)"}, {"loaders": []}).run(body).write(folder)
    return pipeline.gather(folder / "r.sqlite", pipeline.ReadingOptions())


def advice(monkeypatch: pytest.MonkeyPatch, late: Profile, other: Profile, **changed: Any) -> Finding | None:
    row = {"rank": 0, "process": late.process, "straggler": True, "late_cause": Late.COMPUTE, "late_ns": 1_000_000}
    row |= {"late_spread": Surplus.SEVERAL} | changed
    monkeypatch.setattr(_uneven_experts.peers, "others", lambda profile: iter([other]))
    rows = (row, {"rank": 1, "process": 1, "straggler": False})
    case = Case(late, {}, None, Table("ranks", "Ranks", (), rows))
    finding = Finding(
        "NSX111",
        "straggler",
        verdict="found",
        title="",
        detail="",
        where={"near": "rank 0"},
        fix="",
        saving=Saving(900_000, "replayed"),
    )
    return placed_by_load(case, Fix.by_name("equal-work").into(finding))


def test_busy_experts_are_placed_by_their_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = advice(monkeypatch, rank(tmp_path / "late", MUCH), rank(tmp_path / "other", LITTLE))
    assert found is not None and [way.name for way in found.remedies] == ["experts-by-load"]
    assert found.where == {"near": "rank 0", "file": FILE, "line": EXPERT} and found.saving.bound
    assert "is sent 1,600 a step, its peers 400 each" in found.detail


@pytest.mark.parametrize(
    ("late", "other", "changed"),
    [
        ({"received": MUCH, "sent": MUCH}, {"received": LITTLE, "sent": LITTLE}, {}),  # it has more data
        ({"received": MUCH, "back": False}, {"received": LITTLE}, {}),  # what comes stays: rows are shuffled
        ({"received": 1050}, {"received": 950}, {}),
        (
            {"received": MUCH, "us": 500, "dense_us": 1500},
            {"received": LITTLE, "us": 500},
            {},
        ),  # late by what it computes before
        ({"received": MUCH}, {"received": LITTLE}, {"late_cause": Late.HOST}),
        ({"received": MUCH}, {"received": LITTLE}, {"late_spread": Surplus.LONE}),
    ],
)
def test_a_rank_that_is_late_by_something_else_keeps_its_advice(
    late: dict[str, Any],
    other: dict[str, Any],
    changed: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert advice(monkeypatch, rank(tmp_path / "late", **late), rank(tmp_path / "other", **other), **changed) is None
