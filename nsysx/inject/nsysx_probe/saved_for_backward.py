"""What the program has saved for a backward and is read behind the window: masks of attention, and targets of losses.

Masks that modules are given where there is no backward are read likewise.
"""

from __future__ import annotations

from typing import Any

from .attention_masks import AttentionMasks
from .given_masks import GivenMasks
from .loss_targets import LossTargets
from .output import Output


class SavedForBackward:
    """The parts that look at it."""

    def __init__(self, torch: Any, out: Output) -> None:
        self.masks = AttentionMasks(torch, out)
        self.targets = LossTargets(torch, self.masks.saved)
        self.given = GivenMasks(torch)

    def begin(self, *, last: bool) -> None:
        """A recorded step begins, the window's ``last`` one in which all is noted."""
        self.masks.begin(last=last)
        self.targets.begin(last=last)
        self.given.begin(last=last)

    def backward(self, roots: Any) -> None:
        """A backward of ``roots`` begins."""
        self.masks.backward(roots)
        self.targets.backward(roots)

    def window_closed(self) -> None:
        """Read what is held."""
        self.masks.window_closed()
        self.targets.window_closed()
        self.given.window_closed()

    def record(self) -> dict[str, Any]:
        """Return what was read."""
        return {"masks": self.masks.rows, "targets": self.targets.rows, "given_masks": self.given.rows}
