"""The loop per step as its process measured it: also where no replay comes near the recorded steps, because what was timed needs none.

A device that never rests is timed from border to border: what runs between steps is then in the length of every n-th step, and nothing
is known of these steps alone. A recorded stretch that takes about as long as what they have more tells that it is that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from nsysx.events import bare
from nsysx.events.bare_apart import last_as_long
from nsysx.findings._case import Case
from nsysx.findings._finding_bounds import FEWEST_UNRECORDED_STEPS
from nsysx.replay.engine import Replay, Withheld, unprofiled_of
from nsysx.step_time import Unprofiled


def measured_loop(case: Case) -> Unprofiled | Withheld:
    """Return the step and the loop without the profiler, or why they are not known.

    Where only the replay is in doubt, they are known as measured in the process.
    """
    real = unprofiled_of(case.profile)
    if isinstance(real, Withheld) or real.loop_ns is not None or not _in_doubt(case):
        return real
    return _without_stretches(case, real) or real


def told_of_loop(case: Case) -> bool:
    """Return whether long steps are long by what runs between steps, and are told as that, because no replay is trusted."""
    real = measured_loop(case)
    return _in_doubt(case) and not isinstance(real, Withheld) and real.loop_ns is not None


def _in_doubt(case: Case) -> bool:
    return isinstance(case.replay, Replay) and not case.replay.trusted


def _without_stretches(case: Case, timed: Unprofiled) -> Unprofiled | None:
    """Return step and loop apart where each long step holds what was recorded between steps, None where it is not known to."""
    ns = np.asarray(bare.of_process(case.profile.trace.capture, case.process), np.int64)
    between = case.profile.steps.between.filter(
        (pl.col("process") == case.process) & (pl.col("device") == case.device) & pl.col("evaluation")
    )
    if case.profile.steps.in_rounds or len(ns) < FEWEST_UNRECORDED_STEPS or not between.height:
        return None
    slow, usual = bare.long_steps(ns), float(np.median(ns))
    if slow.sum() < 2:  # one pause may be anything
        return None
    # The last one: the first window may hold several in a row, and what only the first of them does.
    more = float(np.median(ns[slow])) - usual
    if not last_as_long(more, between, case.profile.attributed.api_calls):
        return None
    step = round(timed.step_ns - float((ns - usual)[slow].sum()) / len(ns))
    return replace(timed, step_ns=step, low_ns=step, high_ns=step, loop_ns=timed.step_ns)
