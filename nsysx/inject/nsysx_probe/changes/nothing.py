"""Nothing: shows how much runs of one program differ."""

from __future__ import annotations

from typing import Any

from . import Change, Watch


def _arm(_torch: Any, watch: Watch) -> None:
    watch.took(here=False)
    watch.can_turn()


CHANGES = (Change("nothing", "no change at all", "", _arm),)
