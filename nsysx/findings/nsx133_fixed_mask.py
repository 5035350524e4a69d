"""NSX133 fixed-mask: fused attention that is given one mask of all queries and keys, the same for every sequence and head.

What it means
    Such a mask is mostly the causal one. The kernel reads it for each head, computes all scores and discards those that are masked, and
    FlashAttention does not take it. With is_causal=True the kernel computes half of the scores. A window or another fixed pattern is
    what flex_attention is made for: it leaves out blocks that are masked as a whole.

In the trace
    An operator of fused attention with an argument of (queries, keys) numbers, both of the same length.

Bad
    mask = torch.full((t, t), float("-inf"), device="cuda").triu(1)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

Good
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)

Harmless when
    The mask adds a bias that differs from place to place (ALiBi, relative positions), or masks few of the scores.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work, operator_work
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events.operator_flops import sizes
from nsysx.events.profile import NotRecorded
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import CAUSAL_SCORES_LEFT, SHORTEST_ATTENTION
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.model import Finding
from nsysx.replay.engine import ScaleOps

RULE = Rule(
    "NSX133", "fixed-mask", "Attention with a fixed mask", cause=(StepPart.WORK,), about=StepLimit.GPU, leads=True
)
REQUIRES = ("operators", "kernels")
_FUSED = r"scaled_dot_product_(?:cudnn|efficient|flash)|_(?:efficient|flash)_attention"


def check(case: Case) -> list[Finding]:
    """Return one finding where attention with a fixed mask takes 1 % of the step or more."""
    try:
        operators = operator_work.numbered_operators(case.profile)
    except NotRecorded:
        return case.cannot_tell(RULE, "operators were not recorded", operator_work.FIX)
    fused = operators.filter(pl.col("name").str.contains(_FUSED))
    kinds = fused.select("shapes", "read").unique()
    masked = [fixed_mask(*kind) for kind in kinds.iter_rows()]
    lengths = kinds.with_columns(pl.Series("length", masked, dtype=pl.Int64)).drop_nulls("length")
    fused = fused.join(lengths, on=["shapes", "read"], how="inner", nulls_equal=True)
    ops = operator_work.work_of(case.profile, fused, "length")
    taken = case.per_step(int(ops["ns"].sum()))
    if not case.notable(taken):
        return case.clear(RULE, "no fused attention is given a fixed mask of all queries and keys")
    worth = case.worth(ScaleOps(ops_of(ops), CAUSAL_SCORES_LEFT, less_work=True), cause=RULE.cause)
    best = case.worth(ScaleOps(ops_of(ops), _at_limit(case), less_work=True), cause=RULE.cause, bound=True)
    if worth.likely_ns is not None and best.most_ns:
        worth = replace(worth, most_ns=best.most_ns)
    length = int(ops["length"].max())  # type: ignore[arg-type]
    title = f"Attention computes all scores and masks them: {units.duration(taken)} {case.per}"
    detail = (
        f"Fused attention takes {case.share(taken)} of the step and is given a mask of {length} x {length}, the same for all "
        "sequences and heads. If it is the causal one, half of what is computed is discarded."
    )
    return [
        Found(
            RULE, title, detail, worth=worth, cost_ns=taken, fix=Fix.by_name("is-causal"), takes=Takes(ops_of(ops)),
            where={"near": "attention"},
        ).as_finding(case)
    ]  # fmt: skip


def fixed_mask(shapes: str | None, read: str | None) -> int | None:
    """Return the length of queries and keys where an argument is a mask of both that no sequence and no head has of its own."""
    given = sizes(shapes) or []
    source = json.loads(read) if read else given
    lengths = [s[2] for s in given if len(s) == 4]
    if len(lengths) < 3 or lengths[0] < SHORTEST_ATTENTION:
        return None
    length = lengths[0]
    for shape, stored in zip(given, source, strict=False):
        if len(shape) >= 2 and shape[-2:] == [length, length] and math.prod(stored or shape) == length * length:
            return int(length)
    return None


def _at_limit(case: Case) -> float:
    """Return which part of its time attention takes at the limits of the device, counted with half of its scores."""
    done = case.profile.once(limits_of_work.executions).filter(
        pl.col("name").str.contains(_FUSED) & pl.col("limit_ns").is_not_null()
    )
    return float(done["limit_ns"].sum()) / max(float(done["gpu_ns"].sum()), 1.0) if done.height else CAUSAL_SCORES_LEFT
