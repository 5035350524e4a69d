"""Copies of a step between host and GPU that each move all that the one before moved, and a little more: what is new would do.

What lies in a buffer of the host has no operators: that it grows is read from the bytes of the copies of one place. Copies that grow from
step to step are left alone: batches may.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import polars as pl

from nsysx import units
from nsysx.findings._case import Case, Fix, ops_of
from nsysx.findings._flow_work import left_of_new
from nsysx.findings._needs import step_of
from nsysx.findings._work_bounds import FEWEST_GROWN_COPIES, GROWN_BY_ONE_SIZE_SHARE, OLD_BYTES_SHARE, ROWS_WRITTEN_NS
from nsysx.model import Row
from nsysx.replay.engine import ScaleOps

_REMEDIES = {"HtoD": "new-rows-to-gpu", "DtoH": "new-rows-to-host"}


def only_new(case: Case, row: Row, copies: pl.DataFrame) -> tuple[Fix, ScaleOps] | None:
    """Return the advice to copy what is new alone, and what is left then; None where copies of a place (``row``, ``op``) do not grow."""
    theirs = case.ops.filter(case.ops["op"].is_in(copies["op"].implode())).sort("start_ns")
    theirs = theirs.select("op", "bytes", "call_start_ns", ns=pl.col("end_ns") - pl.col("start_ns")).drop_nulls()
    if not case.program.torch or case.stepless or theirs.height < FEWEST_GROWN_COPIES:
        return None
    size, step = theirs["bytes"].to_numpy(), step_of(case.profile, theirs["call_start_ns"])
    runs = [size[step == each] for each in np.unique(step)]
    grown = [run for run in runs if len(run) >= FEWEST_GROWN_COPIES]
    steps = Counter(int(b) - int(a) for run in grown for a, b in pairwise(run.tolist()))
    by, often = next(iter(steps.most_common(1)), (0, 0))
    moved = int(sum(run.sum() for run in grown))
    needed = sum(int(run[0]) + by * (len(run) - 1) for run in grown)
    if by <= 0 or often < GROWN_BY_ONE_SIZE_SHARE * steps.total() or len(grown) < len(runs):
        return None
    if moved - needed < OLD_BYTES_SHARE * moved:
        return None
    ns = theirs["ns"].to_numpy()
    left = left_of_new(ns, ns * needed / moved, ROWS_WRITTEN_NS)
    seen = f"they grow by {units.size(by)} from one to the next"
    fix = Fix.by_name(_REMEDIES[row["direction"]])
    return fix.but(text=f"{fix.text}: {seen}"), ScaleOps(ops_of(theirs), left / max(int(ns.sum()), 1), less_work=True)
