"""The one step that all times refer to: without the profiler where the verdict knows it, else as recorded."""

from __future__ import annotations

import re

from nsysx.analyses import gpu_ledger
from nsysx.events import levels
from nsysx.events.levels import Level
from nsysx.model import Finding, Summary
from nsysx.ranks import comparison

#: A time in a text.
_TIME = re.compile(r"\d (?:ns|us|ms|s)\b")


def step_ns(summary: Summary) -> int | None:
    """Return the mean steady step that the verdict speaks of (ns); None without steps.

    Ranks are compared as recorded. So the step in which one waits for another is as recorded, too, unless it was measured without
    the profiler.
    """
    steps = summary.steps
    if steps.whole or steps.source == "capture":
        return None
    if summary.verdict.step_ns is None or _late_as_recorded(summary):
        return recorded_ns(summary)
    return summary.verdict.step_ns


def recorded_ns(summary: Summary) -> int | None:
    """Return the mean of the same steps as recorded (ns), on the GPU where they have GPU work; None without steps."""
    steps = summary.steps
    if steps.whole or steps.source == "capture":
        return None
    return summary.verdict.recorded_ns or (steps.cpu_mean_ns if steps.gpu_mean_ns is None else steps.gpu_mean_ns)


def on_average(summary: Summary) -> bool:
    """Return whether the steady steps have so different lengths that their mean, the shown step, is the length of none."""
    course = summary.steps.trend.get("kind")
    return course in ("growing", "falling") or bool(levels.note(tuple(Level(**r) for r in summary.steps.levels)))


def bounds_ns(summary: Summary) -> tuple[int, int] | None:
    """Return the least and the most that the shown step can be (ns); None where the step without the profiler is not known.

    A modelled step is that of the replayed steps: its error is taken to be the same share of the shown step.
    """
    real, step = summary.unprofiled, step_ns(summary)
    if real is None:
        return None
    factor = step / real.step_ns if step and real.step_ns and not as_recorded(summary) else 1.0
    return round(real.low_ns * factor), round(real.high_ns * factor)


def real_step_ns(summary: Summary) -> int | None:
    """Return the mean steady step without the profiler (ns): the shown step unless that is as recorded; None where not known."""
    if summary.unprofiled is None:
        return None
    return summary.unprofiled.step_ns if as_recorded(summary) else step_ns(summary) or summary.unprofiled.step_ns


def saving_ns(summary: Summary, finding: Finding) -> int | None:
    """Return what a finding saves of the shown step (ns): never more than that step."""
    saving, step = finding.saving.likely_ns, step_ns(summary)
    return saving if saving is None or step is None else min(saving, step)


def most_ns(summary: Summary, finding: Finding) -> int | None:
    """Return the most that a finding can save of the shown step (ns): of a bound, the error of the replay included."""
    saving, step = saving_ns(summary, finding), step_ns(summary)
    if saving is None or not finding.saving.bound or finding.saving.most_ns is None:
        return saving
    most = finding.saving.most_ns
    return most if step is None else min(most, step)


def as_recorded(summary: Summary) -> bool:
    """Return whether the shown step is as recorded: because nothing else is known, or because ranks are compared."""
    return summary.unprofiled is None or _late_as_recorded(summary)


def _late_as_recorded(summary: Summary) -> bool:
    """Return whether a rank is waited for in a step that is known as recorded, or by a model of this rank's own, only."""
    real = summary.unprofiled
    return rank_waited_for(summary) is not None and (real is None or real.source != "in_process")


def in_recorded_time(summary: Summary) -> bool:
    """Return whether times of the capture differ from those of the shown step, and so must be marked as recorded."""
    return summary.verdict.recorded_ns is not None


def told(summary: Summary, text: str) -> str:
    """Return a text with times of the capture, marked as recorded where the shown step is another."""
    return f"{text}, as recorded" if in_recorded_time(summary) and _TIME.search(text) else text


#: A recorded step that differs by more than this share from the shown one gives figures that a reader sees differ.
_SEEN = 0.005


def title(summary: Summary, finding: Finding, text: str) -> str:
    """Return the title of a finding; times in it that are not of the shown step are marked as recorded."""
    step, recorded = step_ns(summary), recorded_ns(summary)
    differs = step is not None and recorded is not None and abs(recorded - step) > _SEEN * step
    return f"{text}, as recorded" if finding.title_as_recorded and differs and _TIME.search(text) else text


def ledger_row(summary: Summary) -> gpu_ledger.GpuRow | None:
    """Return the row of the busiest device of the shown process, None without GPU work."""
    rows = summary.of(gpu_ledger.ROWS)
    scope = summary.verdict.scope or summary.steps.scope
    shown = scope.processes if scope is not None else ()
    of_shown = [r for r in rows if r["process"] in shown] or list(rows)
    return max(of_shown, key=lambda r: r["busy_ns"], default=None)


def rank_waited_for(summary: Summary) -> comparison.RankRow | None:
    """Return the row of the rank that the verdict names as late, None where it names none."""
    late = summary.verdict.late_rank
    return None if late is None else next((r for r in summary.of(comparison.ROWS) if r["rank"] == late), None)
