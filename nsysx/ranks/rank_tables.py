"""The tables that compare all ranks of a job, in the order in which they are shown."""

from __future__ import annotations

from nsysx.ranks import communication_places, job_ledger, rank_table, rank_waits

ROOMS = (rank_table, job_ledger, communication_places, rank_waits)
