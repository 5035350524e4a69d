"""Losses of nearest points (Chamfer, Hausdorff) that are differentiated through the distances of all pairs (``events.nearest_pairs``)."""

from __future__ import annotations

import math
import re

import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.nearest_pairs import NearestPairs, nearest_pairs
from nsysx.events.operator_flow import flow_of
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_with_gradients
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.model import Finding, Row
from nsysx.replay.engine import RemoveOps

#: A line that makes the distances of two sets of points, by their names.
_CDIST = re.compile(
    r"^(?P<made>[A-Za-z_]\w*)\s*=\s*(?:torch\.)?cdist\(\s*(?P<first>[\w.]+)\s*,\s*(?P<second>[\w.]+)\s*[,)]"
)
_OF_SUMS = re.compile(r"\bp\s*=\s*1(\.0?)?\s*[,)]")


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return one finding about such losses where the gradients of all pairs take 5 % of the step or more."""
    flow, code = flow_of(case.profile), case.profile.code()
    if flow is None or code is None or case.program.compiled:
        return []
    pairs = nearest_pairs(flow)
    if not pairs:
        return []
    rows = [row for each in pairs for row in (*each.makes, *each.takes)]
    work = work_with_gradients(case, flow).filter(pl.col("backward"), pl.col("row").is_in(rows))
    if not work.height:
        return []
    worth = case.worth_or_freed(RemoveOps(ops_of(work)), cause=(StepPart.WORK,), bound=True)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return []
    largest = max(pairs, key=lambda each: math.prod(each.size))
    taken = case.per_step(int(work["ns"].sum()))
    where = place_of_operator(code, flow, flow.start_ns[[largest.makes[0]]])
    every = math.prod(largest.size)
    kept = sum(every // largest.size[dimension] for dimension in largest.over)
    title = (
        f"{in_short(where) or 'One line'} takes gradients through {units.count(every)} distances, of which {units.count(kept)} are the "
        "smallest"
    )
    detail = (
        f"The gradient of the nearest pairs goes back through the distances of all pairs, with zeros for all others: "
        f"{units.duration(taken)} {case.per}, {case.share(taken)} of the step. The distances themselves stay: they find the nearest."
    )
    return [
        Found(
            rule, title, detail, worth=worth, cost_ns=taken, fix=_fix(case, where, largest), where=where or None,
            takes=Takes(ops_of(work)),
        ).as_finding(case)
    ]  # fmt: skip


def _fix(case: Case, where: Row, pairs: NearestPairs) -> Fix:
    """Return the advice with the names of the line, and for what is taken: of rows, of columns, squared or not."""
    file, line = where.get("file"), where.get("line")
    text = text_of(texts(case.profile), str(file), line) if isinstance(line, int) else None
    return Fix.by_name("nearest-without-gradients", paste=paste_of(text or "", pairs))


def paste_of(text: str, pairs: NearestPairs) -> str:
    """Return the lines that take the place of the one with the distances, and of those that take the smallest."""
    named = _CDIST.match(text.strip())
    made, first, second = named.group("made", "first", "second") if named else ("d", "a", "b")
    call = text.partition("  #")[0].strip() if named else f"{made} = torch.cdist({first}, {second})"
    both = pairs.over == {-1, -2}
    way = ".square().sum(-1)" if pairs.squared else ".abs().sum(-1)" if _OF_SUMS.search(text) else ".norm(dim=-1)"
    lines = ["with torch.no_grad():", f"    {call}"]
    lines.append(
        f"    i, j = {made}.argmin(-1), {made}.argmin(-2)" if both else f"    i = {made}.argmin({min(pairs.over)})"
    )
    lines.append("near = lambda points, k: points.gather(-2, k[..., None].expand(*k.shape, points.size(-1)))")
    if -1 in pairs.over:
        lines.append(f"({first} - near({second}, i)){way}  # in place of {made}.min(-1).values")
    if -2 in pairs.over:
        lines.append(f"(near({first}, {'j' if both else 'i'}) - {second}){way}  # in place of {made}.min(-2).values")
    return "\n".join(lines)
