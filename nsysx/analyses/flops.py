"""FLOPs of the step, its phases and modules: how fast they run, and the MFU of the step."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import operator_work
from nsysx.analyses.helpers.analysis_bounds import COUNTED_PRODUCTS_SHARE, MOST_FLOPS_ROWS
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns
from nsysx.model import TableSpec
from nsysx.replay.engine import Withheld, unprofiled_of
from nsysx.rows import Of, TableOf, columns_of

KEY = "flops"
TITLE = "FLOPs and MFU"


class FlopsRow(TypedDict):
    """The step, a phase or a module."""

    by: Annotated[str, Of("step, phase or module")]
    name: Annotated[str | None, Of("its name; null for GPU work outside of all of them")]
    flops: Annotated[
        int | None,
        Of(
            "floating point operations of its GEMMs, convolutions and attention, see operators",
            "FLOP",
            sums="scope",
        ),
    ]
    again_flops: Annotated[
        int | None, Of("part of flops in a forward that checkpointing runs again", "FLOP", sums="scope")
    ]
    gpu_ns: Annotated[int, Of("time of all its kernels, copies and memsets", "ns", sums="scope")]
    product_ns: Annotated[
        int, Of("part of gpu_ns in operators whose operations are counted", "ns", sums="scope", label="in products")
    ]
    tflops: Annotated[float | None, Of("flops over product_ns", "TFLOP/s", label="rate")]
    peak_share: Annotated[
        float | None,
        Of(
            "flops over product_ns, of the fastest GEMM measured in each format, 0 to 1; of half of an attention that in full is above",
            "share",
        ),
    ]
    counted: Annotated[
        float | None,
        Of(
            "part of the time of its kernels that multiply whose operations are counted, 0 to 1; null without any",
            "share",
        ),
    ]
    step_ns: Annotated[int | None, Of("mean step, without the profiler if that is known; only for the step", "ns")]
    step_from: Annotated[
        str | None,
        Of(
            "where step_ns comes from: recorded, in_process, second_run, modelled or assumed",
            label="step time from",
            codes=True,
        ),
    ]
    mfu: Annotated[
        float | None,
        Of(
            "model FLOPs utilization: flops without again_flops, over what the fastest product would "
            "compute in step_ns; only for the step, null if less than 95 % of its products are counted",
            "share",
            label="MFU",
        ),
    ]
    peak: Annotated[
        str | None,
        Of(
            "each format with its fastest product in TFLOP/s, and where that was measured",
            label="fastest product, TFLOP/s",
        ),
    ]
    why_not: Annotated[str | None, Of("why mfu or peak_share is null")]


COLUMNS = columns_of(FlopsRow)
ROWS: TableOf[FlopsRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="shown device",
    place=66,
    intro=(
        "Floating point operations from the operators' sizes: what the model asks for, not what kernels do, so attention "
        "counts in full under a causal mask; its share of the peak is of half where in full it would be above 100 %. The peak is measured, "
        "so MFU is higher here than against a datasheet."
    ),
    first=("name", "by", "tflops", "peak_share", "mfu", "step_ns", "counted", "product_ns", "gpu_ns", "peak", "why_not"),
    hide=("flops", "again_flops"),
    unknown="outside",
    bar="gpu_ns",
    rows=40,
)  # fmt: skip
_SCHEMA = frame_columns.schema(COLUMNS)


def _sums(done: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Return sums of the executions grouped by some columns, with the least time their operations could take."""
    counted = pl.col("flops").is_not_null() & pl.col("name").is_not_null() & pl.col("why_not").is_null()
    flops, ideal = pl.col("flops").fill_null(0), pl.col("ideal_ns")
    again = pl.col("recompute")
    grouped = done.group_by(by, maintain_order=True).agg(
        pl.when(counted.any()).then(flops.sum()).alias("flops"),
        pl.when(counted.any()).then(flops.filter(again).sum()).alias("again_flops"),
        pl.col("gpu_ns").sum(),
        pl.col("gpu_ns").filter(counted).sum().alias("product_ns"),
        pl.col("product_ns").sum().alias("_multiply"),
        pl.col("product_ns").filter(counted).sum().alias("_counted"),
        ideal.filter(counted).sum().alias("_ideal"),
        pl.col("asked_ns").filter(counted & ~again).sum().alias("_once"),
        (counted & ideal.is_null() & (flops > 0)).any().alias("_unknown"),
    )
    time = pl.col("product_ns")
    return grouped.with_columns(
        tflops=pl.when(time > 0).then(pl.col("flops") / time / 1e3),
        peak_share=pl.when((time > 0) & ~pl.col("_unknown")).then((pl.col("_ideal") / time).clip(upper_bound=1.0)),
        counted=pl.when(pl.col("_multiply") > 0).then(pl.col("_counted") / pl.col("_multiply")),
    )


def _step_time(profile: Profile) -> tuple[int | None, str | None]:
    """Return how long a step takes (ns), without a profiler if that is known, and where the figure comes from."""
    if not profile.scope.steps:
        return None, None
    unprofiled = unprofiled_of(profile)
    if not isinstance(unprofiled, Withheld):
        return unprofiled.step_ns, unprofiled.source
    start, end = profile.window
    return round(profile.scope.per_step(end - start)), "recorded"


def _peaks(profile: Profile, formats: set[str]) -> str | None:
    peaks = {n: p for n, p in sorted(profile.once(operator_work.peaks).items()) if n in formats}
    rates: dict[str, list[str]] = {}  # by source, which most have in common
    for number_format, peak in peaks.items():
        rates.setdefault(peak.source, []).append(f"{number_format} {peak.flops_per_s / 1e12:,.0f}")
    return "; ".join(f"{', '.join(several)} ({source})" for source, several in rates.items()) or None


def _step(profile: Profile, done: pl.DataFrame) -> pl.DataFrame:
    """Return the row of the step, with its MFU."""
    row = _sums(done.with_columns(by=pl.lit("step")), ["by"])
    given = row.row(0, named=True)
    step_ns, source = _step_time(profile)
    why = _why_no_mfu(given, step_ns)
    mfu = None if why or not step_ns else profile.scope.per_step(given["_once"]) / step_ns
    formats = set(done.filter(done["flops"] > 0)["number_format"].drop_nulls().to_list())
    return row.with_columns(
        name=pl.lit(profile.scope.mean),
        step_ns=pl.lit(step_ns, dtype=pl.Int64),
        step_from=pl.lit(source, dtype=pl.String),
        mfu=pl.lit(mfu, dtype=pl.Float64),
        peak=pl.lit(_peaks(profile, formats), dtype=pl.String),
        why_not=pl.lit(why, dtype=pl.String),
    ).select(*_SCHEMA)


def _why_no_mfu(row: dict[str, float], step_ns: int | None) -> str | None:
    """Return why there is no MFU, None if there is one."""
    if not row["flops"]:
        return "no operator with a known number of operations did any GPU work"
    if step_ns is None:
        return "no steps were found"
    if row["counted"] is not None and row["counted"] < COUNTED_PRODUCTS_SHARE:
        return f"operations are counted for only {units.share(row['counted'], 1)} of the time of kernels that multiply"
    if row["_unknown"]:
        return (
            "no product of 50 us was measured in each format: nsysx calibrate measures them"
            if row["_ideal"] == 0
            else "the format of some products is not known, or no product of 50 us was measured in it"
        )
    return None


def table(profile: Profile) -> pl.DataFrame:
    """Return the row of the step, then those of phases and modules that multiply, longest first. Raises NotRecorded."""
    done = operator_work.with_ideal(profile, profile.once(operator_work.executions))
    if not done["shapes"].count():
        raise NotRecorded("operators were recorded without their shapes", operator_work.FIX)
    parts = [_step(profile, done)]
    for by in ("phase", "module"):
        rows = (
            _sums(done, [by])
            .filter((pl.col("_multiply") > 0) | (pl.col("product_ns") > 0))
            .with_columns(
                by=pl.lit(by),
                name=pl.col(by),
                why_not=pl.when(pl.col("_unknown")).then(pl.lit("no product of 50 us was measured in its format")),
                **{c: pl.lit(None, dtype=_SCHEMA[c]) for c in ("step_ns", "step_from", "mfu", "peak")},
            )
        )
        rows = rows.sort("gpu_ns", "name", descending=[True, False], nulls_last=True)
        parts.append(rows.head(MOST_FLOPS_ROWS).select(*_SCHEMA))
    return pl.concat(parts)
