"""Rows that an index picks by number (``events.picked_rows``), whose backward adds those of equal numbers one after the other.

The backward of ``x[index]`` sorts the numbers, and one warp adds up all rows of one number (``indexing_backward_kernel``): where a few are
picked thousands of times, these take the time. That of an embedding splits the rows of one number among warps.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work
from nsysx.analyses.lines import text_of, texts
from nsysx.events.operator_flow import flow_of
from nsysx.events.picked_rows import PickedRows, indexed_by_number
from nsysx.events.profile import NotRecorded
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._flow_work import in_short, place_of_operator, work_with_gradients
from nsysx.findings._found import Found
from nsysx.findings._instead import Instead
from nsysx.findings._once import Takes
from nsysx.findings._pieces_in_text import parsed
from nsysx.findings._work_bounds import SEGMENT_SUMS_TIMES, SORT_FOR_SUMS_NS
from nsysx.model import Finding, Row
from nsysx.roofline.device_rates import DeviceRates
from nsysx.roofline.element_types import types_of

_ADDS = r"indexing_backward"


def findings_of(case: Case, rule: Rule) -> tuple[list[Finding], frozenset[int]]:
    """Return a finding for each line whose rows cost 1 % of the step or more, and the GPU ops of all that is indexed by number."""
    flow = flow_of(case.profile)
    if flow is None:
        return [], frozenset()
    indexed = indexed_by_number(flow)
    work = work_with_gradients(case, flow).filter(pl.col("row").is_in(list(indexed.operators)))
    if not work.height:
        return [], frozenset()
    kernels = case.ops.select("op", pl.col("name").cast(pl.String))
    adds = work.filter("backward").join(kernels, on="op", how="left", maintain_order="left")
    adds = adds.filter(pl.col("name").str.contains(_ADDS))
    try:
        rates = case.profile.once(limits_of_work.device_rates)
    except NotRecorded:
        return [], ops_of(work)
    code, groups = case.profile.code(), dict[tuple[str, int], tuple[Row, list[PickedRows]]]()
    for picked in indexed.picks:
        where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[picked.row]])
        groups.setdefault((str(where.get("file")), int(where.get("line") or 0)), (where, []))[1].append(picked)
    findings = (_found(case, rule, adds, picks, where, rates) for where, picks in groups.values())
    return [finding for finding in findings if finding is not None], ops_of(work)


def _found(
    case: Case, rule: Rule, adds: pl.DataFrame, picks: Sequence[PickedRows], where: Row, rates: DeviceRates
) -> Finding | None:  # fmt: skip
    """Return the finding about the rows that a line picks; ``adds``: the kernels that add up (op, ns, row, name)."""
    adds = adds.filter(pl.col("row").is_in([picked.row for picked in picks]))
    least = most = moved = 0.0
    for picked in picks:
        size = next(
            (size for name in adds.filter(adds["row"] == picked.row)["name"] if (size := types_of(name).size)), None
        )
        once = rates.memory_ns(2 * (size or 0) * picked.picked * picked.width)
        if once is None:
            return None
        if size:
            moved += once
            least += SEGMENT_SUMS_TIMES[0] * once + SORT_FOR_SUMS_NS[0]
            most += SEGMENT_SUMS_TIMES[1] * once + SORT_FOR_SUMS_NS[1]
    taken = case.per_step(int(adds["ns"].sum()))
    if not moved or not case.notable(taken):
        return None
    worth = Instead(adds["op", "ns"], least * case.steps, most * case.steps, at_limit=False).worth(case)
    if not case.notable(worth.likely_ns or 0):
        return None
    dearest = max(picks, key=lambda picked: int(adds.filter(adds["row"] == picked.row)["ns"].sum()))
    there = f"{in_short(where)}: " if where else ""
    title = f"{there}rows that numbers pick take {units.duration(taken)} in backward: equal ones are added in turn"
    often = dearest.picked / dearest.rows
    detail = (
        f"An index picks {units.count(dearest.picked)} of {units.count(dearest.rows)} rows by their numbers"
        f"{f', {often:.1f} of each on average' if often > 1 else ''}. Its backward sorts the numbers, and one warp adds up all rows of one "
        f"number: {units.duration(taken)} {case.per}, {case.share(taken)} of the step, {taken / moved:.0f} times as long as their bytes "
        "need. The few that are picked most take the time. An embedding's backward splits them among warps."
    )  # fmt: skip
    text = text_of(texts(case.profile), where["file"], where["line"]) if where else None
    return Found(
        rule, title, detail, worth=worth, cost_ns=taken, fix=_fix(text, picks, len({(p.size, p.numbers) for p in picks})),
        where=where or None, title_as_recorded=True, takes=Takes(ops_of(adds)),
    ).as_finding(case)  # fmt: skip


def _fix(text: str | None, picks: Sequence[PickedRows], kinds: int) -> Fix:
    """Return the remedy, with the line in its new form where its text tells which index is meant."""
    fix, first = Fix.by_name("rows-by-embedding"), picks[0]
    line = with_look_ups(text, first, len(picks)) if text and kinds == 1 else None
    if line is not None:
        return fix.but(paste=line)
    return (
        fix
        if len(first.size) == 2 and first.dimension == 0
        else fix.but(paste=f"rows = {_look_up('x', 'index', first)}  # not x[index]")
    )


def with_look_ups(text: str, picked: PickedRows, picks: int = 1) -> str | None:
    """Return a line in which rows are looked up in place of an index; None where its text does not tell which index it is.

    ``picks``: how often the line picks such rows in a step.
    """
    text = text.partition("  #")[0].strip()
    tree = parsed(text)
    if tree is None:
        return None
    nodes = list(ast.walk(tree))
    called = [node.func for node in nodes if isinstance(node, ast.Call)]  # layers[n](x): no tensor
    every = [node for node in nodes if isinstance(node, ast.Subscript) and node not in called]
    indexed = [(node, index) for node in every if (index := _number(node, picked))]
    nested = any(node is not other and node in ast.walk(other) for node, _ in indexed for other, _ in indexed)
    if not indexed or nested or picks % len(indexed):
        return None
    if len(indexed) > 1 and any(len(index) == 1 for _, index in indexed):  # rows[i] of a list, too
        return None
    line = text
    for node, index in sorted(indexed, key=lambda each: -each[0].col_offset):
        rows = ast.get_source_segment(text, node.value) or ast.unparse(node.value)
        line = f"{line[: node.col_offset]}{_look_up(rows, index, picked)}{line[node.end_col_offset :]}"
    before = [ast.get_source_segment(text, node) or "" for node, _ in indexed]
    return f"{line}  # not {', '.join(before)}"


def _number(node: ast.Subscript, picked: PickedRows) -> str:
    """Return the text of the numbers that an expression picks rows of this dimension by, "" for none."""
    each = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    before, index = each[: picked.dimension], each[picked.dimension :]
    whole = all(isinstance(part, ast.Slice) and not (part.lower or part.upper or part.step) for part in before)
    if not isinstance(node.ctx, ast.Load) or not whole or len(before) < picked.dimension or len(index) != 1:
        return ""
    by_number = isinstance(index[0], (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.BinOp))
    return ast.unparse(index[0]) if by_number else ""


def _look_up(rows: str, index: str, picked: PickedRows) -> str:
    """Return an expression that looks up rows of a tensor by numbers."""
    if len(picked.size) == 2 and picked.dimension == 0:
        return f"F.embedding({index}, {rows})"
    d = picked.dimension
    if len(picked.numbers) == 1:
        return f"{rows}.index_select({d}, {index})"
    numbers = index if index.isidentifier() else f"({index})"
    return f"{rows}.index_select({d}, {numbers}.flatten()).unflatten({d}, {numbers}.shape)"
