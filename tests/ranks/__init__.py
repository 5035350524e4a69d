"""Ranks of jobs whose truth is set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nsysx.model import Row
from nsysx.pipeline import ReadingOptions, gather_job


def rank_rows(*reports: Path, **options: Any) -> Sequence[Row]:
    """Return the rows of the table "ranks" alone: rules and answers take half the time of a Summary."""
    return gather_job(reports, ReadingOptions(**options)).rank_table.rows or ()
