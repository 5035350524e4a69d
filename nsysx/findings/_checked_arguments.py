"""Waits of distributions that check their arguments and values (``validate_args``).

Each ``Normal(mu, std)`` and each ``log_prob(x)`` compares all its numbers, takes ``all()`` of it, and reads the answer back: the stack ends
in torch, and the program asks for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.operator_flow import OperatorFlow, flow_of, is_view
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.result_readers import ResultReaders
from nsysx.findings._case import Case, Fix, Rule, calls_of, ops_of
from nsysx.findings._flow_work import in_short
from nsysx.findings._found import Found
from nsysx.findings._line_remedies import ARGUMENTS_CHECKED
from nsysx.findings._once import Takes, began_in, edits_without
from nsysx.model import Finding, Row

#: Operators that read a number, and what checks are made of.
_READS = re.compile(r"^aten::(is_nonzero|item|_local_scalar_dense)$")
_ALL = re.compile(r"^aten::(all|_is_all_true)$")
_COMPARES = re.compile(
    r"^aten::(eq|ne|lt|le|gt|ge|logical_\w+|bitwise_(and|or|not)|isnan|isfinite|all|_is_all_true|sum|sub|abs|__and__|__or__|floor|remainder)$"
)
#: What a program asks by itself.
_ASKS = re.compile(r"\b(all|any|isnan|isfinite|allclose|equal)\(|^\s*(assert|while)\b")


class _Checks(NamedTuple):
    """Checks of arguments in a flow: the operators (rows) that read an answer, with those that make it alone."""

    reads: list[int]
    made: list[int]


class CheckedArguments(NamedTuple):
    """API calls of such checks and the lines that make them, by how many of them each does; none where there are no checks."""

    calls: frozenset[int]
    lines: list[Row]
    times: int


def _checks(flow: OperatorFlow) -> Iterator[_Checks]:
    """Yield each read of what ``all()`` of a comparison said."""
    readers = ResultReaders(flow)
    for row in flow.outermost:
        if not _READS.match(flow.names[row]) or not flow.made[row]:
            continue
        first = flow.row_of.get(flow.made[row][0], -1)
        if first < 0 or not _ALL.match(flow.names[first]):
            continue
        theirs, waiting = {row}, [first]
        while waiting:
            maker = waiting.pop()
            alone = readers.readers.get(flow.number[maker], set()) <= theirs
            if maker in theirs or not alone or not (_COMPARES.match(flow.names[maker]) or is_view(flow.names[maker])):
                continue
            theirs.add(maker)
            waiting += [flow.row_of[number] for number in flow.made[maker] if number in flow.row_of]
        yield _Checks([row], sorted(theirs))


def checked_arguments(case: Case) -> CheckedArguments:
    """Return the calls of checks on lines that make or ask distributions."""
    flow, of_calls, code = flow_of(case.profile), operator_of_calls(case.profile), case.profile.code()
    nothing = CheckedArguments(frozenset(), [], 0)
    checks = [] if flow is None else list(_checks(flow))
    if flow is None or of_calls is None or code is None or not checks:
        return nothing
    chosen, lines = list[_Checks](), dict[tuple[object, object], tuple[Row, int]]()
    source = texts(case.profile)
    for check in checks:
        where = _place(code, flow, check.reads[0])
        text = text_of(source, str(where.get("file")), int(where.get("line") or 0)) or ""
        if not re.search(ARGUMENTS_CHECKED, text) or _ASKS.search(text):
            continue
        chosen.append(check)
        key = (where.get("file"), where.get("line"))
        lines[key] = (where, lines.get(key, (where, 0))[1] + 1)
    rows = [row for check in chosen for row in check.made]
    outer = of_calls.within(flow, gradients=False)[case.calls["call"].to_numpy()]
    theirs = case.calls.filter(pl.Series(np.isin(outer, rows), dtype=pl.Boolean))
    most = sorted(lines.values(), key=lambda each: -each[1])
    return CheckedArguments(calls_of(theirs), [where for where, _ in most], len(chosen))


def _place(code: CodeLines, flow: OperatorFlow, row: int) -> Row:
    return code.where_of(int(code.at(flow.thread, flow.start_ns[[row]])[0]))


def finding_of(case: Case, rule: Rule, checked: CheckedArguments) -> Finding | None:
    """Return the finding about such checks, None where there are none, or the step is no shorter without."""
    if not checked.calls:
        return None
    calls = case.calls.filter(case.calls["call"].is_in(list(checked.calls)))
    worth = case.worth(*edits_without(calls, case.ops))
    if worth.likely_ns is None or not case.notable(worth.likely_ns):
        return None
    ops = case.ops.filter(case.ops["call"].is_in(list(checked.calls)).fill_null(value=False))
    began = began_in(case.idle, checked.calls)
    there = ", ".join(filter(None, (in_short(where) for where in checked.lines)))
    title = f"Distributions check their arguments {checked.times} times {case.per}, and the host waits for each answer"
    detail = (
        f"{there or 'Lines'}: each distribution that is made, and each log_prob, compares all of its numbers and reads whether all are "
        f"valid (validate_args): {units.count(len(ops) // max(case.steps, 1))} kernels and copies {case.per}. The program reads nothing "
        f"there. Without them the step would be {units.duration(worth.likely_ns)} shorter ({case.share(worth.likely_ns)})."
    )
    return Found(
        rule, title, detail, worth=worth, cost_ns=worth.likely_ns, fix=Fix.by_name("validate-args-off"),
        where=checked.lines[0] or None, calls=checked.calls, takes=Takes(ops_of(ops), idle=began),
    ).as_finding(case)  # fmt: skip
