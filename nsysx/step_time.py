"""The step: how long it is as recorded and without the profiler, and which of the two every time refers to. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nsysx import units
from nsysx.saving import Saving

#: A time in a text.
_TIME = re.compile(r"\d (?:ns|us|ms|s)\b")
#: A recorded step that differs by more than this share from the shown one gives figures that a reader sees differ.
_SEEN = 0.005
#: A step that was not measured and may be further than this share from what it likely is, is told with its bounds.
_WIDE = 0.2


@dataclass(frozen=True, slots=True)
class Unprofiled:
    """A steady step as it runs without a profiler, of one process on its busiest device. All ns are per step.

    ``source``: ``in_process`` (measured), ``second_run`` (by ``--calibrate``), ``modelled`` (without the measured costs of tracing) or
    ``assumed`` (costs from a table); ``measured_steps`` is 0 for the last two. ``low_ns`` and ``high_ns`` bound it. The rest comes from
    replaying ``steps`` steps: ``idle_causes`` sum to ``gpu_idle_ns``, ``exposed_comm_ns`` has nothing beside it, ``overhead`` is what
    tracing added to the CPU. ``loop_ns``: the measured mean per step with what runs between steps, None if next to nothing does.
    ``rest_ns``: the mean over the ``rest_steps`` steps that followed all of this to the program's end, with what ran between them; None
    if they were not counted.
    """

    step_ns: int
    low_ns: int
    high_ns: int
    source: Literal["in_process", "second_run", "modelled", "assumed"]
    measured_steps: int
    recorded_ns: int
    process: int
    device: int
    steps: int
    gpu_busy: float
    gpu_busy_ns: int
    gpu_idle_ns: int
    idle_causes: Mapping[str, int]
    overhead: Mapping[str, int]
    exposed_comm_ns: int = 0
    loop_ns: int | None = None
    rest_ns: int | None = None
    rest_steps: int = 0

    @property
    def busy_bounds(self) -> tuple[float, float]:
        """The least and the most share of the step in which the GPU is busy: its work is the same in a longer and a shorter step."""
        return self.gpu_busy_ns / max(self.high_ns, 1), min(self.gpu_busy_ns / max(self.low_ns, 1), 1.0)

    @property
    def idle_share(self) -> float:
        """The share of the likely step in which the GPU idles."""
        return 1 - self.gpu_busy_ns / max(self.step_ns, 1)

    def known_within(self, share: float) -> bool:
        """Return whether no bound is further from the middle of the step than this share of it."""
        return self.high_ns - self.low_ns <= 2 * share * self.step_ns


@dataclass(frozen=True, slots=True)
class Step:
    """The mean steady step that every time is of (``shown_ns``), and what else is known of its length; None without steps.

    ``recorded_ns`` is the mean of the same steps under the profiler, ``real_ns`` without it, None where that is not known.
    ``bounds_ns``: the least and the most that the step without the profiler can be. ``source``: how the shown step is known, "recorded" as
    well where ranks are compared, because the waits of one for another are known as recorded only (``why``). ``scale``: how many times as
    long the shown step is as the one whose replay gave it. ``marked``: a time of the capture differs from that of the shown step, so that
    an output says of it that it is as recorded. ``estimate`` is what the replay gave, None where it could not.
    """

    shown_ns: int | None
    recorded_ns: int | None
    real_ns: int | None
    bounds_ns: tuple[int, int] | None
    source: Literal["measured", "modelled", "recorded"]
    scale: float
    why: str
    marked: bool
    estimate: Unprofiled | None = None

    @staticmethod
    def completed(
        real: Unprofiled | None, verdict_ns: int | None, recorded_ns: int | None, *, marked: bool, waits_for_rank: bool
    ) -> Step:
        """Return the step that the replay gave (``real``) and the verdict speaks of, completed by whether one rank waits for another.

        ``recorded_ns`` is None without steps. A modelled step is that of the replayed steps: its error is taken to be the same share of
        the shown step.
        """
        why = ""
        if real is None:
            why = "the step without the profiler is not known"
        elif waits_for_rank and real.source != "in_process":
            why = "ranks are compared as recorded"
        shown = recorded_ns
        if recorded_ns is not None and verdict_ns is not None and not (waits_for_rank and why):
            shown = verdict_ns
        if real is None:
            return Step(
                shown, recorded_ns, real_ns=None, bounds_ns=None, source="recorded", scale=1.0, why=why, marked=marked
            )
        scale = shown / real.step_ns if shown and real.step_ns and not why else 1.0
        bounds = round(real.low_ns * scale), round(real.high_ns * scale)
        source: Literal["measured", "modelled", "recorded"] = (
            "recorded" if why else "measured" if real.measured_steps else "modelled"
        )
        return Step(
            shown,
            recorded_ns,
            real_ns=real.step_ns if why else shown or real.step_ns,
            bounds_ns=bounds,
            source=source,
            scale=scale,
            why=why,
            marked=marked,
            estimate=real,
        )

    @property
    def as_recorded(self) -> bool:
        """Whether the shown step is as recorded: because nothing else is known, or because ranks are compared."""
        return self.source == "recorded"

    @property
    def _wide(self) -> bool:
        """Whether the step was not measured, and can be far shorter or longer than what was recorded, though its likely length is that."""
        return self.source == "modelled" and self.estimate is not None and not self.estimate.known_within(_WIDE)

    @property
    def told_real(self) -> bool:
        """Whether the shown times are without the profiler, or it hardly changes them."""
        return self.estimate is not None and not (self.as_recorded and self.marked)

    @property
    def known_by(self) -> str:
        """How the shown step is known: as an `Unprofiled` names it, or "recorded"."""
        return "recorded" if self.estimate is None or self.as_recorded else self.estimate.source

    def words(self, *, average: bool, estimated: bool) -> str:
        """Return its length in words, with its bounds where it is not measured (``estimated``), and the recorded one if that differs."""
        now, recorded = units.duration(self.shown_ns), units.duration(self.recorded_ns)
        a_step = "a step on average" if average else "a step"
        if self.as_recorded:
            return f"{now} {a_step}{', as recorded' if self.estimate is None or self.marked else ''}"
        about, notes = self.bounds_ns is not None and ((self.marked and estimated) or self._wide), []
        if about and self.bounds_ns is not None:
            notes.append(" to ".join(map(units.duration, self.bounds_ns)))
        notes += [f"{recorded} as recorded"] if recorded != now else []
        within = f" ({'; '.join(notes)})" if notes else ""
        return f"{'about ' if about else ''}{now} {a_step}{within}"

    def saves_ns(self, saving: Saving) -> int | None:
        """Return what a change saves of the shown step (ns): never more than that step."""
        likely = saving.likely_ns
        return likely if likely is None or self.shown_ns is None else min(likely, self.shown_ns)

    def saves_at_most_ns(self, saving: Saving) -> int | None:
        """Return the most that a change can save of the shown step (ns): of a bound, the error of the replay included."""
        likely, most = self.saves_ns(saving), saving.most_ns
        if likely is None or not saving.bound or most is None:
            return likely
        return most if self.shown_ns is None else min(most, self.shown_ns)

    def of_capture(self, text: str, comma: str = ",") -> str:
        """Return a text about the steps of the capture, marked as recorded where the shown step is another."""
        return text if self.recorded_ns == self.shown_ns else f"{text}{comma} as recorded"

    def marks(self, text: str) -> str:
        """Return a text with times of the capture, marked as recorded where the shown step is another."""
        return f"{text}, as recorded" if self.marked and _TIME.search(text) else text

    def marks_title(self, text: str, *, as_recorded: bool) -> str:
        """Return the title of a finding; times in it that are not of the shown step are marked as recorded."""
        shown, recorded = self.shown_ns, self.recorded_ns
        differs = shown is not None and recorded is not None and abs(recorded - shown) > _SEEN * shown
        return f"{text}, as recorded" if as_recorded and differs and _TIME.search(text) else text
