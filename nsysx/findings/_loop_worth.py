"""What a change between steps is worth: of the loop, because no step holds it."""

from __future__ import annotations

from nsysx import units
from nsysx.model import Row
from nsysx.step_time import Unprofiled

#: What the loop's time per step is of.
WITH_BETWEEN = "a step with what runs between steps"


def of_loop(real: Unprofiled, saved_ns: int) -> Row | None:
    """Return the measured loop per step now and without ``saved_ns`` of it (ns), None where the loop was not measured."""
    return None if real.loop_ns is None else {"loop_ns": real.loop_ns, "loop_then_ns": real.loop_ns - saved_ns}


def in_words(real: Unprofiled, saved_ns: int, span_ns: tuple[int, int] | None = None) -> str:
    """Return "1.3x faster over the loop (1.22 to 1.4, by the length of a step): 37.2 ms → 27.9 ms a step with what runs between steps".

    What goes takes as long beside steps of any length: between the shortest and the longest mean of a stretch that was measured, that of
    the steps behind all of them included, lies how many times as fast the loop is. ``span_ns``: the least and the most that goes, None
    where that is ``saved_ns``.
    """
    now = real.loop_ns or real.step_ns
    between = now - real.step_ns
    loops = [now, real.low_ns + between, real.high_ns + between, *([real.rest_ns] if real.rest_ns else [])]
    least, most = span_ns or (saved_ns, saved_ns)
    ends = (max(loops), least), (min(loops), most)
    told = [units.times(loop / (loop - saved)) for loop, saved in ends if loop > saved]
    by = "by the length of a step" + (" and what stays" if span_ns else "")
    spread = f" ({told[0][:-1]} to {told[-1][:-1]}, {by})" if len(set(told)) > 1 else ""
    arrow = f"{units.duration(now)} → {units.duration(now - saved_ns)} {WITH_BETWEEN}"
    return f"{units.times(now / (now - saved_ns))} faster over the loop{spread}: {arrow}"
