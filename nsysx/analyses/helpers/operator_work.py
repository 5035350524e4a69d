"""GPU work by operator: time, FLOPs and number format of each execution, and the fastest product to compare with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.analyses.helpers.analysis_bounds import FEWEST_PRODUCTS, LONG_PRODUCT_NS, MOST_RATE_PER_S
from nsysx.catalogue import Call
from nsysx.events import kernel_libraries, kernel_math, work_operators
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.work_operators import WorkOperators
from nsysx.frames import lookup
from nsysx.rows import names

FIX = "nsysx run -- CMD"
#: Plain GEMMs, the fastest work of a device.
_PLAIN = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm", "aten::_addmm_activation")
CALIBRATED, SEEN = "nsysx calibrate", "fastest product of this report"

#: bf16 or fp16: what a name does not tell.
HALF = "16 bits"
_EITHER = r"wgmma_f16|_f16_"
#: Attention counts in full, but a causal mask, which is no tensor, leaves half.
ATTENTION = r"_scaled_dot_product|_flash_att|_efficient_attention|_flash_attn"

#: Kernel names that tell which gradient of a convolution they compute; layout conversions belong to either.
_GRADIENTS = {"input": "dgrad", "weight": "wgrad", "layout": "[nN](chw|hwc)To"}

#: Why there is no number for a sparse product, whose sizes count the zeros that it leaves out.
SPARSE_FACTOR = "how full its sparse factor is was not recorded"
_SPARSE_LIBRARY = "cuSPARSE"

#: The columns that say what was executed, and where.
PLACE = ("name", "shapes", "caller", "module", "phase")
#: The columns of ``work`` that hold text, as categories.
TEXTS = ("module", "phase", "name", "family", "op_kind", "format")


@dataclass(frozen=True)
class Peak:
    """The fastest GEMM that was measured in one format (FLOP/s), and where."""

    flops_per_s: float
    source: str


def operators_of_report(profile: Profile) -> WorkOperators:
    """Return the operators of the report. Raises NotRecorded."""
    if not work_operators.recorded(profile.ranges):
        raise NotRecorded(_why_not(profile), FIX)
    return work_operators.find(profile.trace, profile.ranges, profile.attributed)


def numbered_operators(profile: Profile) -> pl.DataFrame:
    """Return the operators of the report with ``row``, by which `work` names them. Raises NotRecorded."""
    rows = profile.once(operators_of_report).rows
    return rows.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))


def work_of(profile: Profile, operators: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Return the `work` of some of the `numbered_operators`, with these columns of theirs, its names as text."""
    ops = profile.once(work).join(operators.select("row", *columns), on="row", how="inner")
    return ops.with_columns(lookup.text(ops[c]) for c in TEXTS)


def _why_not(profile: Profile) -> str:
    """Return why there are no operators, with the probe's reason."""
    for told in profile.trace.capture.probe:
        status = told.get("operators")
        if isinstance(status, dict):
            reason = status.get("why_not")
            return f"no operator was recorded: {str(reason)[:200] if reason else 'no step of the program was marked'}"
    return "operators were not recorded"


def work(profile: Profile) -> pl.DataFrame:
    """Return the GPU ops of the steady steps on the shown device with their operator (``row``, -1 for none) and what they are.

    All have none where no operator was recorded. Names are categorical: as text they would take three times as much as all else.
    """
    try:
        row = profile.once(operators_of_report).op
    except NotRecorded:
        row = np.full(profile.attributed.gpu_ops.height, -1)
    ops = profile.steady_ops
    if profile.device is not None:
        ops = lookup.having(ops, device=profile.device)
    names, families = ops["name"], ops["family"]
    multiplies = families.is_in(kernel_math.PRODUCTS).fill_null(False)
    # cuDNN calls both by one name, and a device is equally fast at both.
    either = pl.when(pl.Series(lookup.matching(names, _EITHER)) & multiplies).then(pl.lit(HALF))
    formats = pl.coalesce(kernel_math.number_format(names, families), either)
    return ops.select(
        pl.Series("row", row[ops["op"].to_numpy()]),
        pl.when(pl.col("graph_node").is_not_null()).then("call").otherwise(-1).fill_null(-1).alias("launch"),
        *("module", "phase", "name", "family", "op_kind", "op", "bytes", "grid", "block", "recompute"),
        kernel=pl.col("op_kind") == "kernel",
        ns=pl.col("end_ns") - pl.col("start_ns"),
        multiplies=multiplies,
        format=formats.cast(pl.Categorical),
        **{kind: pl.Series(lookup.matching(names, pattern)) & multiplies for kind, pattern in _GRADIENTS.items()},
    )


def _sums() -> list[pl.Expr]:
    """Return the sums over the GPU ops of one execution."""
    ns, multiplies = pl.col("ns"), pl.col("multiplies")
    spelled = (multiplies == pl.any_horizontal(*_GRADIENTS)).all()
    return [
        pl.col("kernel").sum().cast(pl.Int64).alias("kernels"),
        ns.sum().alias("gpu_ns"),
        pl.col("name").get(ns.arg_max()).cast(pl.String).alias("kernel"),
        pl.col("format").sort_by("ns", descending=True).drop_nulls().first().cast(pl.String).alias("number_format"),
        ns.filter(multiplies).sum().alias("product_ns"),
        pl.col("recompute").any(),
        # Which gradients the backward of a convolution made, if all of its kernels say so.
        pl.when(spelled).then(pl.sum_horizontal(pl.col("input", "weight").any().cast(pl.Int64))).alias("gradients"),
    ]


#: Columns of ``executions`` besides PLACE.
_FIGURES = names("recompute kernels gpu_ns kernel number_format product_ns flops why_not counts")


def executions(profile: Profile) -> pl.DataFrame:
    """Return one row per execution of an operator with GPU work of the steady steps on the shown device. Raises NotRecorded.

    Columns: PLACE, recompute, kernels, gpu_ns (kernels, copies and memsets), kernel (the longest), number_format (of the longest
    that multiplies), product_ns (kernels that multiply, by their families), flops and why_not as in ``Operators``, counts (it is
    an execution of its own: one that lies in two modules computed once). GPU work outside of operators is one row per module,
    phase and kernel, with a null name. A CUDA graph executes the operators that it captured once per launch.
    """
    operators, ops = numbered_operators(profile), profile.once(work)
    held = ops.filter(ops["row"] >= 0)
    held = held.group_by("row", "launch", "module", "phase", maintain_order=True).agg(*_sums())
    held = held.join(operators, on="row", how="left", maintain_order="left")
    by_kernels = pl.when(pl.col("gradients") > 0).then(pl.col("gradients") * pl.col("gradient_flops"))
    held = held.with_columns(
        flops=pl.coalesce("flops", by_kernels), counts=pl.struct("row", "launch").is_first_distinct()
    )
    library = kernel_libraries.library_of(held["kernel"].cast(pl.Categorical))
    sparse = pl.col("flops").is_not_null() & (library == _SPARSE_LIBRARY).fill_null(False)
    held = held.with_columns(
        flops=pl.when(~sparse).then("flops"),
        why_not=pl.when(sparse).then(pl.lit(SPARSE_FACTOR)).otherwise("why_not"),
    )
    held = held.with_columns(
        why_not=pl.when(pl.col("flops").is_null()).then("why_not"), flops=pl.col("flops") * pl.col("counts")
    )
    free = ops.filter(ops["row"] < 0).group_by("module", "phase", "name", maintain_order=True).agg(*_sums())
    none = {c: pl.lit(None, dtype=pl.String) for c in ("name", "shapes", "caller", "why_not")}
    free = free.with_columns(**none, flops=pl.lit(None, dtype=pl.Int64), counts=pl.lit(False))
    texts = pl.col("module", "phase").cast(pl.String)
    return pl.concat([part.with_columns(texts).select(*PLACE, *_FIGURES) for part in (held, free)])


def calibrated(profile: Profile) -> dict[str, Peak]:
    """Return number format -> the fastest product that ``nsysx calibrate`` timed on the machine of the report."""
    told = profile.trace.run.get("machine_profile")
    products = told.get("products") if isinstance(told, dict) else None
    names = {g.name for g in profile.trace.capture.gpus if g.device == profile.device and g.process == profile.process}
    if not isinstance(told, dict) or not isinstance(products, dict) or told.get("gpu") not in names:
        return {}
    return {
        str(name): Peak(float(rate), CALIBRATED)
        for name, rate in products.items()
        if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < MOST_RATE_PER_S
    }


def peaks(profile: Profile) -> dict[str, Peak]:
    """Return number format -> the fastest GEMM measured: by ``nsysx calibrate``, else (or faster) in this report.

    In the report: the best median rate of one operator and shape, see ``LONG_PRODUCT_NS``. No datasheet is asked: its figure is reached
    by no product. Raises NotRecorded.
    """
    rows = profile.once(executions).filter(
        pl.col("name").is_in(_PLAIN) & (pl.col("flops") > 0) & pl.col("number_format").is_not_null(), pl.col("counts")
    )
    rates = rows.group_by("name", "shapes", "number_format").agg(
        pl.len().alias("n"),
        pl.col("gpu_ns").median().alias("ns"),
        (pl.col("flops") / pl.col("gpu_ns") * 1e9).median().alias("rate"),
    )
    rates = rates.filter((rates["n"] >= FEWEST_PRODUCTS) & (rates["ns"] >= LONG_PRODUCT_NS))
    fastest = calibrated(profile)
    for name, rate in rates.group_by("number_format").agg(pl.col("rate").max()).sort("number_format").iter_rows():
        if name not in fastest or rate > fastest[name].flops_per_s:
            fastest[name] = Peak(rate, SEEN)
    halves = [fastest[name] for name in ("bf16", "fp16") if name in fastest]
    return {**fastest, HALF: max(halves, key=lambda p: p.flops_per_s)} if halves else fastest


def with_ideal(profile: Profile, rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``asked_ns``: how long the operations take at the speed of the fastest product of their format; null if unknown.

    And ``ideal_ns``: the same, of attention that took less than that half of it, as a causal mask leaves.
    """
    rate = {name: peak.flops_per_s for name, peak in profile.once(peaks).items()}
    per_s = pl.col("number_format").replace_strict(rate, default=None, return_dtype=pl.Float64)
    asked = pl.col("flops") / per_s * 1e9
    halved = pl.col("name").str.contains(ATTENTION) & (asked > pl.col("gpu_ns"))
    return rows.with_columns(asked_ns=asked, ideal_ns=pl.when(halved).then(asked / 2).otherwise(asked))


def host_side(profile: Profile) -> pl.DataFrame:
    """Return PLACE with what each operator's calls cost the CPU: waits, wait_ns, allocations, allocation_ns. Raises NotRecorded.

    A wait is a synchronize call, an allocation one that reserves or frees memory of device or host.
    """
    entered = profile.once(operators_of_report)
    calls = profile.steady_calls
    kind = calls["kind"].cast(pl.String)
    row = entered.call[calls["call"].to_numpy()]
    wanted = kind.is_in([Call.SYNC, Call.ALLOC, Call.FREE, Call.HOST_ALLOC]).to_numpy() & (row >= 0)
    in_operator = calls.select(pl.col("module", "phase").cast(pl.String), "self_ns").with_columns(
        pl.Series("row", row), waits=kind == Call.SYNC
    )
    in_operator = in_operator.filter(pl.Series(wanted)).join(
        numbered_operators(profile), on="row", how="left", maintain_order="left"
    )
    waits, ns = pl.col("waits"), pl.col("self_ns")
    return in_operator.group_by(PLACE, maintain_order=True).agg(
        waits.sum().cast(pl.Int64).alias("waits"),
        ns.filter(waits).sum().alias("wait_ns"),
        (~waits).sum().cast(pl.Int64).alias("allocations"),
        ns.filter(~waits).sum().alias("allocation_ns"),
    )
