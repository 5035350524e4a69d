"""The tables that compare all ranks of a job, in the order in which they are shown."""

from __future__ import annotations

from nsysx.ranks import communication_places, comparison, job_ledger

ROOMS = (comparison, job_ledger, communication_places)
