"""Collectives that a line waits for where it makes them, before work that needs nothing of what they bring."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from nsysx import units
from nsysx.analyses import lines
from nsysx.events.early_waits import early_waits
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_jobs import hidden_beside
from nsysx.findings._exposed_transfer import communication, exposed_ns, exposed_transfer_ns
from nsysx.findings._finding_bounds import OWN_REMEDY_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator
from nsysx.findings._work_bounds import ALONE_IN_LINE_SHARE
from nsysx.model import Row
from nsysx.saving import NOTABLE

#: A line that makes a collective itself: those of wrappers and of layers of packages have other lines.
_COLLECTIVE = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|gather|reduce)\w*\s*\(")


class _CollectiveLine(NamedTuple):
    """The collectives of a line in a step: how long work behind them that needs nothing of them computes, and the line before which most of
    it comes.
    """

    between_ns: int
    until: Row


class WaitedEarly(NamedTuple):
    """A line that waits early: what it saves to wait where its results are used, the line, and a sentence."""

    saving: Saving
    where: Row
    text: str


def _lines(profile: Profile) -> dict[int, _CollectiveLine]:
    """Return line (row of the places) -> its collectives, of lines whose text makes some."""
    flow, code = flow_of(profile), profile.code()
    waits = [] if flow is None else early_waits(flow, profile)
    if flow is None or code is None or not waits:
        return {}
    source = lines.texts(profile)
    rows = code.places_of(code.at(flow.thread, np.array([each.start_ns for each in waits]))).tolist()
    lines_of = dict[int, _CollectiveLine]()
    for row in {row for row in rows if row >= 0}:
        file, line, _ = code.places.row(row)
        if not _COLLECTIVE.search(lines.text_of(source, file, line) or ""):
            continue
        theirs = [each for each, line_row in zip(waits, rows, strict=True) if line_row == row]
        longest = max(theirs, key=lambda each: each.between_ns)
        until = place_of_operator(code, flow, flow.start_ns[[longest.reader]])
        lines_of[row] = _CollectiveLine(sum(each.between_ns for each in theirs), until)
    return lines_of


def waited_early(case: Case) -> WaitedEarly | None:
    """Return the line whose collectives nothing runs beside although work behind them needs nothing of them; None without one.

    What a compiled program reads is not seen.
    """
    code, lines_of = case.profile.code(), case.profile.once(_lines)
    if code is None or not lines_of or case.program.compiled:
        return None
    comm = communication(case)
    line_of_op, alone = code.places_of(code.op[comm["op"].to_numpy()]), exposed_ns(case, comm)
    ns = (comm["end_ns"] - comm["start_ns"]).to_numpy()
    best = None
    for row, line in lines_of.items():
        theirs = line_of_op == row
        much = alone[theirs].sum() >= max(OWN_REMEDY_SHARE * alone.sum(), ALONE_IN_LINE_SHARE * ns[theirs].sum(), 1)
        if not much or not case.notable(line.between_ns):
            continue
        hidden = min(exposed_transfer_ns(case, theirs), line.between_ns)
        saving = hidden_beside(hidden, "it runs beside the work that needs nothing of it")
        if case.notable(saving.likely_ns or 0) and (best is None or hidden > best[0]):
            best = hidden, row, line, saving
    if best is None:
        return None
    _, row, line, saving = best
    until = in_short(line.until)
    text = (
        f"Wait for this collective where its result is used{f' ({until})' if until else ''}, not where it is made: "
        f"{units.duration(line.between_ns)} of work in each step that comes behind it needs nothing of it"
    )
    return WaitedEarly(saving, code.where(row), text)


def needed_at_once(profile: Profile, step_ns: int) -> frozenset[int]:
    """Return the lines (rows of the places) of collectives behind which the next work reads what they bring."""
    return frozenset(row for row, line in profile.once(_lines).items() if line.between_ns < NOTABLE * step_ns)
