"""Work on copies of rows that the rows need once (``events.copied_rows``): what it takes, and what is left with the copying behind it."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work
from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.copied_rows import CopiedRows, copied_rows
from nsysx.events.operator_flow import OperatorFlow, flow_of, is_view
from nsysx.events.profile import NotRecorded
from nsysx.events.trained_operators import trained_of
from nsysx.findings import _copied_pastes
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, left_of_new, work_with_gradients
from nsysx.findings._found import Found
from nsysx.findings._instead import Instead
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import (
    COPIED_NUMBER_BYTES,
    FEW_ROWS_NS,
    GRADIENT_OF_COPIES_TIMES,
    MOST_LINES_NAMED,
    MOST_TIMES_AS_WIDE,
)
from nsysx.frames.intervals import I64
from nsysx.model import Finding, Row
from nsysx.roofline.device_rates import DeviceRates
from nsysx.roofline.roofline_bounds import SHORTER_ROWS_AT_MOST_TIMES

_REMEDY = "rows-before-copies"


class _Times(NamedTuple):
    """The GPU ops of outermost operators (op, ns, row, backward), and by the operator the time of each (ns)."""

    work: pl.DataFrame
    each: Mapping[int, I64]

    def of_rows(self, rows: Iterable[int]) -> I64:
        return np.concatenate([np.empty(0, np.int64), *(self.each[row] for row in rows if row in self.each)])


class _Change(NamedTuple):
    """Copying that comes behind work: the operators of the work (rows of the flow), what that takes now (ns, all steps), how long it and
    the copying take then, at least and at most, and the operators whose time changes.
    """

    copied: CopiedRows
    work: tuple[int, ...]
    wide: float
    ends: frozenset[int]
    now_ns: float
    least_ns: float
    most_ns: float
    changing: tuple[int, ...]
    taken_ns: int

    @property
    def saved_ns(self) -> float:
        return self.now_ns - math.sqrt(self.least_ns * self.most_ns)


class _WorkPlace(NamedTuple):
    """The line with most of the work, and that of the copying, if it is another one; empty where it is not known.

    ``lines``: all lines of the work, in order, and whether others read what each makes.
    """

    work: Row
    copying: Row
    lines: list[tuple[Row, bool]]


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for the work on copies of rows, if its change saves 5 % of the step or more."""
    flow, code = flow_of(case.profile), case.profile.code()
    every = [] if flow is None or case.program.compiled else copied_rows(flow)
    if flow is None or code is None or not every:
        return []
    work = work_with_gradients(case, flow)
    by_row = work.group_by("row").agg("ns")
    times = _Times(work, {row: np.array(ns, np.int64) for row, ns in by_row.iter_rows()})
    trained = trained_of(case.profile)
    changes = [change for each in every if (change := _best(case, each, times, trained.tolist())) is not None]
    groups = dict[tuple[str, int, str], list[_Change]]()  # by file, line and what copies
    for change in changes:
        where = _place(code, flow, change, times).work
        by = flow.names[change.copied.copying[0]]
        groups.setdefault((str(where.get("file")), int(where.get("line") or 0), by), []).append(change)
    # Layers that are written out stand on a line each: all of one kind of copying are told together.
    kinds = dict[str, list[list[_Change]]]()
    for (_, _, by), group in groups.items():
        if case.notable(case.per_step(sum(change.saved_ns for change in group))):
            kinds.setdefault(by, []).append(group)
    findings = (_found(case, rule, flow, times, of_lines) for of_lines in kinds.values())
    return [finding for finding in findings if finding is not None]


def _best(case: Case, each: CopiedRows, times: _Times, trained: Sequence[bool]) -> _Change | None:
    """Return how much of the work comes before the copying at best; None where nothing is gained."""
    changes = [
        _change(case, each, times, first, any(trained[row] for row in each.work[:first]))
        for first in range(1, len(each.work) + 1)
    ]
    best = max(changes, key=lambda change: change.saved_ns)
    return best if best.saved_ns > 0 else None


def _change(case: Case, each: CopiedRows, times: _Times, first: int, trained: bool) -> _Change:
    """Return what it changes if the first so many operators on the copies come before the copying."""
    rows, wide = each.work[:first], each.wide[first - 1]
    ns = times.of_rows(rows)
    new = ns.astype(np.float64) / each.times
    least, most = (
        left_of_new(ns, new * longer, FEW_ROWS_NS) for longer in (1, min(each.times, SHORTER_ROWS_AT_MOST_TIMES))
    )
    now, changing = float(ns.sum()), rows
    copying = times.work.filter(pl.col("row").is_in(list(each.copying)))
    forward, backward = (int(copying.filter(copying["backward"] == back)["ns"].sum()) for back in (False, True))
    if not forward:  # an expansion that nothing has written so far: what reads the results may have to
        numbers = each.copies * (each.size[-1] if each.size else 1) * wide
        most += (1 + trained) * (_moved_ns(case, COPIED_NUMBER_BYTES * numbers) or 0) * case.steps
    elif wide != 1 or (trained and not backward):
        copied_ns = forward + max(float(backward), GRADIENT_OF_COPIES_TIMES * forward if trained else 0)
        if wide > MOST_TIMES_AS_WIDE:  # numbers of tokens are copied now: what a launch takes says nothing
            moved = COPIED_NUMBER_BYTES * each.copies * (each.size[-1] if each.size else 1) * wide
            copied_ns = (1 + trained) * (_moved_ns(case, moved) or 0) * case.steps / wide
        least += wide * copied_ns
        most += max(wide, min(1.0, SHORTER_ROWS_AT_MOST_TIMES * wide)) * copied_ns
        now, changing = now + forward + backward, (*rows, *each.copying)
    return _Change(each, rows, wide, each.ends[first - 1], now, least, most, changing, int(ns.sum()))


def _moved_ns(case: Case, moved: float) -> float | None:
    try:
        rates: DeviceRates = case.profile.once(limits_of_work.device_rates)
    except NotRecorded:
        return None
    return rates.memory_ns(round(moved))


def _place(code: CodeLines, flow: OperatorFlow, change: _Change, times: _Times) -> _WorkPlace:
    """Return the lines of the work, and that which copies: in the function in which all of them are."""
    work = [row for row in change.work if row in times.each] or list(change.work)
    dearest = max(work, key=lambda row: int(times.each[row].sum()) if row in times.each else 0)
    rows = [change.copied.copying[0], *work]
    chains = [code.around(int(stack))[::-1] for stack in code.at(flow.thread, flow.start_ns[rows])]  # outer ones first
    if not all(chains):
        return _WorkPlace({}, {}, [])
    shared = 0  # so many lines are around all
    while all(len(chain) > shared + 1 and chain[shared] == chains[0][shared] for chain in chains):
        shared += 1
    lines = [chain[shared] for chain in chains]
    ends = {line for row, line in zip(rows, lines, strict=True) if row in change.ends and row in work}
    several = [(code.where_of(line), line in ends) for line in dict.fromkeys(lines[1:])]
    where = code.where_of(lines[1 + work.index(dearest)])
    return _WorkPlace(where, code.where_of(lines[0]) if lines[0] not in lines[1:] else {}, several)


def _found(
    case: Case, rule: Rule, flow: OperatorFlow, times: _Times, lines: Sequence[Sequence[_Change]]
) -> Finding | None:
    """Return the finding about work on copies of one kind, at some lines; None where its change saves too little."""
    lines = sorted(lines, key=lambda group: -sum(change.saved_ns for change in group))
    changes = [change for group in lines for change in group]
    gone = times.work.filter(pl.col("row").is_in([row for change in changes for row in change.changing]))
    least, most = (sum(getattr(change, key) for change in changes) for key in ("least_ns", "most_ns"))
    worth = Instead(gone["op", "ns"], least, most).worth(case)
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    code = case.profile.code()
    assert code is not None
    first = lines[0][0]
    site, cost = _place(code, flow, first, times), case.per_step(sum(change.taken_ns for change in changes))
    there = f"{in_short(site.work)}: " if site.work else ""
    copied, named = first.copied, _named(flow, first.work)
    title = (
        f"{there}{named} {'runs' if ' and ' not in named else 'run'} on {units.count(copied.copies)} rows, which are copies of "
        f"{units.count(copied.rows)}: {units.duration(cost)} {case.per}"
    )
    by = flow.names[copied.copying[0]].removeprefix("aten::")
    then = (
        "The copying stays as it is."
        if first.wide == 1
        else f"The copying then moves {first.wide:.1f} times as many numbers, which is counted."
    )
    detail = (
        f"{by} copies each row {copied.times:.1f} times, on average, and what follows makes the same of each copy: "
        f"{units.duration(cost)} {case.per} with its gradients, {case.share(cost)} of the step. On the rows themselves it is "
        f"{copied.times:.1f} times less work. {then}"
    )
    others = [
        in_short(where) for group in lines[1:MOST_LINES_NAMED] if (where := _place(code, flow, group[0], times).work)
    ]
    return Found(
        rule, title, detail, worth=worth, cost_ns=cost, fix=_fix(case, flow, first, site, others),
        where=site.work or None, takes=Takes(ops_of(gone)),
    ).as_finding(case)  # fmt: skip


def _named(flow: OperatorFlow, work: Sequence[int]) -> str:
    """Return the operators of work in words: those that are most of it."""
    names = Counter(re.sub(r"^aten::|_$", "", flow.names[row]) for row in work if not is_view(flow.names[row]))
    listed = list(names)[:3]
    several = "" if len(names) <= len(listed) else " and others"
    return (", ".join(listed) + several) if several or len(listed) < 2 else f"{', '.join(listed[:-1])} and {listed[-1]}"


def _fix(case: Case, flow: OperatorFlow, change: _Change, site: _WorkPlace, others: Sequence[str]) -> Fix:
    """Return the remedy, in the names of the program where its lines say them."""
    fix, source, copied = Fix.by_name(_REMEDY), texts(case.profile), change.copied
    if any(flow.names[row] in _ATTENTION for row in change.work):
        places = (site.copying or site.work, site.work)
        copies, calls = (text_of(source, str(each["file"]), int(each["line"])) if each else "" for each in places)
        return _of_samples(change, copies or "", calls or "")
    by = flow.names[copied.copying[0]].removeprefix("aten::")

    def through(node: ast.expr) -> bool:
        return _comes_before(flow, change, node)

    def text(where: Row) -> str | None:
        return text_of(source, str(where["file"]), int(where["line"])) if where else None

    copying, same_width = text(site.copying), change.wide == 1
    if len(site.lines) == 1:
        line = _copied_pastes.moved(text(site.work), copying, by, through, same_width=same_width)
    else:
        texts_of, ends = [text(where) for where, _ in site.lines], [is_end for _, is_end in site.lines]
        kept = not change.ends.isdisjoint(copied.copying)  # the copies are read as they are, too
        line = None if kept else _copied_pastes.moved_lines(texts_of, ends, copying, by, through, same_width=same_width)
    paste = line or _GENERAL.get(by, _GENERAL["index_select"])
    do, _, why = fix.text.partition(": ")
    words = f"{do}, likewise for {', '.join(others)}: {why}" if others else fix.text
    return fix.but(
        text=words, paste=paste, condition=f"{fix.condition}{_IN_16_BITS if _converts(flow, change) else ''}"
    )


def _of_samples(change: _Change, copying: str, calling: str) -> Fix:
    """Return the remedy for samples that are copied before a network attends within each: prompts of a group."""
    source = re.search(r"([A-Za-z_][\w.]*)\.(repeat_interleave|repeat|expand|index_select)\(", copying)
    prompts = source[1] if source else "prompts"
    fix, times = Fix.by_name("prompts-once"), round(change.copied.times)
    library = "past_key_values" in calling or "use_cache" in calling
    network = next(
        (each for each in re.findall(r"\b([A-Za-z_][\w.]*)\(", calling) if each not in _NO_NETWORKS), "model"
    )
    call = f"out = {network}({prompts}, use_cache=True)" if library else f"logits, cache = {network}({prompts})"
    rest = _OF_LIBRARY if library else _OF_PROGRAM
    return fix.but(paste=f"{call}  # {times} times fewer rows\n{rest.format(n=times)}")


#: What reads the keys and values of a whole sequence.
_ATTENTION = ("aten::scaled_dot_product_attention", "aten::softmax", "aten::_softmax")
_NO_NETWORKS = ("tuple", "list", "len", "dict", "zip", "enumerate", "range")
_OF_LIBRARY = "cache = out.past_key_values\ncache.batch_repeat_interleave({n})\nlogits = out.logits[:, -1].repeat_interleave({n}, dim=0)"
_OF_PROGRAM = (
    "logits = logits[:, -1].repeat_interleave({n}, dim=0)\n"
    "cache = [tuple(each.repeat_interleave({n}, dim=0) for each in layer) for layer in cache]"
)
_IN_16_BITS = " Gradients of copies are then added in 16 bits: f(x).float() keeps their sums as exact as now."


def _converts(flow: OperatorFlow, change: _Change) -> bool:
    """Return whether the work converts the copies: autocast does."""
    spans = dict(flow.outermost_spans)
    return any(flow.names[inner] == "aten::_to_copy" for row in change.work for inner in range(row, spans[row]))


#: Where the line's text does not tell how it reads then: by the operator that copies.
_GENERAL = {
    "index_select": "y = f(x).index_select(0, index)  # not f(x.index_select(0, index))",
    "index": "y = f(x)[index]  # not f(x[index])",
    "embedding": "y = F.embedding(index, f(table.weight))  # not f(table(index))",
    "repeat": "y = f(x).repeat(1, n, 1)  # not f(x.repeat(1, n, 1))",
    "repeat_interleave": "y = f(x).repeat_interleave(n, dim=0)  # not f(x.repeat_interleave(n, dim=0))",
    "expand": "y = f(x).expand(-1, n, -1)  # not f(x.expand(-1, n, -1))",
    "cat": "y = torch.cat([f(x)] * n)  # not f(torch.cat([x] * n))",
}


def _comes_before(flow: OperatorFlow, change: _Change, node: ast.expr) -> bool:
    """Return whether what an expression calls is work that comes before the copying, and nothing else.

    A module is one if all that its call computes is; a function if there is an operator of its name among the work.
    """
    if isinstance(node, ast.BinOp):
        return any(flow.names[row] in ("aten::matmul", "aten::mm") for row in change.work)
    while isinstance(node, ast.Subscript):  # self.layers[n]
        node = node.value
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    before, begin = set(change.work), change.copied.copying[0]
    for call in flow.calls:
        if (
            call.first > begin
            and name in call.path.split(".")[-2:]
            and not before.isdisjoint(range(call.first, call.last))
        ):
            inside = flow.outermost_of(call.first, call.last)
            return all(row in before or is_view(flow.names[row]) for row in inside)
    return any(flow.names[row] in (f"aten::{name}", f"aten::{name}_") for row in change.work)
