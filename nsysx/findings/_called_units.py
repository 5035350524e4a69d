"""NSX127: a unit of a sharded model that one forward calls several times, so that its parameters are gathered for each call."""

from __future__ import annotations

from nsysx.events.called_units import called_unit
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_jobs import on_all_ranks
from nsysx.findings._once import Takes
from nsysx.model import Row
from nsysx.replay.edits import RemoveOps

CALLED_AGAIN = "A unit of a sharded model is called several times in a forward, and gathered for each call"


def seen(case: Case, _: RecordedSettings) -> str:
    """Return which unit is called how often, "" for none."""
    unit = called_unit(case.profile)
    if unit is None:
        return ""
    return (
        f"{unit.path} is a unit of its own and called {unit.times} times in each forward: each call gathers the same parameters and frees "
        f"them again, and backward gathers them and reduces their gradients for each"
    )


def worth(case: Case, _: RecordedSettings | None) -> Saving | None:
    """Return what a job saves whose unit is gathered and reduced once: of what is known to be this unit's."""
    unit = called_unit(case.profile)
    if unit is None:
        return None
    return on_all_ranks(case, "unit-of-root") or case.worth(RemoveOps(unit.ops), bound=True)


def taken(case: Case) -> Takes:
    """Return the GPU work that goes."""
    unit = called_unit(case.profile)
    return Takes(frozenset() if unit is None else unit.ops)


def place(case: Case) -> Row:
    """Return the line that calls the unit."""
    unit = called_unit(case.profile)
    return {} if unit is None else unit.where
