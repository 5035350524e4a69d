"""Tensors that a loop fills part by part under autograd (``events.written_parts``): backward copies their whole gradient for each part."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.operator_flow import flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.written_parts import WrittenParts, writes_of_calls, written_parts
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator
from nsysx.findings._found import Found
from nsysx.findings._gone_backwards import edits_of_gone
from nsysx.findings._once import Takes
from nsysx.model import Finding, Row

_REMEDY = "parts-joined-at-end"
#: out[:, t] = new
_WRITES = re.compile(r"^(?P<whole>[\w.]+)\s*\[(?P<index>[^\]=]*)\]\s*=\s*(?P<new>[^=].*)$")


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for each tensor whose gradients are copied for 5 % of the step or more."""
    if not written_parts(case.profile):
        return []
    flow, of_calls = flow_of(case.profile), operator_of_calls(case.profile)
    if flow is None or of_calls is None:
        return []
    of_ops = case.ops["call"].fill_null(-1).to_numpy()
    write, made_by = (
        pl.Series(np.append(rows, -1)[of_ops])
        for rows in (case.profile.once(writes_of_calls), of_calls.within(flow, gradients=False))
    )
    work = case.ops.select("op", "call", ns=pl.col("end_ns") - pl.col("start_ns")).with_columns(
        write=write, made_by=made_by
    )
    return [f for parts in written_parts(case.profile) if (f := _found(case, rule, parts, work)) is not None]


def _found(case: Case, rule: Rule, parts: WrittenParts, work: pl.DataFrame) -> Finding | None:
    theirs = work.filter(pl.col("write").is_in(parts.rows) | pl.col("made_by").is_in(list(parts.clones)))
    cost = case.per_step(int(theirs["ns"].sum()))
    if not case.notable(cost, REPORTED_SHARE):
        return None
    worth = case.worth_or_freed(*edits_of_gone(case, theirs), cause=(StepPart.WORK, StepPart.HOST, StepPart.LAUNCH))
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    where = _place_of(case, parts)
    times, size = units.count(len(parts.rows)), " x ".join(map(str, parts.size))
    cloned = " with the copies of all of it that are made before the writes" if parts.clones else ""
    title = (
        f"{f'{in_short(where)}: ' if where else ''}backward copies the gradient of a whole tensor for each part that is written into it: "
        f"{units.duration(cost)} {case.per}"
    )
    detail = (
        f"A tensor of {size} is filled by {times} writes {case.per} through which gradients run. For each of them backward copies its "
        f"gradient of {size}, takes a part out of it and zeroes that: {case.share(cost)} of the step{cloned}."
    )
    return Found(
        rule, title, detail, worth=worth, cost_ns=cost, where=where or None, fix=_fix_of(case, parts, where),
        takes=Takes(ops_of(theirs)),
    ).as_finding(case)  # fmt: skip


def _place_of(case: Case, parts: WrittenParts) -> Row:
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None or code is None:
        return {}
    return place_of_operator(code, flow, flow.start_ns[[parts.rows[0]]])


def _fix_of(case: Case, parts: WrittenParts, where: Row) -> Fix:
    """Return the remedy, with the names of the program where its line says them."""
    fix = Fix.by_name(_REMEDY)
    text = text_of(texts(case.profile), where.get("file"), where.get("line")) or ""
    match, d = _WRITES.match(text.partition("  #")[0].strip()), parts.dimension
    whole, index, new = match.group("whole", "index", "new") if match else ("whole", f"{':, ' * d}n", "new")
    leading = re.match(r"(:,\s*)*", index)
    if (
        parts.stacked and leading is not None and "..." not in index
    ):  # of dimensions of one length the sizes do not tell
        d = leading[0].count(":")
    joins = "torch.stack" if parts.stacked else "torch.cat"
    paste = f"parts.append({new})  # in the loop, not {whole}[{index}] = {new}\n{whole} = {joins}(parts, {d})  # once, behind the loop"
    written = len(parts.rows) * (1 if parts.stacked else parts.part[d])
    begin = "parts = []"
    if written < parts.size[d]:
        begin = f"parts = [zeros of {' x '.join(map(str, parts.part))}]: one part is not written"
    alone = " Parts that are read on the way are those of the list, parts[-1] the last one." if parts.read else ""
    return fix.but(paste=paste, condition=f"Begin with {begin}. {fix.condition}{alone}")
