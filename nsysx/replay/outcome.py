"""What the replay of an edit gives: the step after it, and the mean steady step that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: What limits a step whose GPU hardly idles; and one whose host is at work nearly always, or as long as the GPU is.
GPU_WORK = "GPU work"
HOST, IN_TURN = "host code and launches", "host code and launches in turn with GPU work"
LIMITS_OF_HOST = (HOST, IN_TURN)


@dataclass(frozen=True)
class Outcome:
    """The step after an edit, in unprofiled time. ``saving_ns``: how much shorter it is, ``bar_ns``: the error bar of that.

    ``next_limit`` says in words what limits the step then; ``moves_to`` is the call site whose wait grew most, None without one.
    ``host_ns``: how long the host is at work in that step, without waits.
    """

    step_ns: int
    saving_ns: int
    next_limit: str
    moves_to: str | None
    bar_ns: int = 0
    host_ns: int = 0

    @property
    def limited_by_host(self) -> bool:
        """Whether the host's own work keeps the step from being shorter."""
        return self.next_limit in LIMITS_OF_HOST

    def scaled(self, factor: float) -> Outcome:
        """Return the same outcome for a step that is ``factor`` times as long."""
        before, saving = round((self.step_ns + self.saving_ns) * factor), round(self.saving_ns * factor)
        bar, host = round(self.bar_ns * factor), round(self.host_ns * factor)
        return Outcome(before - saving, saving, self.next_limit, self.moves_to, bar, host)


@dataclass(frozen=True)
class Moved:
    """One removed wait: its site, the step without it and all earlier ones, the saving, and the longest remaining wait."""

    site: str
    step_ns: int
    saving_ns: int
    next_site: str | None
    next_wait_ns: int


class SteadyStep(NamedTuple):
    """The mean steady step (ns): ``mean_ns`` without the profiler, ``now_ns`` as the replay gives it, which outcomes are compared with.

    ``bounds_ns`` and ``modelled_ns`` are of the replayed steps, and ``source`` says how these are known. ``recorded_ns`` is the mean of
    the ``steps`` under the profiler. ``times``: how many times as long it is as a replayed step.
    """

    mean_ns: int
    now_ns: int
    bounds_ns: tuple[int, int]
    modelled_ns: int
    source: str
    recorded_ns: int
    steps: int
    times: float

    def bounds_of(self, ns: int) -> tuple[float, float]:
        """Return the bounds of a step without the profiler that is ``ns`` long: the same share of it."""
        low, high = self.bounds_ns
        return low * ns / max(self.modelled_ns, 1), high * ns / max(self.modelled_ns, 1)
