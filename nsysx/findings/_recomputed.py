"""Forward work that is computed again in the backward: what checkpointing repeats, in eager code and inside of compiled functions."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import operator_work
from nsysx.catalogue import StepPart
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import (
    FREE_MEMORY_SHARE,
    GRADIENTS_OF_ATTENTION_TIMES,
    GRADIENTS_OF_PRODUCTS_TIMES,
    LEAST_RECOMPUTED_SHARE,
)
from nsysx.findings._once import Takes
from nsysx.replay.engine import RemoveOps, ScaleOps

_COMPILED = "CompiledFunctionBackward"


def needless(case: Case, settings: RecordedSettings) -> str:
    """Return what is recomputed although memory is free, "" for nothing."""
    memory = settings.record.get("memory")
    free = _free_bytes(memory) if isinstance(memory, Mapping) else 0
    if not free:
        return ""
    unused = f"and {units.size(free)} of the card are never used"
    if calls := settings.number("checkpoints"):
        return f"checkpoint() recomputes {units.several(calls, 'part')} of the forward in each backward, {unused}"
    share = case.profile.once(repeated_share)
    if share < LEAST_RECOMPUTED_SHARE:
        return ""
    return f"the compiled backward repeats {units.share(min(share, 1.0), 1)} of the forward's products, as checkpoint() asks, {unused}"


def _free_bytes(memory: Mapping[str, object]) -> int:
    total, peak = memory.get("total_bytes"), memory.get("reserved_peak_bytes")
    if not isinstance(total, int) or not isinstance(peak, int) or not total or not peak:
        return 0
    return total - peak if total - peak >= FREE_MEMORY_SHARE * total else 0


def repeated_share(profile: Profile) -> float:
    """Return which part of the forward's operations the backward of compiled functions repeats, 0 where that is not seen."""
    try:
        rows = profile.once(operator_work.operators_of_report).rows
    except NotRecorded:
        return 0.0
    compiled, flops = pl.col("node").fill_null("").str.starts_with(_COMPILED), pl.col("flops")
    attends = (
        pl.when(pl.col("name").str.contains("attention|attn"))
        .then(GRADIENTS_OF_ATTENTION_TIMES)
        .otherwise(GRADIENTS_OF_PRODUCTS_TIMES)
    )
    forward = pl.col("node").is_null()
    made = rows.select(
        backward=flops.filter(compiled).sum(),
        forward=flops.filter(forward).sum(),
        gradients=(flops * attends).filter(forward).sum(),
    ).row(0, named=True)
    if not made["forward"] or not made["backward"]:
        return 0.0
    return max(float(made["backward"] - made["gradients"]) / float(made["forward"]), 0.0)


def without(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it is worth to keep the activations: the repeated work goes, as far as it is seen."""
    again = case.ops.filter(case.ops["recompute"].fill_null(False))
    if again.height:
        return case.worth(RemoveOps(ops_of(again)), cause=(StepPart.WORK,))
    backward, share = _compiled_backward(case), case.profile.once(repeated_share)
    if not backward.height or not share:
        return None
    return case.worth(
        ScaleOps(ops_of(backward), GRADIENTS_OF_PRODUCTS_TIMES / (GRADIENTS_OF_PRODUCTS_TIMES + min(share, 1.0))),
        cause=(StepPart.WORK,),
    )


def taken(case: Case) -> Takes:
    """Return the work that is repeated, with the gradients beside it where the two are not told apart."""
    again = case.ops.filter(case.ops["recompute"].fill_null(False))
    return Takes(ops_of(again if again.height else _compiled_backward(case)))


def _compiled_backward(case: Case) -> pl.DataFrame:
    """Return the GPU ops of the backwards of compiled functions: op."""
    try:
        operators = operator_work.numbered_operators(case.profile)
    except NotRecorded:
        return case.ops.select("op").clear()
    compiled = operators.filter(pl.col("node").fill_null("").str.starts_with(_COMPILED))
    return operator_work.work_of(case.profile, compiled).select("op")
