"""NSX133 fixed-mask: fused attention that is given a mask it does not need: one that masks nothing, or one fixed pattern.

What it means
    A mask that masks nothing (padding where every sequence is full, a bias of zeros) still rules FlashAttention out, and the kernel that
    takes it reads it for each head. Without it (attn_mask=None) the fast kernel runs.
    The other one is the same for all queries and keys of every sequence and head.
    Such a mask is mostly the causal one. The kernel reads it for each head, computes all scores and discards those that are masked, and
    FlashAttention does not take it. With is_causal=True the kernel computes half of the scores. A window or another fixed pattern is
    what flex_attention is made for: it leaves out blocks that are masked as a whole.
    A chunk of queries over more keys (ranks that gather those of a sequence, a prefill by chunks) needs the causal mask of its place:
    causal_lower_right over the keys that it sees. is_causal=True would align both at the beginning.

In the trace
    An operator of fused attention with an argument of (queries, keys) numbers, both of the same length. What a mask holds the probe
    looks at once, where the window has ended.

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
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work, operator_work
from nsysx.catalogue import StepLimit, StepPart
from nsysx.events.operator_flops import sizes
from nsysx.events.profile import NotRecorded
from nsysx.findings import _chunk_masks, _empty_masks
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._causal_calls import in_its_call
from nsysx.findings._empty_masks import Content
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import CAUSAL_SCORES_LEFT, MUCH_MASKED_SHARE, SHORTEST_ATTENTION
from nsysx.model import Finding
from nsysx.replay.engine import Edit, ScaleOps

RULE = Rule(
    "NSX133",
    "fixed-mask",
    "Attention with a fixed mask",
    cause=(StepPart.WORK,),
    about=StepLimit.GPU,
    leads=True,
    rests_on="The masks of attention were recorded",
)
REQUIRES = ("operators", "kernels")
_FUSED = r"scaled_dot_product_(?:cudnn|efficient|flash)|_(?:efficient|flash)_attention"


def check(case: Case) -> list[Finding]:
    """Return a finding for empty masks and one for fixed ones, where attention with them takes 1 % of the step or more."""
    try:
        operators = operator_work.numbered_operators(case.profile)
    except NotRecorded:
        return case.cannot_tell(RULE, "operators were not recorded", operator_work.FIX)
    fused = operators.filter(pl.col("name").str.contains(_FUSED))
    told = (
        _empty_masks.findings(case, RULE, fused, operators)
        + _fixed(case, fused)
        + _chunk_masks.findings(case, RULE, fused)
    )
    return told or case.clear(RULE, "no fused attention is given an empty mask, or a fixed one of all queries and keys")


#: What to do about a mask that the probe has looked at.
_READ_CAUSAL = (
    "Give is_causal=True instead of this mask, which is the causal one: half of the scores are not computed then"
)


def _fixed(case: Case, fused: pl.DataFrame) -> list[Finding]:
    """Return one finding where operators of fused attention with a fixed mask, or one that is causal, take 1 % of the step or more."""
    seen = _empty_masks.contents(case)
    kinds = fused["shapes", "read"].unique()
    held = [_empty_masks.mask_of(shapes, seen) for shapes in kinds["shapes"]]
    masked = [_length(seen, mask, *kind) for mask, kind in zip(held, kinds.iter_rows(), strict=True)]
    told = [seen[mask] for mask, length in zip(held, masked, strict=True) if mask is not None and length is not None]
    lengths = kinds.with_columns(pl.Series("length", masked, dtype=pl.Int64)).drop_nulls("length")
    fused = fused.join(lengths, on=["shapes", "read"], how="inner", nulls_equal=True)
    ops = operator_work.work_of(case.profile, fused, "length", "shapes", "flops")
    taken = case.per_step(int(ops["ns"].sum()))
    if not case.notable(taken):
        return []
    worth = case.worth(*_causal(case, ops), cause=RULE.cause)
    best = case.worth(ScaleOps(ops_of(ops), _at_limit(case), less_work=True), cause=RULE.cause, bound=True)
    if worth.likely_ns is not None and best.most_ns:
        worth = replace(worth, most_ns=best.most_ns)
    length = int(ops["length"].max())  # type: ignore[arg-type]
    title = f"Attention computes all scores and masks them: {units.duration(taken)} {case.per}"
    detail = (
        f"Fused attention takes {case.share(taken)} of the step and is given a mask of {length} x {length}{_what(told)}"
    )
    fix = Fix.by_name("is-causal")
    if told and len(told) == lengths.height and all(each.holds == "causal" for each in told):
        fix = Fix.by_name(
            "is-causal", text=_READ_CAUSAL, condition="The mask was read: it is the causal one, and has to stay that."
        )
    return [
        Found(
            RULE, title, detail, worth=worth, cost_ns=taken, fix=in_its_call(case, ops_of(ops), fix), takes=Takes(ops_of(ops)),
            where={"near": "attention"},
        ).as_finding(case)
    ]  # fmt: skip


def _length(
    seen: dict[tuple[int, ...], Content], mask: tuple[int, ...] | None, shapes: str | None, read: str | None
) -> int | None:
    """Return the length of a mask that is causal, or of one of all sequences that is not known to mask little or nothing."""
    if mask is None:
        return fixed_mask(shapes, read)
    if seen[mask].holds == "causal":
        return int(mask[-1]) if mask[-1] >= SHORTEST_ATTENTION else None
    return fixed_mask(shapes, read) if seen[mask].masked >= MUCH_MASKED_SHARE else None


def _what(told: Sequence[Content]) -> str:
    """Return what is masked, as far as the probe has looked at it: the end of a sentence, and a sentence."""
    if told and all(each.holds == "causal" for each in told):
        return ", which is the causal one: half of what is computed is discarded."
    if told:
        return f". {units.share(max(each.masked for each in told), 1)} of the scores are computed and masked."
    return ", the same for all sequences and heads. If it is the causal one, half of what is computed is discarded."


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


def _causal(case: Case, ops: pl.DataFrame) -> list[Edit]:
    """Return the edits that leave half of the scores, at the rate of attention without a mask where that is faster.

    A mask is read for each head, once more in backward, and what of it a kernel is not made for is computed beside it.
    """
    whole = ops_of(ops)
    kinds = [
        (kind.ops, CAUSAL_SCORES_LEFT * min(1.0, kind.then_ns / max(kind.ns, 1)))
        for kind in _empty_masks.without_mask(case, ops.with_columns(keys=pl.col("length")))
    ]
    rest = whole.difference(*(each for each, _ in kinds))
    scaled = kinds + ([(rest, CAUSAL_SCORES_LEFT)] if rest else [])
    return [ScaleOps(each, left, less_work=True) for each, left in scaled]


def _at_limit(case: Case) -> float:
    """Return which part of its time attention takes at the limits of the device, counted with half of its scores."""
    done = case.profile.once(limits_of_work.executions).filter(
        pl.col("name").str.contains(_FUSED) & pl.col("limit_ns").is_not_null()
    )
    return float(done["limit_ns"].sum()) / max(float(done["gpu_ns"].sum()), 1.0) if done.height else CAUSAL_SCORES_LEFT
