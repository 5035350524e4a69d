"""The rows of the table that compares all ranks of a job, as rules ask for them."""

from __future__ import annotations

from collections.abc import Sequence

from nsysx.events.profile import Profile
from nsysx.findings._case import Case
from nsysx.model import Row
from nsysx.replay import peers


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


def profiles_of_ranks(case: Case) -> tuple[Profile, ...]:
    """Return the profile that is shown, and those of the other ranks of its report; these are made anew by each call."""
    return (case.profile, *peers.others(case.profile))


def profile_of(case: Case, process: int) -> Profile | None:
    """Return the profile of a rank by its process, None where its report is another one."""
    return next((profile for profile in profiles_of_ranks(case) if profile.process == process), None)
