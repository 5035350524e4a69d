"""Which lines of the program are at work in the step of a flow, and when."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import OperatorFlow
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64


def stacks_of_step(profile: Profile, flow: OperatorFlow, code: CodeLines) -> tuple[I64, I64]:
    """Return when other lines are at work in the step of a flow, on its thread, from border to border, and the stacks of lines since then.

    -1: no line. Both are empty where no step was marked around the flow, or no lines of its thread were noted.
    """
    open_on, first = code.open.get(flow.thread), int(flow.start_ns[0])
    step = profile.ranges.ranges.filter(
        pl.col("process") == profile.process,
        pl.col("kind") == "step",
        pl.col("own"),
        pl.col("start_ns") <= first,
        pl.col("end_ns") > first,
    )["start_ns", "end_ns"]
    if open_on is None or not step.height:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    start, end = step.row(0)
    begin = open_on.times[: len(open_on.labels)]
    there = (begin >= start) & (begin < end)
    return begin[there], open_on.labels[there]
