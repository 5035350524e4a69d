"""Each execution of an operator with the operations it does, the bytes it must move, and the time that the device needs for them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from nsysx.analyses.helpers import gpu_counters, operator_work
from nsysx.analyses.helpers.analysis_bounds import (
    CACHES_MOVED_TIMES,
    ISSUE_ROOF_SHARE,
    KERNEL_CLOCK_TOLERANCE_NS,
    NEITHER_ROOF_SHARE,
)
from nsysx.events import work_operators
from nsysx.events.families import COMMUNICATION
from nsysx.events.operator_flops import sizes
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns
from nsysx.reading import schema
from nsysx.reading.trace import DeviceLimits
from nsysx.replay.replay_bounds import LARGE_COPY_BYTES
from nsysx.roofline import recurrent
from nsysx.roofline.device_rates import CALIBRATED, SEEN, DeviceRate, DeviceRates, rates_of
from nsysx.roofline.element_types import OF_FORMAT, types_of
from nsysx.roofline.operator_bytes import OperatorCall, bytes_of
from nsysx.rows import Column

#: Which roof is higher over an execution.
PRODUCTS, MEMORY, LINK = "products", "memory", "link"
#: The roof of work whose counters show that its SMs issue instructions most of the time: arithmetic outside of the tensor cores.
INSTRUCTIONS = "instructions"
#: Kernels that do fewer operations than the sizes say: Winograd's minimal filtering.
_FEWER = re.compile("winograd", re.IGNORECASE)
#: Attention counts in full, but a causal mask, which is no tensor, leaves half.
_ATTENTION = re.compile(r"_scaled_dot_product|_flash_att|_efficient_attention|_flash_attn")

COLUMNS = (
    Column("name", "String", "", "operator, null for work outside of all"),
    Column("operation", "String", "", "operator that it belongs to: a gradient to the operator of the forward"),
    Column("shapes", "String", "", "sizes of its arguments"),
    Column("module", "String", "", "module"),
    Column("phase", "String", "", "phase"),
    Column("place", "Int64", "", "number of its line, -1 where unknown"),
    Column("family", "String", "", "family of its longest kernel"),
    Column("kernel", "String", "", "its longest kernel or the direction of a copy"),
    Column("backward", "Boolean", "", "a node of autograd runs it"),
    Column("kernels", "Int64", "", "its kernels, copies and memsets"),
    Column("gpu_ns", "Int64", "ns", "their time"),
    Column("number_format", "String", "", "the fastest format that it multiplies"),
    Column("flops", "Int64", "FLOP", "operations of its products; null where unknown, 0 where there are none"),
    Column("moved_bytes", "Int64", "bytes", "bytes that it must move; null where unknown"),
    Column("limit_ns", "Float64", "ns", "least time for both; null where one is unknown"),
    Column(
        "roof", "String", "", "which of both takes longer: products, memory, link, instructions; null without limit"
    ),
    Column("by_counters", "Boolean", "", "for want of sizes its limit, if any, is what the GPU's counters saw it do"),
    Column(
        "counted_ns",
        "Float64",
        "ns",
        "time that the device needs for what counters saw; null where they were not sampled",
    ),
    Column("counted_roof", "String", "", "which roof counted_ns is of"),
    Column("why_not", "String", "", "why there is no limit"),
)
_SCHEMA = frame_columns.schema(COLUMNS)


def executions(profile: Profile) -> pl.DataFrame:
    """Return one row per execution of an operator, copy, or kernel outside of operators, of the shown device; COLUMNS.

    The sum of ``gpu_ns`` is that of all GPU work of the steady steps on it. Raises NotRecorded.
    """
    rows = profile.once(_executed)
    counted = _with_bytes(rows)
    rates = profile.once(device_rates)
    # Direction -> bytes/s of the fastest large copy between host and device.
    copies = counted.filter(
        (pl.col("op_kind") == "memcpy") & (pl.col("copied") >= LARGE_COPY_BYTES) & (pl.col("gpu_ns") > 0)
    )
    fastest = copies.group_by("kernel").agg((pl.col("copied") / pl.col("gpu_ns") * 1e9).max().alias("rate"))
    return _with_limits(counted, rates, dict(fastest.iter_rows())).select(*_SCHEMA)


#: The operators of a report without any.
_NO_OPERATORS = {
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
    launched = profile.steady_ops.select("op", "name", "grid", "block")
    key = (profile.process, profile.device or 0)
    reached = rates_of(_device_name(profile), profile.trace.limits.get(key, DeviceLimits()), {}, None)
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
    return joined.select("op", "busy", "counted_roof")


def _device_name(profile: Profile) -> str:
    key = (profile.process, profile.device or 0)
    return {(g.process, g.device): g.name for g in profile.trace.capture.gpus}.get(key, "")


def _executed(profile: Profile) -> pl.DataFrame:
    """Return the executions without bytes and limits."""
    ops, rows = _gpu_work(profile)
    code = profile.code()
    line_place = np.full(ops.height, -1) if code is None else code.places_of(code.op[ops["op"].to_numpy()])
    ops = ops.with_columns(pl.Series("place", line_place, dtype=pl.Int64), copy=pl.col("op_kind") != "kernel")
    ns, long = pl.col("ns"), pl.col("ns").arg_max()
    of_longest = ("module", "phase", "place", "family", "name", "op_kind", "grid", "block")
    spelled = pl.col("multiplies") == pl.any_horizontal("input", "weight", "layout")
    sums = [
        pl.col(of_longest).get(long),
        pl.len().cast(pl.Int64).alias("kernels"),
        ns.sum().alias("gpu_ns"),
        pl.col("bytes").sum().alias("copied"),
        pl.when(pl.col("counted_ns").null_count() == 0).then(pl.col("counted_ns").sum()).alias("counted_ns"),
        pl.col("counted_roof").get(long),
        pl.col("format").drop_nulls().unique().alias("formats"),
        pl.col("multiplies").any(),
        pl.when(spelled.all()).then(pl.sum_horizontal(pl.col("input", "weight").any().cast(pl.Int64))).alias("spelled"),
    ]
    held = ops.filter((pl.col("row") >= 0) & ~pl.col("copy"))
    held = held.group_by("row", "launch", maintain_order=True).agg(*sums)
    # What is an execution by itself is no group: there may be as many as GPU ops.
    free = ops.filter((pl.col("row") < 0) | pl.col("copy")).select(
        "row",
        *of_longest,
        pl.lit(1, pl.Int64).alias("kernels"),
        ns.alias("gpu_ns"),
        pl.col("bytes").fill_null(0).alias("copied"),
        "counted_ns",
        "counted_roof",
        pl.concat_list("format").list.drop_nulls().alias("formats"),
        "multiplies",
        pl.when(spelled).then(pl.sum_horizontal(pl.col("input", "weight").cast(pl.Int64))).alias("spelled"),
    )
    numbered = rows.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    rows = pl.concat([held.drop("launch"), free])
    texts = pl.col([name for name in operator_work.TEXTS if name in rows.columns]).cast(pl.String)
    rows = rows.with_columns(texts, pl.col("formats").cast(pl.List(pl.String))).rename({"name": "kernel"})
    rows = rows.join(numbered, on="row", how="left", maintain_order="left")
    return rows.with_columns(operation=_operation(rows), backward=pl.col("node").is_not_null())


def ops_at(profile: Profile, operation: str, line_row: int) -> frozenset[int]:
    """Return the GPU ops of the steady steps that an operation, as in ``executions``, makes at a line. Raises NotRecorded."""
    ops, rows = _gpu_work(profile)
    code = profile.code()
    if code is None:
        return frozenset()
    theirs = np.flatnonzero((_operation(rows) == operation).fill_null(value=False).to_numpy())
    there = pl.Series(code.places_of(code.op[ops["op"].to_numpy()]) == line_row, dtype=pl.Boolean)
    return frozenset(ops.filter(there & pl.col("row").is_in(theirs))["op"].to_list())


def _operation(rows: pl.DataFrame) -> pl.Series:
    """Return what a node of autograd is the gradient of, else the operator itself, in torch's spelling."""
    pairs = rows.select("name", "node").unique(maintain_order=True)
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


def _with_bytes(rows: pl.DataFrame) -> pl.DataFrame:
    """Add flops, moved_bytes, number_format (the fastest) and why_not; each kind of execution is counted once."""
    keys = ["name", "shapes", "read", "kernel", "formats", "spelled", "flops", "gradient_flops", "why_not", "op_kind",
            "copied", "other_sizes", "family", "tensor_bytes", "grid", "block"]  # fmt: skip
    kinds = rows.select(keys).unique(maintain_order=True)
    counted = [_operations_and_bytes(row) for row in kinds.iter_rows(named=True)]
    names = ("_flops", "moved_bytes", "number_format", "_why")
    types = (pl.Int64, pl.Int64, pl.String, pl.String)
    kinds = kinds.with_columns(
        pl.Series(n, values, dtype=t)
        for n, t, values in zip(names, types, zip(*counted, strict=True) if counted else [[]] * 4, strict=True)
    )
    joined = rows.join(kinds, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(flops="_flops", why_not="_why").drop("_flops", "_why")


def _operations_and_bytes(row: Mapping[str, Any]) -> tuple[int | None, int | None, str | None, str | None]:
    """Return the operations, the bytes, the format and why one is not known, of one kind of execution."""
    if row["op_kind"] in ("memcpy", "memset"):
        inside = row["op_kind"] == "memcpy" and row["kernel"] in _INSIDE
        return 0, row["copied"] * (2 if inside else 1), None, None
    if row["family"] == COMMUNICATION:
        return None, None, None, "communication, which waits for other ranks"
    if row["name"] is None:
        return None, None, None, "no operator launched it"
    shapes = sizes(row["shapes"])
    if row["other_sizes"]:
        return None, None, None, work_operators.OTHER_SIZES
    if row["tensor_bytes"] is not None:
        return 0, row["tensor_bytes"], None, None
    if row["why_not"] == work_operators.MULTIPLIES:
        return None, None, None, row["why_not"]
    if "::" not in row["name"]:
        why = "torch.compile made the kernel" if row["name"].startswith("Compiled") else "not an operator of torch"
        return None, None, None, why
    if shapes is None:
        return None, None, None, "its shapes were not recorded"
    number_format = max(row["formats"], key=_speed, default=None)
    operations, gradients, unknown = _operations(row, shapes)
    if unknown:
        return None, None, number_format, unknown
    if operations and number_format is None:
        return operations, None, None, "the number format of its products is not known"
    read = json.loads(row["read"]) if row["read"] else shapes
    width = OF_FORMAT.get(number_format or "")
    result = operations // (2 * max(math.prod(shapes[1][1:]), 1)) if operations and len(shapes) > 1 else 0
    launch = None
    if row["grid"] is not None and row["block"] is not None:
        launch = schema.unpack(row["grid"], schema.GRID)[1], schema.unpack(row["block"], schema.BLOCK)[0]
    call = OperatorCall(
        row["name"],
        shapes,
        read=read,
        types=types_of(row["kernel"]),
        width=width,
        result=result,
        gradients=gradients,
        launch=launch,
    )
    moved = bytes_of(call, row["kernel"])
    return operations, moved, number_format, None if moved is not None else NO_FORMULA


#: Formats from the slowest on: of several in one execution the fastest gives the limit.
_SPEEDS = ("fp64", "fp32", "tf32x3", "tf32", "fp16", "bf16", "16 bits", "int8", "fp8")


def _speed(number_format: str) -> int:
    return _SPEEDS.index(number_format) if number_format in _SPEEDS else -1


def _operations(row: Mapping[str, Any], shapes: list[list[int]]) -> tuple[int, int, str | None]:
    """Return the operations that its kernels do at least, how many gradients they make, or why that is not known."""
    if row["flops"] is not None:
        operations, gradients = row["flops"], 2 if row["spelled"] == 2 else 1
        if _FEWER.search(row["kernel"]):
            return 0, gradients, None
        return operations // 2 if _ATTENTION.search(row["name"]) else operations, gradients, None
    if row["gradient_flops"] is not None:
        gradients = row["spelled"] or 1
        return row["gradient_flops"] * gradients, gradients, None
    if row["why_not"] is not None:
        return 0, 1, row["why_not"]
    return recurrent.operations(row["name"], shapes) or 0, 1, None


def device_rates(profile: Profile) -> DeviceRates:
    """Return the rates of the shown device. Raises NotRecorded."""
    key = (profile.process, profile.device or 0)
    limits = profile.trace.limits.get(key, DeviceLimits())
    name = _device_name(profile)
    rows = _with_bytes(profile.once(_executed)).filter((pl.col("gpu_ns") > 0) & (pl.col("op_kind") == "kernel"))
    products = rows.filter((pl.col("flops") > 0) & pl.col("number_format").is_not_null())
    fastest = products.group_by("number_format").agg((pl.col("flops") / pl.col("gpu_ns") * 1e9).max().alias("rate"))
    seen = {n: DeviceRate(rate, SEEN) for n, rate in fastest.iter_rows()}
    calibrated = {
        n: p for n, p in operator_work.calibrated(profile).items() if n not in seen or p.flops_per_s > seen[n].per_s
    }
    seen |= {n: DeviceRate(p.flops_per_s, CALIBRATED) for n, p in calibrated.items()}
    rates = rates_of(name, limits, seen, None)
    if not rates.memory or not rates.cache or not rates.nominal_memory:
        return rates
    # The rate at which the memory would have moved what the cache cannot hold.
    large = rows.filter(pl.col("moved_bytes") >= CACHES_MOVED_TIMES * max(rates.cache_bytes, LARGE_COPY_BYTES))
    beyond = large["moved_bytes"].to_numpy() - rates.cache_bytes
    left = large["gpu_ns"].to_numpy() - rates.cache_bytes / rates.cache.per_s * 1e9
    reached = beyond[left > 0] / left[left > 0] * 1e9
    fastest_memory = max((float(r) for r in reached if r <= rates.nominal_memory), default=None)
    return rates_of(name, limits, seen, fastest_memory)


def _with_limits(rows: pl.DataFrame, rates: DeviceRates, links: Mapping[str, float]) -> pl.DataFrame:
    """Add limit_ns, roof and why_not; each kind of execution is counted once."""
    keys = ["op_kind", "link", "flops", "moved_bytes", "number_format", "why_not"]
    rows = rows.with_columns(link=pl.when(pl.col("op_kind") == "memcpy").then("kernel"))
    kinds = rows.select(keys).unique(maintain_order=True)
    limited = [_limit(row, rates, links) for row in kinds.iter_rows(named=True)]
    kinds = kinds.with_columns(
        pl.Series("_limit", [limit for limit, _, _ in limited], dtype=pl.Float64),
        pl.Series("_roof", [roof for _, roof, _ in limited], dtype=pl.String),
        pl.Series("_why", [why for _, _, why in limited], dtype=pl.String),
    )
    rows = rows.join(kinds, on=keys, how="left", nulls_equal=True, maintain_order="left")
    possible = pl.col("_limit") <= pl.col("gpu_ns") + KERNEL_CLOCK_TOLERANCE_NS
    rows = rows.with_columns(
        limit_ns=pl.when(possible).then(pl.min_horizontal("_limit", pl.col("gpu_ns").cast(pl.Float64))),
        roof=pl.when(possible).then("_roof"),
        why_not=pl.when(pl.col("_limit").is_null()).then("_why").when(~possible).then(pl.lit(TOO_FAST)),
    )
    # What has no sizes has what the counters saw it do: it need not do more. Far from every roof that says nothing.
    counted = pl.col("limit_ns").is_null() & pl.col("counted_ns").is_not_null()
    far = pl.col("counted_ns") < NEITHER_ROOF_SHARE * pl.col("gpu_ns")
    return rows.with_columns(
        by_counters=counted,
        limit_ns=pl.coalesce("limit_ns", pl.when(~far).then("counted_ns")),
        roof=pl.coalesce("roof", pl.when(counted & ~far).then("counted_roof")),
        why_not=pl.when(~counted).then("why_not").when(far).then(pl.lit(FAR_FROM_ROOFS)),
    )


def _limit(
    row: Mapping[str, Any], rates: DeviceRates, links: Mapping[str, float]
) -> tuple[float | None, str | None, str | None]:
    """Return the least time of one kind of execution, which roof it is under, and why there is none."""
    flops, moved, link = row["flops"], row["moved_bytes"], row["link"]
    if row["why_not"] or moved is None or flops is None:
        return None, None, row["why_not"] or NO_FORMULA
    if link is not None and link not in _INSIDE:
        rate = links.get(link)
        return (moved / rate * 1e9, LINK, None) if rate else (None, None, "no large copy shows how fast the link is")
    memory = rates.memory_ns(moved)
    if memory is None:
        return None, None, "the rates of the device are not known"
    if not flops:
        return memory, MEMORY, None
    speed = rates.products.get(row["number_format"] or "")
    if speed is None:
        return None, None, f"how fast the device multiplies {row['number_format']} is not known"
    products = flops / speed.per_s * 1e9
    return max(products, memory), PRODUCTS if products >= memory else MEMORY, None


#: Copies that stay on devices, by their direction.
_INSIDE = ("DtoD", "PtoP")
NO_FORMULA = "no formula for its bytes"
FAR_FROM_ROOFS = "counters see it far from memory and tensor cores: bound by latency, dependencies or plain arithmetic"
TOO_FAST = "it was faster than its sizes allow: not all of them are read or written"
