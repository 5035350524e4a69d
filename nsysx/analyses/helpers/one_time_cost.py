"""The one-time cost of each API call, apart from what it costs every time: the basis of the first-call bill.

``cost`` of a call is its self time without waiting for the GPU (a full launch queue included) and without the profiler's own
time. The one-time part of it:

- library and module loading, driver start: all of it;
- allocation and creation calls before the first steady step, of functions that fewer than every second steady step calls: all. A cache
  (PyTorch's allocators, stream and event pools) is being filled;
- otherwise the first call per (process, API function, kernel): what it costs above the median of the later calls, or of the
  later calls of that function when its kernel ran once; all of it when the function was called once at all;
- module and function loading that the report measured inside a call (OVERHEAD rows, as a union), if that is more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.analyses.helpers.analysis_bounds import RECURRING_CALLS_PER_STEP
from nsysx.analyses.helpers.launch_queue import overhead_inside, queue_full
from nsysx.catalogue import Call
from nsysx.events.profile import Profile, calls_in
from nsysx.frames.intervals import I64, Labels, coverage, merged
from nsysx.frames.lookup import at, distinct, numbered, parted, totals
from nsysx.reading import schema

#: API functions that load code or start the driver.
LOADS = r"LoadData|LoadFatBinary|LibraryLoad|ModuleLoad|cuLink|^cuInit$|PrimaryCtxRetain|^cuCtxCreate"
_CREATES = r"Create"
#: How a one-time cost is known, by the number in ``evidence``.
_EVIDENCE = ("in full", "measured", "only call", "above median")


@dataclass(frozen=True)
class Split:
    """What was paid once, and what every time.

    ``functions``: process, name, kind, calls, self_ns = waiting_ns + profiler_ns + one_time_ns + repeated_ns; one row per API
    function of each process.
    ``bills``: name, kind, kernel (of a launch, else null), calls, first_ns and later_median_ns (cost of the first call, of
    the later ones; null when there is none); one row per API function and kernel, processes together.
    ``paid``: the calls with one-time cost in order of time: call, process, thread, start_ns, name, kind, module, phase, kernel (the
    one it launched, null for none or several), one_time_ns, loading_ns (what the report measured of it, null where it has no
    such rows), evidence ("measured" by OVERHEAD rows, "above median", "only call", "in full"), bill (row of ``bills``).
    """

    functions: pl.DataFrame
    bills: pl.DataFrame
    paid: pl.DataFrame


def split(profile: Profile) -> Split:
    """Return the split of the API calls of the whole capture."""
    return profile.once(_split)


def costs(profile: Profile) -> pl.DataFrame:
    """Return the calls with a one-time cost, see ``Split.paid``."""
    return split(profile).paid


def _profiler(profile: Profile, calls: pl.DataFrame) -> tuple[I64, I64]:
    """Return the calls in which the profiler itself was busy, and for how long (ns, possibly 0)."""
    overheads = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for (thread,), part in parted(profile.trace.overhead, "thread").items():
        # Calls are sorted by (thread, start). Those that overlap a busy stretch lie between the first that reaches beyond
        # its begin and the first that starts after its end: few, and the others need no look.
        low, high = np.searchsorted(calls["thread"].to_numpy(), [thread, thread + 1]).tolist()
        start, end = (calls[c].to_numpy()[low:high] for c in ("start_ns", "end_ns"))
        recorded = coverage([(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())])
        busy = recorded.labels > 0
        near = np.zeros(high - low + 1, np.int64)
        np.add.at(near, np.searchsorted(np.maximum.accumulate(end), recorded.times[:-1][busy], side="right"), 1)
        np.add.at(near, np.searchsorted(start, recorded.times[1:][busy], side="left"), -1)
        rows = np.flatnonzero(np.cumsum(near[:-1]))
        overheads.append((rows + low, recorded.within(busy, start[rows], end[rows])))
    calls_, ns = (np.concatenate(parts) for parts in zip(*overheads, strict=True))
    return calls_, ns


def _recurring(
    profile: Profile, calls: pl.DataFrame, function: Labels, functions: pl.DataFrame
) -> npt.NDArray[np.bool_]:
    """Return which functions are called regularly in the steady steps of their process, not just once by chance.

    ``calls`` are all calls of these functions, ``function`` the row of each in ``functions``; one without calls does not recur.
    """
    inside = calls_in(calls, profile.steps.cpu_windows)
    made = np.bincount(function[inside], minlength=functions.height)
    steps = dict(profile.steps.cpu.filter("steady").group_by("process").len().iter_rows())
    least = np.array([max(1.0, RECURRING_CALLS_PER_STEP * steps.get(p, 0)) for p in functions["process"].to_list()])
    return np.asarray(made >= least)


def _filling(profile: Profile, calls: pl.DataFrame, function: Labels, functions: pl.DataFrame) -> I64:
    """Return the calls that fill caches: allocations and creations before the first steady step, of functions unused in it."""
    if profile.steps.source == "capture" or profile.trace.window is not None:
        return np.empty(0, np.int64)
    makes = functions["kind"].is_in([Call.ALLOC, Call.HOST_ALLOC]) | functions["name"].str.contains(_CREATES)
    wanted = makes.to_numpy(writable=True)
    rows: I64 = np.flatnonzero(wanted[function])  # few: the others need no look
    if not len(rows):
        return rows
    wanted &= ~_recurring(profile, calls["process", "start_ns"][rows], function[rows], functions)
    rows = rows[wanted[function[rows]]]
    process, start = (calls[c].to_numpy()[rows] for c in ("process", "start_ns"))
    early = np.zeros(len(rows), np.bool_)
    begin = profile.steps.cpu.filter("steady").group_by("process").agg(pl.col("start_ns").min())
    for key, first in begin.iter_rows():
        early |= (process == key) & (start < first)
    return rows[early]


def _functions(calls: pl.DataFrame) -> tuple[I64, pl.DataFrame]:
    """Return the (process, API function) of each call as a row of the second: process, name, kind."""
    names, function = distinct(calls["name"])
    process = calls["process"].to_numpy()
    # Calls are sorted by thread, so a process is a few runs of rows.
    heads = np.flatnonzero(np.diff(process, prepend=process[:1] - 1))
    processes, which = np.unique(process[heads], return_inverse=True)
    if len(processes) > 1:
        function = function + len(names) * np.repeat(which, np.diff(heads, append=len(process)))
    numbers, function = numbered(function)
    some = np.zeros(len(numbers), np.int64)
    some[function] = np.arange(len(function))
    return function, calls["process", "name", "kind"][some].with_columns(pl.col("name", "kind").cast(pl.String))


def _launched(profile: Profile) -> tuple[Labels, pl.Series]:
    """Return, per call, the one kernel that it launched as a row of the second, 0 for none or several."""
    calls, ops = profile.attributed.api_calls, profile.attributed.gpu_ops
    call = ops["call"].fill_null(-1).to_numpy()
    kernels = np.flatnonzero((ops["op_kind"] == "kernel").to_numpy() & (call >= 0))
    kernels = kernels[calls["gpu_ops"].to_numpy()[call[kernels]] == 1]
    names, name = distinct(ops["name"])
    kernel_of = np.zeros(calls.height, np.int32)
    kernel_of[call[kernels]] = name[kernels]
    return kernel_of, pl.Series("kernel", names, dtype=pl.String)


def _first_rows(group: Labels, start: I64, size: int) -> I64:
    """Return the first row of each group by (start, row)."""
    begin, first = np.full(size, np.iinfo(np.int64).max), np.full(size, len(start))
    np.minimum.at(begin, group, start)
    rows = np.flatnonzero(start == begin[group])
    np.minimum.at(first, group[rows], rows)
    return first


def _median_of_later(group: Labels, first: I64, cost: I64) -> pl.DataFrame:
    """Return group, later: the median of the calls of each group but its first one."""
    group = group.copy()
    group[first] = -1
    return pl.DataFrame({"group": group, "later": cost}).group_by("group").agg(pl.col("later").median())


def _pairs(function: Labels, kernel: Labels, kernels: int) -> tuple[I64, Labels]:
    """Return the distinct numbers ``function * kernels + kernel``, sorted, and each row's index into them."""
    key = function.astype(np.int64)
    key *= kernels
    key += kernel
    keys, group = numbered(key)
    return keys, group.astype(np.int32)


def _firsts(function: Labels, kernel: Labels, kernels: int, start: I64, cost: I64) -> tuple[Labels, pl.DataFrame]:
    """Return the (process, API function, kernel) of each call, and the first call of each in order of time.

    Columns: group, function, kernel, call, calls (of the group), cost_ns, later (median of the later calls, null for none),
    above_ns (what it costs above what it is compared with), only (whether it is the only call of its function).
    """
    keys, group = _pairs(function, kernel, kernels)
    first = _first_rows(group, start, len(keys))
    firsts = pl.DataFrame(
        {
            "group": np.arange(len(keys)),
            "function": keys // kernels,
            "kernel": keys % kernels,
            "call": first,
            "calls": np.bincount(group, minlength=len(keys)),
            "cost_ns": cost[first],
        }
    )[np.lexsort((first, start[first]))]
    functions = firsts.group_by("function").agg(
        pl.col("calls").sum().alias("all"),
        pl.len().alias("groups"),
        (pl.col("calls") == 1).any().alias("single"),
        pl.col("cost_ns").slice(1).min().alias("cheapest"),
    )
    functions = functions.sort("function")  # each has a first call, so its row is its number
    # A kernel that ran only once is compared with the later launches of other kernels.
    mixed = np.zeros(int(function.max(initial=-1)) + 1, np.bool_)
    mixed[functions.filter(functions["single"] & (functions["all"] > functions["groups"]))["function"].to_numpy()] = (
        True
    )
    rows = np.flatnonzero(mixed[function]) if mixed.any() else np.empty(0, np.int64)
    rows = rows[first[group[rows]] != rows]
    others = (
        pl.DataFrame({"function": function[rows], "other": cost[rows]})
        .group_by("function")
        .agg(pl.col("other").median())
    )
    firsts = firsts.hstack(functions.drop("function")[firsts["function"]])
    for more, key in ((_median_of_later(group, first, cost), "group"), (others, "function")):
        firsts = firsts.join(more, on=key, how="left", maintain_order="left")
    # If each call launched a different kernel, a call costs at most as much as the cheapest of the later ones.
    cheapest = pl.when(pl.col("all") == pl.col("groups")).then("cheapest")
    above = pl.col("cost_ns") - pl.coalesce("later", "other", cheapest, pl.lit(0.0))
    above = above.round(0).cast(pl.Int64).clip(lower_bound=0)
    return group, firsts.with_columns(above.alias("above_ns"), (pl.col("all") == 1).alias("only"))


def _bills(group: Labels, firsts: pl.DataFrame, functions: pl.DataFrame, cost: I64) -> tuple[I64, pl.DataFrame]:
    """Return the bill that each group is on, and the bills, with ``kernel`` as in ``firsts``, 0 for none."""
    key = ["name", "kind", "kernel"]
    rows = pl.concat([firsts, functions["name", "kind"][firsts["function"]]], how="horizontal")
    rows = rows.with_columns(pl.when(pl.col("kind") == Call.LAUNCH).then("kernel").otherwise(0).alias("kernel"))
    bills = rows.group_by(key, maintain_order=True).agg(
        pl.col("calls").sum(),
        pl.col("call").first(),
        pl.col("cost_ns").first().alias("first_ns"),
        pl.col("later").first(),
    )
    bills = bills.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("group"))
    bill = rows.select("group", *key).sort("group").join(bills, on=key, maintain_order="left")["group_right"].to_numpy()
    if bills.height < rows.height:
        later = _median_of_later(bill[group], bills["call"].to_numpy(), cost)
        bills = bills.drop("later").join(later, on="group", how="left", maintain_order="left")
    return bill, bills.select(*key, "calls", "first_ns", pl.col("later").alias("later_median_ns"))


def _split(profile: Profile) -> Split:
    calls, waits = profile.attributed.api_calls, profile.ledgers.waits
    function, functions = _functions(calls)
    function = function.astype(np.int32)
    kernel, kernels = _launched(profile)
    self_ns = calls["self_ns"].to_numpy()
    cost = self_ns.copy()
    blocking = waits["call"].to_numpy()
    cost[blocking] = np.minimum(cost[blocking], waits["host_ns"].to_numpy())
    # A launch that blocks on a full queue waits for the GPU like any other wait.
    cost -= np.minimum(queue_full(profile, calls), cost)
    busy, profiler = _profiler(profile, calls)
    profiler = np.minimum(profiler, cost[busy])
    cost[busy] -= profiler
    group, firsts = _firsts(function, kernel, len(kernels), calls["start_ns"].to_numpy(), cost)
    bill, bills = _bills(group, firsts, functions, cost)

    # Few calls have a one-time cost, so only those are handled.
    loads = functions["name"].str.contains(LOADS).to_numpy()
    filling = _filling(profile, calls, function, functions)
    inside = overhead_inside(profile.trace, calls, schema.OVERHEAD_ONE_TIME)
    first = firsts["call"].to_numpy()
    rows = merged([np.flatnonzero(loads[function]), filling, np.flatnonzero(inside), np.sort(first)])
    in_full = loads[function[rows]]
    in_full[np.searchsorted(rows, filling)] = True
    rule, only = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    first_row = np.searchsorted(rows, first)
    if profile.trace.window is None:  # else the first that is seen is not the first that was
        rule[first_row], only[first_row] = firsts["above_ns"].to_numpy(), firsts["only"].to_numpy()
    measured = np.minimum(inside[rows], cost[rows])
    one_time = np.where(in_full, cost[rows], np.maximum(rule, measured))
    why = np.select([in_full, (measured > 0) & (measured >= rule), only], [0, 1, 2], default=3)
    if not profile.recorded("cupti_overhead"):
        measured = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(rows))
    paid = calls["call", "process", "thread", "start_ns", "name", "kind", "module", "phase"][rows].with_columns(
        at(kernels, kernel[rows].astype(np.int64)),
        pl.Series("one_time_ns", one_time),
        pl.Series("loading_ns", measured),
        at(pl.Series("evidence", _EVIDENCE), why),
        pl.Series("bill", bill[group[rows]]),
    )
    size = functions.height
    parts = {
        "calls": np.bincount(function, minlength=size),
        "self_ns": totals(function, self_ns, size),
        "profiler_ns": totals(function[busy], profiler, size),
        "one_time_ns": totals(function[rows], one_time, size),
    }
    repeated = totals(function, cost, size) - parts["one_time_ns"]
    waiting = parts["self_ns"] - parts["profiler_ns"] - parts["one_time_ns"] - repeated
    functions = functions.with_columns(
        *(pl.Series(k, v) for k, v in parts.items()),
        pl.Series("repeated_ns", repeated),
        pl.Series("waiting_ns", waiting),
    )
    bills = bills.with_columns(at(kernels, bills["kernel"].to_numpy()))
    return Split(functions, bills, paid.filter(paid["one_time_ns"] > 0).sort("start_ns", "call"))
