"""Tensors that are converted only to be added to one of another type (``events.converted_addends``): float32 sums of 16-bit gradients."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.converted_addends import calls_within, converted_addends
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import FEWEST_MICRO_STEPS, REPORTED_SHARE
from nsysx.findings._flow_work import in_short
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import CONVERTING_ADDITION_TIMES
from nsysx.model import Finding
from nsysx.replay.engine import Edit, RemoveOps, ScaleOps

_CONVERSION = r"\.(?:float\(\)|double\(\)|to\([^()]*\)|type_as\([^()]*\)|type\([^()]*\))"
#: A line that adds what it converts: by a method, or by an operator of Python.
_METHOD = re.compile(rf"(?P<into>\.(?:add|sub|mul|div|copy)_\(\s*)(?P<given>[\w.\[\]]+(?:\(\))?){_CONVERSION}")
_OPERATOR = re.compile(
    rf"(?P<into>^\s*[\w.\[\]]+\s*[-+*/]=\s*)(?P<given>[\w.\[\]]+(?:\(\))?){_CONVERSION}(?=\s*(?:#|;|$))"
)
_GRADIENT = re.compile(r"\bgrad\b")


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about such conversions, where they take 5 % of the step or more."""
    code, spans = case.profile.code(), case.profile.once(converted_addends)
    if code is None or not spans.height:
        return []
    converts, adds = (np.append(each, [False]) for each in calls_within(case.profile, spans))
    # What is copied from the host, or to it, is not converted by an addition.
    ops = case.ops.filter(pl.col("op_kind") == "kernel", pl.col("call").is_not_null())
    ops = ops.with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    call = ops["call"].to_numpy()
    gone, stays = ops.filter(pl.Series(converts[call])), ops.filter(pl.Series(adds[call]))
    gone_ns, stays_ns = int(gone["ns"].sum()), int(stays["ns"].sum())
    if not case.notable(case.per_step(gone_ns), REPORTED_SHARE):
        return []
    slower, faster = CONVERTING_ADDITION_TIMES
    # An addition that gets slower leaves as much of the conversions.
    left = min(1.0, (slower - 1) * stays_ns / gone_ns)
    least = [ScaleOps(ops_of(gone), left, less_work=True)]
    most: list[Edit] = [RemoveOps(ops_of(gone)), ScaleOps(ops_of(stays), faster, less_work=True)]
    why = "the additions take from five sixths of their time, as bytes say, to a quarter more, as kernels that convert may"
    worth = case.worth_between(least, [RemoveOps(ops_of(gone))], most, why, cause=(StepPart.WORK,))
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return []
    where = code.where_most(code.places_of(code.op[gone["op"].to_numpy()]), gone["ns"].to_numpy())
    text = (text_of(texts(case.profile), where.get("file"), where.get("line")) if where else "") or ""
    cost, many = case.per_step(gone_ns), round(gone.height / max(case.steps, 1))
    there = f"{in_short(where)}: " if where else ""
    detail = (
        f"{units.several(many, 'tensor')} of a step {'is' if many == 1 else 'are'} converted in a kernel of their own and read by nothing "
        f"but an operation that writes into a tensor of another type, which takes {units.duration(case.per_step(stays_ns))}: it converts "
        "what it reads by itself, and gives the same numbers."
    )
    return [
        Found(
            rule,
            f"{there}numbers are converted only to be added: {units.duration(cost)} {case.per}",
            detail,
            worth=worth,
            cost_ns=cost,
            fix=_fix(case, text),
            where=where or None,
            takes=Takes(ops_of(gone)),
        ).as_finding(case)
    ]


def _fix(case: Case, text: str) -> Fix:
    """Return the remedy in the line's own names, with what else there is for gradients of micro-batches."""
    fix, settings = Fix.by_name("added-as-it-is"), settings_of(case.profile)
    line = text.strip().partition("  #")[0]
    for pattern in (_METHOD, _OPERATOR):
        pasted = pattern.sub(r"\g<into>\g<given>", line)
        if pasted != line:
            fix = fix.but(paste=pasted)
            break
    backwards = 0 if settings is None else settings.number("backwards") or 0
    if not _GRADIENT.search(line) or backwards < FEWEST_MICRO_STEPS:
        return fix
    return fix.but(
        text=f"{fix.text}. The additions stay, once for each of {backwards} backwards: larger micro-batches need fewer of them, and a "
        "layer that adds its weight's gradient to the sum in the product itself (TransformerEngine: fuse_wgrad_accumulation=True) none"
    )
