"""CUDA API time by function: each call counted once, without nested calls, its waiting apart from its work."""

from __future__ import annotations

import itertools
from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "api_calls"
TITLE = "CUDA API calls"


class ApiRow(TypedDict):
    """One API function."""

    name: Annotated[str, Of("API function")]
    kind: Annotated[str, Of("launch, copy, sync, alloc, ...", codes=True)]
    calls: Annotated[int, Of("how often it was called")]
    total_ns: Annotated[int, Of("duration on the CPU, summed; wall clock, not CPU time", "ns")]
    self_ns: Annotated[int, Of("duration without nested calls", "ns")]
    backlog_ns: Annotated[
        int | None, Of("waiting for GPU work queued earlier; null for a call that cannot block", "ns")
    ]
    own_op_ns: Annotated[int | None, Of("its own copy or memset; null likewise", "ns", label="own work")]
    host_ns: Annotated[
        int | None,
        Of("the rest of a blocking call; backlog + own op + host = duration; null likewise", "ns", label="host cost"),
    ]
    first_ns: Annotated[int, Of("duration of the first call", "ns", label="first call")]
    steady_median_ns: Annotated[
        float | None, Of("median duration in the steady steps; null when it is not called there", "ns")
    ]


COLUMNS = columns_of(ApiRow)
ROWS: TableOf[ApiRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="whole",
    place=120,
    matters=("NSX103",),
    stepless=True,
    intro=(
        "CUDA calls made by the CPU. Self time leaves out nested calls. A blocking call splits into backlog (waiting for work "
        "launched earlier), its own GPU work, and host cost."
    ),
    first=names("name self_ns total_ns calls first_ns steady_median_ns backlog_ns own_op_ns host_ns kind"),
    bar="self_ns",
    terms=("name",),
)


def functions(profile: Profile) -> pl.DataFrame:
    """Return one row per API function: name, kind, calls, total_ns, self_ns, first_ns as in COLUMNS."""
    return profile.once(_functions)


def _functions(profile: Profile) -> pl.DataFrame:
    calls = profile.calls
    ns = pl.col("end_ns") - pl.col("start_ns")
    # A function has only one kind, so the name is enough to group by.
    sums = (
        calls.lazy()
        .group_by("name")
        .agg(
            pl.col("kind").first(),
            pl.len().cast(pl.Int64).alias("calls"),
            ns.sum().alias("total_ns"),
            pl.col("self_ns").sum(),
        )
    )
    first = calls.select("thread", "name", "start_ns", ns.alias("first_ns"))[_firsts(calls)]
    first = first.sort("start_ns", "thread").unique("name", keep="first", maintain_order=True)
    return sums.collect(engine="streaming").join(first["name", "first_ns"], on="name", how="left")


def _firsts(calls: pl.DataFrame) -> I64:
    """Return the row of the first call of each function on each thread; calls are sorted by (thread, start)."""
    names, name = lookup.distinct(calls["name"])
    changes = (np.flatnonzero(np.diff(calls["thread"].to_numpy())) + 1).tolist()
    rows = [np.empty(0, np.int64)]
    for a, b in itertools.pairwise([0, *changes, len(name)]):
        first = np.full(len(names), -1)
        first[name[a:b][::-1]] = np.arange(a, b)[::-1]  # the last one that is written stays
        rows.append(first[first >= 0])
    return np.concatenate(rows)


def _medians(calls: pl.DataFrame) -> pl.DataFrame:
    """Return name, steady_median_ns. Works in blocks: grouping all rows at once would take ten times their memory."""
    ns_of: dict[str, list[I64]] = {}
    for block in calls["name", "start_ns", "end_ns"].iter_slices(1 << 18):
        names, name = lookup.distinct(block["name"])
        ns = (block["end_ns"] - block["start_ns"]).to_numpy()
        for i, text in enumerate(names):
            if text is not None:
                ns_of.setdefault(text, []).append(ns[name == i])
    medians = [float(np.median(np.concatenate(parts))) for parts in ns_of.values()]
    return pl.DataFrame({"name": pl.Series(list(ns_of), dtype=pl.Categorical), "steady_median_ns": medians})


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per API function, longest self time first."""
    if not profile.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")
    waits = profile.ledgers.waits["call", "backlog_ns", "own_op_ns"]
    if profile.calls is not profile.attributed.api_calls:
        waits = waits.join(profile.calls.select("call"), on="call", how="semi")
    waits = waits.with_columns(profile.attributed.api_calls["name"].gather(waits["call"]))
    split = waits.group_by("name").agg(pl.col("backlog_ns", "own_op_ns").sum())
    steady = _medians(profile.steady_calls)
    return (
        functions(profile)
        .join(split, on="name", how="left")
        # Where some calls of a function can block and others cannot, the others are all host time.
        .with_columns((pl.col("total_ns") - pl.col("backlog_ns") - pl.col("own_op_ns")).alias("host_ns"))
        .join(steady, on="name", how="left")
        .with_columns(pl.col("name", "kind").cast(pl.String))
        .sort("self_ns", "name", descending=[True, False])
    )
