"""Tensors that grow by concatenation (``events.grown_tensors``): what copying the same rows again takes, and what comes in its place.

Where something reads what is made on the way, the rows go into room that is made once, of which a slice is read; where nothing does, a
list and one cat at the end do. Where gradients run through the rows, a function with a gradient of its own writes them: autograd lets
nobody write into what it keeps, and knows nothing of rows behind those. What is left is the writing of the new rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.grown_tensors import GrownTensor, grown_tensors
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, left_of_new, place_of_operator, time_of_operators, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._grown_pastes import AT_END, CALLED, IN_PLACE, RING, STATIC, WITH_GRADIENTS, WRITTEN, fix_of, slides
from nsysx.findings._once import Takes
from nsysx.findings._ring_pastes import ring
from nsysx.findings._work_bounds import MOST_LINES_NAMED, ROWS_WRITTEN_NS
from nsysx.model import Finding, Row
from nsysx.replay.engine import ScaleOps

#: The remedy that the text of a line alone stands for.
BY_TEXT = "preallocated"
#: What a line calls that makes another version of a tensor, by the form of that; any line may copy one into a longer one.
_MAKES = {
    "cat": re.compile(r"\b(cat|concat|concatenate|[hvd]?stack|column_stack|row_stack)\("),
    "pad": re.compile(r"\bpad\("),
    "room": re.compile(""),
    "written": re.compile(r"\b(clone|scatter|\w+_scatter|index_copy|index_put|masked_scatter)\("),
}
#: What makes versions of a form, and what it does to a tensor.
_NOUNS = {"cat": "cats", "pad": "pads", "room": "copies", "written": "copies"}


class _GrownLines(NamedTuple):
    """Tensors that grow at lines of one file for which one remedy is: the tensors, and the lines with the most work first."""

    remedy: str
    tensors: list[GrownTensor]
    places: list[Row]


def tells(case: Case) -> bool:
    """Return whether the operators of two steps say which tensors grow, so that a line's text need not."""
    flow = flow_of(case.profile)
    return flow is not None and flow.follows


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for the lines of each file whose tensors grow, by remedy, that save 5 % of the step or more."""
    flow, grown = flow_of(case.profile), grown_tensors(case.profile)
    if flow is None or not grown:
        return []
    # What backward adds up it adds up in any form, but for parts that are taken of a whole.
    alone = [row for tensor in grown for row in tensor.read_alone or ()]
    forward, all_work = (work_of_operators(case, flow, gradients=both) for both in (False, True))
    taken_alone = all_work.filter(pl.col("row").is_in(alone), ~pl.col("op").is_in(forward["op"].to_list()))
    work = pl.concat([forward, taken_alone])
    return [f for group in _groups(case, flow, grown, work) if (f := _found(case, rule, group, work)) is not None]


def _groups(case: Case, flow: OperatorFlow, grown: Sequence[GrownTensor], work: pl.DataFrame) -> list[_GrownLines]:
    code, by_key = case.profile.code(), dict[tuple[object, ...], _GrownLines]()
    taken = time_of_operators(work)
    ranked = sorted(grown, key=lambda tensor: -sum(taken.get(row, 0) for row in tensor.copied))
    for tensor in ranked:
        longest = max(tensor.copied, key=lambda row: taken.get(row, 0))
        where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[longest]])
        remedy = _remedy_of(case, tensor, where)
        if remedy is None:
            continue
        key = (where.get("file"), remedy, tensor.form, slides(tensor))
        group = by_key.setdefault(key, _GrownLines(remedy, [], []))
        group.tensors.append(tensor)
        if where and where not in group.places:
            group.places.append(where)
    return list(by_key.values())


def _remedy_of(case: Case, tensor: GrownTensor, where: Row) -> str | None:
    """Return what is for a tensor: by who reads it, and whether the program's own line grows it; None where nothing is."""
    settings = settings_of(case.profile)
    networks = () if settings is None else settings.rows("networks") or ()
    text = text_of(texts(case.profile), where.get("file"), where.get("line"))
    called = text is not None and not _MAKES[tensor.form].search(text)
    if called and any(row.get("package") == "transformers" for row in networks):
        return STATIC if tensor.form == "cat" and not tensor.differentiated else None
    if tensor.form == "written":
        return None if called else WRITTEN
    if tensor.kept and tensor.bounded:
        return IN_PLACE if slides(tensor) else RING
    if not tensor.read and not case.program.compiled:  # what a compiled program reads is not seen
        return AT_END
    if tensor.differentiated:
        return None if tensor.in_front else WITH_GRADIENTS
    return IN_PLACE


def _found(case: Case, rule: Rule, group: _GrownLines, work: pl.DataFrame) -> Finding | None:
    """Return the finding about a group, None where it saves too little."""
    copied = {row: share for tensor in group.tensors for row, share in tensor.copied.items()}
    # A window that goes back to the start of its room copies as many rows as are new, on average.
    copied |= {
        row: max(0.0, 2 * copied[row] - 1) for tensor in group.tensors if slides(tensor) for row in tensor.copied
    }
    copied |= {row: 1.0 for tensor in group.tensors for row in tensor.read_alone or ()}
    cats = work.filter(pl.col("row").is_in(list(copied)))
    taken = int(cats["ns"].sum())
    if not case.notable(case.per_step(taken), REPORTED_SHARE):
        return None
    ns = cats["ns"].to_numpy()
    new = ns * (1 - cats["row"].replace_strict(copied, return_dtype=pl.Float64).to_numpy())
    left = left_of_new(ns, new, ROWS_WRITTEN_NS)
    edit = ScaleOps(ops_of(cats), left / max(taken, 1), less_work=True)
    worth = case.worth_or_freed(edit, cause=(StepPart.WORK,), bound=_may_copy(group))
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    cost = case.per_step(taken)
    where = group.places[0] if group.places else {}
    text = text_of(texts(case.profile), where.get("file"), where.get("line"))
    fix = fix_of(group.remedy, group.tensors, group.places, text or "")
    if group.remedy == RING and where:
        fix = ring(fix, partial(text_of, texts(case.profile), where["file"]), int(where["line"]))
    again = 1 - float(new.sum()) / max(taken, 1)
    lines = sorted(set(map(in_short, group.places)))
    there = f"{in_short(where)}: " if where else ""
    form, many = group.tensors[0].form, sum(tensor.versions for tensor in group.tensors)
    does = "grow" if form != "written" else "change"
    for_ns = units.duration(case.per_step(taken - round(left)))
    title = f"{there}tensors that {does} by {CALLED[form]} are copied again for {for_ns} {case.per}"
    there_too = f", in {', '.join(lines[:MOST_LINES_NAMED])}" if len(lines) > 1 else ""
    longer = "a tensor" if len(group.tensors) == 1 else f"{units.count(len(group.tensors))} tensors"
    made = f"make {longer} longer" if form != "written" else f"are made of {longer} to write a part"
    detail = (
        f"{units.count(many)} {_NOUNS[form]} of a step {made}, {units.duration(cost)} {case.per}, {case.share(cost)} of the "
        f"step{there_too}. {units.share(again, 1)} of what they write was in the result of the one before; {_readers_in_words(group)}."
    )
    return Found(
        rule, title, detail, worth=worth, cost_ns=cost, where=where or None,
        fix=fix, takes=Takes(ops_of(cats)),
    ).as_finding(case)  # fmt: skip


def _readers_in_words(group: _GrownLines) -> str:
    if any(tensor.read_alone for tensor in group.tensors):
        return "the rounds read single rows of it alone, and backward makes a gradient of its whole size for each"
    if group.remedy == AT_END:
        return "nothing else reads what is made on the way"
    if group.remedy == WITH_GRADIENTS:
        return "something reads each result, and gradients run through it"
    return "something reads each result"


def _may_copy(group: _GrownLines) -> bool:
    """Return whether what comes in place of the cats may move more than the new rows."""
    in_room = group.remedy in (IN_PLACE, WITH_GRADIENTS)
    return group.remedy == STATIC or (
        in_room and any((t.made_contiguous or t.computed_again) and t.dimension != 0 for t in group.tensors)
    )
