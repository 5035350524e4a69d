"""How near the GPU's work is to what the device can do: by operator, line, module and kernel family, and what could go at most."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import limits_of_work
from nsysx.analyses.helpers.analysis_bounds import MOST_ROOFLINE_ROWS
from nsysx.analyses.helpers.module_names import folded
from nsysx.catalogue import StepLimit
from nsysx.events.profile import Profile
from nsysx.frames import frame_columns, lookup
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "roofline"
TITLE = "Roofline: how near the work is to the device's limits"


class RooflineRow(TypedDict):
    """The step or a part of it: under one roof, an operator, a line, a module (numbers folded), a kernel family, or without a limit."""

    by: Annotated[str, Of("step, roof, operator, line, module, family or not known")]
    name: Annotated[str | None, Of("its name; an operator holds its gradients; null for what has none")]
    gpu_ns: Annotated[
        int,
        Of(
            "time of its kernels, copies and memsets; over the rows of one kind, all GPU work of the shown device",
            "ns",
            sums="scope",
        ),
    ]
    limit_ns: Annotated[
        int | None,
        Of("the least time that the device needs for what is known of it", "ns", sums="scope", label="at the limits"),
    ]
    could_go_ns: Annotated[
        int | None,
        Of("what could go at most: time of the known part beyond its limit", "ns", sums="scope", label="could go"),
    ]
    unknown_ns: Annotated[int, Of("part of gpu_ns for which no limit is known", "ns", sums="scope", label="not known")]
    counters_ns: Annotated[
        int,
        Of(
            "part of gpu_ns without sizes whose limit is what the GPU's counters saw it do (nsysx run --gpu-metrics)",
            "ns",
            sums="scope",
            label="by counters",
        ),
    ]
    limit_share: Annotated[
        float | None,
        Of("limit over time, of the known part: 1 is as fast as the device can be", "share", label="of its limit"),
    ]
    counted_share: Annotated[
        float | None,
        Of(
            "largest share of memory bandwidth, tensor cores or instructions that counters saw it use; null where sizes tell its limit",
            "share",
            label="used, by counters",
        ),
    ]
    roof: Annotated[
        str | None,
        Of(
            "what most of limit_ns is: products, memory, instructions (arithmetic outside of tensor cores, by counters), or link for "
            "copies from and to the host"
        ),
    ]
    backward_ns: Annotated[
        int, Of("part of gpu_ns that nodes of autograd run", "ns", sums="scope", label="in backward")
    ]
    flops: Annotated[
        int | None,
        Of("floating point operations of its products at least: attention with half of its mask", "FLOP", sums="scope"),
    ]
    moved_bytes: Annotated[
        int | None,
        Of("bytes that it must read and write at least, each tensor once", "bytes", sums="scope", label="must move"),
    ]
    tflops: Annotated[float | None, Of("flops over the time of its known products", "TFLOP/s", label="rate")]
    bytes_per_s: Annotated[float | None, Of("moved_bytes over the time of the known part", "bytes/s")]
    peak_tflops: Annotated[
        float | None, Of("limit of products in its number format", "TFLOP/s", label="limit of products")
    ]
    peak_bytes_per_s: Annotated[float | None, Of("limit of the memory", "bytes/s", label="limit of memory")]
    kernels: Annotated[int, Of("kernels, copies and memsets", sums="scope")]
    kernel: Annotated[str | None, Of("the kernel with most of its time")]
    number_format: Annotated[str | None, Of("format of its longest product")]
    why_not: Annotated[str | None, Of("why most of unknown_ns has no limit; null where all have one")]
    rates: Annotated[str | None, Of("the limits, and where they were taken from; only for the step")]


COLUMNS = columns_of(RooflineRow)
ROWS: TableOf[RooflineRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="shown device",
    place=64,
    matters=(StepLimit.GPU,),
    group="kernel-tables",
    intro=(
        "The least time that each operator could take: what its sizes make it compute and move, at the highest rates of the device and "
        "its memory. Time beyond that is the most that could go."
    ),
    first=("name", "by", "gpu_ns", "could_go_ns", "limit_share", "roof", "limit_ns", "unknown_ns", "counted_share", "tflops",
           "bytes_per_s", "backward_ns", "kernels", "number_format", "kernel", "why_not", "rates"),
    hide=("flops", "moved_bytes", "peak_tflops", "peak_bytes_per_s"),
    unknown="outside of all",
    bar="gpu_ns",
    keep="could_go_ns",
    depth=1,
    rows=12,
)  # fmt: skip
_SCHEMA = frame_columns.schema(COLUMNS)
STEP, ROOF, OPERATOR, LINE, MODULE, FAMILY, NOT_KNOWN = (
    "step",
    "roof",
    "operator",
    "line",
    "module",
    "family",
    "not known",
)


def require(profile: Profile) -> None:
    """Raise NotRecorded where there is no such table."""
    profile.once(limits_of_work.executions)


def table(profile: Profile) -> pl.DataFrame:
    """Return the row of the step, then those of each kind, what could go most first. Raises NotRecorded."""
    done = _with_names_and_lines(profile, profile.once(limits_of_work.executions))
    step = _summed(done.with_columns(name=pl.lit(profile.scope.mean)), STEP)
    parts = [step.with_columns(rates=pl.lit(_rates(profile, done), dtype=pl.String))]
    parts += [_summed(done.with_columns(name=pl.col(column)), by) for by, column in _BY.items()]
    unknown = done.filter(pl.col("limit_ns").is_null())
    parts.append(_summed(unknown.with_columns(name=pl.col("why_not")), NOT_KNOWN))
    rates = profile.once(limits_of_work.device_rates)
    peaks = {number_format: rate.per_s / 1e12 for number_format, rate in rates.products.items()}
    rows = pl.concat(parts, how="diagonal_relaxed").with_columns(
        peak_tflops=pl.col("number_format").replace_strict(peaks, default=None, return_dtype=pl.Float64),
        peak_bytes_per_s=pl.lit(rates.memory.per_s if rates.memory else None, dtype=pl.Float64),
    )
    return rows.select(*_SCHEMA)


_BY = {ROOF: "roof", OPERATOR: "operation", LINE: "line", MODULE: "module", FAMILY: "family"}


def _with_names_and_lines(profile: Profile, done: pl.DataFrame) -> pl.DataFrame:
    """Fold the numbers of modules, and add the line as text, null where it is not known."""
    done = done.with_columns(
        lookup.changed(done["module"].cast(pl.Categorical), folded).cast(pl.String).alias("module")
    )
    code = profile.code()
    if code is None:
        return done.with_columns(line=pl.lit(None, dtype=pl.String))
    lines = code.places.select(pl.format("{}:{}", "file", "line"))
    return done.with_columns(line=lookup.at(lines.to_series(), done["place"].to_numpy()))


def _summed(done: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return one row per name, with all its columns but ``rates``; beyond ``MOST_ROOFLINE_ROWS`` the rest in one."""
    ns, limit = pl.col("gpu_ns"), pl.col("limit_ns")
    limited = limit.is_not_null()
    products = limited & (pl.col("flops") > 0)
    done = _fewer(done)
    grouped = done.group_by("name", maintain_order=True).agg(
        ns.sum(),
        pl.when(limited.any()).then(limit.sum().round().cast(pl.Int64)).alias("limit_ns"),
        ns.filter(~limited).sum().alias("unknown_ns"),
        ns.filter(pl.col("backward")).sum().alias("backward_ns"),
        ns.filter(pl.col("by_counters") & limited).sum().alias("counters_ns"),
        (pl.col("counted_ns").filter("by_counters").sum() / ns.filter("by_counters").sum()).alias("counted_share"),
        pl.when(limited.any()).then(pl.col("flops").filter(limited).sum()).alias("flops"),
        pl.when(limited.any()).then(pl.col("moved_bytes").filter(limited).sum()).alias("moved_bytes"),
        ns.filter(products).sum().alias("_products"),
        ns.filter(limited).sum().alias("_known"),
        pl.col("kernels").sum(),
    )
    grouped = grouped.with_columns(
        _value_with_most(done, grouped["name"], column, weight)
        for column, weight in (
            ("kernel", "gpu_ns"),
            ("number_format", "gpu_ns"),
            ("why_not", "gpu_ns"),
            ("roof", "limit_ns"),
        )
    )
    time = pl.col("_known")
    grouped = grouped.with_columns(
        by=pl.lit(by),
        could_go_ns=time - pl.col("limit_ns"),
        limit_share=pl.when(time > 0).then(pl.col("limit_ns") / time),
        counted_share=pl.col("counted_share").fill_nan(None),
        tflops=pl.when(pl.col("_products") > 0).then(pl.col("flops") / pl.col("_products") / 1e3),
        bytes_per_s=pl.when(time > 0).then(pl.col("moved_bytes") / time * 1e9),
        rates=pl.lit(None, dtype=pl.String),
    )
    value = pl.col("could_go_ns").fill_null(0) + pl.col("unknown_ns")
    return grouped.sort(value, "gpu_ns", "name", descending=[True, True, False], nulls_last=True)


def _fewer(done: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with the names beyond the ``MOST_ROOFLINE_ROWS`` largest as one."""
    if done["name"].n_unique() <= MOST_ROOFLINE_ROWS:
        return done
    order = done.group_by("name").agg(pl.col("gpu_ns").sum()).sort("gpu_ns", "name", descending=[True, False])
    unlisted = order["name"][MOST_ROOFLINE_ROWS:].drop_nulls()
    if not len(unlisted):
        return done
    rest = pl.lit(f"({len(unlisted)} others)")
    return done.with_columns(name=pl.when(pl.col("name").is_in(unlisted.implode())).then(rest).otherwise("name"))


def _value_with_most(done: pl.DataFrame, names: pl.Series, column: str, weight: str) -> pl.Series:
    """Return the value of a column that has most of a weight, for each of the names; null where none has a value."""
    sums = done.group_by("name", column).agg(pl.col(weight).sum()).sort(weight, column, descending=[False, True])
    # There are few names and values: the last that a name is given is the one with most.
    most = {name: value for name, value in sums["name", column].iter_rows() if value is not None}
    return pl.Series(column, [most.get(name) for name in names], dtype=pl.String)


def _rates(profile: Profile, done: pl.DataFrame) -> str | None:
    """Return the limits that count here, in words."""
    rates = profile.once(limits_of_work.device_rates)
    used = [f for f in done["number_format"].drop_nulls().unique().sort() if f in rates.products]
    words = [f"{f} {rates.products[f].per_s / 1e12:,.0f} TFLOP/s ({rates.products[f].source})" for f in used]
    if rates.memory:
        words.append(f"memory {rates.memory.per_s / 1e12:.2f} TB/s ({rates.memory.source})")
    return "; ".join(words) or None
