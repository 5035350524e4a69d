"""Rows that an index picks by number (``events.picked_rows``), whose backward adds those of equal numbers one after the other.

The backward of ``x[index]`` sorts the numbers, and one warp adds up all rows of one number (``indexing_backward_kernel``): where a few are
picked thousands of times, these take the time. That of an embedding splits the rows of one number among warps, and that of
``index_select`` adds by atomic operations, which wait for each other only where they meet.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work
from nsysx.analyses.lines import text_of, texts
from nsysx.events.operator_flow import flow_of
from nsysx.events.picked_rows import PickedRows, indexed_by_number
from nsysx.events.profile import NotRecorded
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._flow_work import in_short, place_of_operator, work_with_gradients
from nsysx.findings._found import Found
from nsysx.findings._instead import Instead
from nsysx.findings._once import Takes
from nsysx.findings._pieces_in_text import parsed
from nsysx.findings._row_bounds import (
    ATOMIC_SUMS_TIMES,
    FEWEST_ATOMIC_NUMBERS,
    FLOAT32_BYTES,
    MEETING_ATOMIC_SUMS_TIMES,
    MOST_ATOMIC_EQUAL,
    SEGMENT_SUMS_TIMES,
    SORT_FOR_SUMS_NS,
    WAITING_SUMS_TIMES,
)
from nsysx.model import Finding, Row
from nsysx.roofline.device_rates import DeviceRates
from nsysx.roofline.element_types import types_of

_ADDS = r"indexing_backward"
#: What else the backward of an index launches that additions in no order do without.
_SORTS = r"[Ss]ort|[Rr]adix"
_BY_SELECT = "index_select"
_SELECT_TEXT = (
    "Look rows up with index_select: its backward adds by atomic operations, all rows at once; that of x[index] sorts the indices and adds "
    "up equal ones one at a time"
)
_SELECT_CONDITION = (
    "No number may be negative: these count from the start alone. Atomic additions come in any order, so that last bits differ between "
    "runs; F.embedding, which sorts, where they must not."
)


class _LookUp(NamedTuple):
    """How rows are looked up instead: the function, and from how long to how long its backward takes (ns) without what it replaces."""

    by: str
    least_ns: float
    most_ns: float


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
    adds = adds.filter(pl.col("name").str.contains(f"{_ADDS}|{_SORTS}"))
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
    """Return the finding about the rows that a line picks; ``adds``: the kernels that add up, and sort for it (op, ns, row, name)."""
    whole = adds.filter(pl.col("row").is_in([picked.row for picked in picks]))
    adds = whole.filter(pl.col("name").str.contains(_ADDS))
    settings = settings_of(case.profile)
    in_order = settings is not None and settings.switch("deterministic") is True
    least = most = moved = 0.0
    by = set[str]()
    for picked in picks:
        size = next(
            (size for name in adds.filter(adds["row"] == picked.row)["name"] if (size := types_of(name).size)), None
        )
        once = rates.memory_ns(2 * (size or 0) * picked.picked * picked.width)
        if once is None:
            return None
        if size:
            moved += once
            look_up = _cheaper(picked, size, once, in_order=in_order)
            by.add(look_up.by)
            least, most = least + look_up.least_ns, most + look_up.most_ns
    taken = case.per_step(int(adds["ns"].sum()))
    if not moved or not case.notable(taken):
        return None
    if by != {_BY_SELECT}:
        whole = adds
    elif taken < WAITING_SUMS_TIMES * moved:
        return None
    worth = Instead(whole["op", "ns"], least * case.steps, most * case.steps, at_limit=False).worth(case)
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
        f"need. The few that are picked most take the time. {_others_do(by)}"
    )  # fmt: skip
    text = text_of(texts(case.profile), where["file"], where["line"]) if where else None
    return Found(
        rule, title, detail, worth=worth, cost_ns=taken, fix=_fix(text, picks, by),
        where=where or None, title_as_recorded=True, takes=Takes(ops_of(whole)),
    ).as_finding(case)  # fmt: skip


def _cheaper(picked: PickedRows, size: int, once: float, *, in_order: bool) -> _LookUp:
    """Return the cheaper look-up of rows whose numbers have so many bytes; ``once``: what reading and writing each once takes (ns).

    ``in_order``: with deterministic algorithms index_select adds as an index does. Rows of 16 bits are added up in float32 by an
    embedding, which looks up rows of a matrix alone; threads that add to narrow rows, or to few, meet more often.
    """
    wide = picked.width >= FEWEST_ATOMIC_NUMBERS and picked.picked <= MOST_ATOMIC_EQUAL * picked.rows
    if _of_matrix(picked) and (in_order or size < FLOAT32_BYTES or not wide):
        least, most = (times * once + sort for times, sort in zip(SEGMENT_SUMS_TIMES, SORT_FOR_SUMS_NS, strict=True))
        return _LookUp("embedding", least, most)
    # As many additions of fewer bytes take as long: the time is that of their number.
    more = max(FLOAT32_BYTES / size, 1.0)
    times = ATOMIC_SUMS_TIMES if wide else MEETING_ATOMIC_SUMS_TIMES
    return _LookUp(_BY_SELECT, more * times[0] * once, more * times[1] * once)


def _of_matrix(picked: PickedRows) -> bool:
    """Return whether rows of a matrix are picked, as an embedding does."""
    return len(picked.size) == 2 and picked.dimension == 0


def _others_do(by: set[str]) -> str:
    """Return in words what the backward of these look-ups does."""
    if by == {_BY_SELECT}:
        return "That of index_select adds all rows at once, by atomic operations."
    return "An embedding's backward splits them among warps."


def _fix(text: str | None, picks: Sequence[PickedRows], by: set[str]) -> Fix:
    """Return the remedy, with the line in its new form where its text tells which index is meant; ``by``: the functions that look up."""
    fix, first = Fix.by_name("rows-by-embedding"), picks[0]
    select = by == {_BY_SELECT}
    if select:
        fix = fix.but(text=_SELECT_TEXT, condition=_SELECT_CONDITION)
    kinds = len({(picked.size, picked.numbers) for picked in picks})
    line = with_look_ups(text, first, len(picks), select=select) if text and kinds == 1 else None
    if line is not None:
        return fix.but(paste=line)
    if not select:
        return fix
    return fix.but(paste=f"rows = {_look_up('x', 'index', first, select=True)}  # not x[index]")


def with_look_ups(text: str, picked: PickedRows, picks: int = 1, *, select: bool = False) -> str | None:
    """Return a line in which rows are looked up in place of an index; None where its text does not tell which index it is.

    ``picks``: how often the line picks such rows in a step. ``select``: by index_select, not F.embedding where rows of a matrix are picked.
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
        if not isinstance(node.value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
            rows = f"({rows})"  # (a + b)[index]
        line = f"{line[: node.col_offset]}{_look_up(rows, index, picked, select=select)}{line[node.end_col_offset :]}"
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


def _look_up(rows: str, index: str, picked: PickedRows, *, select: bool) -> str:
    """Return an expression that looks up rows of a tensor by numbers."""
    if _of_matrix(picked) and not select:
        return f"F.embedding({index}, {rows})"
    d = picked.dimension
    if len(picked.numbers) == 1:
        return f"{rows}.index_select({d}, {index})"
    numbers = index if index.isidentifier() else f"({index})"
    return f"{rows}.index_select({d}, {numbers}.flatten()).unflatten({d}, {numbers}.shape)"
