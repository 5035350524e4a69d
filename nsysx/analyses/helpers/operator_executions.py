"""Each execution of an operator on the GPU, and the few kinds of them: equal kernels of equal operators."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsysx.analyses.helpers import gpu_counters, operator_work
from nsysx.analyses.helpers.analysis_bounds import ISSUE_ROOF_SHARE
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import lookup
from nsysx.reading.trace import DeviceLimits
from nsysx.roofline.device_rates import rates_of

#: Which roof is higher over an execution.
PRODUCTS, MEMORY, LINK = "products", "memory", "link"
#: The roof of work whose counters show that its SMs issue instructions most of the time: arithmetic outside of the tensor cores.
INSTRUCTIONS = "instructions"
#: Formats from the slowest on: of several in one execution the fastest gives the limit.
SPEEDS = ("fp64", "fp32", "tf32x3", "tf32", "fp16", "bf16", "16 bits", "int8", "fp8")

#: The operators of a report without any.
_NO_OPERATORS = {
    "kind": pl.Int64,
    **dict.fromkeys(("name", "shapes", "caller", "node", "read", "why_not"), pl.String),
    **dict.fromkeys(("flops", "gradient_flops", "tensor_bytes"), pl.Int64),
    "other_sizes": pl.Boolean,
}


def _gpu_work(profile: Profile) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the GPU ops with counted_ns and counted_roof, and the operators that they belong to.

    ``counted_ns``: the time that the device needs for what its counters saw it do, ``counted_roof`` which of them it is; null where they
    were not sampled. Raises NotRecorded without operators and without counters.
    """
    counters = _counters(profile)
    try:
        rows = profile.once(operator_work.operators_of_report).rows
    except NotRecorded:
        if counters is None:
            raise
        rows = pl.DataFrame(schema=_NO_OPERATORS)
    ops = profile.once(operator_work.work)
    if counters is None:
        nothing = pl.lit(None, dtype=pl.Float64), pl.lit(None, dtype=pl.String)
        return ops.with_columns(counted_ns=nothing[0], counted_roof=nothing[1]), rows
    busy = ops.select("op").join(counters, on="op", how="left", maintain_order="left")
    return ops.with_columns(counted_ns=pl.col("ns") * busy["busy"], counted_roof=busy["counted_roof"]), rows


def _counters(profile: Profile) -> pl.DataFrame | None:
    """Return op -> busy, the largest share of memory bandwidth and of tensor cores over all samples of its kernel and launch, and
    counted_roof, which it is. None where nothing was sampled. The bandwidth is that which copies reach. Where SMs issue an instruction
    in most of their cycles, that is a roof as well: the same instructions take as long.
    """
    try:
        means = gpu_counters.of_kernels(profile)
    except NotRecorded:
        return None
    launched = profile.steady_ops["op", "name", "grid", "block"]
    key = (profile.process, profile.device or 0)
    reached = rates_of(device_name(profile), profile.trace.limits.get(key, DeviceLimits()), {}, None)
    nominal = reached.nominal_memory or 0.0
    most = min(reached.memory.per_s / nominal, 1.0) if reached.memory and nominal else 1.0
    issue = pl.col("sm_issue").fill_null(0.0)
    shares = {
        MEMORY: pl.col("dram") / most,
        PRODUCTS: pl.col("tensor_active").fill_null(0.0),
        INSTRUCTIONS: pl.when(issue >= ISSUE_ROOF_SHARE).then(issue).otherwise(0.0),
    }
    largest = pl.concat_list(*shares.values()).list.arg_max()
    means = means.drop_nulls("dram").select(
        "name", "grid", "block",
        busy=pl.max_horizontal(*shares.values()).clip(0.0, 1.0),
        counted_roof=largest.replace_strict(dict(enumerate(shares)), return_dtype=pl.String),
    )  # fmt: skip
    joined = launched.join(means, on=["name", "grid", "block"], how="inner", nulls_equal=True)
    return joined["op", "busy", "counted_roof"]


def device_name(profile: Profile) -> str:
    """Return the name of the shown device."""
    key = (profile.process, profile.device or 0)
    return {(g.process, g.device): g.name for g in profile.trace.capture.gpus}.get(key, "")


#: What tells the operations and bytes of an execution, beside its operator.
_KIND = ("kind", "kernel", "op_kind", "family", "grid", "block", "copied", "speed", "spelled")
_OF_OPERATOR = ("name", "shapes", "node", "read", "why_not", "gradient_flops", "tensor_bytes", "other_sizes")


def executed(profile: Profile) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the executions and their kinds, named by execution_kind: rows with equal kernels of equal operators.

    There are as many executions as GPU ops, and few kinds: names are looked at, and stand, once for each.
    """
    ops, operators = _gpu_work(profile)
    code = profile.code()
    line_place = np.full(ops.height, -1) if code is None else code.places_of(code.op[ops["op"].to_numpy()])
    speeds = {number_format: n for n, number_format in enumerate(SPEEDS)}
    ops = (
        ops.drop("kernel")
        .rename({"name": "kernel"})
        .with_columns(
            pl.Series("place", line_place, dtype=pl.Int64),
            lookup.at(operators["kind"], ops["row"].to_numpy()),
            pl.Series("speed", lookup.coded(ops["format"], speeds)),
            held=(pl.col("row") >= 0) & (pl.col("op_kind") == "kernel"),
            copied=pl.col("bytes").fill_null(0),
            kernels=pl.lit(1, pl.Int64),
            gpu_ns="ns",
            by_name=pl.col("multiplies") == pl.any_horizontal("input", "weight", "layout"),
        )
    )
    held = ops.filter("held").with_row_index("_held")
    sums = held.group_by("row", "launch", maintain_order=True).agg(
        pl.col("_held").get(pl.col("ns").arg_max()),
        pl.len().cast(pl.Int64).alias("kernels"),
        pl.col("gpu_ns", "copied").sum(),
        pl.when(pl.col("counted_ns").null_count() == 0).then(pl.col("counted_ns").sum()).alias("counted_ns"),
        pl.col("speed").max(),
        pl.col("by_name").all(),
        pl.col("input", "weight").any(),
    )
    sums = sums.drop("row", "launch")
    summed = held[sums["_held"]].with_columns(sums.drop("_held").get_columns())
    # What is an execution by itself is no group: there may be as many as GPU ops.
    rows = pl.concat([part.select(*_KEPT) for part in (summed, ops.filter(~ops["held"]))])
    spelled = pl.when("by_name").then(pl.sum_horizontal(pl.col("input", "weight").cast(pl.Int64)))
    rows = rows.with_columns(spelled=spelled)
    kinds = rows.select(*_KIND).unique(maintain_order=True).with_row_index("execution_kind")
    rows = rows.join(kinds, on=_KIND, how="left", nulls_equal=True, maintain_order="left")
    texts = pl.col("kernel", "op_kind", "family").cast(pl.String)
    of_operator = operators.select("kind", "flops", *_OF_OPERATOR).unique("kind")
    kinds = kinds.with_columns(texts).join(of_operator, on="kind", how="left", maintain_order="left")
    kinds = kinds.with_columns(operation=_operation(kinds), backward=pl.col("node").is_not_null())
    return rows.drop(*_KIND), kinds


_KEPT = ("module", "phase", "place", "kernels", "gpu_ns", "counted_ns", "counted_roof", "by_name", "input", "weight",
         *(c for c in _KIND if c != "spelled"))  # fmt: skip


def ops_at(profile: Profile, operation: str, line_row: int) -> frozenset[int]:
    """Return the GPU ops of the steady steps that an operation, as in ``executions``, makes at a line. Raises NotRecorded."""
    ops, rows = _gpu_work(profile)
    code = profile.code()
    if code is None:
        return frozenset()
    kinds = rows.unique("kind")
    theirs = (
        rows.with_row_index("row")
        .filter(pl.col("kind").is_in(kinds.filter(_operation(kinds) == operation)["kind"].implode()))["row"]
        .cast(pl.Int64)
    )
    there = pl.Series(code.places_of(code.op[ops["op"].to_numpy()]) == line_row, dtype=pl.Boolean)
    return frozenset(ops.filter(there & pl.col("row").is_in(theirs.implode()))["op"].to_list())


def _operation(rows: pl.DataFrame) -> pl.Series:
    """Return what a node of autograd is the gradient of, else the operator itself, in torch's spelling."""
    pairs = rows["name", "node"].unique(maintain_order=True)
    made = [
        _of_node(node) or (None if name is None else name.split("::")[-1].split(".", 1)[0].strip("_"))
        for name, node in pairs.iter_rows()
    ]
    pairs = pairs.with_columns(operation=pl.Series(made, dtype=pl.String))
    return rows.join(pairs, on=["name", "node"], how="left", nulls_equal=True, maintain_order="left")["operation"]


def _of_node(node: str | None) -> str | None:
    """Return "avg_pool2d" for AvgPool2DBackward0; None for a compiled function, which holds operators of many kinds."""
    if node is None or node.startswith("Compiled"):
        return None
    words = re.sub(r"Backward\d*$", "", node)
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z\d])(?=[A-Z][a-z])", "_", words).lower() or None
