"""The rows of the table that compares all ranks of a job, as rules ask for them."""

from __future__ import annotations

from collections.abc import Sequence

from nsysx.findings._case import Case
from nsysx.model import Row


def rank_rows(case: Case) -> Sequence[Row]:
    """Return a row per rank, in order; none where one rank alone was recorded, or ranks cannot be compared."""
    return (case.ranks.rows if case.ranks is not None else None) or ()


def straggler_of(case: Case) -> Row | None:
    """Return the row of the rank for which the others wait in step after step, None without one."""
    return next((row for row in rank_rows(case) if row["straggler"]), None)
