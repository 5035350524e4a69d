"""Lines at which a program in channels_last loses that order (``events.lost_layouts``): what convolutions copy back, and slow kernels
between the two orders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.helpers import limits_of_work
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import StepPart
from nsysx.events.code_lines import CodeLines
from nsysx.events.lost_layouts import LostLayout, lost_layouts
from nsysx.events.operator_flow import OperatorFlow, flow_of, is_view
from nsysx.events.profile import NotRecorded
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, Rule, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._flow_work import in_short, place_of_operator, work_with_gradients
from nsysx.findings._found import Found
from nsysx.findings._layout_pastes import turned
from nsysx.findings._once import Takes
from nsysx.frames import lookup
from nsysx.model import Finding, Row
from nsysx.replay.engine import Edit, RemoveOps, ScaleOps
from nsysx.roofline.element_types import types_of
from nsysx.roofline.roofline_bounds import IN_ORDER_TIMES

_REMEDY = "channels-last-kept"
#: Elementwise kernels of torch that compute the place of each element: of tensors in one order, without gaps, others are launched.
_STRIDED, _COPIES = r"native::elementwise_kernel<", r"direct_copy_kernel"
_CHANNELS_LAST, _CONVERTS = r"(?i)nhwc|channels_last", r"(?i)nchwToNhwc|nchw2nhwc|_nchw_"


class _Kernels(NamedTuple):
    """Kernels that go, or are shorter in one order (op, ns, left_ns): copies of convolutions, and those that work on two orders."""

    copies: pl.DataFrame
    between: pl.DataFrame


def findings_of(case: Case, rule: Rule) -> list[Finding]:
    """Return a finding for each line at which the order is lost, where what it costs is 5 % of the step."""
    flow, code = flow_of(case.profile), case.profile.code()
    losses = [] if flow is None else lost_layouts(flow)
    if flow is None or code is None or not losses:
        return []
    work = work_with_gradients(case, flow).join(case.kernels["op", "name"], on="op", how="inner")
    by_line: dict[tuple[str, int], list[LostLayout]] = {}
    for each in losses if _in_channels_last(case, work, losses) else ():
        where = place_of_operator(code, flow, flow.start_ns[[each.row]])
        if where:
            by_line.setdefault((str(where["file"]), int(where["line"])), []).append(each)
    findings = (_found(case, rule, flow, code, work=work, losses=of_line) for of_line in by_line.values())
    return [finding for finding in findings if finding is not None]


def _in_channels_last(case: Case, work: pl.DataFrame, losses: Sequence[LostLayout]) -> bool:
    """Return whether the convolutions that copy compute in channels_last, as weights or kernels say."""
    names = work["name"].filter(work["row"].is_in([row for each in losses for row in each.convolutions]))
    if np.any(lookup.matching(names, _CONVERTS)):
        return False
    settings = settings_of(case.profile)
    networks = (settings.rows("networks") if settings is not None else None) or ()
    return any(row.get("channels_last") for row in networks) or bool(np.any(lookup.matching(names, _CHANNELS_LAST)))


def _kernels(case: Case, work: pl.DataFrame, losses: Sequence[LostLayout]) -> _Kernels:
    """Return the kernels that change; those between the two orders with the least time that they need in one."""
    strided = work.filter(pl.Series(lookup.matching(work["name"], _STRIDED), dtype=pl.Boolean))
    convolutions = [row for each in losses for row in each.convolutions]
    copying = pl.Series(lookup.matching(strided["name"], _COPIES), dtype=pl.Boolean)
    copies = strided.filter(copying & strided["row"].is_in(convolutions))
    # What reads the same tensor may itself lose the order: each kernel counts once.
    numbers = {row: math.prod(each.size) for each in losses for row in each.beside}
    between = strided.filter(strided["row"].is_in(list(numbers)) & ~strided["op"].is_in(copies["op"].to_list()))
    return _Kernels(copies, _with_least(case, between, numbers))


def _with_least(case: Case, between: pl.DataFrame, numbers: Mapping[int, int]) -> pl.DataFrame:
    """Add least_ns, what the kernels of an operator need together if they read and write such a tensor once, shared by their times."""
    rates = case.profile.once(limits_of_work.device_rates)

    def least(row: int, name: str) -> float | None:
        types = types_of(name)
        tensors = types.tensors or (types.arguments or 1) + 1
        return rates.memory_ns((types.size or 4) * tensors * numbers[row])

    kinds = between.group_by("row", "backward", "name").agg(pl.col("ns").sum().alias("whole_ns"))
    limits = [least(row, str(name)) for row, name in kinds.select("row", "name").iter_rows()]
    kinds = kinds.with_columns(limit_ns=pl.Series(limits, dtype=pl.Float64) * case.steps)
    joined = between.join(kinds, on=["row", "backward", "name"], how="left", maintain_order="left")
    return joined.with_columns(least_ns=pl.col("ns") * pl.col("limit_ns") / pl.col("whole_ns"))


def _found(
    case: Case, rule: Rule, flow: OperatorFlow, code: CodeLines, *, work: pl.DataFrame, losses: Sequence[LostLayout]
) -> Finding | None:
    """Return the finding about a line, None where too little is lost there."""
    try:
        kernels = _kernels(case, work, losses)
    except NotRecorded:
        return None
    copies_ns, between_ns = (int(each["ns"].sum()) for each in kernels)
    if not copies_ns or not case.notable(case.per_step(copies_ns + between_ns), REPORTED_SHARE):
        return None
    gone, limits = RemoveOps(ops_of(kernels.copies)), kernels.between["least_ns"].fill_null(float("inf")).to_numpy()

    def left_ns(times: float) -> float:
        return float(np.minimum(kernels.between["ns"].to_numpy(), times * limits).sum())

    def edits(times: float) -> list[Edit]:
        return [gone, ScaleOps(ops_of(kernels.between), left_ns(times) / max(between_ns, 1), less_work=True)]

    why = "the copies of the convolutions at least; other kernels need not compute the place of each element then"
    worth = case.worth_between([gone], edits(IN_ORDER_TIMES), edits(1.0), why, cause=(StepPart.WORK,))
    if not case.notable(worth.likely_ns or 0, REPORTED_SHARE):
        return None
    longest = max(losses, key=lambda each: math.prod(each.size))
    where = place_of_operator(code, flow, flow.start_ns[[longest.row]])
    cost = case.per_step(copies_ns + between_ns - round(left_ns(1.0)))
    many, name = sum(len(each.convolutions) for each in losses), flow.names[longest.row].removeprefix("aten::")
    copy_back = f"{units.several(many, 'convolution')} {'copies' if many == 1 else 'copy'} back what {name} makes"
    trained = ", and once more for its gradient" if kernels.copies["backward"].any() else ""
    detail = (
        f"The network is in channels_last, and what comes to this line is made of a convolution's result. What {name} makes is in another "
        f"order in memory: {'the' if many == 1 else 'each'} convolution behind it copies that first{trained} (the largest of "
        f"{' x '.join(map(str, longest.size))}): {units.duration(case.per_step(copies_ns))} {case.per}."
    )
    if between_ns:
        detail += (
            f" Kernels that read one order and write the other take {units.duration(case.per_step(between_ns))} besides; within one such "
            f"work needs {units.duration(case.per_step(round(left_ns(1.0))))} at the device's limit."
        )
    title = (
        f"{in_short(where)}: channels_last is lost, which costs up to {units.duration(cost)} {case.per}: {copy_back}"
    )
    return Found(
        rule, title, detail, worth=worth, cost_ns=cost, fix=_fix(case, flow, code, longest, where), where=where,
        takes=Takes(ops_of(kernels.copies) | ops_of(kernels.between)),
    ).as_finding(case)  # fmt: skip


def _fix(case: Case, flow: OperatorFlow, code: CodeLines, loss: LostLayout, where: Row) -> Fix:
    """Return the remedy, in the program's own statements where these only split, pad and join."""
    fix, source = Fix.by_name(_REMEDY), texts(case.profile)
    numbers = sorted(
        int(line["line"])
        for row in loss.beside
        if (is_view(flow.names[row]) or row == loss.row)
        and (line := place_of_operator(code, flow, flow.start_ns[[row]]))
        and line["file"] == where["file"]
        and _function(code, line) == _function(code, where)
    )
    first, last = numbers[0], numbers[-1]
    lines = {n: text for n in range(first, last + 1) if (text := text_of(source, where["file"], n))}
    paste = turned(lines)
    there = f"lines {first} to {last}" if last > first else "this line"
    return fix.but(text=_IN_OWN_LINES.format(there=there), paste=paste) if paste else fix


#: What is said where the program's own statements are put in other words.
_IN_OWN_LINES = "Keep the order of channels_last through {there}: turn the channels last, work on that, and turn them back (both are views)"


def _function(code: CodeLines, where: Row) -> str:
    rows = (code.places.row(row) for row in range(code.places.height))
    return next((function for file, line, function in rows if (file, line) == (where["file"], where["line"])), "")
