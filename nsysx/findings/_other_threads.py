"""Python that another thread of the program runs: of one process only one thread does at a time, and the one that launches waits.

An X-ray notes the lines of all threads. A line that takes long on another thread waits (for a queue, a lock, or the interpreter), or runs
code outside of Python; lines that follow each other closely run. How long they do so in the X-ray's steps is what they take of a step.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events import thread_roles
from nsysx.events.profile import Profile
from nsysx.events.python_lines import place
from nsysx.events.python_pauses import time_in
from nsysx.findings._case import Case, Fix, Rule, Saving
from nsysx.findings._finding_bounds import LINE_MAY_STAY_SHARE, OTHER_THREADS_SHARE, RUNNING_LINE_NS
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.model import Finding

_FIX = Fix.by_name("processes-for-threads")


class _Running(NamedTuple):
    """Which part of the X-ray's steps another thread runs Python in, and where most of that is."""

    share: float
    file: str | None
    line: int | None
    function: str


def _running(profile: Profile) -> _Running | None:
    lines, xray = profile.ranges.other_lines, profile.ranges.lines
    ranges = profile.ranges.ranges
    steps = ranges.filter((ranges["kind"] == "step") & ranges["own"] & (ranges["process"] == profile.process))
    noted = xray["start_ns"].sort().to_numpy()
    start, end = (steps[c].to_numpy() for c in ("start_ns", "end_ns"))
    held = np.searchsorted(noted, end) > np.searchsorted(noted, start)
    # While autograd's thread runs the program's code, the one that called backward waits for it.
    engine = [thread for thread, role in profile.attributed.roles.items() if role == thread_roles.AUTOGRAD]
    beside = (pl.col("end_ns") - pl.col("start_ns") <= RUNNING_LINE_NS) & ~pl.col("thread").is_in(engine)
    lines = lines.filter(beside).sort("start_ns")
    if not lines.height or not held.any():
        return None
    busy = int(time_in(lines, start[held], end[held]).sum())
    of_line = lines.group_by(pl.col("label").cast(pl.String)).agg(
        (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    )
    most = str(of_line.sort("ns", "label", descending=[True, False])["label"][0])
    return _Running(busy / int((end - start)[held].sum()), *place(most))


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding where other threads run Python for a tenth of the step or more while the GPU idles for the host."""
    running = case.profile.once(_running)
    if running is None:
        return []
    idle = case.taken_by(part for part in StepPart if part.idle)
    takes_ns = round(running.share * case.step_ns)
    cost = min(takes_ns, case.taken_by(rule.cause))
    if not case.notable(cost, OTHER_THREADS_SHARE):
        return []
    there = f"{PurePath(str(running.file)).name}:{running.line} {running.function}"
    takes = units.duration(takes_ns)
    title = f"Another thread runs Python ({there}) for {takes} {case.per}; the GPU idles {units.duration(cost)}"
    detail = (
        f"The X-ray noted lines of another thread in {units.share(running.share, 1)} of its steps. The thread that launches kernels "
        "gets the interpreter back only when that thread waits, or after its turn of 5 ms: its own lines seem slow."
    )
    worth = Saving(
        cost, "the time another thread runs Python", error_ns=round(LINE_MAY_STAY_SHARE * cost), most_ns=max(cost, idle), source="time"
    )  # fmt: skip
    where = {"file": running.file, "line": running.line}
    share = np.full(case.idle.height, min(cost / max(idle, 1), 1.0))
    python = Found(rule, title, detail, worth=worth, cost_ns=cost, where=where, fix=_FIX, takes=Takes(idle=share))
    return [python.as_finding(case)]
