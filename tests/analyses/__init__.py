"""Analyses against reports whose truth was worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsysx.model import Summary
from nsysx.pipeline import summarize
from tests.builder import Report
from tests.typed import untyped


def summary(report: Report, folder: Path, **options: Any) -> Summary:
    """Return the Summary of a built report."""
    made = summarize([report.write(folder / "r.sqlite")], **options)
    assert not untyped(made)
    return made


def rows(report: Report, folder: Path, key: str, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of one table of a built report; it must have been recorded."""
    table = summary(report, folder, **options).tables[key]
    assert table.rows is not None, table.reason
    return [dict(row) for row in table.rows]


def reason(report: Report, folder: Path, key: str) -> str:
    """Return why a table is not there."""
    table = summary(report, folder).tables[key]
    assert table.rows is None
    return table.reason
