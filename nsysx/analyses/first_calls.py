"""The first-call bill: one-time costs by kernel, library loading and API function, apart from what every step pays."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from nsysx.analyses.helpers import one_time_cost, shared_columns
from nsysx.analyses.helpers.analysis_bounds import MOST_FIRST_CALLS
from nsysx.catalogue import Call
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.thread_roles import elsewhere
from nsysx.frames import lookup
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "first_calls"
TITLE = "First-call bill"


class FirstCallRow(TypedDict):
    """The one-time cost of one kernel, library or API function."""

    name: Annotated[str, Of("kernel or API function; anything else is in parentheses")]
    what: Annotated[str, Of("kernel, library (loading code), api, host (time outside CUDA calls), rest (other rows)")]
    api: Annotated[str | None, Of("API function that was called; null for host and rest", label="call")]
    calls: Annotated[int, Of("calls in the whole capture")]
    first_ns: Annotated[
        int | None,
        Of("first call, without waiting for the GPU and without the profiler's own time", "ns", label="first call"),
    ]
    later_median_ns: Annotated[
        float | None, Of("median of the later calls, likewise; null when there is none", "ns", label="later, median")
    ]
    one_time_ns: Annotated[int, Of("one-time cost; summed over all rows, the bill", "ns", label="one-time cost")]
    loading_ns: Annotated[
        int | None, Of("loading code inside these calls, as the driver noted it; null when not recorded", "ns")
    ]
    evidence: Annotated[str | None, Of("measured (loading), above median, only call, in full, or step length for host")]
    module: Annotated[str | None, Of("module of the most expensive such call")]
    phase: Annotated[str | None, Of("phase of the most expensive such call")]
    thread_role: Annotated[
        str | None, Of("what its thread is for; null if that is the main thread or one of autograd's")
    ]
    file: shared_columns.File
    line: shared_columns.Line


COLUMNS = columns_of(FirstCallRow)
ROWS: TableOf[FirstCallRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="whole",
    place=100,
    matters=("NSX103",),
    stepless=True,
    intro=(
        "One-time costs: the first call of an API function, kernel or library loads code and fills caches. Cutting them "
        "shortens the start, not the steady step."
    ),
    first=(
        "name",
        "one_time_ns",
        "calls",
        "first_ns",
        "later_median_ns",
        "what",
        "module",
        "file",
        "evidence",
        "phase",
    ),
    bar="one_time_ns",
    hide=("api",),
    rows=20,
    terms=("name", "api"),
)
_WHOLE = "nsysx report without --time-range"


def _host(profile: Profile, paid: pl.DataFrame) -> tuple[int, int]:
    """Return (steps, ns): by how much warm-up steps exceed the steady median, beyond their one-time CUDA calls."""
    steps = lookup.having(profile.steps.cpu, process=profile.steps.process)
    steady, early = (steps.filter(steps[kind]) for kind in ("steady", "warmup"))
    if profile.steps.source == "capture" or not steady.height:
        return 0, 0
    median = float(np.median((steady["end_ns"] - steady["start_ns"]).to_numpy()))
    start, ns = lookup.having(paid, process=profile.steps.process)["start_ns", "one_time_ns"].get_columns()
    before = np.concatenate(([0], np.cumsum(ns.to_numpy())))
    begin, end = (early[c].to_numpy() for c in ("start_ns", "end_ns"))
    inside = before[np.searchsorted(start.to_numpy(), end)] - before[np.searchsorted(start.to_numpy(), begin)]
    more = np.maximum(end - begin - int(median) - inside, 0)
    return int((more > 0).sum()), int(more.sum())


def bill_ns(profile: Profile) -> int:
    """Return the whole one-time cost: the sum of ``one_time_ns`` over all rows of the table."""
    paid = one_time_cost.costs(profile)
    return int(paid["one_time_ns"].sum()) + _host(profile, paid)[1]


def require(profile: Profile) -> None:
    """Raise NotRecorded where there is no such table."""
    if not profile.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")
    if profile.trace.window is not None:
        raise NotRecorded("only part of the capture was read, so no call is known to be the first", _WHOLE)


def table(profile: Profile) -> pl.DataFrame:
    """Return the bill, costliest first; ``one_time_ns`` over all rows is the whole one-time cost (see ``one_time_cost``)."""
    require(profile)
    split = one_time_cost.split(profile)
    dearest = pl.col("one_time_ns").arg_max()
    paid = split.paid.with_columns(elsewhere(split.paid["thread"], profile.attributed.roles))
    paid = profile.with_lines(paid)
    rows = paid.group_by("bill").agg(
        pl.col("one_time_ns").sum(),
        pl.when(pl.col("loading_ns").is_not_null().any()).then(pl.col("loading_ns").sum()).alias("loading_ns"),
        *(pl.col(c).get(dearest).cast(pl.String) for c in ("evidence", "module", "phase", "thread_role", "file")),
        pl.col("line").get(dearest),
    )
    rows = pl.concat([rows, split.bills[rows["bill"]]], how="horizontal")
    kind = (
        pl.when(pl.col("kernel").is_not_null())
        .then(pl.lit("kernel"))
        .when(pl.col("name").str.contains(one_time_cost.LOADS) | (pl.col("kind") == Call.LOAD))
        .then(pl.lit("library"))
        .otherwise(pl.lit("api"))
    )
    rows = rows.select(
        pl.coalesce("kernel", "name").alias("name"),
        kind.alias("what"),
        pl.col("name").alias("api"),
        *(c.name for c in COLUMNS[3:]),
    ).sort("one_time_ns", "name", "api", descending=[True, False, False])
    extra: list[dict[str, object]] = []
    count, ns = _host(profile, split.paid)
    if ns:
        host = "(longer warm-up steps outside CUDA calls)"
        extra.append({"name": host, "what": "host", "calls": count, "one_time_ns": ns, "evidence": "step length"})
    cheaper = rows.slice(MOST_FIRST_CALLS)
    if cheaper.height:
        sums = {c: int(cheaper[c].sum()) for c in ("calls", "one_time_ns")}
        extra.append({"name": f"({cheaper.height} cheaper rows)", "what": "rest", **sums})
    return pl.concat([rows.head(MOST_FIRST_CALLS), pl.DataFrame(extra, schema=rows.schema)])
