"""The totals of a report: counts and times of calls and GPU work."""

from __future__ import annotations

from typing import Any

import polars as pl

from nsysx.analyses import api_calls
from nsysx.catalogue import Call
from nsysx.events import correlate
from nsysx.events.profile import Profile
from nsysx.model import Row
from nsysx.reading.trace import Totals

#: Kind of GPU work, its count, its time.
_WORK = (
    ("kernel", "kernels", "kernel_ns"),
    ("memcpy", "memcpys", "memcpy_ns"),
    ("memset", "memsets", "memset_ns"),
    ("graph", "opaque_graphs", "opaque_graph_ns"),
)


def totals(profile: Profile) -> Row:
    """Return counts and times (ns) of everything, None if the report has no table for it.

    Of a long capture of which parts were read, everything counts all the same; what only its rows would tell is None.
    """
    if profile.trace.sampled is not None:
        return _of_all_rows(profile, profile.trace.sampled.totals)
    time = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    by_op = profile.ops.group_by("op_kind").agg(pl.len(), time).with_columns(pl.col("op_kind").cast(pl.String))
    by_kind = {k: (n, ns) for k, n, ns in by_op.iter_rows()}
    gpu = (
        profile.recorded("kernel")
        or profile.recorded("memcpy")
        or profile.recorded("memset")
        or profile.recorded("graph")
    )
    result: dict[str, Any] = {}
    for kind, count, ns in _WORK:
        result[count], result[ns] = (by_kind.get(kind, (0, 0))) if gpu else (None, None)
    api = profile.recorded("runtime")
    grouped = api_calls.functions(profile).group_by("kind").agg(pl.col("calls", "total_ns", "self_ns").sum())
    grouped = grouped.with_columns(pl.col("kind").cast(pl.String))
    result["api_calls"] = profile.calls.height if api else None
    result["api_ns"] = int(grouped["total_ns"].sum()) if api else None
    result["gpu_ops_without_call"] = int(profile.ops["call"].null_count()) if gpu else None
    kinds = {k: {"calls": n, "ns": ns, "self_ns": self_ns} for k, n, ns, self_ns in grouped.iter_rows()}
    result["api_by_kind"] = {k: kinds[k] for k in Call.KINDS if k in kinds} if api else None
    return result


def _of_all_rows(profile: Profile, counted: Totals) -> Row:
    """Return the totals of all rows of a long capture."""
    gpu, api = bool(counted.work), profile.recorded("runtime")
    result: dict[str, Any] = {}
    for of_work, count, time in _WORK:
        result[count], result[time] = counted.work.get(of_work, (0, 0)) if gpu else (None, None)
    result["api_calls"] = sum(calls for _, calls, _ in counted.calls) if api else None
    result["api_ns"] = sum(ns for *_, ns in counted.calls) if api else None
    result["gpu_ops_without_call"] = None
    kinds: dict[str, dict[str, int | None]] = {}
    for name, calls, ns in counted.calls:
        kind = correlate.api_kind(correlate.plain_name(name or ""))
        before = kinds.get(kind, {"calls": 0, "ns": 0})
        kinds[kind] = {"calls": (before["calls"] or 0) + calls, "ns": (before["ns"] or 0) + ns, "self_ns": None}
    result["api_by_kind"] = {k: kinds[k] for k in Call.KINDS if k in kinds} if api else None
    return result
