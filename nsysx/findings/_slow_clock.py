"""A GPU that ran at a small part of its clock: no kernel is then as slow as it seems, and no advice about its work holds."""

from __future__ import annotations

from typing import NamedTuple

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import gpu_metrics
from nsysx.catalogue import StepPart
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _costly_when
from nsysx.findings._case import Case, Saving
from nsysx.findings._finding_bounds import SCALES_WITH_CLOCK_SHARE, SLOW_CLOCK_SHARE


class SlowClock(NamedTuple):
    """The clock of the GPU in the steady steps, and the highest that it has (MHz)."""

    mhz: float
    most_mhz: float


def slow_clock(case: Case) -> SlowClock | None:
    """Return the clock that the GPU's own counters showed in the steps, None where it is not low, or was not sampled."""
    limits = case.profile.trace.limits.get((case.process, case.device or 0))
    rows = [row for row in case.typed_rows(gpu_metrics.ROWS) if row["by"] == "step"]
    mhz, most_hz = rows[0]["clock_mhz"] if rows else None, limits.clock_hz if limits is not None else None
    if not mhz or not most_hz or mhz >= SLOW_CLOCK_SHARE * most_hz / 1e6:
        return None
    return SlowClock(mhz, most_hz / 1e6)


def far_down(case: Case, settings: RecordedSettings) -> str:
    """Return that the GPU's clock was low while it worked, "" where it was not."""
    return seen(case)


def seen(case: Case) -> str:
    """Return the same without any settings."""
    slow = slow_clock(case)
    if slow is None:
        return ""
    return (
        f"the GPU ran at {slow.mhz:.0f} of {slow.most_mhz:.0f} MHz in these steps, as its counters say: heat, power or a lock of the "
        "clocks holds it, and kernels take as many times as long as their work needs"
    )


def held(case: Case, settings: RecordedSettings) -> str:
    """Return what holds the clock down a little, "" where that is told with what it costs."""
    return "" if slow_clock(case) is not None else _costly_when.held_clocks(case, settings)


def worded(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy with the clock."""
    slow = slow_clock(case)
    return (title if slow is None else f"The GPU ran at {slow.mhz:.0f} of {slow.most_mhz:.0f} MHz"), remedy


def faster(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what the highest clock saves of the GPU's work: all that waits for arithmetic shrinks with it, what moves memory does not."""
    slow = slow_clock(case)
    if slow is None:
        return None
    most = round(case.taken_by((StepPart.WORK,)) * (1 - slow.mhz / slow.most_mhz))
    why = f"work of the GPU at its full clock, {units.share(SCALES_WITH_CLOCK_SHARE, 1)} to all of it as much faster"
    return Saving.between(round(SCALES_WITH_CLOCK_SHARE * most), most, why)
