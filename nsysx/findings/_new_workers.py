"""Workers of a loader that start anew with each short epoch: when the waits for batches are theirs, and the advice to keep them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nsysx.analyses.data_loader import BatchRow
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._costly_when import restarted_loader
from nsysx.findings._finding_bounds import RESTARTS_WAIT_SHARE
from nsysx.model import Row


def started_anew(case: Case, fewest: int) -> Row | None:
    """Return the loader whose workers start anew, as `restarted_loader` does; None where there is none or no settings were read."""
    settings = settings_of(case.profile)
    return None if settings is None else restarted_loader(settings, fewest)


def waited_for(case: Case, rows: Sequence[BatchRow]) -> Row | None:
    """Return that loader where nearly all that these steps wait for batches is in the few in which an epoch begins, None else.

    An epoch's end shows in two steps: the one that waits for the old workers to stop, and the one that waits for the first new batch.
    A loader that is merely too slow keeps every step waiting.
    """
    restarted = started_anew(case, fewest=3)
    if restarted is None:
        return None
    waits = sorted((row["wait_ns"] for row in rows), reverse=True)
    begins = 2 * math.ceil(len(rows) / restarted["every"])
    return restarted if sum(waits[:begins]) >= RESTARTS_WAIT_SHARE * sum(waits) else None


def kept(restarted: Row) -> Fix:
    """Return the advice to keep the workers of a loader."""
    text = (
        f"Keep the {restarted['workers']} workers of the loader from one epoch to the next (persistent_workers=True): they are started "
        f"anew every {restarted['every']:.0f} steps"
    )
    paste = f"loader = DataLoader(data, num_workers={restarted['workers']}, persistent_workers=True)"
    return Fix.by_name(way("persistent-workers", text, paste))
