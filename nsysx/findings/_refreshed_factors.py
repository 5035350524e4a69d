"""Eigenvectors, roots and inverses of preconditioners that an optimizer factorizes anew in each step (SOAP, Shampoo, K-FAC).

Such a factorization is a long row of short kernels, and the host waits for its end to see whether it went well. What is factorized is an
average over many steps: as good is a factor that is some steps old. One that already does so in turn, a few matrices in each step, writes
to more of them than it factorizes.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.operator_of_calls import operator_of_calls
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._flow_work import launching_operators, place_of_operator, work_of_operators
from nsysx.findings._found import Found
from nsysx.findings._once import Takes, began_in, edits_without
from nsysx.findings._work_bounds import REFRESHED_EVERY, REFRESHED_OF_WRITTEN_SHARE, SAME_UPDATES_SHARE
from nsysx.model import Finding

_EIGEN = re.compile(r"^aten::(linalg_)?(eigh|eig|svd|eigvalsh)$|^aten::_linalg_(eigh|svd)$")
_INVERSE = re.compile(r"^aten::(linalg_(inv|pinv|cholesky)(_ex)?|inverse|cholesky(_inverse)?|pinverse)$")
#: What writes to an average.
_AVERAGES = re.compile(r"^aten::(lerp_|lerp|add_|addmm_|addbmm_|baddbmm_|mul_|copy_)$")
_MATRIX = re.compile(r"^\[(?:\d+, )*(\d+), \1\]")
_PASTE_BASIS = (
    "if step % 10 == i % 10:  # i: of the matrix; a tenth of them in each step\n"
    "    basis = torch.linalg.qr(average @ basis)[0]  # not eigh(average): one round from the basis that is there"
)
_PASTE_INVERSE = (
    "if step % 10 == i % 10:  # i: of the matrix; a tenth of them in each step\n    inverse = torch.linalg.inv(average)"
)


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return the finding about factorizations that each step makes anew in the optimizer, where they take enough of it."""
    flow, code, of_calls = flow_of(case.profile), case.profile.code(), operator_of_calls(case.profile)
    if flow is None or code is None or of_calls is None or case.stepless:
        return []
    rows = _factorizing(case.profile, flow)
    if not rows:
        return []
    work = work_of_operators(case, flow, of_calls, gradients=False)
    work = work.filter(pl.col("row").is_in(rows))
    around = launching_operators(case, flow, rows, of_calls)
    calls = case.calls.filter(pl.Series(around >= 0, dtype=pl.Boolean))
    edits = edits_without(calls, case.ops, leading=True)
    whole = case.worth_or_freed(*edits, cause=(StepPart.WORK, StepPart.HOST, StepPart.LAUNCH))
    left = 1 - 1 / REFRESHED_EVERY
    if whole.likely_ns is None or not case.notable(left * whole.likely_ns, SAME_UPDATES_SHARE):
        return []
    worth = replace(
        whole,
        likely_ns=round(left * whole.likely_ns),
        most_ns=None if whole.most_ns is None else round(left * whole.most_ns),
        confidence=f"one in {REFRESHED_EVERY} stays; {whole.confidence}",
    )
    taken = case.per_step(int(work["ns"].sum()))
    kinds = " and ".join(dict.fromkeys(flow.names[row].removeprefix("aten::") for row in rows))
    inverses = all(_INVERSE.match(flow.names[row]) for row in rows)
    title = f"The optimizer factorizes {units.several(len(rows), 'matrix', 'matrices')} anew in each step"
    detail = (
        f"{kinds}, {units.duration(taken)} of the GPU's time {case.per} in many short kernels, and the host waits for each to see that it "
        "went well. What is factorized is an average over many steps, which one step hardly changes."
    )
    fix = Fix.by_name("factors-now-and-then").but(paste=_PASTE_INVERSE if inverses else _PASTE_BASIS)
    where = {**place_of_operator(code, flow, flow.start_ns[rows[:1]]), "phase": "optimizer"}
    takes = Takes(ops_of(work), began_in(case.idle, frozenset(calls["call"].to_list())))
    return [Found(rule, title, detail, worth=worth, cost_ns=taken, fix=fix, where=where, takes=takes).as_finding(case)]


def _factorizing(profile: Profile, flow: OperatorFlow) -> list[int]:
    """Return the outermost operators of the optimizer that factorize matrices as often as it writes to averages of their size."""
    ranges = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process)
        & ~(pl.col("crossing") | pl.col("open") | pl.col("repeated"))
        & pl.col("own")
    )
    phases = ranges.filter((pl.col("kind") == "phase") & (pl.col("name").cast(pl.String) == "optimizer"))
    inside = np.zeros(len(flow.names), np.bool_)
    for start, end in phases["start_ns", "end_ns"].iter_rows():
        inside |= (flow.start_ns >= start) & (flow.start_ns < end)
    here = [row for row in flow.outermost if inside[row]]
    rows = [row for row in here if _EIGEN.match(flow.names[row]) or _INVERSE.match(flow.names[row])]
    sizes = {row: square[0] for row in here if (square := _MATRIX.match(flow.size[row]))}
    written: dict[str, int] = {}
    for row, size in sizes.items():
        if _AVERAGES.match(flow.names[row]):
            written[size] = written.get(size, 0) + 1
    chosen = [row for row in rows if row in sizes]
    averages = sum(written.get(size, 0) for size in {sizes[row] for row in chosen})
    return chosen if averages and len(chosen) >= REFRESHED_OF_WRITTEN_SHARE * averages else []
