"""The parts that ``borders`` drives between steps and that ``status`` describes."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import capture_range
from .capture_window import CaptureWindow
from .clock import StepClock
from .later_kind import LaterKind
from .long_steps import LongSteps
from .marking import Marking
from .odometer import Odometer
from .operator_ranges import OperatorRanges
from .output import Output
from .pauses import Pauses
from .probe_windows import TwoWindows
from .timing import Timing
from .trial import TrialRecorder
from .xray import Xray


class ProbeParts(NamedTuple):
    """``timing`` is None unless the program is only timed."""

    window: CaptureWindow
    marking: Marking
    clock: StepClock
    pauses: Pauses
    timing: Timing | None
    operators: OperatorRanges
    odometer: Odometer
    xray: Xray
    long_steps: LongSteps
    later: LaterKind


def make(torch: Any, out: Output) -> ProbeParts:
    """Make the parts as the environment asks for them."""
    clock, timing = StepClock(torch), None
    window = TwoWindows(out, clock) if capture_range.ours() else CaptureWindow(out, clock)
    timed = out.environ.get("NSYSX_TIMING") == "1"
    if timed:
        first, last = window.first, window.last
        timing = Timing(torch, None if first is None or last is None else (first, last + 1))
        if out.environ.get("NSYSX_TRIAL"):
            timing = TrialRecorder(torch, out.environ)
    wanted = "none" if timed else out.choice("NSYSX_XRAY", ("all", "lines", "none"))
    marking = Marking("off" if wanted == "none" else out.choice("NSYSX_MARKS", ("few", "all", "off")))
    out.recording = (window.cold or not window.wanted) and not timed and not capture_range.unrecorded()
    names = not timed and out.environ.get("NSYSX_BACKWARD") == "ops"
    operators = OperatorRanges(torch, out, "names" if names else "shapes" if wanted == "all" else "off")
    xray = Xray(torch, out, operators, clock, wanted)
    long_steps = LongSteps(clock, xray.sources)
    return ProbeParts(
        window, marking, clock, Pauses(out), timing, operators, Odometer(out), xray, long_steps, LaterKind()
    )
