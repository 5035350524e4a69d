"""Functions of the program that return the same in each step: what they make on the CPU can be made once, and kept.

The probe looks at some numbers of what functions return in the steps of an X-ray (``returned``). A function that only works on the host
and returned the same in all of them is told with all that it runs; one of several that call each other is the outermost. What returns
something else in each step works on its batch, and is told by what its lines do.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import ids
from nsysx.analyses import lines
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import Call
from nsysx.events import line_runs
from nsysx.events.code_lines import CodeLines
from nsysx.events.profile import Profile
from nsysx.findings import _host_metrics
from nsysx.findings._case import Case, Fix, Rule
from nsysx.findings._input_bounds import FEWEST_RETURNED_STEPS
from nsysx.findings._kept_results import NAMED, to_keep
from nsysx.findings._made_again import MadeAgain, OfMadeAgain, calls_below, in_words
from nsysx.findings._missed_caches import caches_made_again

_CONDITION = (
    "What it is made of must stay the same for the whole run, settings and numbers of Python too. It may do nothing else than make what it "
    "returns, and nothing may write into that."
)


class SameReturned(NamedTuple):
    """A function, defined at ``line`` of ``file``, that returned the same in each of ``steps`` steps.

    ``plain``: its arguments were numbers, text and the like, which can be keys of a cache.
    """

    file: str
    function: str
    line: int
    plain: bool
    steps: int


def made_again(case: Case, rule: Rule) -> list[OfMadeAgain]:
    """Return what the host makes again in each step although it is there or could be, that which is worth most first."""
    code = case.profile.code()
    if code is None or case.stepless:
        return []
    told = list[OfMadeAgain]()
    for each in caches_made_again(case):
        told += filter(None, [in_words(case, rule, each)])
    covered = frozenset[int]().union(*(each.places for each in told))
    for made in _same_made(case, code, covered):
        told += filter(None, [in_words(case, rule, made)])
    covered |= frozenset[int]().union(*(each.places for each in told))
    for metric in _host_metrics.host_metrics(case):
        if metric.places.isdisjoint(covered):
            told += filter(None, [in_words(case, rule, _host_metrics.in_words(case, metric))])
    return sorted(told, key=lambda each: -(each.finding.saving.likely_ns or 0))


def same_returned(profile: Profile) -> list[SameReturned]:
    """Return the functions of the shown process that returned the same in enough steps; none where the probe did not look."""
    fields = {"file": str, "function": str, "line": int, "plain": bool, "steps": list}
    functions = list[SameReturned]()
    for record in ids.records_of(profile.trace.capture.probe, profile.process):
        xray = record.get("xray")
        for row in (xray.get("returned") or ()) if isinstance(xray, dict) else ():
            typed = isinstance(row, dict) and all(isinstance(row.get(name), kind) for name, kind in fields.items())
            if typed and len(row["steps"]) >= FEWEST_RETURNED_STEPS:
                functions.append(
                    SameReturned(row["file"], row["function"], row["line"], row["plain"], len(row["steps"]))
                )
    return functions


def _same_made(case: Case, code: CodeLines, covered: frozenset[int]) -> list[MadeAgain]:
    """Return what these functions make, of those that call each other the outermost; ``covered``: lines of which something is told."""
    runs, places_of = case.profile.once(line_runs.of_lines), dict[SameReturned, frozenset[int]]()
    for function in same_returned(case.profile):
        there = (pl.col("file") == function.file) & (pl.col("function") == function.function)
        places = frozenset(code.places.with_row_index("row").filter(there)["row"].to_list())
        # A function that launches work of the GPU makes more than what it returns.
        launches = calls_below(case, code, places)["kind"].is_in(Call.LAUNCHES).any() if places else True
        if not launches and places.isdisjoint(covered) and not runs.encloses[sorted(places)].any():
            places_of[function] = places
    outermost = list[MadeAgain]()
    for function, places in places_of.items():
        others = frozenset[int]().union(*(each for other, each in places_of.items() if other != function))
        stacks = np.flatnonzero(np.isin(code.place, sorted(places)))
        if not code.passing(stacks, others).all():
            outermost.append(_in_words(case, code, function, places))
    return outermost


def _in_words(case: Case, code: CodeLines, function: SameReturned, places: frozenset[int]) -> MadeAgain:
    name = function.function.rpartition(".")[2]
    there = f"{PurePath(function.file).name}:{function.line}"
    text = (
        f"Call {name} ({there}) once for each of its inputs, before the steps, and keep what it returns, on the GPU where it is copied "
        f"there: it returned the same in each of {function.steps} recorded steps"
    )
    why = f"Some numbers of all that {name} returns were looked at in {function.steps} steps: they are the same."
    title = f"{name} ({there}) makes the same in each step"
    fix = Fix.by_name("computed-once", text=text, paste=_paste(case, code, function, places), condition=_CONDITION)
    return MadeAgain(
        places, title, why, fix, {"file": function.file, "line": _most_at(case, code, places) or function.line}
    )


def _most_at(case: Case, code: CodeLines, places: frozenset[int]) -> int | None:
    """Return the line of a function whose own code, or what it calls, holds the host longest."""
    rows = {(r["file"], r["line"], r["function"]): r["host_self_ns"] for r in case.typed_rows(lines.ROWS)}
    longest = max(places, key=lambda line_row: (rows.get(code.places.row(line_row), 0), -line_row))
    line: int | None = code.places["line"][longest]
    return line


def _paste(case: Case, code: CodeLines, function: SameReturned, places: frozenset[int]) -> str:
    """Return how a function of a module keeps what it returns; else how the only line that calls it does."""
    if function.plain and function.function.isidentifier():
        return f"{function.function} = functools.cache({function.function})  # below its definition; import functools"
    chains = [code.own_chain(stack) for stack in np.flatnonzero(np.isin(code.place, sorted(places))).tolist()]
    callers = {next((row for row in chain if row not in places), -1) for chain in chains}
    if len(callers) != 1 or -1 in callers:
        return ""
    (caller,) = callers
    file, line, _ = code.places.row(caller)
    runs = case.profile.once(line_runs.of_lines)
    named = NAMED.match(text_of(texts(case.profile), file, line) or "")
    return to_keep([(named[1], named[2])]) if named is not None and runs.runs[caller] == 1 else ""
