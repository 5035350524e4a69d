"""Gradients that nothing reads: which networks get them in a step, as the probe saw, and the backward work that makes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import MUCH_UNREAD_SHARE, WEIGHT_GRADIENTS_SHARE
from nsysx.findings._needs import steady_steps
from nsysx.findings._once import Takes
from nsysx.findings.nsx112_fusion import outermost
from nsysx.replay.engine import RemoveOps, ScaleOps


def _unread_backwards(settings: RecordedSettings | None) -> dict[str, list[int]]:
    """Return class of a network -> numbers of the backwards of a step whose gradients nothing reads."""
    seen = None if settings is None else settings.record.get("unread")
    rows = seen.items() if isinstance(seen, Mapping) else ()
    return {str(cls): [n for n in given if isinstance(n, int)] for cls, given in rows if isinstance(given, list)}


def unread(case: Case, settings: RecordedSettings) -> str:
    """Return what is made for nothing, "" where it is nothing or little."""
    lost, ns = _unread_backwards(settings), case.per_step(int(_work(case)["ns"].sum()))
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
    lost = _unread_backwards(settings_of(case.profile))
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


# ---- parameters that no optimizer holds ------------------------------------------------------------------------------

_PRODUCTS = ("gemm", "convolution")


def _unheld(settings: RecordedSettings | None) -> dict[str, tuple[int, int]]:
    """Return class of a network -> numbers of its parameters with gradients that no optimizer reads, and of all that it trains."""
    seen = None if settings is None else settings.record.get("unheld")
    rows = seen.items() if isinstance(seen, Mapping) else ()
    whole = [(str(cls), row) for cls, row in rows if isinstance(row, list) and len(row) == 2]
    return {cls: (row[0], row[1]) for cls, row in whole if all(isinstance(n, int) and n > 0 for n in row)}


def _weights_alone(case: Case) -> tuple[pl.DataFrame, float]:
    """Return the products of the backward of such networks (op, ns), and the share of their gradients that no optimizer reads."""
    lost, networks = _unheld(settings_of(case.profile)), outermost(case.profile)
    theirs = [module for module, (_, cls) in networks.items() if cls in lost]
    chosen = (
        case.ops["family"].cast(pl.String).is_in(_PRODUCTS)
        & (case.ops["phase"].cast(pl.String) == "backward")
        & case.ops["module"].cast(pl.String).is_in(theirs)
    )
    work = case.ops.filter(chosen.fill_null(value=False)).select("op", ns=pl.col("end_ns") - pl.col("start_ns"))
    return work, sum(n for n, _ in lost.values()) / max(sum(whole for _, whole in lost.values()), 1)


def unheld(case: Case, settings: RecordedSettings) -> str:
    """Return which parameters get gradients that no optimizer reads, "" where it is none or what they take is little."""
    lost, (work, share) = _unheld(settings), _weights_alone(case)
    ns = round(WEIGHT_GRADIENTS_SHARE * share * case.per_step(int(work["ns"].sum())))
    if not lost or not case.notable(ns, MUCH_UNREAD_SHARE):
        return ""
    told = " and ".join(f"{units.share(n, whole)} of the parameters of {cls}" for cls, (n, whole) in lost.items())
    return f"{told} get gradients, and no optimizer holds these: computed for nothing and kept: about {units.duration(ns)} {case.per}"


def frozen(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it is worth if no gradients of these weights are computed."""
    work, share = _weights_alone(case)
    return case.worth(ScaleOps(ops_of(work), 1 - WEIGHT_GRADIENTS_SHARE * share), cause=(StepPart.WORK,))


def of_unheld(case: Case) -> Takes:
    """Return the products that make such gradients, among others."""
    return Takes(ops_of(_weights_alone(case)[0]))
