"""Calls that a step can do without: whoever computes a metric every n steps leaves out all that the call of its function does.

Some lines of such a function are told by what they make of the network's results. Its other lines (comparisons of the targets, reads of
sums) go with them, whatever could be done about each by itself. A function is left as it is where a part of it trains, where a
gradient needs what it makes, and where the line with a remedy of its own costs most. What a paste guards is the program's own call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

import numpy as np
import polars as pl

from nsysx.analyses import lines
from nsysx.events.code_lines import CodeLines
from nsysx.events.nvtx_ranges import Flags
from nsysx.findings import _line_remedies
from nsysx.findings._aside import places_needed
from nsysx.findings._called_together import OF_TRAINING
from nsysx.findings._case import Case, Fix
from nsysx.findings._costly_lines import CostlyLine, Rows
from nsysx.findings._fix import for_anything
from nsysx.findings._lines import OF_MODULE
from nsysx.findings._work_bounds import MOST_PASTED_LINES

Kind = tuple[object, ...]
#: A line that counts the steps, and a loop that gives each its number.
_COUNTS = re.compile(
    r"(?P<name>(?:self\.)?\w*(?:step|iter|batch|idx|count)\w*|[a-z]) \+= 1|"
    r"for (?P<numbered>\w+), .+ in (?:tqdm\()?enumerate\(.*"
)
#: A statement that stands by itself in one line.
_BLOCK = re.compile(r"^\s*(def|class|with|for|while|if|elif|else|try|except|finally|return|yield|async|@)\b|:\s*$")


def with_whole_calls(
    case: Case, code: CodeLines, rows: Rows, every: Mapping[int, float], kinds: Mapping[Kind, list[CostlyLine]]
) -> dict[Kind, list[CostlyLine]]:
    """Return lines by kind, with all that a function does beside its lines that are left out. ``every``: place -> idle time (ns)."""
    joined = dict(kinds)
    for key, group in kinds.items():
        if key not in joined or group[0].fix != _line_remedies.RARELY or not all(line.aside for line in group):
            continue
        below = _whole_function(case, code, group[0])
        joins = {
            line.place: line for other, each in joined.items() if other != key for line in each if line.place in below
        }
        first = max(joins.values(), key=lambda line: line.cost, default=None)
        whole = sum(line.cost for line in group)
        if not below or (first is not None and not _is_general(first.fix) and first.cost > whole):
            continue
        theirs = _lines(case, code, rows, every, below - {line.place for line in group}, joins)
        left = {other: [line for line in each if line.place not in joins] for other, each in joined.items()}
        joined = {other: each for other, each in left.items() if each} | {key: [*group, *theirs]}
    return joined


def guarded(code: CodeLines, case: Case, fix: Fix, group: Sequence[CostlyLine]) -> Fix:
    """Return the advice to compute a metric rarely with what the program has: its call, or its own lines; else without code to paste."""
    first = group[0]
    if fix != _line_remedies.RARELY or not first.aside:
        return fix
    function = (first.row["file"], first.row["function"])
    rows = {(r["file"], r["line"], r["function"]): r for r in case.typed_rows(lines.ROWS)}
    below, left_out = _whole_function(case, code, first), {line.place for line in group}
    working = {
        line_row
        for line_row in below
        if (row := rows.get(code.places.row(line_row))) and (row["launches"] or row["waits"])
    }
    caller = _caller(code, function) if len(group) > 1 and working <= left_out <= below else None
    row = None if caller is None else rows.get(code.places.row(caller))
    text = "" if row is None else _statement(str(row["text"] or ""))
    if row is not None and text:
        there = f"{PurePath(str(row['file'])).name}:{row['line']}"
        return fix.but(
            text=f"{fix.text}: {there} calls all of it", paste=_under(rows, row["file"], row["function"], [text])
        )
    texts = [_statement(line.seen.text) for line in sorted(group, key=lambda line: line.row["line"] or 0)]
    alone = all(texts) and len(texts) <= MOST_PASTED_LINES and not any(line.looping for line in group)
    return fix.but(paste=_under(rows, *function, texts) if alone else "")


def _whole_function(case: Case, code: CodeLines, line: CostlyLine) -> frozenset[int]:
    """Return the lines (places) that run in each call of the function of a line and nowhere else; none where it is needed elsewhere."""
    function = (line.row["file"], line.row["function"])
    if OF_MODULE.search(str(function[1])) or _caller(code, function) is None:
        return frozenset()
    stacks, within = np.arange(len(code.place)), _passing(code, function)
    ends_at = code.places_of(stacks)
    theirs = frozenset(ends_at[within].tolist()) - {-1}
    calls = case.calls.filter(case.calls["phase"].is_in(OF_TRAINING).fill_null(value=False))["call"].to_numpy()
    stack = code.call[calls]
    trains = bool(within[stack[stack >= 0]].any())
    if trains or not theirs.isdisjoint(places_needed(case.profile)):
        return frozenset()
    return theirs - frozenset(ends_at[~within].tolist())


def _passing(code: CodeLines, function: tuple[str | None, str]) -> Flags:
    """Return which stacks pass through a function."""
    there = (pl.col("file") == function[0]) & (pl.col("function") == function[1])
    line_rows = code.places.with_row_index("row").filter(there)["row"].to_list()
    return code.passing(np.arange(len(code.place)), frozenset(line_rows))


def _caller(code: CodeLines, function: tuple[str | None, str]) -> int | None:
    """Return the line of the program (place) that calls a function, None where several do or no line does."""
    callers = set[int]()
    for stack in np.flatnonzero(_passing(code, function)).tolist():
        chain = code.own_chain(stack)
        inside = [n for n, line_row in enumerate(chain) if code.places.row(line_row)[::2] == function]
        callers.add(chain[inside[-1] + 1] if inside and inside[-1] + 1 < len(chain) else -1)
    return callers.pop() if len(callers) == 1 and -1 not in callers else None


def _lines(
    case: Case,
    code: CodeLines,
    rows: Rows,
    every: Mapping[int, float],
    places: frozenset[int],
    joins: Mapping[int, CostlyLine],
) -> list[CostlyLine]:
    """Return the lines of these places that launch or wait, or cost by themselves, as left out. ``joins``: those that are known to cost."""
    made = []
    for line_row in sorted(places):
        row = rows.get(code.places.row(line_row))
        if row is None:
            continue
        text = str(row["text"] or "").partition("  #")[0]
        seen = _line_remedies.Seen(text, 0.0, row["launches"] / case.steps, row["waits"] / case.steps)
        line = joins.get(line_row) or CostlyLine(
            line_row, row, case.per_step(every.get(line_row, 0.0)), seen, frozenset(), None
        )
        if line_row in joins or row["launches"] or row["waits"]:
            made.append(line._replace(fix=_line_remedies.RARELY, aside=True, cause=None, rounds=0.0))
    return made


def _is_general(fix: Fix | None) -> bool:
    """Return whether a remedy is for whatever stands at a line, or only for the loop or the read that it is."""
    return fix is None or all(for_anything(way.name) or way.name == "keep-on-gpu" for way in fix.ways)


def _statement(text: str) -> str:
    """Return a line if it is a statement by itself, "" if it begins a block, leaves a function, or goes on elsewhere."""
    text = text.partition("  #")[0].strip()
    whole = all(text.count(a) == text.count(b) for a, b in ("()", "[]", "{}"))
    return text if whole and not _BLOCK.search(text) else ""


def _under(rows: Rows, file: str | None, function: str | None, texts: Sequence[str]) -> str:
    """Return statements under the condition of every hundredth step, by the name that the function they stand in counts steps with."""
    texts_there = (
        str(row["text"] or "").strip() for row in rows.values() if (row["file"], row["function"]) == (file, function)
    )
    counted = next((match for text in texts_there if (match := _COUNTS.fullmatch(text))), None)
    name = "step" if counted is None else counted["name"] or counted["numbered"]
    condition = f"if {name} % 100 == 0:"
    return f"{condition} {texts[0]}" if len(texts) == 1 else "\n".join([condition, *(f"    {text}" for text in texts)])
