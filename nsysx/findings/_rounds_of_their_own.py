"""Calls of loops that findings tell as a whole: what waits, copies or masks in them has no advice of its own."""

from __future__ import annotations

from collections.abc import Collection

from nsysx.events.history_rounds import reads_of_history
from nsysx.events.profile import Profile
from nsysx.events.sampled_points import calls_of_sampling
from nsysx.findings._tables_in_line import reads_in_line


def calls_of_rounds(profile: Profile) -> frozenset[int]:
    """Return the calls of all such loops: an optimizer's rounds over old vectors, those that sample farthest points, and what tables of
    all ranks read of each other's sizes.
    """
    return reads_of_history(profile) | calls_of_sampling(profile) | reads_in_line(profile)


def are_of_rounds(profile: Profile, calls: Collection[int]) -> bool:
    """Return whether most of these calls are of such a loop."""
    rounds = calls_of_rounds(profile)
    return bool(calls) and 2 * sum(call in rounds for call in calls) >= len(calls)
