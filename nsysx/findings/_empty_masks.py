"""Attention that is given a mask which masks nothing: padding of batches that are always full, a bias of zeros."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work, operator_work
from nsysx.events.operator_flops import sizes
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of
from nsysx.findings._costly_when import UNKNOWN
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import (
    FASTEST_UNMASKED_TIMES,
    HALF_RATE_LENGTH,
    SLOWEST_UNMASKED_TIMES,
    UNMASKED_RATE_SHARE,
)
from nsysx.model import Finding
from nsysx.records import count_or_zero, whole_number
from nsysx.replay.engine import Edit, RemoveOps, ScaleOps

_CALL = "aten::scaled_dot_product_attention"
_SIXTEEN_BITS = ("16 bits", "bf16", "fp16")


class Content(NamedTuple):
    """What the probe saw in masks of a shape: they hold nothing, causal or other; ``looked`` of ``tensors`` were read, the share masked.

    ``first``: how many keys the first query sees where each sees one more than the one before; None for other masks.
    """

    holds: str
    tensors: int
    looked: int
    masked: float
    first: int | None = None


def contents(case: Case) -> dict[tuple[int, ...], Content]:
    """Return what masks hold by their shape, as far as the probe could look at them."""
    settings = settings_of(case.profile)
    seen = dict[tuple[int, ...], Content]()
    for row in (settings.rows("masks") if settings is not None else None) or ():
        shape, holds, masked = row.get("shape"), row.get("holds"), row.get("masked")
        if (
            isinstance(shape, list)
            and all(isinstance(n, int) for n in shape)
            and isinstance(holds, str)
            and isinstance(masked, (int, float))
        ):
            looked = count_or_zero(row.get("looked"))
            tensors, first = count_or_zero(row.get("tensors")), whole_number(row.get("first"))
            seen[tuple(shape)] = Content(holds, tensors, looked, float(masked), first)
    return seen


def mask_of(shapes: str | None, masks: dict[tuple[int, ...], Content]) -> tuple[int, ...] | None:
    """Return which of these masks an operator of fused attention is given: behind queries, keys and values, and behind results."""
    given = sizes(shapes) or []
    inputs = {tuple(shape) for shape in given[:3]}
    return next((shape for s in given[3:] if (shape := tuple(s)) in masks and shape not in inputs), None)


def findings(case: Case, rule: Rule, fused: pl.DataFrame, operators: pl.DataFrame) -> list[Finding]:
    """Return one finding where attention with empty masks takes 1 % of the step or more; ``fused``: those of the numbered operators."""
    empty = {shape: seen for shape, seen in contents(case).items() if seen.holds == "nothing"}
    if not empty:
        return []
    kinds = fused.select("shapes").unique()
    given = [mask_of(shapes, empty) for shapes in kinds["shapes"]]
    kinds = kinds.with_columns(pl.Series("keys", [mask and mask[-1] for mask in given], dtype=pl.Int64))
    fused = fused.join(kinds.drop_nulls(), on="shapes", how="inner")
    ops = operator_work.work_of(case.profile, fused, "shapes", "keys", "flops")
    masks = {mask for mask in given if mask is not None}
    made = _made_ready(case, operators, masks)
    taken = case.per_step(int(ops["ns"].sum()) + int(made["ns"].sum()))
    if not ops.height or not case.notable(taken):
        return []
    worth = _worth(case, rule, ops, made)
    longest = max(masks, key=math.prod)
    seen = empty[longest]
    title = f"Attention is given a mask that masks nothing: {units.duration(taken)} {case.per}"
    detail = (
        f"Fused attention takes {case.share(taken)} of the step and is given a mask of {' x '.join(map(str, longest))}, which lets every "
        f"score through ({seen.looked} of the step's {seen.tensors} were read). FlashAttention takes no mask."
    )
    if made.height:
        ready = case.per_step(int(made["ns"].sum()))
        detail += f" To make the mask ready for its kernel takes {units.duration(ready)} of that."
    takes = Takes(ops_of(ops) | ops_of(made))
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=taken, fix=Fix.by_name("no-empty-mask"), takes=takes,
            where={"near": "attention"},
        ).as_finding(case)
    ]  # fmt: skip


def _made_ready(case: Case, operators: pl.DataFrame, masks: set[tuple[int, ...]]) -> pl.DataFrame:
    """Return the work in the calls of attention that converts or pads a mask for its kernel."""
    within = operators.filter((pl.col("caller") == _CALL) & ~pl.col("name").str.contains("attention"))
    shapes = within["shapes"].unique()
    theirs = [s for s in shapes if s is not None and any(tuple(given) in masks for given in sizes(s) or [])]
    return operator_work.work_of(case.profile, within.filter(pl.col("shapes").is_in(theirs)), "shapes")


def _worth(case: Case, rule: Rule, ops: pl.DataFrame, made: pl.DataFrame) -> Saving:
    """Return what goes if the kernels come as near to the rate of products as those without a mask do."""
    kinds = without_mask(case, ops)
    if not kinds:
        return Saving(None, UNKNOWN)

    def edits(times: float) -> Sequence[Edit]:
        scaled: list[Any] = [
            ScaleOps(kind.ops, min(1.0, kind.then_ns / times / kind.ns), less_work=True) for kind in kinds
        ]
        return scaled + ([RemoveOps(ops_of(made))] if made.height else [])

    shares = [units.share(times * UNMASKED_RATE_SHARE, 1) for times in (SLOWEST_UNMASKED_TIMES, FASTEST_UNMASKED_TIMES)]
    return case.worth_between(
        edits(SLOWEST_UNMASKED_TIMES),
        edits(1.0),
        edits(FASTEST_UNMASKED_TIMES),
        f"long sequences without a mask reach {shares[0]} to {shares[1]} of the rate of products",
        cause=rule.cause,
    )


class UnmaskedKind(NamedTuple):
    """Attention of one shape: its GPU ops, how long they take (ns, all steps), and ``then_ns`` without a mask, all scores computed."""

    ops: frozenset[int]
    ns: int
    then_ns: float


def without_mask(case: Case, ops: pl.DataFrame) -> list[UnmaskedKind]:
    """Return the kinds of attention among GPU ops (with shapes, keys and flops), [] if one of them is not known to have a fast kernel."""
    rates = limits_of_work.device_rates(case.profile).products
    kinds = []
    for (_, keys), kind in ops.filter(ops["flops"] > 0).group_by("shapes", "keys", maintain_order=True):
        number = next(iter(kind.filter(kind["multiplies"])["format"].drop_nulls()), None)
        if number not in _SIXTEEN_BITS or number not in rates:
            return []  # other numbers have no FlashAttention
        done = int(kind.unique(["row", "launch"])["flops"].sum())
        share = UNMASKED_RATE_SHARE / (1 + HALF_RATE_LENGTH / keys)
        kinds.append(UnmaskedKind(ops_of(kind), int(kind["ns"].sum()), done / rates[number].per_s * 1e9 / share))
    return kinds
