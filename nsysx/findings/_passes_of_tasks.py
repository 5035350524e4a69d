"""What is said about gradients that are reduced in each backward of a step whose passes use unlike parts: heads of tasks, data sets, views.

``no_sync()`` around all but the last would be wrong there: the last backward, which reduces, finds parts unused that earlier ones used,
and leaves their gradients as each rank has them.
"""

from __future__ import annotations

from nsysx.advice import Alternative
from nsysx.events.parts_of_passes import parts_of_passes
from nsysx.events.recorded_settings import settings_of
from nsysx.findings import _perturbed_weights
from nsysx.findings._case import Case, way
from nsysx.findings._costly_jobs import ddp

_TITLE = "Gradients are reduced in the backward of each task"


def in_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy: of passes of unlike parts, of a step that moves its weights between two backwards, or of micro-steps."""
    settings = settings_of(case.profile)
    wrapper = {} if settings is None else ddp(settings) or {}
    # Without the search a part that a pass does not use is an error.
    unlike = wrapper.get("find_unused_parameters") is True and bool(parts_of_passes(case.profile))
    if not unlike:
        return _perturbed_weights.in_words(case, title, remedy)
    return _TITLE, way("losses-in-one-backward")
