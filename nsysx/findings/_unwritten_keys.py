"""Attention over the whole room of a cache, of which few rows were written (``events.unwritten_keys``): what it reads in vain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.unwritten_keys import UnwrittenKeys, unwritten_keys
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, left_of_new, place_of_operator, time_of_operators, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import KEYS_IN_STEPS_OF, SHORT_ATTENTION_NS
from nsysx.model import Finding
from nsysx.replay.engine import ScaleOps

_REPEATS = ("aten::repeat_interleave", "aten::expand")


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about attention over keys that nothing wrote, where leaving them out saves 5 % of the step or more."""
    flow = flow_of(case.profile)
    unwritten = [] if flow is None else unwritten_keys(flow)
    finding = _found(case, rule, flow, unwritten) if flow is not None and unwritten else None
    return [] if finding is None else [finding]


def _share(each: UnwrittenKeys) -> float:
    """Return which share of its keys attention reads that is given as many as were written, in steps of some."""
    return min(1.0, -(-each.written // KEYS_IN_STEPS_OF) * KEYS_IN_STEPS_OF / each.keys)


def _found(case: Case, rule: Rule, flow: OperatorFlow, unwritten: Sequence[UnwrittenKeys]) -> Finding | None:
    share = {row: _share(each) for each in unwritten for row in (each.row, *each.passed)}
    work = work_of_operators(case, flow, gradients=False)
    work = work.filter(pl.col("row").is_in(list(share)))
    ns, taken = work["ns"].to_numpy(), int(work["ns"].sum())
    if not case.notable(case.per_step(taken), REPORTED_SHARE):
        return None
    left = left_of_new(
        ns, ns * work["row"].replace_strict(share, return_dtype=pl.Float64).to_numpy(), SHORT_ATTENTION_NS
    )
    edit = ScaleOps(ops_of(work), left / max(taken, 1), less_work=True)
    worth = case.worth_or_freed(edit, cause=(StepPart.WORK,), bound=True)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    times, code = time_of_operators(work), case.profile.code()
    longest = max((each.row for each in unwritten), key=lambda row: times.get(row, 0))
    where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[longest]])
    cost, keys = case.per_step(taken), max(each.keys for each in unwritten)
    written = max(each.written for each in unwritten)
    mean = float(np.mean([each.written / each.keys for each in unwritten]))
    there = f"{in_short(where)}: " if where else ""
    detail = (
        f"{units.count(len(unwritten))} calls of attention in a step, of few queries each, are given all {units.count(keys)} keys that a "
        f"cache has room for, and a mask. From the prompt on the step has written {units.count(written)} of them at most, "
        f"{units.share(mean, 1)} on average. With what hands keys on to it that takes {units.duration(cost)} {case.per}, "
        f"{case.share(cost)} of the step, as long for the first token as for the last."
    )
    return Found(
        rule,
        f"{there}attention reads the whole room of a cache, of which {units.share(mean, 1)} was written: {units.duration(cost)} {case.per}",
        detail,
        worth=worth,
        cost_ns=cost,
        fix=_fix(flow, unwritten),
        where=where or None,
        takes=Takes(ops_of(work)),
    ).as_finding(case)


def _fix(flow: OperatorFlow, unwritten: Sequence[UnwrittenKeys]) -> Fix:
    """Return the remedy; heads that are repeated for attention are cut before, or not repeated."""
    fix = Fix.by_name("written-keys")
    if not any(flow.names[row] in _REPEATS for each in unwritten for row in each.passed):
        return fix
    return fix.but(
        text=f"{fix.text}. Cut them before their heads are repeated, or leave that to enable_gqa=True",
        paste=fix.paste.replace(
            "attn_mask=mask[..., :n])", "attn_mask=mask[..., :n], enable_gqa=True)  # heads are not repeated"
        ),
    )
