"""Workers of a loader that start anew with each short epoch: when the waits for batches are theirs, and the advice to keep them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nsysx.advice import Alternative
from nsysx.analyses.data_loader import BatchRow
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._costly_when import restarted_loader
from nsysx.findings._finding_bounds import RESTARTS_RHYTHM_SHARE, RESTARTS_WAIT_SHARE
from nsysx.findings._loader_pastes import with_options
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


def recurring(case: Case, every: int) -> Row | None:
    """Return that loader where its epochs begin as often as a step is long, every so many steps; None else."""
    restarted = started_anew(case, fewest=2)
    if restarted is None or restarted["every"] < 2:
        return None
    return restarted if abs(restarted["every"] - every) <= RESTARTS_RHYTHM_SHARE * every else None


def kept(case: Case, restarted: Row) -> Fix:
    """Return the advice to keep the workers of a loader, and the loader itself where the program makes it anew."""
    return Fix.by_name(way_to_keep(case, restarted))


def way_to_keep(case: Case, restarted: Row) -> Alternative:
    """Return the same as one remedy."""
    often = f"they are started anew every {restarted['every']:.0f} steps"
    if restarted.get("anew"):
        text = (
            "Make the loader once, before the loop over epochs, and keep its "
            f"{restarted['workers']} workers (persistent_workers=True): {often}, with a new loader for each epoch"
        )
        paste = (
            f"loader = DataLoader(data, sampler=sampler, num_workers={restarted['workers']}, persistent_workers=True)  # once\n"
            "for epoch in range(epochs):\n    sampler.set_epoch(epoch)\n    for batch in loader: ..."
        )
        return way("loader-once", text, paste)
    text = f"Keep the {restarted['workers']} workers of the loader from one epoch to the next (persistent_workers=True): {often}"
    return way(
        "persistent-workers",
        text,
        with_options(case, restarted["made"], f"num_workers={restarted['workers']}", persistent_workers="True"),
    )


def worded(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy of this setting in words of the capture."""
    restarted = started_anew(case, fewest=3)
    return title, remedy if restarted is None else way_to_keep(case, restarted)
