"""How well the step without the profiler is known, and from where."""

from __future__ import annotations

from nsysx import ids, units
from nsysx.events import bare
from nsysx.events.profile import Profile
from nsysx.judging.judging_bounds import WIDE_BOUNDS_SHARE
from nsysx.model import Capture, Check
from nsysx.replay.engine import Withheld, unprofiled_of

#: How the step without a profiler is known, in words.
_SOURCES = {
    "in_process": "measured in the same process, before the capture window",
    "second_run": "measured in a second run, without the profiler",
    "modelled": "modeled from the cost of tracing on this machine (nsysx calibrate)",
    "assumed": "assumed from the cost of tracing on another machine",
}


def surer(capture: Capture) -> str:
    """Return the command that measures the step of this program without the profiler, where a report has only an estimate.

    A plain run times steps between its two windows; with several processes without a process group it records everything, but each
    times the steps before a window that is given. A run that had two windows and no time between them was too short, and would be again.
    """
    if any(isinstance(p.get("window_pauses_ns"), list) for p in capture.probe):
        return "nsysx run --calibrate"
    several = len({gpu.process for gpu in capture.gpus}) > 1 or any(p.get("rank") is not None for p in capture.probe)
    return "nsysx run --steps 40:64" if several else "nsysx run"


def unprofiled(profile: Profile) -> list[Check]:
    """Return how long a step takes without the profiler, with its bounds, and what would tell it more closely."""
    estimate = unprofiled_of(profile)
    better = (
        f"{surer(profile.trace.capture)} -- CMD measures it, nsysx calibrate narrows it for every run on the machine"
    )
    if isinstance(estimate, Withheld):
        return [Check("unprofiled", "missing", f"the step without a profiler is not known: {estimate.reason}", better)]
    which = "a step" if estimate.steps == profile.scope.steps else f"one of the {estimate.steps} replayed steps"
    source = _SOURCES[estimate.source]
    if estimate.source == "in_process" and _between_windows(profile):
        which, better = "a step on average", ""  # it spreads because the program's own steps do
        source = f"measured in the same process, in the {units.several(estimate.measured_steps, 'step')} before the last window"
    detail = (
        f"{which} takes {units.duration(estimate.step_ns)} without a profiler ({units.duration(estimate.low_ns)} to "
        f"{units.duration(estimate.high_ns)}), {units.duration(estimate.recorded_ns)} as recorded: {source}"
    )
    if estimate.rest_ns is not None:
        many = units.several(estimate.rest_steps, "step")
        detail += f"; the {many} that followed to the program's end took {units.duration(estimate.rest_ns)}, with what ran between them"
    wide = estimate.high_ns - estimate.low_ns > WIDE_BOUNDS_SHARE * estimate.step_ns
    return [Check("unprofiled", "warn" if wide else "ok", detail, better if wide else "")]


def _between_windows(profile: Profile) -> bool:
    """Return whether the probe of the shown process timed bare steps behind its first window."""
    return any(map(bare.lengths, ids.records_of(profile.trace.capture.probe, profile.steps.process)))
