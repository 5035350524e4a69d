"""GPU and CPU time by module, forward and backward on one row, and what belongs to no module named as such."""

from __future__ import annotations

import polars as pl

from nsysx import columns
from nsysx.facts import Facts, NotRecorded
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


def _own(facts: Facts) -> pl.DataFrame:
    """Return per module what it did itself, children apart."""
    ns = pl.col("end_ns") - pl.col("start_ns")
    module = pl.col("module").cast(pl.String)  # once per module: sums are made by its number first
    backward = (pl.col("phase") == "backward").fill_null(False)
    copying = (pl.col("op_kind") == "memcpy") | (pl.col("op_kind") == "memset")
    gpu = facts.steady_ops.group_by("module").agg(
        ns.filter(~backward).sum().alias("forward"),
        ns.filter(backward).sum().alias("backward"),
        ns.sum().alias("self_gpu_ns"),
        (pl.col("op_kind") == "kernel").sum().cast(pl.Int64).alias("kernels"),
        ns.filter(copying).sum().alias("copy_ns"),
        pl.col("queue_ns").sum(),
        *(ns.filter(pl.col("grade") == g).sum().alias(f"_{g}") for g in _GRADES),
    )
    calls = facts.steady_calls
    launching = calls.filter((pl.col("kind") == "launch") | (pl.col("kind") == "graph_launch"))
    waits = calls.join(facts.ledgers.waits, on="call", how="inner").group_by("module")
    cpu = calls.group_by("module").agg()
    for part in (
        launching.group_by("module").agg(pl.col("self_ns").sum().alias("launch_ns")),
        waits.agg(pl.col("backlog_ns").sum().alias("wait_ns")),
        calls.filter(pl.col("kind") == "sync").group_by("module").agg(pl.col("self_ns").sum().alias("sync_ns")),
    ):
        cpu = cpu.join(part, on="module", how="left", nulls_equal=True)
    windows = facts.steps.windows.select(
        "process", "device", pl.col("start_ns").alias("_a"), pl.col("end_ns").alias("_b")
    )
    idle = facts.ledgers.idle.join(windows, on=["process", "device"], how="inner").with_columns(
        (pl.min_horizontal("end_ns", "_b") - pl.max_horizontal("start_ns", "_a")).clip(lower_bound=0).alias("ns")
    )
    op = idle["op"].fill_null(-1).to_numpy()
    idle = idle.with_columns(columns.at(facts.attributed.gpu_ops["module"], op).alias("module"))
    idle = idle.group_by("module").agg(pl.col("ns").sum().alias("idle_blamed_ns"))
    rows = gpu.with_columns(module).join(
        cpu.with_columns(module), on="module", how="full", coalesce=True, nulls_equal=True
    )
    return rows.join(idle.with_columns(module), on="module", how="full", coalesce=True, nulls_equal=True).with_columns(
        pl.exclude("module").fill_null(0)
    )


def _calls(facts: Facts) -> pl.DataFrame:
    """Return forward calls per module in the steady steps."""
    spans = facts.ranges.ranges.filter(pl.col("kind").is_in(["module", "range"]) & ~pl.col("recompute"))
    windows = facts.steps.cpu_windows.select("process", pl.col("start_ns").alias("_a"), pl.col("end_ns").alias("_b"))
    inside = spans.join(windows, on="process", how="inner").filter(
        (pl.col("start_ns") >= pl.col("_a")) & (pl.col("start_ns") < pl.col("_b"))
    )
    path = pl.when(pl.col("name") == "").then(pl.format("({})", "cls")).otherwise(pl.col("name"))
    return inside.group_by(path.alias("module")).agg(pl.len().cast(pl.Int64).alias("calls"))


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
        seen, at = [name], parent[name]
        while at is not None and at not in seen:
            seen.append(at)
            at = parent.get(at)
        chain[name] = seen
    above = pl.DataFrame(
        [(name, up) for name, ups in chain.items() for up in ups],
        schema={"module": pl.String, "above": pl.String},
        orient="row",
    )
    rolled = (
        own.join(above, on="module", how="inner")
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
