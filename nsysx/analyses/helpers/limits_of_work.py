"""Each execution of an operator with the operations it does, the bytes it must move, and the time that the device needs for them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import polars as pl

from nsysx.analyses.helpers import operator_work
from nsysx.analyses.helpers.analysis_bounds import (
    CACHES_MOVED_TIMES,
    KERNEL_CLOCK_TOLERANCE_NS,
    NEITHER_ROOF_SHARE,
)
from nsysx.analyses.helpers.operator_executions import LINK, MEMORY, PRODUCTS, SPEEDS, device_name, executed
from nsysx.events import work_operators
from nsysx.events.families import COMMUNICATION
from nsysx.events.operator_flops import sizes
from nsysx.events.profile import Profile
from nsysx.frames import frame_columns, lookup
from nsysx.reading import schema
from nsysx.reading.trace import DeviceLimits
from nsysx.replay.replay_bounds import LARGE_COPY_BYTES
from nsysx.roofline import recurrent
from nsysx.roofline.device_rates import CALIBRATED, SEEN, DeviceRate, DeviceRates, rates_of
from nsysx.roofline.element_types import OF_FORMAT, types_of
from nsysx.roofline.operator_bytes import OperatorCall, bytes_of
from nsysx.rows import Column

#: Kernels that do fewer operations than the sizes say: Winograd's minimal filtering.
_FEWER = re.compile("winograd", re.IGNORECASE)
_ATTENTION = re.compile(operator_work.ATTENTION)

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
    return profile.once(_limited)[0]


def device_rates(profile: Profile) -> DeviceRates:
    """Return the rates of the shown device. Raises NotRecorded."""
    return profile.once(_limited)[1]


def _limited(profile: Profile) -> tuple[pl.DataFrame, DeviceRates]:
    """Return the executions and the rates of the device, which the fastest of them tell."""
    rows, kinds = executed(profile)
    kinds = _with_bytes(kinds)
    timed = rows["execution_kind", "gpu_ns"].filter(pl.col("gpu_ns") > 0)
    timed = timed.join(kinds.select(*_RATED), on="execution_kind", how="left", maintain_order="left")
    rates = _device_rates(profile, timed)
    # Direction -> bytes/s of the fastest large copy between host and device.
    copies = timed.filter((timed["op_kind"] == "memcpy") & (timed["copied"] >= LARGE_COPY_BYTES))
    fastest = copies.group_by("kernel").agg((pl.col("copied") / pl.col("gpu_ns") * 1e9).max().alias("rate"))
    kinds = _with_least_times(kinds, rates, dict(fastest.iter_rows()))
    return _with_limits(_described(rows, kinds)).select(*_SCHEMA), rates


#: What the rates of the device follow from.
_RATED = ("execution_kind", "op_kind", "kernel", "copied", "flops", "moved_bytes", "number_format")


def _with_bytes(kinds: pl.DataFrame) -> pl.DataFrame:
    """Add flops, moved_bytes, number_format (the fastest) and why_not of each kind of execution."""
    counted = [_operations_and_bytes(row) for row in kinds.iter_rows(named=True)]
    names = ("flops", "moved_bytes", "number_format", "why_not")
    types = (pl.Int64, pl.Int64, pl.String, pl.String)
    return kinds.with_columns(
        pl.Series(n, values, dtype=t)
        for n, t, values in zip(names, types, zip(*counted, strict=True) if counted else [[]] * 4, strict=True)
    )


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
    number_format = None if row["speed"] < 0 else SPEEDS[row["speed"]]
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


def _device_rates(profile: Profile, timed: pl.DataFrame) -> DeviceRates:
    """Return the rates of the shown device; ``timed``: _RATED and gpu_ns of the executions that took time."""
    key = (profile.process, profile.device or 0)
    limits = profile.trace.limits.get(key, DeviceLimits())
    name = device_name(profile)
    rows = timed.filter(timed["op_kind"] == "kernel")
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
    large = rows.filter(rows["moved_bytes"] >= CACHES_MOVED_TIMES * max(rates.cache_bytes, LARGE_COPY_BYTES))
    beyond = large["moved_bytes"].to_numpy() - rates.cache_bytes
    left = large["gpu_ns"].to_numpy() - rates.cache_bytes / rates.cache.per_s * 1e9
    reached = beyond[left > 0] / left[left > 0] * 1e9
    fastest_memory = max((float(r) for r in reached if r <= rates.nominal_memory), default=None)
    return rates_of(name, limits, seen, fastest_memory)


def _with_least_times(kinds: pl.DataFrame, rates: DeviceRates, links: Mapping[str, float]) -> pl.DataFrame:
    """Add the limit of each kind of execution, its roof and why it has none: least_ns, its_roof, why_not."""
    kinds = kinds.with_columns(link=pl.when(pl.col("op_kind") == "memcpy").then("kernel"))
    limited = [_limit(row, rates, links) for row in kinds.iter_rows(named=True)]
    return kinds.with_columns(
        pl.Series("least_ns", [limit for limit, _, _ in limited], dtype=pl.Float64),
        pl.Series("its_roof", [roof for _, roof, _ in limited], dtype=pl.String),
        pl.Series("why_not", [why for _, _, why in limited], dtype=pl.String),
    )


def _described(rows: pl.DataFrame, kinds: pl.DataFrame) -> pl.DataFrame:
    """Return the executions with what their kinds tell."""
    of_kind = [c for c in (*_SCHEMA, "least_ns", "its_roof") if c in kinds.columns]
    described = rows.hstack(kinds.select(of_kind)[rows["execution_kind"]])
    return described.with_columns(lookup.text(described[c]) for c in ("module", "phase"))


def _with_limits(rows: pl.DataFrame) -> pl.DataFrame:
    """Add limit_ns, roof and why_not."""
    possible = pl.col("least_ns") <= pl.col("gpu_ns") + KERNEL_CLOCK_TOLERANCE_NS
    rows = rows.with_columns(
        limit_ns=pl.when(possible).then(pl.min_horizontal("least_ns", pl.col("gpu_ns").cast(pl.Float64))),
        roof=pl.when(possible).then("its_roof"),
        why_not=pl.when(pl.col("least_ns").is_null()).then("why_not").when(~possible).then(pl.lit(TOO_FAST)),
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
