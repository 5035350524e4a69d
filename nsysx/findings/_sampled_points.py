"""Farthest points that a loop samples in single operations (``events.sampled_points``): one kernel goes through all rounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.analyses.lines import texts
from nsysx.catalogue import StepPart
from nsysx.events.operator_flow import flow_of
from nsysx.events.sampled_points import calls_of_sampling, sampled_points
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator
from nsysx.findings._found import Found
from nsysx.findings._loop_texts import loop_around
from nsysx.findings._once import Takes, began_in, edits_without
from nsysx.findings._work_bounds import SAMPLED_POINT_NS
from nsysx.model import Finding, Row

_MASKED = re.compile(r"^(?P<all>[A-Za-z_]\w*)\[(?P<mask>[A-Za-z_]\w*)\]\s*=\s*(?P<new>[A-Za-z_]\w*)\[(?P=mask)\]")
_COUNTED = re.compile(r"\bin\s+range\((?:[^,()]*,\s*)?(?P<count>[^,()]+)\)\s*:")
_KEPT = re.compile(r"^(?P<kept>[A-Za-z_]\w*)\[[^\]]*\]\s*=\s*[A-Za-z_]\w*\s*$")
_PICKED = re.compile(
    r"=\s*(?P<points>[A-Za-z_]\w*)\[[^\]]*\](?:\.|\s*$)|=\s*torch\.gather\(\s*(?P<gathered>[A-Za-z_]\w*)"
)


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about such loops where one kernel in their place saves 5 % of the step or more."""
    flow, code, loops = flow_of(case.profile), case.profile.code(), sampled_points(case.profile)
    if flow is None or code is None or not loops:
        return []
    calls = calls_of_sampling(case.profile)
    launching = case.calls.filter(pl.col("call").is_in(list(calls)))
    ops = case.ops.filter(pl.col("call").is_in(list(calls)))
    rounds = sum(each.rounds for each in loops)
    worth = case.worth(
        *edits_without(launching, case.ops, leading=True), cause=(*rule.cause, StepPart.WORK, StepPart.COPY)
    )
    if worth.likely_ns is None:
        return []
    stays = round(rounds * SAMPLED_POINT_NS)
    why = f"{worth.confidence}; less {units.duration(stays)} that one kernel needs for {rounds} rounds"
    worth = replace(
        worth,
        likely_ns=max(0, worth.likely_ns - stays),
        most_ns=max(worth.most_ns or 0, worth.likely_ns),
        confidence=why,
    )
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return []
    where = place_of_operator(code, flow, flow.start_ns[[loops[0].rows[-1]]])
    idle = began_in(case.idle, calls)
    works = case.per_step(int((ops["end_ns"] - ops["start_ns"]).sum()))
    cost = case.per_step(float(case.idle["real_ns"].to_numpy()[idle].sum())) + works
    each = len(loops[0].rows) // loops[0].rounds
    masked = (
        " The mask that keeps the smaller distance makes the host wait for its size in each round."
        if loops[0].masked
        else ""
    )
    title = (
        f"{in_short(where) or 'A loop'} samples {rounds} farthest points {case.per} in single operations, one round after the other: "
        f"{units.duration(cost)}"
    )
    detail = (
        f"Each round makes about {each} operations on distances of {' x '.join(map(str, loops[0].size))} points, and its point decides "
        f"the next one: no batch of them is possible. One kernel goes through all rounds on the GPU.{masked}"
    )
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=cost, where=where or None, fix=_fix(case, where, loops[0].masked),
            calls=calls, takes=Takes(ops_of(ops), idle),
        ).as_finding(case)
    ]  # fmt: skip


def _fix(case: Case, where: Row, masked: bool) -> Fix:
    """Return the advice, with the names that the loop gives to points, numbers and distances."""
    fix, of_file = Fix.by_name("points-by-kernel"), texts(case.profile).get(str(where.get("file") or ""))
    loop = loop_around(of_file, where.get("line") or 0) if isinstance(of_file, Mapping) else None
    if loop is None:
        return fix
    body = [text.strip().partition("  #")[0].strip() for text in loop.body]
    counted, kept, picked, less = (
        next((match for text in texts_of if (match := pattern.search(text))), None)
        for pattern, texts_of in ((_COUNTED, [loop.header]), (_KEPT, body), (_PICKED, body), (_MASKED, body))
    )
    points = (picked["points"] or picked["gathered"]) if picked else None
    names = {
        "centroids": kept["kept"] if kept else None,
        "xyz": points,
        "npoint": counted["count"] if counted else None,
    }
    paste = fix.paste
    for name, in_program in names.items():
        paste = re.sub(rf"\b{name}\b", in_program or name, paste)
    if masked and less is not None:
        paste += (
            f"\n# or, in the loop, without the wait: {less['all']} = torch.minimum({less['all']}, {less['new']})"
            f"  # not {less[0]}"
        )
    return fix.but(paste=paste)
