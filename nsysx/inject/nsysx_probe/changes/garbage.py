"""Python's garbage collector: what lives after the first steps is frozen, and nothing is collected within steps."""

from __future__ import annotations

import gc
from typing import Any

from . import Change, Watch

_PASTE = "gc.collect(); gc.freeze(); gc.disable()  # after two steps; gc.collect() at each epoch's end"


def _arm(_torch: Any, watch: Watch) -> None:
    watch.why_not = "the program made less than three steps"

    def turn(on: bool) -> None:
        if on:
            gc.collect()
            gc.freeze()
            gc.disable()
        else:
            gc.unfreeze()
            gc.enable()

    def freeze() -> None:
        if not gc.isenabled():
            watch.why_not = "the program turned the collector off itself"
            return
        turn(True)
        watch.took(here=False)

    watch.at_step.setdefault(2, []).append(freeze)
    watch.can_turn(turn)


CHANGES = (
    Change(
        "gc-freeze", "no garbage collections within steps", _PASTE, _arm,
        alters="memory", beware="objects in reference cycles stay until gc.collect()",
        advice="gc.freeze() after warm-up and gc.disable(), then gc.collect() between epochs; or gc.set_threshold with larger numbers",
        example="gc.collect(); gc.freeze(); gc.disable()  # after warm-up\ngc.collect()  # between epochs",
        condition="Garbage in reference cycles stays in memory until the next collection.",
    ),
)  # fmt: skip
