"""GPU and CPU time by module, forward and backward on one row, and what belongs to no module named as such."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.columns import at, distinct, totals
from nsysx.facts import Facts, NotRecorded
from nsysx.intervals import I64
from nsysx.model import Column

KEY = "modules"
TITLE = "Modules"
COLUMNS = (
    Column("path", "String", "", "qualified path; in parentheses what lies outside modules; null for not attributed"),
    Column("cls", "String", "", "class"),
    Column("parent", "String", "", "module that calls it, null at a root"),
    Column("depth", "Int64", "", "distance from its root"),
    Column("calls", "Int64", "", "forward calls in the steady steps"),
    Column("forward_gpu_ns", "Int64", "ns", "GPU op time of forward, children included"),
    Column("backward_gpu_ns", "Int64", "ns", "GPU op time of backward, children and recompute included"),
    Column("self_gpu_ns", "Int64", "ns", "GPU op time of the module itself, forward and backward; sums to all"),
    Column("kernels", "Int64", "", "kernels of the module itself"),
    Column("copy_ns", "Int64", "ns", "of self_gpu_ns in copies and memsets"),
    Column("queue_ns", "Int64", "ns", "time its own GPU ops waited in the queue after their launch, summed"),
    Column("launch_ns", "Int64", "ns", "self time of its own launch calls"),
    Column("wait_ns", "Int64", "ns", "backlog that its own blocking calls waited for"),
    Column("sync_ns", "Int64", "ns", "self time of its own synchronize calls"),
    Column("idle_blamed_ns", "Int64", "ns", "device idle time that ended with one of its own GPU ops"),
    Column("grade", "String", "", "weakest evidence behind 1 % or more of its GPU time: thread, seq, time, none"),
)

_GRADES = ["thread", "seq", "time", "none"]


def _sums(module: pl.Series, **parts: I64) -> pl.DataFrame:
    """Return the sum of each part per module."""
    names, of = distinct(module)
    return pl.DataFrame(
        {"module": pl.Series(names, dtype=pl.String)} | {k: totals(of, v, len(names)) for k, v in parts.items()}
    )


def _own(facts: Facts) -> pl.DataFrame:
    """Return per module what it did itself, children apart."""
    ops = facts.steady_ops
    ns = (ops["end_ns"] - ops["start_ns"]).to_numpy()
    op_kind, grade = ops["op_kind"], ops["grade"]
    backward = (ops["phase"] == "backward").fill_null(False).to_numpy()
    gpu = _sums(
        ops["module"],
        forward=np.where(backward, 0, ns),
        backward=np.where(backward, ns, 0),
        self_gpu_ns=ns,
        kernels=(op_kind == "kernel").to_numpy().astype(np.int64),
        copy_ns=np.where(((op_kind == "memcpy") | (op_kind == "memset")).to_numpy(), ns, 0),
        queue_ns=ops["queue_ns"].fill_null(0).to_numpy(),
        **{f"_{g}": np.where((grade == g).to_numpy(), ns, 0) for g in _GRADES},
    )
    calls = facts.steady_calls.select("call", "module", "kind", "self_ns")
    launching = (pl.col("kind") == "launch") | (pl.col("kind") == "graph_launch")
    launches, syncs = calls.filter(launching), calls.filter(pl.col("kind") == "sync")
    waits = calls.join(facts.ledgers.waits.select("call", "backlog_ns"), on="call", how="inner")
    parts = [
        gpu,
        _sums(launches["module"], launch_ns=launches["self_ns"].to_numpy()),
        _sums(syncs["module"], sync_ns=syncs["self_ns"].to_numpy()),
        _sums(waits["module"], wait_ns=waits["backlog_ns"].to_numpy()),
    ]
    for pieces in facts.idle().values():
        module = at(facts.attributed.gpu_ops["module"], pieces["op"].to_numpy())
        parts.append(_sums(module, idle_blamed_ns=pieces["ns"].to_numpy()))
    empty = pl.DataFrame(schema={"idle_blamed_ns": pl.Int64})
    return pl.concat([*parts, empty], how="diagonal").group_by("module").sum()


def _calls(facts: Facts) -> pl.DataFrame:
    """Return forward calls per module in the steady steps."""
    windows = facts.steps.cpu_windows.select("process", "start_ns", "end_ns").iter_rows()
    inside = [
        (pl.col("process") == process) & (pl.col("start_ns") >= start) & (pl.col("start_ns") < end)
        for process, start, end in windows
    ]
    spans = (
        facts.ranges.ranges.select("process", "start_ns", "kind", "name", "cls", "recompute")
        .filter(
            (pl.col("kind") == "module") | (pl.col("kind") == "range"), ~pl.col("recompute"), pl.any_horizontal(inside)
        )
        .group_by("name", "cls")
        .len()
        .with_columns(pl.col("name", "cls").cast(pl.String))
    )
    path = pl.when(pl.col("name") == "").then(pl.format("({})", "cls")).otherwise(pl.col("name"))
    return spans.group_by(path.alias("module")).agg(pl.col("len").sum().cast(pl.Int64).alias("calls"))


def table(facts: Facts) -> pl.DataFrame:
    """Return one row per module, in order of first call; roots first, then what lies outside, then what is unknown.

    ``self_gpu_ns`` over all rows is the GPU op time of the steady steps.
    """
    if not facts.recorded("nvtx") or not facts.ranges.ranges.height:
        raise NotRecorded(
            "no NVTX range was recorded: run under `nsysx run`, or with -t nvtx and ranges of your own", "-t nvtx"
        )
    own = _own(facts)
    tree = facts.attributed.modules.select("module", "cls", "parent", "first_ns")
    rows = own.join(tree, on="module", how="full", coalesce=True, nulls_equal=True)
    rows = rows.join(_calls(facts), on="module", how="left", nulls_equal=True)
    rows = rows.with_columns(pl.exclude("module", "cls", "parent", "first_ns").fill_null(0))
    # Roll children up along the tree: each module's own time counts for it and for every module above it.
    parent = dict(tree.select("module", "parent").iter_rows())
    chain: dict[str, list[str]] = {}
    for name in parent:
        seen, above = [name], parent[name]
        while above is not None and above not in seen:
            seen.append(above)
            above = parent.get(above)
        chain[name] = seen
    chains = pl.DataFrame(
        [(name, up) for name, ups in chain.items() for up in ups],
        schema={"module": pl.String, "above": pl.String},
        orient="row",
    )
    rolled = (
        own.join(chains, on="module", how="inner")
        .group_by(pl.col("above").alias("module"))
        .agg(pl.col("forward").sum().alias("_forward"), pl.col("backward").sum().alias("_backward"))
    )
    rows = rows.join(rolled, on="module", how="left", nulls_equal=True).with_columns(
        pl.coalesce("_forward", "forward").alias("forward_gpu_ns"),
        pl.coalesce("_backward", "backward").alias("backward_gpu_ns"),
        pl.col("module")
        .replace_strict({k: len(v) - 1 for k, v in chain.items()}, default=0, return_dtype=pl.Int64)
        .alias("depth"),
        pl.col("module").alias("path"),
    )
    weak = pl.lit("none")
    for grade in reversed(_GRADES):
        weak = pl.when(pl.col(f"_{grade}") > 0).then(pl.lit(grade)).otherwise(weak)
    for grade in _GRADES[1:]:
        weak = (
            pl.when(pl.col(f"_{grade}") * 100 >= pl.col("self_gpu_ns").clip(lower_bound=1))
            .then(pl.lit(grade))
            .otherwise(weak)
        )
    quiet = (
        pl.when(pl.col("self_gpu_ns") > 0)
        .then(weak)
        .when(pl.col("path").is_null())
        .then(pl.lit("none"))
        .otherwise(pl.lit("thread"))
    )
    busy = pl.sum_horizontal(
        "self_gpu_ns", "forward_gpu_ns", "backward_gpu_ns", "launch_ns", "sync_ns", "wait_ns", "idle_blamed_ns", "calls"
    )
    return (
        rows.with_columns(quiet.alias("grade"))
        .filter((busy > 0) | pl.col("path").is_not_null() & pl.col("first_ns").is_not_null())
        .with_columns(
            pl.when(pl.col("first_ns").is_not_null())
            .then(0)
            .when(pl.col("path").is_not_null())
            .then(1)
            .otherwise(2)
            .alias("_group")
        )
        .sort("_group", "first_ns", "self_gpu_ns", "path", descending=[False, False, True, False], nulls_last=True)
        .select(c.name for c in COLUMNS)
    )
