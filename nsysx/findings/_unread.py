"""Gradients that nothing reads: which networks get them in a step, as the probe saw, and the backward work that makes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import MUCH_UNREAD_SHARE
from nsysx.findings._needs import steady_steps
from nsysx.findings._once import Takes
from nsysx.findings.nsx112_fusion import outermost
from nsysx.replay.engine import RemoveOps


def _lost(settings: RecordedSettings | None) -> dict[str, list[int]]:
    """Return class of a network -> numbers of the backwards of a step whose gradients nothing reads."""
    seen = None if settings is None else settings.record.get("unread")
    rows = seen.items() if isinstance(seen, Mapping) else ()
    return {str(cls): [n for n in given if isinstance(n, int)] for cls, given in rows if isinstance(given, list)}


def unread(case: Case, settings: RecordedSettings) -> str:
    """Return what is made for nothing, "" where it is nothing or little."""
    lost, ns = _lost(settings), case.per_step(int(_work(case)["ns"].sum()))
    if not lost or not case.notable(ns, MUCH_UNREAD_SHARE):
        return ""
    return (
        f"the backward of {' and '.join(lost)} runs for gradients that are reset before an optimizer reads them: "
        f"{units.duration(ns)} {case.per}"
    )


def without(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it is worth if this work is not done."""
    return case.worth(RemoveOps(ops_of(_work(case))), cause=(StepPart.WORK, StepPart.HOST, StepPart.LAUNCH), bound=True)


def taken(case: Case) -> Takes:
    """Return this work."""
    return Takes(ops_of(_work(case)))


def _work(case: Case) -> pl.DataFrame:
    """Return the kernels (op, ns) of these networks that are launched in these backwards of each step."""
    lost = _lost(settings_of(case.profile))
    if not lost:
        return case.kernels.clear()
    ranges = case.profile.ranges.ranges
    chosen = pl.col("own") & (pl.col("process") == case.process) & (pl.col("name").cast(pl.String) == "backward")
    backwards = ranges.filter(chosen).select("start_ns", "end_ns").sort("start_ns")
    step_start = steady_steps(case.profile)["start_ns"].to_numpy()
    start, end = (backwards[c].to_numpy() for c in ("start_ns", "end_ns"))
    step = np.searchsorted(step_start, start, side="right")
    nth = np.arange(len(start)) - np.searchsorted(step, step)  # of the backwards of its step
    kernels = case.ops.filter((case.ops["op_kind"] == "kernel") & (case.ops["phase"].cast(pl.String) == "backward"))
    called = kernels["call_start_ns"].fill_null(-1).to_numpy()
    row = np.searchsorted(start, called, side="right") - 1
    inside = (row >= 0) & (called < np.append(end, -1)[row])
    networks, number = outermost(case.profile), np.append(nth, -1)[row].tolist()
    roots = (networks.get(module, ("", None))[1] for module in kernels["module"].cast(pl.String).to_list())
    wanted = [cls is not None and n in lost.get(cls, ()) for cls, n in zip(roots, number, strict=True)]
    chosen_rows = pl.Series(inside & np.array(wanted, np.bool_), dtype=pl.Boolean)
    return kernels.filter(chosen_rows).select("op", ns=pl.col("end_ns") - pl.col("start_ns"))
