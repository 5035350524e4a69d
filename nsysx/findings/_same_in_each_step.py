"""What a program makes in the same way in each step, by the line that could make it once: plans, masks, tables, what ranks tell each other.

Everything that goes into it was there before the steps: nothing of it is trained, drawn, copied from the host or written to. Collectives of
the same on each rank bring the same, and what the host reads of it on the way (``nonzero``, ``unique``, ``tolist``) is the same number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.needless_operators import fixed_operators, joined_operators
from nsysx.events.operator_flow import OperatorFlow, flow_of, is_collective, is_view
from nsysx.events.operator_of_calls import OperatorOfCalls, changing_sizes, operator_of_calls
from nsysx.events.trained_operators import trained_in, trained_sizes
from nsysx.findings import nsx135_weights_in_calls
from nsysx.findings._case import Case, Fix, Saving
from nsysx.findings._flow_work import (
    copied,
    in_short,
    launching_operators,
    place_of_group,
    place_of_operator,
    time_of_operators,
    work_of_operators,
)
from nsysx.findings._kept_results import NAMED, to_keep
from nsysx.findings._numbers_of_lines import counts_steps, names_of_rounds, numbers_written_out, same_parts
from nsysx.findings._work_bounds import MOST_LINES_NAMED
from nsysx.judging.other_work import others_of_gpu, working_share
from nsysx.model import Row
from nsysx.replay import peers

_CONDITION = (
    "Nothing may write into what is kept, and what it is made of, numbers of Python too, must be the same for the whole run: a new graph, "
    "mask or length needs a new one. Its memory stays taken."
)
#: Lines that bring what another rank has: that is new in a step although nothing here is, as a batch that one rank reads for all.
_FROM_ANOTHER = re.compile(
    r"\b(broadcast(_object_list)?|scatter_object_list|(all_)?gather_object|i?recv(_object_list)?)\("
)


class SameInEachStep(NamedTuple):
    """Outermost operators (rows of the flow) of one place, in words.

    ``inside_package``: a function of a package makes them, inside of a call that makes something of the step as well.
    """

    rows: Sequence[int]
    title: str
    why: str
    fix: Fix
    where: Row
    inside_package: bool = False


def same_in_each_step(
    case: Case, flow: OperatorFlow, code: CodeLines, of_calls: OperatorOfCalls
) -> list[SameInEachStep]:
    """Return what each step makes in the same way from nothing that a step changes, by line; ``of_calls``: of this flow."""
    trained, written = trained_in(case.profile, flow), _lines_of(case, flow, code)
    rows, beside = fixed_operators(
        flow,
        trained.tolist() if trained.any() else [False] * len(flow.names),
        copied(case.profile, flow, "HtoD"),
        gives_gradients=trained_in(case.profile, flow, by_operators=True).tolist(),
        changing=changing_sizes(case.profile, flow).tolist(),
        to_host=copied(case.profile, flow, "DtoH"),
        weights=trained_sizes(case.profile),
        counted=[
            any(counts_steps(text) or _FROM_ANOTHER.search(text) for text in each)
            for each in zip(written.line, written.of_program, strict=True)
        ],
        written_out=list(map(numbers_written_out, written.line, written.function)),
        same_parts=_same_parts(flow, written.line),
    )
    elsewhere = _of_modules(case, flow, of_calls)
    rows, beside = ([row for row in each if row not in elsewhere] for each in (rows, beside))
    places: dict[tuple[object, object], tuple[Row, list[list[int]]]] = {}
    work = time_of_operators(work_of_operators(case, flow, of_calls))
    for group in joined_operators(flow, rows):
        where = place_of_group(code, flow, group, {*work, *group} - ({*rows, *beside} - {*group}))
        places.setdefault((where.get("file"), where.get("line")), (where, []))[1].append(group)
    changing = _of_the_step(code, flow, [*rows, *beside], work)
    told = [
        _in_words(case, flow, code, where, groups, work, changing, _below(code, flow, where, beside))
        for where, groups in places.values()
    ]
    return sorted(told, key=lambda each: -sum(work.get(row, 0) for row in each.rows))


def ranks_beside(case: Case) -> list[tuple[int, int]]:
    """Return the other ranks that compute on the same GPU: process, device."""
    ranks = peers.ranks(case.profile)
    return [key for key in others_of_gpu(case.profile) if key[0] in ranks]


def on_all_ranks(case: Case, worth: Saving, ops: pl.DataFrame, idle: pl.DataFrame) -> Saving:
    """Return a saving of which each rank that computes on the same GPU makes as much: between nothing and all of that is saved, too.

    ``ops``: the work that goes, ``idle``: the idle time that it brings. Of that the GPU gains nothing where other ranks work meanwhile, and
    what ranks compute at the same time is saved once.
    """
    others = ranks_beside(case)
    cost = case.per_step(int((ops["end_ns"] - ops["start_ns"]).sum()))
    beside, saved, bar = cost * len(others), worth.likely_ns or 0, worth.error_ns or 0
    together, meanwhile = (
        working_share(case.profile, others, each["start_ns"].to_numpy(), each["end_ns"].to_numpy()) if others else 0.0
        for each in (ops, idle)
    )
    unsaved = round(max(0, saved - cost) * meanwhile)
    likely = max(0, saved + round(beside * (1 - together) / 2) - unsaved // 2)
    error = likely - max(0, min(saved - unsaved, likely) - bar)
    shared = f"{worth.confidence}; ranks share the GPU" if beside else worth.confidence
    most = max(saved + beside, worth.most_ns or 0)
    return replace(worth, bound=False, likely_ns=likely, error_ns=error, most_ns=most, confidence=shared)


class _TextOfLines(NamedTuple):
    """What is written in the line of each operator, of a package's code, too, in the program's own line, and in all of its function."""

    line: list[str]
    of_program: list[str]
    function: list[Sequence[str]]


def _lines_of(case: Case, flow: OperatorFlow, code: CodeLines) -> _TextOfLines:
    source = texts(case.profile)
    written = [text_of(source, *code.places.row(number)[:2]) or "" for number in range(code.places.height)]
    functions: dict[tuple[object, object], list[str]] = {}
    for (file, _, function), text in zip(code.places.iter_rows(), written, strict=True):
        functions.setdefault((file, function), []).append(text)
    of_place = [functions[file, function] for file, _, function in code.places.iter_rows()]
    stack = code.at(flow.thread, flow.start_ns)
    inner, of_program = np.append(code.place, -1)[stack].tolist(), code.places_of(stack).tolist()
    lines, owns = ([written[row] if row >= 0 else "" for row in rows] for rows in (inner, of_program))
    return _TextOfLines(lines, owns, [of_place[row] if row >= 0 else () for row in inner])


def _same_parts(flow: OperatorFlow, written: Sequence[str]) -> list[bool]:
    """Return of each operator whether its line (``written``) takes the same parts in each step."""
    same, outermost = [False] * len(written), frozenset(flow.outermost)
    for line, several in groupby(range(len(written)), key=written.__getitem__):  # one after another
        rows = list(several)
        names = [flow.names[row] for row in rows if row in outermost]
        same[rows[0] : rows[-1] + 1] = [bool(line) and same_parts(line, names)] * len(rows)
    return same


def _of_modules(case: Case, flow: OperatorFlow, of_calls: OperatorOfCalls) -> frozenset[int]:
    """Return the outermost operators that each call of a module runs again, which another rule tells."""
    shown, calls = flow_of(case.profile), operator_of_calls(case.profile)
    if shown is None or calls is None:
        return frozenset()
    theirs = nsx135_weights_in_calls.needless_rows(case, shown, copied(case.profile, shown, "HtoD"))
    begin = frozenset(shown.start_ns[sorted(theirs)].tolist())
    rows = {row for row in flow.outermost if int(flow.start_ns[row]) in begin}
    made = launching_operators(case, shown, sorted(theirs), calls) >= 0  # the flow may be of another step
    return frozenset(rows.union(of_calls.within(flow)[case.calls["call"].to_numpy()][made].tolist()))


def _in_words(
    case: Case,
    flow: OperatorFlow,
    code: CodeLines,
    where: Row,
    groups: list[list[int]],
    work: Mapping[int, int],
    changing: Collection[tuple[object, object]],
    beside: Sequence[int],
) -> SameInEachStep:
    """Return what to say of the operators of one place; ``changing``: lines that make something of the step, ``beside``: others there."""
    rows = sorted([*(row for group in groups for row in group), *beside])
    alike = Counter(tuple((flow.names[row], flow.size[row]) for row in group) for group in groups)
    rounds, *others = set(alike.values())  # other results at one line are of other inputs
    same = not others
    often = f"{rounds} times in each step" if same and rounds > 1 else "in each step"
    title = f"{in_short(where) or 'The program'} computes the same {often}"
    why = "No input of these operators changes from step to step: none is data, trained, random or written to."
    if any(is_collective(flow.names[row]) for row in rows):
        why += " The ranks tell each other the same in each step, too: make it once on all of them."
    lines = Counter[str]()
    for row in rows:
        lines[in_short(place_of_operator(code, flow, flow.start_ns[[row]]))] += work.get(row, 0)
    maker, packaged = _maker(code, flow, where, rows, work, changing)
    if packaged is not None:
        title = f"{in_short(where)}: {maker or 'a line'} ({packaged}) makes the same {often}"
        return SameInEachStep(rows, title, why, _fix_inside(maker or packaged, often), where, inside_package=True)
    inside = [(line, ns) for line, ns in lines.most_common(3) if line and line != in_short(where) and ns]
    if inside:
        listed = ", ".join(f"{line} ({units.duration(case.per_step(ns))})" for line, ns in inside)
        why += f" The most of it{f', in {maker}' if maker else ''}: {listed}."
    beside_it = _lines_beside(code, flow, where, [row for row in rows if row in work])
    whole = same and beside_it is not None and all((where.get("file"), line) not in changing for line in beside_it)
    fix = _fix(case, code, where, often, maker, sorted(beside_it or ()), whole=whole)
    return SameInEachStep(rows, title, why, fix, where)


def _lines_beside(code: CodeLines, flow: OperatorFlow, where: Row, rows: Sequence[int]) -> set[int] | None:
    """Return the lines of the function of a line that make some operators, or call what does, and what ran between them; None where it
    makes not all of them.
    """
    functions = {
        (row[0], row[2]) for row in code.places.iter_rows() if where and row[:2] == (where["file"], where["line"])
    }
    lines = set[int]()
    for stack in np.unique(code.at(flow.thread, flow.start_ns[list(rows)])).tolist():
        chain = map(code.places.row, (row for row in code.chain(stack) if row >= 0))
        line = next((line for file, line, function in chain if (file, function) in functions), None)
        if line is None:
            return None
        lines.add(line)
    ran = {line for file, line, function in code.places.iter_rows() if (file, function) in functions}
    return {line for line in ran if line is not None and min(lines) <= line <= max(lines)} if lines else None


def _below(code: CodeLines, flow: OperatorFlow, where: Row, rows: Sequence[int]) -> list[int]:
    """Return those of some operators (rows) that a line makes, or what it calls."""
    stacks = code.at(flow.thread, flow.start_ns[list(rows)]) if where else np.empty(0, np.int64)
    there = frozenset(number for number in range(code.places.height) if code.where(number) == where)
    return [row for row, inside in zip(rows, code.passing(stacks, there).tolist(), strict=False) if inside]


def _maker(
    code: CodeLines,
    flow: OperatorFlow,
    where: Row,
    rows: Sequence[int],
    work: Mapping[int, int],
    changing: Collection[tuple[object, object]],
) -> tuple[str, str | None]:
    """Return the function below a line that makes most of some operators (rows) and nothing of the step, "" where it makes them itself.

    Second where it is a function of a package that others call which do make something of the step: a line of it, else None.
    A function around them, as a decorator's, makes more than what is the same. ``changing``: lines that make something of the step.
    """
    mixed = {(file, function) for file, line, function in code.places.iter_rows() if (file, line) in changing}
    sums, of_package = Counter[tuple[str, str]](), dict[tuple[str, str], str]()
    for row, stack in zip(rows, code.at(flow.thread, flow.start_ns[list(rows)]).tolist(), strict=True):
        chain = code.chain(stack)
        calls = next((depth for depth, line in enumerate(chain) if where and code.where(line) == where), len(chain))
        below = chain[calls + 1 :]
        alike = next((n for n, line in enumerate(below) if code.places.row(line)[::2] not in mixed), None)
        first = len(below) - 1 if alike is None else alike
        file, _, function = code.places.row(below[first]) if below else ("", None, "")
        function = "" if alike is None else function
        named = (str(file), (function or "").removesuffix(".__init__"))
        sums[named] += work.get(row, 0)
        lines_of_program = frozenset(code.own_chain(stack))
        if first > 0 and lines_of_program.isdisjoint(below[first:]):
            of_package.setdefault(named, in_short(code.where(below[first])))
    if not sums:
        return "", None
    ((named, _),) = sums.most_common(1)
    return named[1], of_package.get(named)


def _fix_inside(maker: str, often: str) -> Fix:
    """Return what to do about what a package's function makes inside of a call that makes something of the step as well."""
    text = (
        f"What {maker} makes comes out the same {often}: put a function in its place that keeps the result for each size. "
        "The call around it makes something else in each step, and cannot be kept"
    )
    return Fix.by_name("computed-once", text=text, paste="", condition=_CONDITION)


def _of_the_step(
    code: CodeLines, flow: OperatorFlow, rows: Collection[int], work: Mapping[int, int]
) -> frozenset[tuple[object, object]]:
    """Return the lines (file, line) below which others than these operators (rows) compute, or take a part of what is not theirs."""
    fixed, places = frozenset(rows), set[int]()
    for row, stack in zip(flow.outermost, code.at(flow.thread, flow.start_ns[flow.outermost]).tolist(), strict=True):
        of_fixed = row in fixed or fixed.intersection(flow.makers[row][:1])
        if not of_fixed and (row in work or is_view(flow.names[row])):
            places.update(code.chain(stack))
    return frozenset((each.get("file"), each.get("line")) for each in map(code.where, places))


def _function(source: Mapping[str, Mapping[str, str]], code: CodeLines, where: Row) -> list[str]:
    """Return the lines that ran of the function of a line."""
    rows = list(code.places.iter_rows())
    functions = {
        (file, function) for file, line, function in rows if where and (file, line) == (where["file"], where["line"])
    }
    return [text_of(source, file, line) or "" for file, line, function in rows if (file, function) in functions]


def _fix(case: Case, code: CodeLines, where: Row, often: str, maker: str, lines: Sequence[int], *, whole: bool) -> Fix:
    """Return the advice, with the own names of the lines where these give what they make some.

    ``lines``: of the function of ``where``, which make all of it; ``whole``: all that they compute stays.
    """
    source = texts(case.profile)
    written = [text_of(source, where.get("file"), line) or "" for line in lines]
    named = [match for text in written if (match := NAMED.match(text))]
    advice = f"Make this once, before the steps, and keep the result: {maker or 'it'} comes out the same {often}"
    others = [f"line {line}" for line in lines if line != where.get("line")]
    if 0 < len(others) < MOST_LINES_NAMED:
        advice += f", as does what {' and '.join(others)} {'makes' if len(others) == 1 else 'make'}"
    indents = {len(text) - len(text.lstrip()) for text in written}
    looped = frozenset(name for text in _function(source, code, where) for name in names_of_rounds(text))
    whole &= looped.isdisjoint(re.findall(r"\w+", " ".join(match[2] for match in named)))
    if not (named and len(named) == len(lines) and whole and len(indents) == 1):
        advice += ". In a module: in __init__, with register_buffer(name, value, persistent=False)"
        return Fix.by_name("computed-once", text=advice, condition=_CONDITION)
    return Fix.by_name("computed-once", text=advice, paste=to_keep([(m[1], m[2]) for m in named]), condition=_CONDITION)
