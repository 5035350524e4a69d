"""What the host makes again in each step although it is there, or could be: the lines that make it are one finding, with what they call.

It is worth what a replay saves without their calls, waits and copies, and without their share of the host code before any call.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.catalogue import Call
from nsysx.events.code_lines import CodeLines
from nsysx.events.line_shares import divided
from nsysx.findings import _late_host_lines
from nsysx.findings._case import Case, Fix, Rule, Saving
from nsysx.findings._finding_bounds import LINE_MAY_STAY_SHARE, NEARLY_ALL_STEPS_SHARE
from nsysx.findings._found import Found
from nsysx.findings._input_bounds import HOST_SHARE_APART
from nsysx.findings._lines import share_of_idle
from nsysx.findings._needs import step_of
from nsysx.findings._once import Takes, edits_without
from nsysx.model import Finding, Row
from nsysx.replay.engine import RemoveHost
from nsysx.replay.held_lines import pauses
from nsysx.replay.idle_lines import by_line


class MadeAgain(NamedTuple):
    """What lines (rows of the places) make again, with all that they call. ``why``: how that is known.

    ``keeps_launches``: the GPU's own work there stays, only copies, waits and host code go.
    """

    places: frozenset[int]
    title: str
    why: str
    fix: Fix
    where: Row
    keeps_launches: bool = False


class OfMadeAgain(NamedTuple):
    """What is found about it, and the lines that run for nothing else (rows of the places)."""

    finding: Finding
    places: frozenset[int]


def calls_below(case: Case, code: CodeLines, places: frozenset[int]) -> pl.DataFrame:
    """Return the calls that lines make, or what they call."""
    below = code.passing(code.call[case.calls["call"].to_numpy()], places)
    return case.calls.filter(pl.Series(below, dtype=pl.Boolean))


def lines_for(code: CodeLines, places: frozenset[int]) -> frozenset[int]:
    """Return some lines, and those that run for these alone."""
    stacks = np.arange(len(code.place))
    ends_at, within = code.places_of(stacks), code.passing(stacks, places)
    return frozenset(ends_at[within].tolist()) - frozenset(ends_at[~within].tolist()) - {-1}


def in_words(case: Case, rule: Rule, made: MadeAgain) -> OfMadeAgain | None:
    """Return what is found about this; None where it is worth less than 1 % of the step."""
    code = case.profile.code()
    assert code is not None
    idle = by_line(case.profile)
    idles = code.passing(idle["stack"].to_numpy(), made.places)
    cost = case.per_step(float(idle["real_ns"].to_numpy()[idles].sum()))
    cost = min(cost, _late_host_lines.most_of(case, rule.cause))
    places = lines_for(code, made.places)
    rows = {(r["file"], r["line"], r["function"]): r for r in case.typed_rows(lines.ROWS)}
    theirs = [row for line_row in sorted(places) if (row := rows.get(code.places.row(line_row))) is not None]
    calls = calls_below(case, code, made.places)
    calls = calls.filter(~calls["kind"].is_in(Call.LAUNCHES)) if made.keeps_launches else calls
    host, worth = _without(case, code, made.places, calls, cost)
    worth = _late_host_lines.without_on_all_ranks(case, theirs, made.fix, worth)
    if worth.likely_ns is None or not case.notable(worth.likely_ns):
        return None
    idles_for, _ = _late_host_lines.idles_in_words(case, theirs, cost)
    doing = "This" if made.keeps_launches else "To make it again"
    detail = f"{made.why} {doing} holds the CPU for {units.duration(host)} {case.per}; {idles_for}."
    most = max(theirs, key=lambda row: row["host_self_ns"], default=None)
    if most is not None and most["host_self_ns"]:
        detail += f" The most of it is at {PurePath(str(most['file'])).name}:{most['line']}, in {most['function']}."
    finding = Found(
        rule,
        made.title,
        detail,
        worth=worth,
        cost_ns=max(cost, min(worth.likely_ns, case.step_ns)),
        where=made.where,
        fix=made.fix,
        takes=Takes(idle=share_of_idle(case.profile, idles)),
    ).as_finding(case)
    return OfMadeAgain(finding, places)


def copies_alike(case: Case, calls: pl.DataFrame) -> bool:
    """Return whether nearly all steps copy as many bytes to the GPU by these calls, in as many copies; True where none copies any."""
    copies = case.ops.filter(
        (case.ops["op_kind"] == "memcpy") & case.ops["call"].is_in(calls["call"].implode()).fill_null(value=False)
    )
    if not copies.height:
        return True
    begun = copies.join(calls.select("call", called_ns="start_ns"), on="call", how="left", maintain_order="left")
    step = step_of(case.profile, begun["called_ns"])
    sizes: dict[int, list[int]] = {}
    for number, size in zip(step.tolist(), copies["bytes"].fill_null(0).to_list(), strict=True):
        sizes.setdefault(number, []).append(size)
    alike = [tuple(sorted(each)) for each in sizes.values()]
    return max(map(alike.count, alike)) >= NEARLY_ALL_STEPS_SHARE * case.steps


def _without(case: Case, code: CodeLines, places: frozenset[int], calls: pl.DataFrame, cost: int) -> tuple[int, Saving]:
    """Return how long the host is below lines (ns per step), and what it saves if they do not run: no call, wait, copy, nor host code."""
    gaps = pauses(case.profile)
    ns = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    pieces = gaps.select("thread", "start_ns", "end_ns", group=pl.int_range(pl.len(), dtype=pl.Int64))
    parts = divided(case.profile, code, pieces)
    within = code.passing(parts["stack"].to_numpy(), places)
    theirs = np.bincount(parts["group"].to_numpy()[within], parts["ns"].to_numpy()[within], len(ns))
    host = case.per_step(float(theirs.sum()) + int((calls["end_ns"] - calls["start_ns"]).sum()))
    share = np.rint(theirs / np.maximum(ns, 1) / HOST_SHARE_APART) * HOST_SHARE_APART
    edits = [each for each in edits_without(calls, case.ops) if not isinstance(each, RemoveHost)]
    behind = gaps["call"].to_numpy()
    parts_of_host = np.unique(share[share > 0]).tolist()
    worth = case.worth(
        *edits, *(RemoveHost(frozenset(behind[share == each].tolist()), share=each) for each in parts_of_host)
    )
    if worth.likely_ns is not None:
        most = min(worth.likely_ns + (worth.error_ns or 0), case.step_ns)
        return host, replace(worth, most_ns=most)
    why = "the time the GPU idles while this is made again"
    return host, Saving(cost, why, error_ns=round(LINE_MAY_STAY_SHARE * cost), most_ns=max(cost, host), source="time")
