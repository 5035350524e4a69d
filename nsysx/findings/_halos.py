"""Borders of neighbours that a step waits for before it computes the inside of its own part, which needs none of them."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.events.halo_waits import HaloWait, halo_waits
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_jobs import hidden_beside
from nsysx.findings._exposed_transfer import communication, exposed_transfer_ns
from nsysx.findings._flow_work import in_short, place_of_operator
from nsysx.findings._work_bounds import FEWEST_HALO_LAYERS, SHORT_EXCHANGE_NS, WIDEST_BORDER_SHARE
from nsysx.model import Row


class _HaloLine(NamedTuple):
    """The receives of borders of one line (row of the places), and where what came is put beside the field."""

    line_row: int
    waits: tuple[HaloWait, ...]
    joined: Row


class WaitedHalos(NamedTuple):
    """Borders that are waited for: what it saves to compute the inside beside them, the line, and a sentence.

    ``wider``: it is about exchanges before each of several layers instead, which one of a wider border can replace.
    """

    saving: Saving
    where: Row
    text: str
    wider: bool = False


def _of_line(profile: Profile) -> _HaloLine | None:
    """Return the line behind whose receives most is computed, None without one."""
    flow, code = flow_of(profile), profile.code()
    waits = [] if flow is None or code is None else halo_waits(flow, profile)
    if flow is None or code is None or not waits:
        return None
    rows = code.places_of(code.at(flow.thread, np.array([each.start_ns for each in waits]))).tolist()
    work = {
        row: sum(each.work_ns for each, line in zip(waits, rows, strict=True) if line == row)
        for row in rows
        if row >= 0
    }
    if not work:
        return None
    most = max(work, key=lambda row: work[row])
    theirs = tuple(each for each, row in zip(waits, rows, strict=True) if row == most)
    return _HaloLine(most, theirs, place_of_operator(code, flow, flow.start_ns[[theirs[0].reader]]))


def waited_halos(case: Case) -> WaitedHalos | None:
    """Return the exchange of borders with nothing beside it, if the inside that is computed behind it hides a notable part; else None."""
    line, code = case.profile.once(_of_line), case.profile.code()
    if line is None or code is None or case.program.compiled:
        return None
    comm = communication(case)
    theirs = code.places_of(code.op[comm["op"].to_numpy()]) == line.line_row
    if (wider := _exchanged_once(case, line, code.where(line.line_row), comm, theirs)) is not None:
        return wider
    share = max(each.share for each in line.waits)
    inside_ns = (1 - share) * sum(each.work_ns for each in line.waits)
    saving = hidden_beside(min(exposed_transfer_ns(case, theirs), inside_ns), "it runs beside what is computed inside")
    if not case.notable(saving.likely_ns or 0):
        return None
    joined = in_short(line.joined)
    text = (
        f"Compute the inside of the field while the borders travel: they are {units.share(share, 1)} of what is computed on"
        f"{f' ({joined})' if joined else ''}, and {units.duration(inside_ns)} of work in each step need none of them"
    )
    return WaitedHalos(saving, code.where(line.line_row), text)


def _exchanged_once(case: Case, line: _HaloLine, where: Row, comm: pl.DataFrame, theirs: Flags) -> WaitedHalos | None:
    """Return that borders before each of several layers, all of one size, can be exchanged at once; None where they move many bytes.

    Short messages take as long for several rows as for one. All but one of them go, and the layers compute the rows of the border, too.
    """
    times = sum(1 for _ in itertools.takewhile(lambda each: each.share == line.waits[0].share, line.waits))
    received = [each for i, each in enumerate(line.waits) if not i or each.reader != line.waits[i - 1].reader]
    layers = len({each.reader for each in received}) if times == len(line.waits) else 0
    took = comm["end_ns"].to_numpy()[theirs] - comm["start_ns"].to_numpy()[theirs] if theirs.any() else np.zeros(1)
    border = sum(each.share for each in line.waits)  # of all layers
    if layers < FEWEST_HALO_LAYERS or border > WIDEST_BORDER_SHARE or float(np.median(took)) > SHORT_EXCHANGE_NS:
        return None
    more_ns = border / 2 * sum(each.work_ns for each in line.waits)
    saved = exposed_transfer_ns(case, theirs) * (layers - 1) / layers - more_ns
    if not case.notable(saved):
        return None
    text = (
        f"Exchange a border of {layers} times the width once, before the first of these layers, and let each layer use some of it up: "
        f"{layers} exchanges in each step carry {units.share(line.waits[0].share, 1)} of the field each, and take what a message takes at "
        "least"
    )
    return WaitedHalos(case.bound(round(saved), "all exchanges but one are gone"), where, text, wider=True)
