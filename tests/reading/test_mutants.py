"""Damage that ``scripts/fuzz`` found not to be told: each kept as the smallest report that shows it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from nsysx import pipeline
from nsysx.reading.load import load
from tests import reports

MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    report = reports.training(3)
    report.processes[0].thread(100, "python").add_range("aten::mm, seq = 7", 130_000, 140_000)
    return report.write(tmp_path_factory.mktemp("good") / "good.sqlite")


def master(good: Path, folder: Path, change: str) -> Path:
    """Return a report whose list of tables was changed, as a flipped bit does."""
    return reports.edited(good, folder, "PRAGMA writable_schema = ON", f"UPDATE sqlite_master SET {change}")


def test_a_backtrace_of_no_thread_is_nobodys(good: Path, tmp_path: Path) -> None:
    """Text where the thread of a backtrace should be."""
    where = "jsonTextId IS NOT NULL OR jsonText IS NOT NULL"
    trace = load(
        reports.edited(good, tmp_path, f"UPDATE NVTX_EVENTS SET globalTid = CAST(x'a3c2' AS TEXT) WHERE {where}")
    )
    assert trace.python_lines is None or not trace.python_lines.height
    assert sum(n.rows for n in trace.left_out if n.table == "NVTX_EVENTS")


def test_operators_without_a_call(good: Path, tmp_path: Path) -> None:
    """Operators are ranges: they are there where no API call is."""
    path = reports.edited(good, tmp_path, "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    summary = pipeline.summarize([path])
    assert summary.totals["api_calls"] in (None, 0)
    assert summary.totals["kernels"]


@pytest.mark.parametrize(
    "change",
    ["type = 'Table'", "name = 'CUPTi_ACTIVITY_KIND_MEMCPY'", "name = CAST(name AS BLOB)"],
    ids=["type", "case", "blob"],
)
def test_a_table_that_sqlite_finds_is_found(good: Path, tmp_path: Path, change: str) -> None:
    """SQLite goes by how a table was created, and by its name whatever the case: rows were dropped without a word."""
    path = master(good, tmp_path, f"{change} WHERE name = '{MEMCPY}'")
    with contextlib.closing(sqlite3.connect(path)) as base:
        (rows,) = base.execute(f"SELECT count(*) FROM {MEMCPY}").fetchone()
    assert rows
    assert pipeline.summarize([path]).totals["memcpys"] == rows
