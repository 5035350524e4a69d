"""All ranks of a job on one clock, over the steps that they have in common: what every table of ranks is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsysx.ranks import straggler
from nsysx.ranks.collect import Rank
from nsysx.ranks.collective_costs import CollectiveCosts, costs_of
from nsysx.ranks.match import Aligned, align, common
from nsysx.ranks.rank_checks import job_size


@dataclass(frozen=True)
class JobCompared:
    """All ranks of a job over the steps that they have in common, what their matched collectives cost, and who is behind."""

    aligned: Aligned
    costs: Sequence[CollectiveCosts]
    late: straggler.Straggler | None

    @property
    def ranks(self) -> Sequence[Rank]:
        """The ranks over their common steps."""
        return self.aligned.ranks


def compare(ranks: Sequence[Rank]) -> JobCompared | None:
    """Return the ranks of a job compared; None where there is one alone."""
    if len(ranks) < 2:
        return None
    aligned = align(ranks)
    aligned.ranks = common(aligned)
    costs = costs_of(aligned)
    return JobCompared(aligned, costs, straggler.find(aligned, costs))


def reason(ranks: Sequence[Rank]) -> str:
    """Return why a rank alone is not compared."""
    of_job = f" of {job_size(ranks)}" if job_size(ranks) > 1 else ""
    return f"the report holds one rank{of_job}; give the reports of all ranks"
