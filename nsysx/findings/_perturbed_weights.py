"""What is said about gradients that are reduced in each backward of a step where the first ones only perturb the weights (SAM)."""

from __future__ import annotations

from dataclasses import replace

from nsysx.advice import Alternative
from nsysx.events.perturbed_weights import perturbed
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case
from nsysx.findings._sharded_models import reduced_in_its_words

_TEXT = (
    "Reduce the gradients of the last backward alone: those before it only say where the weights are moved for the next one, and each rank "
    "may move them by its own (no_sync() around forward and backward)"
)
_PASTE = (
    "with model.no_sync():  # forward and backward\n"
    "    loss_fn(model(x), y).backward()\n"
    "sam.ascend(rho); optimizer.zero_grad()  # as now\n"
    "loss_fn(model(x), y).backward()  # reduced over the ranks"
)
_CONDITION = (
    "Each rank then perturbs by the gradients of its own samples (m-sharpness, as the method is usually meant), so results differ. "
    "Gradients must be reset in between, and the weights set back before the optimizer steps."
)


def in_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy: of a step that moves its weights between two backwards, or of micro-steps."""
    settings = settings_of(case.profile)
    if (settings is not None and settings.wrappers("fully_shard")) or not perturbed(case.profile):
        return reduced_in_its_words(case, title, remedy)
    return (
        "Gradients that only perturb the weights are reduced",
        replace(remedy, text=_TEXT, paste=_PASTE, condition=_CONDITION),
    )
