"""What every rank gathers from all and then adds up, or averages, over the ranks: a reduction brings the sum itself, with fewer bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity
from nsysx.events.collective_operators import collective_operators
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.events.summed_gathers import SummedGather, summed_gathers
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._exposed_transfer import transfer_of_ops_ns
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._line_remedies import quoted
from nsysx.findings._once import Takes
from nsysx.model import Row


class _OfLine(NamedTuple):
    """The gathers of one line (row of the places): their GPU ``ops`` in the steady steps and their ``ns``, and those of the X-ray step."""

    ops: frozenset[int]
    ns: int
    line_row: int
    gathers: tuple[SummedGather, ...]

    @property
    def needless(self) -> float:
        """The share of their bytes that a reduction does not send."""
        return sum(each.needless * each.whole for each in self.gathers) / sum(each.whole for each in self.gathers)


def _of_lines(profile: Profile) -> list[_OfLine]:
    """Return the lines all of whose collectives are such gathers, none where lines are not recorded."""
    flow, code = flow_of(profile), profile.code()
    gathers = [] if flow is None or code is None else summed_gathers(flow, profile)
    if flow is None or code is None or not gathers:
        return []
    every = collective_operators(flow, profile)
    line_of = code.places_of(code.at(flow.thread, np.array([each.start_ns for each in every]))).tolist()
    rows = code.places_of(code.at(flow.thread, np.array([each.start_ns for each in gathers]))).tolist()
    waits = [each.name.endswith("wait_tensor") for each in every]
    comm = profile.steady_ops.select("op", "cls", ns=pl.col("end_ns") - pl.col("start_ns"))
    comm = comm.filter(comm["cls"] == DeviceActivity.COMM.value)
    place_of_comm = code.places_of(code.op[comm["op"].to_numpy()])
    of_lines = list[_OfLine]()
    for row in sorted({row for row in rows if row >= 0}):
        theirs = tuple(each for each, line_row in zip(gathers, rows, strict=True) if line_row == row)
        called = sum(line_row == row and not waits_only for line_row, waits_only in zip(line_of, waits, strict=True))
        # A helper that all layers call may bring others what they need.
        if len(theirs) < MOST_SHARE * called:
            continue
        ops = comm.filter(pl.Series(place_of_comm == row, dtype=pl.Boolean))
        of_lines.append(_OfLine(ops_of(ops), int(ops["ns"].sum()), row, theirs))
    return of_lines


class _Gone(NamedTuple):
    """What goes with a reduction: the ``work`` (GPU ops), its time and the exposed transfer (ns a step)."""

    work: frozenset[int]
    work_ns: int
    transfer_ns: int

    @property
    def saved_ns(self) -> int:
        """Both together."""
        return self.work_ns + self.transfer_ns


def _gone(case: Case) -> _Gone:
    """Return what goes where all of these lines reduce."""
    of_lines, flow = case.profile.once(_of_lines), flow_of(case.profile)
    if not of_lines or flow is None or case.program.compiled:  # what a compiled program reads is not seen
        return _Gone(frozenset(), 0, 0)
    work = work_of_operators(case, flow).filter(~pl.col("op").is_in([op for line in of_lines for op in line.ops]))
    ops, ns = set[int](), 0.0
    for line in of_lines:
        for each in line.gathers:
            for rows, share in ((each.goes, 1.0), (each.sums, 1 - 1 / each.ranks)):
                theirs = work.filter(pl.col("row").is_in(list(rows)))
                ops |= ops_of(theirs)
                ns += share * int(theirs["ns"].sum())
    transfer = sum(round(line.needless * transfer_of_ops_ns(case, line.ops)) for line in of_lines)
    return _Gone(frozenset(ops), case.per_step(round(ns)), transfer)


def _first(case: Case) -> _OfLine | None:
    """Return the line whose gathers take longest."""
    return max(case.profile.once(_of_lines), key=lambda line: line.ns, default=None)


def gathered_and_summed(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that what is gathered is only added up over the ranks, where what goes with that is notable."""
    line, flow, code = _first(case), flow_of(case.profile), case.profile.code()
    if line is None or flow is None or code is None or not case.notable(_gone(case).saved_ns):
        return ""
    file, number, _ = code.places.row(line.line_row)
    text = lines.text_of(lines.texts(case.profile), file, number) or ""
    gather = max(line.gathers, key=lambda each: each.whole)
    by = in_short(place_of_operator(code, flow, flow.start_ns[[gather.by]]))
    return (
        f"line {number}{f' ({quoted(text)})' if text else ''} brings {units.count(gather.whole)} numbers of {gather.ranks} ranks to every "
        f"rank, and all that is read of them is their sum or mean over the ranks, {units.count(gather.summed)} numbers"
        f"{f' ({by})' if by else ''}"
    )


def reduced(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return the most that it saves if the ranks reduce instead."""
    gone = _gone(case)
    why = (
        f"a reduction sends less, {units.duration(gone.transfer_ns)} of exposed transfer, and what puts the ranks' parts together and adds "
        f"them up goes, {units.duration(gone.work_ns)}"
    )
    return case.bound(gone.saved_ns, why)


def taken(case: Case) -> Takes:
    """Return these gathers, and the work that goes."""
    gathers = frozenset[int]().union(*(line.ops for line in case.profile.once(_of_lines)))
    return Takes(gathers | _gone(case).work)


def place_of_gather(case: Case) -> Row:
    """Return the line that gathers most."""
    code, line = case.profile.code(), _first(case)
    return {} if code is None or line is None else code.where(line.line_row)
