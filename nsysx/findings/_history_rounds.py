"""Directions of an optimizer that keeps many pairs of vectors (L-BFGS), and reads a number of each twice: fewer pairs are fewer rounds."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.events.history_rounds import directions
from nsysx.events.operator_flow import flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator
from nsysx.findings._found import Found
from nsysx.findings._once import Takes, began_in, calls_of, edits_without
from nsysx.findings._work_bounds import USUAL_HISTORY_PAIRS
from nsysx.model import Finding

_SIZE, _MADE = re.compile(r"\bhistory_size\s*=\s*\d+"), re.compile(r"\bLBFGS\(.*\)\s*$")


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about such directions where fewer pairs save 5 % of the step or more."""
    flow, code, of_calls = flow_of(case.profile), case.profile.code(), operator_of_calls(case.profile)
    made = directions(case.profile)
    gone = [row for each in made for row in each.beyond(USUAL_HISTORY_PAIRS)]
    if flow is None or code is None or of_calls is None or not gone:
        return []
    within = of_calls.within(flow, gradients=False)[case.calls["call"].to_numpy()]
    launching = case.calls.filter(pl.Series(np.isin(within, gone), dtype=pl.Boolean))
    every = [row for each in made for rounds in each.rounds for row in rounds]
    worth = case.worth(*edits_without(launching, case.ops, leading=True), cause=rule.cause)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return []
    theirs = calls_of(case.calls.filter(pl.Series(np.isin(within, every), dtype=pl.Boolean)))
    pairs, rounds = max(each.pairs for each in made), sum(len(each.rounds) for each in made)
    where = place_of_operator(code, flow, flow.start_ns[[made[0].rounds[0][0]]])
    copies = case.ops.filter(pl.col("call").is_in(list(theirs)))
    idle = began_in(case.idle, theirs)
    cost = case.per_step(float(case.idle["real_ns"].to_numpy()[idle].sum()))
    title = (
        f"{in_short(where) or 'The optimizer'} goes over {pairs} pairs of old vectors twice for each of "
        f"{units.several(len(made), 'direction')} {case.per}, and reads a number back each time: the GPU idles {units.duration(cost)}"
    )
    detail = (
        f"{rounds} rounds {case.per} multiply one vector of {units.count(made[0].numbers)} numbers by another, read the product, and add "
        "a third: none can be launched before the one in front of it is read. They are torch's own, and cannot be read later."
    )
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=cost, where=where or None, fix=_fix(case), calls=theirs,
            takes=Takes(ops_of(copies), idle),
        ).as_finding(case)
    ]  # fmt: skip


def _fix(case: Case) -> Fix:
    """Return the advice, in the line that makes the optimizer where that is known."""
    fix, settings = Fix.by_name("shorter-history"), settings_of(case.profile)
    made_at = {} if settings is None else settings.place("optimizer")
    text = (text_of(texts(case.profile), made_at["file"], made_at["line"]) or "") if made_at.get("line") else ""
    text = text.partition("  #")[0].strip()
    fewer = f"history_size={USUAL_HISTORY_PAIRS}"
    if _SIZE.search(text):
        return fix.but(paste=_SIZE.sub(fewer, text))
    return fix.but(paste=f"{text.rstrip()[:-1]}, {fewer})") if _MADE.search(text) else fix
