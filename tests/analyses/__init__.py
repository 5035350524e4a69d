"""Analyses against reports whose truth was worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsysx.analyses.helpers.tables import Tables
from nsysx.model import Summary, Table
from nsysx.pipeline import ReadingOptions, gather, summarize
from tests.builder import Report
from tests.typed import row_types, untyped, untyped_rows


def summary(report: Report, folder: Path, **options: Any) -> Summary:
    """Return the Summary of a built report."""
    whole = summarize([report.write(folder / "r.sqlite")], **options)
    assert not untyped(whole)
    return whole


def made(report: Report, folder: Path, key: str, **options: Any) -> Table:
    """Return one table of a built report; the others and what is made of them take two thirds of the time of a Summary."""
    profile = gather(report.write(folder / "r.sqlite"), ReadingOptions(**options))
    table = Tables(profile, lambda _: None)[key]
    assert not untyped_rows(row_types()[key], key, table.rows or ())
    return table


def rows(report: Report, folder: Path, key: str, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of one table of a built report; it must have been recorded."""
    table = made(report, folder, key, **options)
    assert table.rows is not None, table.reason
    return [dict(row) for row in table.rows]


def reason(report: Report, folder: Path, key: str) -> str:
    """Return why a table is not there."""
    table = made(report, folder, key)
    assert table.rows is None
    return table.reason
