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


def rank_shown(case: Case) -> int | None:
    """Return the number of the rank that the tables are of: in a report of several the one with their process and device, None if unknown.

    Ranks on several machines can share these numbers: then it is unknown.
    """
    if case.shown_rank is not None:
        return case.shown_rank
    alike = [row["rank"] for row in rank_rows(case) if (row["process"], row["device"]) == (case.process, case.device)]
    return alike[0] if len(alike) == 1 else None
