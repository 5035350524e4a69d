"""Tensors that grow by concatenation (``events.grown_tensors``): what copying the same rows again takes, and what comes in its place.

Where something reads what is made on the way, the rows go into room that is made once, of which a slice is read; where nothing does, a
list and one cat at the end do. What is left is the writing of the new rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.grown_tensors import GrownTensor, grown_tensors
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, time_of_operators, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import MOST_LINES_NAMED, ROWS_WRITTEN_NS
from nsysx.model import Finding, Row
from nsysx.replay.engine import ScaleOps

#: The remedy that the text of a line alone stands for.
BY_TEXT = "preallocated"
_IN_PLACE, _AT_END, _RING, _STATIC = "grown-in-place", "joined-at-end", "ring-of-rows", "static-cache"
#: What a line calls that puts tensors together.
_JOINS = re.compile(r"\b(cat|concat|concatenate|[hvd]?stack|column_stack|row_stack)\(")
#: whole = torch.cat([whole, new], dim=1)
_APPENDS = re.compile(
    r"^(?P<whole>[\w.]+)\s*=\s*torch\.(?:cat|concat|concatenate)\(\s*[\[(]\s*(?P=whole)\s*,\s*(?P<new>[\w.]+)\s*[\])]\s*"
    r"(?:,\s*(?:(?:dim|axis)\s*=\s*)?(?P<dim>-?\d+)\s*)?\)$"
)
#: torch.stack(history, dim=1), torch.stack(list(frames))
_STACKS = re.compile(r"\bstack\((?:[^,]*,\s*(?:dim\s*=\s*)?(?P<dim>\d+)\s*\))?")


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
    flow, grown = flow_of(case.profile), case.profile.once(grown_tensors)
    if flow is None or not grown:
        return []
    work = work_of_operators(case, flow)
    return [f for group in _groups(case, flow, grown, work) if (f := _found(case, rule, group, work)) is not None]


def _groups(case: Case, flow: OperatorFlow, grown: Sequence[GrownTensor], work: pl.DataFrame) -> list[_GrownLines]:
    code, by_key = case.profile.code(), dict[tuple[str, str], _GrownLines]()
    taken = time_of_operators(work)
    ranked = sorted(grown, key=lambda tensor: -sum(taken.get(row, 0) for row in tensor.copied))
    for tensor in ranked:
        longest = max(tensor.copied, key=lambda row: taken.get(row, 0))
        where = {} if code is None else place_of_operator(code, flow, flow.start_ns[[longest]])
        remedy = _remedy_of(case, tensor, where)
        group = by_key.setdefault((str(where.get("file")), remedy), _GrownLines(remedy, [], []))
        group.tensors.append(tensor)
        if where and where not in group.places:
            group.places.append(where)
    return list(by_key.values())


def _remedy_of(case: Case, tensor: GrownTensor, where: Row) -> str:
    """Return what is for a tensor: by who reads it, and whether the program's own line grows it."""
    settings = settings_of(case.profile)
    networks = () if settings is None else settings.rows("networks") or ()
    text = text_of(texts(case.profile), where.get("file"), where.get("line"))
    called = text is not None and not _JOINS.search(text)
    if called and any(row.get("package") == "transformers" for row in networks):
        return _STATIC
    if not tensor.read and not case.program.compiled:  # what a compiled program reads is not seen
        return _AT_END
    return _RING if tensor.kept and tensor.bounded else _IN_PLACE


def _found(case: Case, rule: Rule, group: _GrownLines, work: pl.DataFrame) -> Finding | None:
    """Return the finding about a group, None where it saves too little."""
    copied = {row: share for tensor in group.tensors for row, share in tensor.copied.items()}
    cats = work.filter(pl.col("row").is_in(list(copied)))
    taken = int(cats["ns"].sum())
    if not case.notable(case.per_step(taken), REPORTED_SHARE):
        return None
    ns = cats["ns"].to_numpy()
    new = ns * (1 - cats["row"].replace_strict(copied, return_dtype=pl.Float64).to_numpy())
    left = float(np.maximum(new, np.minimum(ns, ROWS_WRITTEN_NS)).sum())
    edit = ScaleOps(ops_of(cats), left / max(taken, 1), less_work=True)
    worth = case.worth_or_freed(edit, cause=(StepPart.WORK,), bound=_may_copy(group))
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    cost = case.per_step(taken)
    where = group.places[0] if group.places else {}
    again = 1 - float(new.sum()) / max(taken, 1)
    lines = sorted(set(map(in_short, group.places)))
    there = f"{in_short(where)}: " if where else ""
    title = f"{there}tensors that grow by torch.cat are copied again for {units.duration(case.per_step(taken - round(left)))} {case.per}"
    there_too = f", in {', '.join(lines[:MOST_LINES_NAMED])}" if len(lines) > 1 else ""
    longer = "a tensor" if len(group.tensors) == 1 else f"{units.count(len(group.tensors))} tensors"
    readers = "something reads each result" if group.remedy != _AT_END else "nothing else reads what is made on the way"
    detail = (
        f"{units.count(len(copied))} cats of a step make {longer} longer, {units.duration(cost)} {case.per}, {case.share(cost)} of the "
        f"step{there_too}. {units.share(again, 1)} of what they write was in the result of the cat before; {readers}."
    )
    return Found(
        rule, title, detail, worth=worth, cost_ns=cost, fix=_fix_of(case, group), where=where or None, takes=Takes(ops_of(cats)),
    ).as_finding(case)  # fmt: skip


def _may_copy(group: _GrownLines) -> bool:
    """Return whether what comes in place of the cats may move more than the new rows."""
    sliced = group.remedy == _IN_PLACE and any(t.made_contiguous and t.dimension != 0 for t in group.tensors)
    return sliced or group.remedy == _STATIC


def _fix_of(case: Case, group: _GrownLines) -> Fix:
    """Return the remedy, with the names of the program where its line says them."""
    fix, where = Fix.by_name(group.remedy), group.places[0] if group.places else {}
    text = (text_of(texts(case.profile), where.get("file"), where.get("line")) or "").partition("  #")[0].rstrip()
    if group.remedy == _IN_PLACE and len(group.places) > 1:
        do, _, why = fix.text.partition(": ")
        fix = fix.but(text=f"{do}, likewise in {', '.join(map(in_short, group.places[1:MOST_LINES_NAMED]))}: {why}")
    if group.remedy == _STATIC and "generate(" not in text:
        return fix.but(text=fix.text.replace("generate()", "transformers"), paste=_STATIC_OF_LOOP)
    appends, stacks = _APPENDS.match(text), _STACKS.search(text)
    if group.remedy == _AT_END and appends is not None:
        whole, new, dim = appends["whole"], appends["new"], appends["dim"] or "0"
        return fix.but(
            paste=f"parts.append({new})  # in the loop, not torch.cat([{whole}, {new}], {dim})\n"
            f"{whole} = torch.cat(parts, {dim})  # once, behind the loop",
            condition=fix.condition.replace("[whole]", f"[{whole}]"),
        )
    if group.tensors[0].in_front and group.remedy in (_IN_PLACE, _AT_END):
        if group.remedy == _IN_PLACE:
            return fix.but(paste=_IN_FRONT, condition=f"Begin with n = 0. {_NO_GRADIENT}")
        return fix.but(paste=fix.paste.replace("(parts,", "(parts[::-1],"))
    if group.remedy == _IN_PLACE and stacks is not None:
        return fix.but(
            paste=_stacked(int(stacks["dim"] or 0), bounded=group.tensors[0].bounded), condition=_NO_GRADIENT
        )
    if group.remedy == _IN_PLACE and group.tensors[0].bounded:
        return fix.but(paste=_WINDOW, condition=f"Begin with the first rows in room, and n of them. {_NO_GRADIENT}")
    if group.remedy == _IN_PLACE and appends is not None and group.tensors[0].size is not None:
        return _appended(fix, group.tensors[0], appends["whole"], appends["new"])
    return fix


#: A loop of the program's own over tokens.
_STATIC_OF_LOOP = (
    "past = transformers.StaticCache(config=model.config, max_cache_len=longest)  # once for each batch\n"
    "out = model(token, past_key_values=past, use_cache=True)"
)
_VIEWED = " Where view() fails on it, reshape()."
_NO_GRADIENT = "No gradient may run through what is written."
#: The newest rows come first: the room is filled from its end on.
_IN_FRONT = (
    "room = new.new_empty(len(new), longest, *new.shape[2:])  # once\n"
    "n += new.shape[1]; room.narrow(1, longest - n, new.shape[1]).copy_(new)\n"
    "whole = room.narrow(1, longest - n, n)  # not torch.cat([new, whole], 1)"
)
#: A window of the last rows moves on by the new ones.
_WINDOW = (
    "room = new.new_empty(len(new), longest, *new.shape[2:])  # once: all rows that come\n"
    "room.narrow(1, n, new.shape[1]).copy_(new); n += new.shape[1]\n"
    "whole = room.narrow(1, n - length, length)  # not torch.cat([whole[:, 1:], new], 1)"
)


def _stacked(dim: int, *, bounded: bool) -> str:
    """Return the lines that write a tensor behind those before it, in place of a stack of a list along a dimension."""
    others = ":, " * dim
    sizes = ", ".join([*(f"new.shape[{d}]" for d in range(dim)), "longest", f"*new.shape{f'[{dim}:]' if dim else ''}"])
    first = "max(n - length, 0)" if bounded else ""
    return (
        f"room, n = new.new_empty({sizes}), 0  # once\n"
        f"room[{others}n], n = new, n + 1  # not history.append(new)\n"
        f"whole = room[{others}{first}:n]  # not torch.stack(history, {dim})"
    )


def _appended(fix: Fix, tensor: GrownTensor, whole: str, new: str) -> Fix:
    """Return the remedy that writes the rows ``new`` behind those of ``whole``."""
    size, d, room = list(map(str, tensor.size or ())), tensor.dimension or 0, f"{whole}_room"
    if tensor.kept:  # how long it gets is not seen
        size[d] = "longest"
    paste = (
        f"{room} = {new}.new_empty({', '.join(size)})  # once\n"
        f"{room}.narrow({d}, {whole}.shape[{d}], {new}.shape[{d}]).copy_({new})\n"
        f"{whole} = {room}.narrow({d}, 0, {whole}.shape[{d}] + {new}.shape[{d}])  # not torch.cat([{whole}, {new}], {d})"
    )
    begin = f"Begin with {whole} = {room}.narrow({d}, 0, 0)"
    copies = " contiguous() of it copies all rows again: leave that out." if d and tensor.made_contiguous else ""
    return fix.but(paste=paste, condition=f"{begin}. {_NO_GRADIENT}{copies or (_VIEWED if d else '')}")
