"""Gathers of a sharded model that the host launches when it comes to a unit, late, where they are most of what ranks wait for."""

from __future__ import annotations

from dataclasses import replace

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix
from nsysx.findings._costly_collectives import gathers_late_in_forward, prefetched_forward
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.model import Finding

_PREFETCHED = Fix.by_name("forward-prefetch")


def prefetched(case: Case, finding: Finding) -> Finding | None:
    """Return a finding about communication that is to begin earlier with the way to launch these gathers before the unit in front of
    theirs: what waits there, for the end of that unit, may stay. None where they are not late, or not most of it.
    """
    settings = settings_of(case.profile)
    late = "" if settings is None else gathers_late_in_forward(case, settings)
    worth = prefetched_forward(case, settings) if late else None
    if settings is None or worth is None or (worth.likely_ns or 0) < MOST_SHARE * case.taken_by((StepPart.COMM,)):
        return None
    where = settings.place("FSDP") or finding.where
    detail = f"{finding.detail} {units.capitalized(late)}."
    return _PREFETCHED.into(replace(finding, detail=detail, where=where))
