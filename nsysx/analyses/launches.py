"""Launches in the steady steps: what they cost the CPU and the GPU, and full queues apart from slow launches."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from nsysx.analyses.helpers import one_time_cost
from nsysx.analyses.helpers.analysis_bounds import NO_LAUNCH_WAIT_SHARE, SLOW_LAUNCH_NS, SLOW_LAUNCH_TIMES
from nsysx.analyses.helpers.launch_queue import pending, queue_full
from nsysx.catalogue import Call, Cause
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns
from nsysx.frames.lookup import at, distinct, totals
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "launches"
TITLE = "Launches"
_LAUNCH, _HOST = Cause.LAUNCH_LATENCY.number, Cause.HOST_CODE.number


class LaunchRow(TypedDict):
    """One function that launches; its parts sum to ``total_ns``."""

    name: Annotated[str, Of("API function")]
    launches: Annotated[int, Of("calls in the steady steps", sums="scope")]
    launches_per_step: Annotated[float | None, Of("calls per steady step; null without steps")]
    gpu_ops: Annotated[int, Of("kernels and other GPU work that they started", sums="scope")]
    total_ns: Annotated[int, Of("self time on the CPU: usual + first_call + queue_full + slow", "ns", sums="scope")]
    usual_ns: Annotated[int, Of("part of it in ordinary launches", "ns", sums="scope")]
    first_call_ns: Annotated[int, Of("one-time cost in it: see the first-call bill", "ns", sums="scope")]
    queue_full_ns: Annotated[
        int,
        Of("part of it blocked because the launch queue was full: the GPU is behind, not the CPU", "ns", sums="scope"),
    ]
    slow_ns: Annotated[
        int,
        Of(
            "part of it in launches that took ten times the median and 50 us with room in the queue", "ns", sums="scope"
        ),
    ]
    median_ns: Annotated[float, Of("median launch", "ns")]
    p90_ns: Annotated[float, Of("90 % of the launches took at most this", "ns")]
    queue_full_calls: Annotated[int, Of("launches that blocked on a full queue", sums="scope")]
    slow_calls: Annotated[int, Of("slow launches", sums="scope")]
    pending_median: Annotated[
        float, Of("GPU ops launched but not done when a launch began, median", label="queued, median")
    ]
    idle_launch_ns: Annotated[
        int | None,
        Of(
            "idle time of the shown device while a launch of this function was in flight (launch latency)",
            "ns",
            sums="scope",
            label="GPU idle in launch",
        ),
    ]
    idle_host_ns: Annotated[
        int | None,
        Of(
            "its idle time before such a launch, in Python and the framework",
            "ns",
            sums="scope",
            label="GPU idle before it",
        ),
    ]
    idle_share: Annotated[float | None, Of("both over the steady time of the shown device, 0 to 1")]
    verdict: Annotated[
        str, Of("free (behind a busy GPU), critical (the GPU waits for them), queue_full, cannot_tell", codes=True)
    ]


COLUMNS = columns_of(LaunchRow)
ROWS: TableOf[LaunchRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="steady",
    place=130,
    matters=("NSX102", "NSX113"),
    intro=(
        "What launching costs. A launch costs GPU time only if the GPU idles for it; one that blocks on a full queue means that "
        "the GPU is behind, not the CPU."
    ),
    first=names(
        "name verdict launches gpu_ops median_ns p90_ns total_ns usual_ns queue_full_ns slow_ns idle_launch_ns "
        "idle_host_ns idle_share pending_median"
    ),
    hide=("launches_per_step",),
    depth=1,
    terms=("name",),
)


def _idle(profile: Profile) -> pl.DataFrame:
    """Return per API function the idle time of the shown device that its work ended: launch latency, and host code before."""
    call = profile.attributed.gpu_ops["call"].fill_null(-1).to_numpy()
    op, cause, ns = (profile.shown_idle()[c].to_numpy() for c in ("op", "cause", "ns"))
    rows = np.flatnonzero(((cause == _LAUNCH) | (cause == _HOST)) & (op >= 0))
    cause, ns, by = cause[rows], ns[rows], call[op[rows]]
    names, group = distinct(at(profile.attributed.api_calls["name"], by))
    launch, host = (totals(group, np.where(cause == c, ns, 0), len(names)) for c in (_LAUNCH, _HOST))
    schema = frame_columns.schema(COLUMNS, "name", "idle_launch_ns", "idle_host_ns")
    return pl.DataFrame([names, launch, host], schema=schema)


def require(profile: Profile) -> None:
    """Raise NotRecorded where there is no such table."""
    if not profile.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per launching API function, longest first; idle columns are null if the report has no GPU work."""
    require(profile)
    rows = _by_function(_launches(profile)).join(_idle(profile), on="name", how="left", maintain_order="left")
    start, end = profile.window if profile.device is not None else (0, 0)
    window = end - start
    idle = [
        pl.col(c).fill_null(0) if window else pl.lit(None, dtype=pl.Int64).alias(c)
        for c in ("idle_launch_ns", "idle_host_ns")
    ]
    share = (pl.col("idle_launch_ns") + pl.col("idle_host_ns")) / window if window else pl.lit(None, dtype=pl.Float64)
    each = profile.scope.per_step(1) if profile.scope.steps else None
    per_step = pl.col("launches") * pl.lit(each, dtype=pl.Float64)
    return (
        rows.with_columns(*idle, per_step.alias("launches_per_step"))
        .with_columns(share.alias("idle_share"))
        .with_columns(_verdict().alias("verdict"))
        .sort("total_ns", "name", descending=[True, False])
    )


def _launches(profile: Profile) -> pl.DataFrame:
    """Return the launches of the steady steps: name, gpu_ops, self_ns = one_time_ns + queue_full_ns + own_ns.

    ``pending`` counts the GPU ops launched but not done; ``slow`` is whether the launch took far longer than usual.
    """
    wanted = ("call", "process", "correlation_id", "start_ns", "end_ns", "name", "kind", "self_ns", "gpu_ops")
    launching = (pl.col("kind") == Call.LAUNCH) | (pl.col("kind") == Call.GRAPH_LAUNCH)
    calls = profile.steady_calls.select(wanted).filter(launching)
    full = np.minimum(queue_full(profile, calls), calls["self_ns"].to_numpy())
    waiting = pending(profile, calls["process"].to_numpy(), calls["start_ns"].to_numpy())
    one_time = one_time_cost.costs(profile)["call", "one_time_ns"]
    one_time = calls.select("call").join(one_time, on="call", how="left", maintain_order="left").select("one_time_ns")
    calls = calls.select(
        "name",
        "gpu_ops",
        "self_ns",
        pl.Series("queue_full_ns", full, dtype=pl.Int64),
        pl.Series("pending", waiting, dtype=pl.Int64),
    ).hstack(one_time)
    launch_only = pl.col("self_ns") - pl.col("queue_full_ns") - pl.col("one_time_ns").fill_null(0)
    calls = calls.with_columns(launch_only.alias("own_ns"))
    median = pl.col("own_ns").median().over("name")
    slow = (pl.col("own_ns") > SLOW_LAUNCH_TIMES * median) & (pl.col("own_ns") > SLOW_LAUNCH_NS)
    return calls.with_columns(slow.alias("slow"))


def _by_function(launches: pl.DataFrame) -> pl.DataFrame:
    """Return the launches summed by API function."""
    rows = launches.group_by("name").agg(
        pl.len().cast(pl.Int64).alias("launches"),
        pl.col("gpu_ops").sum(),
        pl.col("self_ns").sum().alias("total_ns"),
        pl.col("own_ns").filter(~pl.col("slow")).sum().alias("usual_ns"),
        pl.col("one_time_ns").sum().alias("first_call_ns"),
        pl.col("queue_full_ns").sum(),
        pl.col("own_ns").filter("slow").sum().alias("slow_ns"),
        pl.col("self_ns").median().alias("median_ns"),
        pl.col("self_ns").quantile(0.9, "nearest").cast(pl.Float64).alias("p90_ns"),
        (pl.col("queue_full_ns") > 0).sum().cast(pl.Int64).alias("queue_full_calls"),
        pl.col("slow").sum().cast(pl.Int64).alias("slow_calls"),
        pl.col("pending").median().alias("pending_median"),
    )
    return rows.with_columns(pl.col("name").cast(pl.String))


def _verdict() -> pl.Expr:
    """Return what a function's launches mean for the GPU: free, critical, queue_full, or cannot_tell."""
    return (
        pl.when(pl.col("idle_share").is_null())
        .then(pl.lit("cannot_tell"))
        .when(pl.col("idle_share") > NO_LAUNCH_WAIT_SHARE)
        .then(pl.lit("critical"))
        .when(pl.col("queue_full_ns") * 2 > pl.col("total_ns"))
        .then(pl.lit("queue_full"))
        .otherwise(pl.lit("free"))
    )
