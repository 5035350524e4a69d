"""An optimizer whose state is shared out over the ranks: each updates a part of the parameters, and sends it to all others.

torch's ZeroRedundancyOptimizer broadcasts behind each step, a message for each parameter or for each rank's bucket of them. The next
forward waits for all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.records import count_or_zero, whole_number


class SharedOptimizer(NamedTuple):
    """``ranks`` share the ``elements`` of the parameters, of which this rank updates ``own_elements`` by an optimizer of class ``update``.

    ``of_torch``: that is torch's own. ``state_bytes``: the state of all parameters. ``bucket_view``: each rank sends its part in one
    message.
    """

    ranks: int
    update: str
    of_torch: bool
    elements: int
    own_elements: int
    state_bytes: int
    bucket_view: bool

    @property
    def times(self) -> float:
        """How many times as many numbers this rank updates where it updates all."""
        return self.elements / self.own_elements


def shared_optimizer(profile: Profile) -> SharedOptimizer | None:
    """Return the optimizer of the shown process, None without one, or where it sends beside backward already."""
    settings = settings_of(profile)
    return None if settings is None else of_settings(settings)


def of_settings(settings: RecordedSettings) -> SharedOptimizer | None:
    """Return the optimizer that settings tell of; None beside others, whose work is in the same phase."""
    rows = settings.rows("optimizers") or ()
    shared = rows[0].get("shared") if len(rows) == 1 else None
    if not isinstance(shared, Mapping) or shared.get("overlaps") or not settings.wrappers("DDP"):
        return None
    ranks, elements, in_part = (count_or_zero(n) for n in (shared["ranks"], rows[0]["elements"], shared["elements"]))
    state_bytes = whole_number(shared.get("state_bytes"))
    if ranks < 2 or not 0 < in_part < elements or state_bytes is None:
        return None
    update, in_one = str(shared.get("class")), bool(shared.get("bucket_view"))
    of_torch = shared.get("module") == "torch"
    return SharedOptimizer(ranks, update, of_torch, elements, in_part, round(state_bytes * elements / in_part), in_one)
