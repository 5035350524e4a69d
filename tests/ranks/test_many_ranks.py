"""A job of 64 ranks, each in a report of its own on a clock of its own: who is late is found, and what is kept of a rank stays small."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from nsysx import pipeline
from nsysx.judging import rank_waiting
from nsysx.model import Summary
from nsysx.render import grids
from tests.ranks.test_job_ledger import conserves
from tests.ranks.test_rank_table import reports

US = 1_000
RANKS, LATE = 64, 37
#: What is kept of one of these ranks (bytes), whatever the number of ranks.
_MOST_BYTES = 100_000


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    compute = [500 * US if r == LATE else 300 * US for r in range(RANKS)]
    clocks = [(r * 7919) % 200_000 for r in range(RANKS)]
    return reports(tmp_path_factory.mktemp("many"), compute, starts=[0] * RANKS, clocks=clocks)


@pytest.fixture(scope="module")
def summary(paths: list[Path]) -> Summary:
    return pipeline.summarize(paths, workers=1, every_table=False)


def test_the_late_one_of_many_ranks_is_named(summary: Summary) -> None:
    rows = summary.rows("ranks")
    assert len(rows) == RANKS
    assert [r["rank"] for r in rows if r["straggler"]] == [LATE]
    assert rank_waiting.sentence(rows) == f"The others wait for rank {LATE}"
    late = next(r for r in rows if r["straggler"])
    assert late["late_cause"] == "compute"
    assert late["price_ns"] == pytest.approx(200 * US, rel=0.01)
    assert late["even_ns"] == pytest.approx(200 * US * (RANKS - 1) / RANKS, rel=0.01)
    for row in rows:
        assert sum(w["ns"] for w in row["waits_for"]) == row["exposed_wait_ns"]
        parts = ("compute_ns", "comm_ns", "copy_ns", "memset_ns", "idle_ns")
        assert sum(row[p] for p in parts) == row["window_ns"]
        assert row["rank"] == LATE or row["waits_for"][0]["rank"] == LATE


def test_the_late_one_of_many_ranks_has_the_first_row_on_screen_and_paper(summary: Summary) -> None:
    table = summary.tables["ranks"]
    shown = grids.grid(table, top=8, redact=False, width=40)
    assert shown.rows is not None and shown.rows[0][0].text == str(LATE)
    assert [row["rank"] for row in table.rows or ()] == list(range(RANKS)), "files hold them in order"


def test_few_of_many_ranks_are_pictured_and_the_late_one_is_among_them(summary: Summary) -> None:
    labels = [bar.label for bar in summary.answer.picture.bars]
    assert f"rank {LATE}" in labels and len(labels) <= 8


def test_parts_of_many_ranks_are_those_of_all_and_of_the_ones_that_differ_most(summary: Summary) -> None:
    conserves(summary)
    named = {p["rank"] for p in summary.rows("job_ledger")}
    assert None in named and LATE in named and len(named) == 17 < RANKS
    assert named - {None} == {p["rank"] for p in summary.rows("communication_places")}
    waits = [p for p in summary.rows("job_ledger") if p["rank"] is None and p["part"] == "waits"]
    assert waits[0]["waits_for"] == LATE and waits[0]["cause"] == "compute"


def test_what_is_kept_of_a_rank_is_small(paths: list[Path]) -> None:
    kept = [len(pickle.dumps(pipeline._records(pipeline.ReadingOptions(whole=True), path))) for path in paths[:2]]
    assert max(kept) < _MOST_BYTES
