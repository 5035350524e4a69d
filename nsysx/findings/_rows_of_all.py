"""Collectives that bring every rank the rows of all ranks, of which it reads a part: what scatters or exchanges rows sends these alone."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity
from nsysx.events.code_lines import CodeLines
from nsysx.events.collective_operators import collective_operators
from nsysx.events.narrowed_messages import narrowed_messages
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, ops_of, way
from nsysx.findings._exchanged_pastes import exchanged
from nsysx.findings._exposed_transfer import transfer_of_ops_ns
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator
from nsysx.findings._line_remedies import quoted
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import SCATTERED_SHARE
from nsysx.model import Row


class _ToAll(NamedTuple):
    """Messages of one line (row of the places): their GPU ``ops``, whether they add, and of what they bring the share that is read.

    ``needless``: which share of their transfer goes. ``picked``: the line that takes this part. ``border``: it is a border of a
    field. ``exchanged``: by an all-to-all. ``own``: each rank reads as many rows as any other, of all columns.
    """

    ops: frozenset[int]
    line_row: int
    sums: bool
    share: float
    needless: float
    picked: Row
    border: bool
    exchanged: bool
    own: bool


def _to_all(profile: Profile) -> _ToAll | None:
    """Return the messages of the line that sends most needless bytes in this way, None without any or where lines are not recorded."""
    flow, code = flow_of(profile), profile.code()
    messages = [] if flow is None else narrowed_messages(flow, profile)
    if flow is None or code is None or not messages:
        return None
    every = collective_operators(flow, profile)
    line_of = code.places_of(code.at(flow.thread, np.array([each.start_ns for each in every]))).tolist()
    rows = code.places_of(code.at(flow.thread, np.array([each.start_ns for each in messages]))).tolist()
    comm = profile.steady_ops.select("op", "cls", ns=pl.col("end_ns") - pl.col("start_ns"))
    comm = comm.filter(comm["cls"] == DeviceActivity.COMM.value)
    places_of_comm = code.places_of(code.op[comm["op"].to_numpy()])
    of_lines: dict[int, tuple[int, _ToAll]] = {}
    for row in {row for row in rows if row >= 0}:
        theirs = [each for each, line_row in zip(messages, rows, strict=True) if line_row == row]
        # A helper that all layers call may bring others what they need.
        if len(theirs) < MOST_SHARE * line_of.count(row) or len({each.sums for each in theirs}) > 1:
            continue
        ops = comm.filter(pl.Series(np.isin(places_of_comm, [row, *backward_of(code, row)]), dtype=pl.Boolean))
        share = max(each.share for each in theirs)
        needless = (1 - SCATTERED_SHARE if theirs[0].sums else 1 - share) * len(theirs) / line_of.count(row)
        picked = place_of_operator(code, flow, flow.start_ns[[min(theirs[0].by)]])
        ns = round(needless * int(ops["ns"].sum()))
        of_lines[row] = (
            ns,
            _ToAll(
                ops_of(ops),
                row,
                theirs[0].sums,
                share,
                needless,
                picked,
                border=all(each.border for each in theirs),
                exchanged=theirs[0].exchanged,
                own=all(each.dimensions == {0} and each.share * each.ranks == 1 for each in theirs),
            ),
        )
    return max(of_lines.values(), key=lambda each: each[0])[1] if of_lines else None


def backward_of(code: CodeLines, line_row: int) -> list[int]:
    """Return the lines of the backward of the function of autograd that a line is in."""
    functions = [str(each) for each in code.places["function"].to_list()]
    owner = functions[line_row].rpartition(".")[0]
    return [row for row, name in enumerate(functions) if owner and name == f"{owner}.backward"]


def _saved_ns(case: Case) -> int:
    """Return the most that goes (ns a step): of the exposed transfer of these messages the part that nothing reads."""
    to_all = case.profile.once(_to_all)
    if to_all is None or case.program.compiled:  # what a compiled program reads is not seen
        return 0
    return round(to_all.needless * transfer_of_ops_ns(case, to_all.ops))


def sent_to_all(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that every rank is sent rows that it does not read, where their transfer is notable."""
    to_all, code, saved = case.profile.once(_to_all), case.profile.code(), _saved_ns(case)
    if to_all is None or code is None or not case.notable(saved):
        return ""
    file, line, _ = code.places.row(to_all.line_row)
    text = lines.text_of(lines.texts(case.profile), file, line) or ""
    what = (
        "adds up the rows of all ranks on every rank" if to_all.sums else "brings the rows of all ranks to every rank"
    )
    if to_all.exchanged:
        what = "exchanges parts of all ranks with all"
    picked = in_short(to_all.picked)
    return (
        f"line {line}{f' ({quoted(text)})' if text else ''} {what}, and of what comes {units.share(to_all.share, 1)} is read"
        f"{f' ({picked})' if picked and to_all.picked != code.where(to_all.line_row) else ''}"
    )


def sums_of_part(case: Case) -> int | None:
    """Return the line (row of the places) that sums over all ranks what each reads a part of, None where none is told."""
    to_all = case.profile.once(_to_all)
    return to_all.line_row if to_all is not None and to_all.sums and sent_to_all(case) else None


def own_alone(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return the most that it saves if each rank is sent what it reads alone."""
    to_all = case.profile.once(_to_all)
    sums = to_all is not None and to_all.sums
    why = "a reduction that scatters moves half of the bytes" if sums else "what no rank reads is not sent"
    return case.bound(_saved_ns(case), why)


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy for what the collective does."""
    to_all = case.profile.once(_to_all)
    if to_all is None or to_all.sums:
        return title, remedy
    if to_all.exchanged:
        return "Ranks exchange what is cut away behind", way("cut-before-exchange")
    if to_all.border:
        return "A whole field is gathered of which its borders are read", way("borders-sent")
    code, advised = case.profile.code(), way("rows-exchanged")
    if code is None or not to_all.own or not to_all.picked:
        return title, advised
    source, (file, line, _) = lines.texts(case.profile), code.places.row(to_all.line_row)
    picking = lines.text_of(source, str(to_all.picked["file"]), int(to_all.picked["line"])) or ""
    paste = exchanged(lines.text_of(source, file, line) or "", picking, int(to_all.picked["line"]))
    return title, replace(advised, paste="\n".join(paste)) if paste else advised


def taken(case: Case) -> Takes:
    """Return these messages."""
    to_all = case.profile.once(_to_all)
    return Takes(frozenset() if to_all is None else to_all.ops)


def place_of_message(case: Case) -> Row:
    """Return the line that sends most of them."""
    code, to_all = case.profile.code(), case.profile.once(_to_all)
    return {} if code is None or to_all is None else code.where(to_all.line_row)
