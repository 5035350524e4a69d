"""NSX111: a rank that is late by lookups in tables of its own, and ranks whose replicas look up unlike data."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nsysx import pipeline
from nsysx.catalogue import Late, Surplus
from nsysx.events.profile import Profile
from nsysx.findings import _uneven_tables
from nsysx.findings._case import Case, Fix
from nsysx.findings._uneven_tables import placed_by_cost
from nsysx.model import Finding
from tests.findings.lined import FILE, Lined
from tests.findings.test_smaller_operators import operator

LOOKS_UP, LOOKS_UP_LITTLE = 20, 21
SOURCE = {LOOKS_UP: "x = self.bags[0](ids)", LOOKS_UP_LITTLE: "y = self.bags[1](ids)"}
HISTORY, USER = (1_000_000, 128), (200_000, 128)
SORTS, EMBEDS, PRODUCTS = "sort, scan and gather", "embedding", "gemm"
BOTH_SIDES, BEFORE, NONE = ("before", "behind"), ("behind",), ()


def rank(
    folder: Path, ids: int, tables: tuple[tuple[int, int], ...] = (HISTORY, USER), sends: tuple[str, ...] = BOTH_SIDES
) -> Profile:
    """A rank with an all-to-all before its lookups and behind them; ``ids`` of the first table, and a few of the others."""

    def exchange(program: Lined, where: str) -> None:
        begin = program.t
        program.host(5)
        if where in sends and program.noted is not None:
            program.main.add_range("c10d::alltoall_base_, op_id = 7, sizes = [[8], [8]]", begin, program.t)

    def body(program: Lined, number: int) -> None:
        at = 1000 * number + 10
        with program.range("forward"), program.range("net:Net"):
            operator(program, "cat", at, [-1], "[64]")
            exchange(program, "before")
            for i, (rows, width) in enumerate(tables):
                with program.line(LOOKS_UP_LITTLE if i else LOOKS_UP):
                    operator(
                        program,
                        "embedding_bag",
                        at + i + 1,
                        [-1],
                        f"[{rows}, {width}], [{100 if i else ids}], [16]",
                        20,
                    )
            exchange(program, "behind")
            operator(program, "mm", at + 9, [-1, -1], "[64, 64], [64, 64]", 200)
        program.sync()

    folder.mkdir()
    Lined(SOURCE, {"loaders": []}).run(body).write(folder)
    return pipeline.gather(folder / "r.sqlite", pipeline.ReadingOptions())


def advice(monkeypatch: pytest.MonkeyPatch, late: Profile, other: Profile, **changed: Any) -> Finding | None:
    """``changed``: columns of the late rank that are unlike those of one with 5 ms more of lookups and of adding their gradients."""
    work = {SORTS: (8_000_000, 4_000_000), EMBEDS: (2_000_000, 1_000_000), PRODUCTS: (5_000_000, 4_500_000)}
    row = {"rank": 0, "process": late.process, "straggler": True, "late_cause": Late.COMPUTE}
    row |= {"late_spread": Surplus.SEVERAL} | changed
    row["late_work"] = [
        {"kind": kind, "ns": ns, "others_ns": there} for kind, (ns, there) in changed.get("late_work", work).items()
    ]
    monkeypatch.setattr(_uneven_tables.peers, "others", lambda profile: iter([other]))
    ranks = SimpleNamespace(rows=[row, {"rank": 1, "process": 1, "straggler": False}])
    case = cast(Case, SimpleNamespace(profile=late, ranks=ranks))
    finding = Finding("NSX111", "straggler", verdict="found", title="", detail="", where={"near": "rank 0"}, fix="")
    return placed_by_cost(case, Fix.by_name("equal-work").into(finding))


@pytest.mark.parametrize(
    ("tables", "sends"),
    [
        (((50_000, 128), USER), BOTH_SIDES),
        ((HISTORY, USER), BOTH_SIDES),  # tables of one size, and ids that are sent to them
        (((50_000, 128), USER), BEFORE),  # all ranks have all ids, and tables of their own
    ],
)
def test_tables_are_placed_by_their_cost_at_the_line_that_looks_up_most(
    tables: tuple[tuple[int, int], ...], sends: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = rank(tmp_path / "late", 6_000, sends=sends)
    found = advice(monkeypatch, late, rank(tmp_path / "other", 900, tables, sends))
    assert found is not None and [way.name for way in found.remedies] == ["tables-by-cost"]
    assert found.where == {"near": "rank 0", "file": FILE, "line": LOOKS_UP}
    assert "looks up 6,100 rows a step, 86 % of all numbers, its peers 1,000 rows each" in found.detail


@pytest.mark.parametrize(
    ("ids", "tables", "sends"),
    [
        (900, (HISTORY, USER), BEFORE),  # replicas of one network, and data of which one rank has more
        (900, ((50_000, 128), USER), NONE),  # nothing is exchanged
        (5_500, ((50_000, 128), USER), BOTH_SIDES),  # nearly as much is looked up
    ],
)
def test_replicas_and_tables_of_like_cost_stay(
    ids: int,
    tables: tuple[tuple[int, int], ...],
    sends: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = rank(tmp_path / "late", 6_000, sends=sends)
    assert advice(monkeypatch, late, rank(tmp_path / "other", ids, tables, sends)) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"late_work": {PRODUCTS: (9_000_000, 4_000_000), EMBEDS: (2_000_000, 1_000_000)}},
        {"late_cause": Late.HOST},
        {"late_spread": Surplus.LONE},
        {"straggler": False},
    ],
    ids=str,
)
def test_a_rank_that_is_late_by_something_else_is_not_told_to_move_tables(
    changed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, other = rank(tmp_path / "late", 6_000), rank(tmp_path / "other", 900)
    assert advice(monkeypatch, late, other) is not None
    assert advice(monkeypatch, late, other, **changed) is None
