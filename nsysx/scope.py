"""What a figure was taken over. The one place that divides by a number of steps, and the one source of words for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Scope:
    """What a figure was taken over: which processes, devices and steps. The one place that divides by steps and says so.

    ``of``: the "steady" or "chosen" (``--steps A:B``) steps, the steady steps that were "replayed", the whole "capture", or the
    "part" of it that was read (``--time-range``). ``first`` and ``last`` are indices of steps, inclusive. ``steps`` is their
    number; 0 for a capture or a part of one, whose figures are not per step. ``devices`` are CUDA ordinals inside the
    process; empty if a figure has no device side.
    """

    of: Literal["steady", "chosen", "replayed", "capture", "part"]
    processes: tuple[int, ...]
    devices: tuple[int, ...] = ()
    first: int | None = None
    last: int | None = None
    steps: int = 0

    def per_step(self, total: float) -> float:
        """Return a sum over this scope per step; the sum itself if there are no steps.

        Raises ValueError for several processes: each has its own steps.
        """
        return total / self._divisor()

    def total(self, per_step: float) -> float:
        """Return the sum over this scope that a figure per step amounts to: the inverse of ``per_step``."""
        return per_step * self._divisor()

    def _divisor(self) -> int:
        if self.steps and len(self.processes) > 1:
            raise ValueError(f"{len(self.processes)} processes have no steps in common")
        return self.steps or 1

    @property
    def each(self) -> str:
        """The scope of a figure in a sentence: "per step", or "in the capture"."""
        return "per step" if self.steps else f"in the {self._whole}"

    @property
    def mean(self) -> str:
        """What a figure is the mean of: "mean of 17 steady steps", or "whole capture"."""
        if not self.steps:
            return "whole capture" if self.of == "capture" else f"the {self._whole}"
        return f"mean of {self.steps} {self.of} step{'s' if self.steps != 1 else ''}"

    @property
    def label(self) -> str:
        """The scope in words: "per step, mean of 17 steady steps", "in the whole capture, 2 processes together"."""
        words = (
            f"per step, {self.mean}" if self.steps else "in the whole capture" if self.of == "capture" else self.each
        )
        several = len(self.processes)
        return f"{words}, {several} processes together" if several > 1 else words

    @property
    def _whole(self) -> str:
        return {"capture": "capture", "chosen": "chosen steps"}.get(self.of, "part that was read")

    def replayed(self, *steps: int) -> Scope:
        """Return this scope over the given steps: those that the replay covers."""
        return replace(
            self, of="replayed", first=min(steps, default=None), last=max(steps, default=None), steps=len(steps)
        )

    def on(self, *devices: int) -> Scope:
        """Return this scope on these devices."""
        return replace(self, devices=devices)

    def to_json(self) -> dict[str, Any]:
        """Return the scope as JSON values: its fields, and ``label``."""
        return {**asdict(self), "label": self.label}
