"""Metrics that a training step makes and adds to a sum, which only the steps that log read (``events.accumulated_operators``).

The line that is put under a condition is the one that runs all of it. The condition is that of the program's own line that does something
in every so many steps, and did nothing in the step looked into; behind where the step is counted it holds for a number that is one more.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.analyses.lines import texts
from nsysx.events.accumulated_operators import accumulated_operators
from nsysx.events.code_lines import CodeLines
from nsysx.events.lines_of_step import stacks_of_step
from nsysx.events.operator_flow import OperatorFlow, flows_of
from nsysx.events.profile import Profile
from nsysx.events.trained_operators import trained_in
from nsysx.findings._case import Case, Fix
from nsysx.findings._flow_work import NeedlessOperators, copied, in_short, place_of_group, work_of_operators
from nsysx.findings._job_bounds import RARELY_READ_SHARE
from nsysx.findings._pieces_in_text import names_in, only_statement
from nsysx.findings._unread_results import lines_of_group, read_elsewhere
from nsysx.findings._work_bounds import MOST_PASTED_LINES
from nsysx.model import Row

_TEXT = "Compute this only in the steps that log it: elsewhere it is added to a sum that nothing reads{cheaper}"
_CHEAPER = (
    ". Where each step must count, take hits among the first k from how many logits exceed the target's, without topk, "
    "and the entropy from logsumexp"
)
_CONDITION = (
    "A log then shows the value of one step, not the mean of all since the last one; where it divides by a number of steps, that becomes "
    "one. No average, stop or schedule may need it from each step."
)
#: A condition of a log, where there are several.
_LOGS = re.compile(r"(?i)log|print|report|metric|show|display")
_PLACEHOLDER = "step % log_every == 0"


class SummedMetrics(NamedTuple):
    """What goes into a sum alone, and in which share of the steps it can go."""

    operators: NeedlessOperators
    share: float


def summed_metrics(case: Case, flow: OperatorFlow, code: CodeLines) -> Iterator[SummedMetrics]:
    """Yield what a training step computes of its batch that goes into sums over the steps alone, by the place that runs it."""
    profile = case.profile
    trained = trained_in(profile, flow)
    if not trained.any() or not (flow.precedes or flow.follows):
        return
    groups = accumulated_operators(
        flow,
        lambda: _beside(profile, flow),
        trained.tolist(),
        copied(profile, flow, "DtoH"),
        read_elsewhere(profile, flow),
    )
    if not groups:
        return
    places: dict[tuple[object, object], tuple[Row, list[int]]] = {}
    for group in groups:
        where = place_of_group(code, flow, group)
        places.setdefault((where.get("file"), where.get("line")), (where, []))[1].extend(group)
    reading, steps = _reading_steps(case)
    for where, theirs in places.values():
        lines = lines_of_group(case, flow, code, where, theirs, sums=True) if where else []
        if not lines:
            continue
        theirs = sorted(theirs)
        title = f"{in_short(where)} computes in each step what is only added to a sum{_made_in(case, flow, code, where, theirs)}"
        often = f": the host read numbers in {reading} of {steps} steps beyond what it does in each" if reading else ""
        why = (
            "No operator, gradient, collective or copy to the host takes these results but the sum, and nothing reads that before the next "
            f"step adds to it again. What logs it is of few steps, or of none{often}."
        )
        fix = _only_where_read(case, flow, code, where, theirs, lines)
        yield SummedMetrics(NeedlessOperators(theirs, title, why, fix, where), 1 - reading / steps if reading else 1.0)


def _beside(profile: Profile, flow: OperatorFlow) -> list[OperatorFlow]:
    """Return the flows of the step before and of that behind, those that were recorded."""
    flows = sorted(flows_of(profile, flow.operators), key=lambda each: int(each.start_ns[0]))
    before = [each for each in flows if int(each.end_ns[-1]) <= int(flow.start_ns[0])]
    behind = [each for each in flows if int(each.start_ns[0]) >= int(flow.end_ns[-1])]
    return [*(before[-1:] if flow.follows else ()), *(behind[:1] if flow.precedes else ())]


def _reading_steps(case: Case) -> tuple[int, int]:
    """Return in how many steps the host copies more numbers than in most, and of how many; none where that is not rarely so."""
    steps = case.profile.steps.cpu.filter(pl.col("process") == case.process, ~pl.col("cut"), ~pl.col("warmup"))
    calls, ops = case.profile.attributed.api_calls, case.profile.attributed.gpu_ops
    chosen = (ops["op_kind"] == "memcpy") & (ops["name"] == "DtoH") & (ops["process"] == case.process)
    when = np.sort(calls["start_ns"].to_numpy()[ops["call"].filter(chosen).drop_nulls().to_numpy()])
    start, end = (steps[column].to_numpy() for column in ("start_ns", "end_ns"))
    copies = np.searchsorted(when, end) - np.searchsorted(when, start)
    more = int((copies > np.median(copies)).sum()) if len(copies) else 0
    return (more, len(copies)) if 0 < more <= RARELY_READ_SHARE * len(copies) else (0, len(copies))


def _made_in(case: Case, flow: OperatorFlow, code: CodeLines, where: Row, rows: Sequence[int]) -> str:
    """Return the function that makes most of it, with its lines, where that is not the one of the line: " (name, train.py:3-9)"."""
    work = work_of_operators(case, flow, gradients=False).filter(pl.col("row").is_in(list(rows)))
    if not work.height:
        return ""
    taken = dict(work.group_by("row").agg(pl.col("ns").sum()).iter_rows())
    most = max(taken, key=lambda row: taken[row])
    chain = code.own_chain(int(code.at(flow.thread, flow.start_ns[[most]])[0]))
    if not chain or code.where(chain[0]) == where:
        return ""
    file, _, function = code.places.row(chain[0])
    stacks = np.unique(code.at(flow.thread, flow.start_ns[list(rows)]))
    each_line = [code.places.row(n) for stack in stacks.tolist() for n in code.own_chain(stack)]
    lines = [int(line) for at_file, line, name in each_line if (at_file, name) == (file, function) and line is not None]
    if not lines:
        return ""
    span = f"{min(lines)}-{max(lines)}" if len({*lines}) > 1 else f"{lines[0]}"
    return f" ({str(function).rpartition('.')[2]}, {in_short({'file': file, 'line': span})})"


def _only_where_read(
    case: Case, flow: OperatorFlow, code: CodeLines, where: Row, rows: Sequence[int], lines: Sequence[str]
) -> Fix:
    """Return the advice with the lines of the program, under its own condition where that can be told."""
    condition = _own_condition(case, flow, code, where, int(flow.start_ns[rows[0]]))
    first = [f"    {text}" for text in lines[:MOST_PASTED_LINES]]
    more = ["    ..."] if len(lines) > MOST_PASTED_LINES else []
    head = f"if {condition}:" if condition else f"if {_PLACEHOLDER}:  # a step whose log reads it"
    line = f"  # line {where['line']}"
    ranked = any(flow.names[row] == "aten::topk" for row in rows)
    text = _TEXT.format(cheaper=_CHEAPER if ranked else "")
    return Fix.by_name(
        "statistics-rarely",
        text=text,
        paste="\n".join([head + line if condition else head, *first, *more]),
        condition=_CONDITION,
    )


class _Ran(NamedTuple):
    """A line of the program that ran in the step: when first, which it is, and how far in it stands."""

    start_ns: int
    line: int
    indent: int
    text: str
    file: str
    function: str


def _ran_lines(case: Case, flow: OperatorFlow, code: CodeLines) -> list[_Ran]:
    """Return the program's lines that are at work in the step of a flow, in order of time, each once."""
    times, stacks = stacks_of_step(case.profile, flow, code)
    source, seen, ran = texts(case.profile), set[int](), list[_Ran]()
    for when, stack in zip(times.tolist(), stacks.tolist(), strict=True):
        for line_row in reversed(code.own_chain(int(stack))) if stack >= 0 else ():
            file, line, function = code.places.row(line_row)
            if line_row not in seen and file is not None and line is not None:
                seen.add(line_row)
                text = str(source.get(file, {}).get(str(line)) or "")
                indent = len(text) - len(text.lstrip())
                ran.append(_Ran(when, line, indent, text.strip(), file, str(function)))
    return ran


def _own_condition(case: Case, flow: OperatorFlow, code: CodeLines, where: Row, start_ns: int) -> str:
    """Return under what condition, as the line reads it, this step's log comes; "" where that is not sure."""
    ran = _ran_lines(case, flow, code)
    here = next((each for each in ran if (each.file, each.line) == (where["file"], where["line"])), None)
    conditions = [(each, test) for each in ran if (test := _every_so_many(each.text)) and not _entered(each, ran)]
    if len(conditions) > 1:
        conditions = [(each, test) for each, test in conditions if _LOGS.search(each.text)]
    if here is None or len(conditions) != 1:
        return ""
    there, test = conditions[0]
    counter = ast.unparse(_counter(test))
    same_function = (there.file, there.function) == (here.file, here.function)
    owner = there.function.rpartition(".")[0]
    same_object = counter.startswith("self.") and owner != "" and here.function.rpartition(".")[0] == owner
    names = names_in(test)
    if not (same_function or (same_object and names == {"self"})):
        return ""
    counts = [each for each in ran if _counts_up(each.text, counter)]
    if not counts:
        counted = any(each.text.startswith("for ") and _gives(each.text, counter) for each in ran)
        return ast.unparse(test) if counted and same_function else ""
    if len(counts) > 1 or not isinstance(_counter(test), (ast.Name, ast.Attribute)):
        return ""
    between = (start_ns < counts[0].start_ns) - (there.start_ns < counts[0].start_ns)
    if between < 0:  # the log reads before the step is counted, this line behind that
        return ""
    return _one_more(test) if between else ast.unparse(test)


def _every_so_many(text: str) -> ast.Compare | None:
    """Return the condition of a line ``if count % number == 0:``, without further ones, None for any other line."""
    if not (text.startswith("if ") and text.partition("  #")[0].rstrip().endswith(":")):
        return None
    statement = only_statement(f"{text.partition('  #')[0].rstrip()} pass")
    test = statement.test if isinstance(statement, ast.If) else None
    # One rank alone may log (``and rank == 0``): all ranks compute, as a sum of theirs may be sent.
    tests = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    rarely = [
        each
        for each in tests
        if isinstance(each, ast.Compare) and isinstance(each.left, ast.BinOp) and isinstance(each.left.op, ast.Mod)
    ]
    calls = any(isinstance(node, ast.Call) for each in rarely for node in ast.walk(each))
    return rarely[0] if len(rarely) == 1 and not calls else None


def _counter(test: ast.Compare) -> ast.expr:
    """Return what such a condition counts, without what is added to it."""
    left = test.left.left if isinstance(test.left, ast.BinOp) else test.left
    return left.left if isinstance(left, ast.BinOp) else left


def _one_more(test: ast.Compare) -> str:
    """Return the condition for the number that the counter has a step later."""
    whole, count = ast.unparse(test), _counter(test)
    left = test.left.left if isinstance(test.left, ast.BinOp) else test.left
    name = ast.unparse(count)
    if isinstance(left, ast.BinOp):
        more = left.right.value if isinstance(left.right, ast.Constant) else None
        if not (isinstance(more, int) and isinstance(left.op, ast.Add)):
            return ""
        return whole.replace(ast.unparse(left), f"{name} + {more + 1}", 1)
    return whole.replace(name, f"({name} + 1)", 1)


def _entered(condition: _Ran, ran: Sequence[_Ran]) -> bool:
    """Return whether something below a condition ran: the next line of its function that did stands further in."""
    function = (condition.file, condition.function)
    behind = [each for each in ran if (each.file, each.function) == function and each.line > condition.line]
    following = min(behind, key=lambda each: each.line, default=None)
    return following is not None and following.indent > condition.indent


def _counts_up(text: str, counter: str) -> bool:
    statement = only_statement(text.partition("  #")[0])
    return (
        isinstance(statement, ast.AugAssign)
        and ast.unparse(statement.target) == counter
        and isinstance(statement.op, ast.Add)
        and isinstance(statement.value, ast.Constant)
        and statement.value.value == 1
    )


def _gives(text: str, counter: str) -> bool:
    statement = only_statement(f"{text.partition('  #')[0].rstrip()} pass")
    return isinstance(statement, ast.For) and counter in {
        node.id for node in ast.walk(statement.target) if isinstance(node, ast.Name)
    }
