"""What a training step computes and nothing that was recorded reads, or only the host number by number.

Statistics for a log, which each step computes of what its network made though few steps read them, are told with the place that runs them
all: no operator, collective or later step takes them, and no line of the step hands them on, so that they are computed again before
anything looks. The steps that log are those that an X-ray did not see. All else is told by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.events.lines_of_step import stacks_of_step
from nsysx.events.needless_operators import behind, joined_operators, outer_operators, unread_operators
from nsysx.events.operator_flow import OperatorFlow, once_of_flow, results_given
from nsysx.events.profile import Profile
from nsysx.events.trained_operators import trained_in, trained_of
from nsysx.findings._case import Case, Fix
from nsysx.findings._flow_work import NeedlessOperators, copied, in_short, place_of_group, place_of_operator
from nsysx.findings._work_bounds import MOST_PASTED_LINES
from nsysx.model import Row

#: What a line hands its results on to: lists, queues, counters, places in them, whoever called.
_HANDS_ON = re.compile(
    r"\.(append\w*|extend|update|put|insert|send|step|write)\(|[-+*/|&]=|\]\s*=(?!=)|^(return|yield)\b"
)
_RETURNS = re.compile(r"^(return|yield)\b")
#: Those of these that collect what is read at the end.
_COLLECTS = re.compile(r"\.(append\w*|extend)\(")
#: Names and attributes that a line gives new values.
_TARGETS = re.compile(r"^((?:[A-Za-z_][\w.]*\s*,\s*)*[A-Za-z_][\w.]*)\s*(?::[^=]+)?=(?!=)")
#: A line that does something in every so many steps.
_RARELY = re.compile(r"^(if\b[^:]*%[^:]*:)\s*\w")
#: Lines that begin a block.
_BEGINS = re.compile(r"^\s*(def|class|with|for|while|if|elif)\b")


def logged_statistics(case: Case, flow: OperatorFlow, code: CodeLines) -> Iterator[NeedlessOperators]:
    """Yield what a training step computes of what is trained, outside of its networks, and nothing takes or hands on."""
    profile = case.profile
    trained = trained_in(profile, flow)
    if not trained.any():
        return
    to_host = copied(profile, flow, "DtoH")
    unread, _ = unread_operators(flow, trained.tolist(), to_host, read_elsewhere(profile, flow))
    outer = outer_operators(flow)
    of_trained = behind(outer.sources, outer.within(trained, len(flow.names)))
    inside = np.zeros(len(flow.names), np.bool_)
    for call in flow.calls:
        inside[call.first : call.last] |= trained[call.first : call.last].any()
    apart = [row for row in unread if not inside[row]]
    places: dict[tuple[object, object], tuple[Row, list[int]]] = {}
    for group in joined_operators(flow, apart):
        if of_trained[np.searchsorted(outer.rows, group)].any():
            where = place_of_group(code, flow, group)
            places.setdefault((where.get("file"), where.get("line")), (where, []))[1].extend(group)
    for where, rows in places.values():
        lines = lines_of_group(case, flow, code, where, rows) if where else None
        if lines:
            title = f"{in_short(where)} computes in each step what no recorded step reads"
            why = (
                "No operator, gradient, collective, copy to the host or later step takes these results of what the network made, and no "
                "line of the step hands them on: a step that logs reads them, or none."
            )
            yield NeedlessOperators(sorted(rows), title, why, _only_where_logged(lines), where)


def unread_results(case: Case, flow: OperatorFlow, code: CodeLines) -> Iterator[NeedlessOperators]:
    """Yield what a training step computes and nothing reads, or only the host number by number, by line."""
    trained = trained_of(case.profile)
    if not trained.any():
        return
    source = texts(case.profile)
    unread, logged = unread_operators(flow, trained.tolist(), copied(case.profile, flow, "DtoH", many=True))
    for where, theirs in _by_line(code, flow, unread):
        text = text_of(source, str(where.get("file")), int(where.get("line") or 0)) or ""
        if _COLLECTS.search(text):
            continue
        title = f"{in_short(where) or 'The program'} computes what nothing reads"
        why = "No operator, gradient, copy to the host or later step takes their results."
        yield NeedlessOperators(theirs, title, why, Fix.by_name("left-out"), where)
    for where, theirs in _by_line(code, flow, logged):
        title = f"{in_short(where) or 'The program'} computes numbers that no gradient needs"
        why = "Only the host reads what comes of them, number by number."
        yield NeedlessOperators(theirs, title, why, Fix.by_name("metrics-rarely"), where)


def _by_line(code: CodeLines, flow: OperatorFlow, rows: Sequence[int]) -> Iterator[tuple[Row, list[int]]]:
    """Yield the lines that run these operators, with them."""
    lines: dict[tuple[object, object], tuple[Row, list[int]]] = {}
    for row in rows:
        where = place_of_operator(code, flow, flow.start_ns[[row]])
        lines.setdefault((where.get("file"), where.get("line")), (where, []))[1].append(row)
    yield from lines.values()


def read_elsewhere(profile: Profile, flow: OperatorFlow) -> frozenset[int]:
    """Return the operators (their numbers) whose results others are given that are not of the flow: nodes, operators of packages."""
    return once_of_flow(flow, profile, _read_elsewhere)


def _read_elsewhere(flow: OperatorFlow, profile: Profile) -> frozenset[int]:
    name = pl.col("name").cast(pl.String)
    others = profile.ranges.ranges.filter(
        pl.col("process") == profile.process,
        pl.col("kind") == "op",
        ~pl.col("repeated"),
        ~name.str.contains(flow.operators),
    )
    return frozenset(
        number for number, which in results_given(others["label"].cast(pl.String).fill_null("")) if which >= 0
    )


def lines_of_group(
    case: Case, flow: OperatorFlow, code: CodeLines, where: Row, rows: Sequence[int], *, sums: bool = False
) -> list[str]:
    """Return the texts of the lines of one function that run these operators, in order; nothing where one of them hands results on, or
    another line of the step names what they make. ``sums``: they add to sums whose readers are known.
    """
    source, places = texts(case.profile), code.places
    of_group = {
        each
        for stack in np.unique(code.at(flow.thread, flow.start_ns[list(rows)])).tolist()
        for each in code.chain(stack)
    }
    here = next((n for n in of_group if places.row(n)[:2] == (where["file"], where["line"])), -1)
    if here < 0:
        return []
    function = (places["file"][here], places["function"][here])

    def lines(line_rows: set[int], *, anywhere: bool = False) -> dict[int, str]:
        rows = (places.row(n) for n in line_rows)
        return {
            line: text_of(source, file, line) or "" for file, line, name in rows if anywhere or (file, name) == function
        }

    theirs, others = lines(of_group), _lines_of_step(case.profile, flow, code) - of_group
    hands_on = _RETURNS if sums else _HANDS_ON
    if any(not text or hands_on.search(text) or _BEGINS.match(text) for text in theirs.values()):
        return []
    made = {name.strip() for text in theirs.values() for name in _targets(text)}
    for name in made:
        named = re.compile(rf"(?<![\w.]){re.escape(name)}\b")
        if any(named.search(_run_part(text)) for text in lines(others, anywhere="." in name).values()):
            return []
    return [theirs[line] for line in sorted(theirs)]


def _run_part(text: str) -> str:
    """Return what of a line runs in each step: of one that does something in every so many steps the condition."""
    rarely = _RARELY.match(text)
    return rarely[1] if rarely else text


def _targets(text: str) -> list[str]:
    """Return the names that a line gives new values."""
    given = _TARGETS.match(text)
    return given[1].split(",") if given else []


def _lines_of_step(profile: Profile, flow: OperatorFlow, code: CodeLines) -> set[int]:
    """Return the lines (rows of the places) that run in the step of a flow, on its thread, from border to border."""
    _, stacks = stacks_of_step(profile, flow, code)
    return {each for stack in np.unique(stacks[stacks >= 0]).tolist() for each in code.chain(int(stack))}


def _only_where_logged(lines: Sequence[str]) -> Fix:
    """Return the advice with the lines of the program, under a condition."""
    first = [f"    {text}" for text in lines[:MOST_PASTED_LINES]]
    more = ["    ..."] if len(lines) > MOST_PASTED_LINES else []
    paste = "\n".join(["if step % log_every == 0:  # with what reads it", *first, *more])
    return Fix.by_name("statistics-rarely", paste=paste)
