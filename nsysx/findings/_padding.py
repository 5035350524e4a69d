"""What padding costs: work on rows that are filled up to a length which no sample of the batch has, or which few have."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.analyses.helpers import operator_work
from nsysx.analyses.helpers.operator_work import operators_of_report
from nsysx.catalogue import StepPart
from nsysx.events.profile import NotRecorded
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._input_bounds import (
    BEYOND_LONGEST_SAMPLE_SHARE,
    LONG_MULTIPLE,
    MUCH_PADDING_SHARE,
    ROUNDED_BACK_SHARE,
    ROUNDED_UP_SHARE,
    SHORT_MULTIPLE,
    WIDTH_IN_MULTIPLES,
)
from nsysx.findings._once import Takes
from nsysx.findings.nsx112_fusion import of_networks
from nsysx.judging import rank_verdict
from nsysx.model import Row
from nsysx.replay.engine import ScaleOps

#: Operators of samples that lie one behind another without padding.
_PACKS = r"_pack_padded_sequence|_varlen_|nested_tensor|_nested_|jagged"


def _counts(settings: RecordedSettings | None) -> Row | None:
    """Return the counts of the batch that was looked at, None where there was none."""
    seen = None if settings is None else settings.record.get("padding")
    counts = seen if isinstance(seen, dict) else {}
    keys = ("rows", "length", "longest", "real")
    whole = all(isinstance(counts.get(key), int) and counts[key] > 0 for key in keys)
    return counts if whole and counts["real"] <= counts["rows"] * counts["length"] else None


def _leaves_out(case: Case) -> bool:
    """Return whether the program packs its samples: then no work is done on padding, though batches hold it."""
    try:
        rows = case.profile.once(operators_of_report).rows
    except NotRecorded:
        return False
    names = pl.concat([rows["name"], rows["caller"]]).cast(pl.String).unique()
    return bool(names.str.contains(_PACKS).any())


def padded(case: Case, settings: RecordedSettings) -> str:
    """Return how much of a batch is padding, "" where that is little or left out."""
    seen = _counts(settings)
    if seen is None or _leaves_out(case):
        return ""
    share = 1 - seen["real"] / (seen["rows"] * seen["length"])
    beyond = 1 - seen["longest"] / seen["length"]
    if beyond > ROUNDED_UP_SHARE and unlike_in_turn(case):
        return ""  # rows of unlike lengths follow their samples: what was counted is about something else
    if share < MUCH_PADDING_SHARE and beyond < BEYOND_LONGEST_SAMPLE_SHARE:
        return ""
    return (
        f"{units.share(share, 1)} of the batch that was looked at is padding ({seen['name']}): its {seen['rows']} rows are "
        f"{seen['length']} long, the longest sample {seen['longest']}, the usual one {round(seen['real'] / seen['rows'])}"
    )


def unlike_in_turn(case: Case) -> bool:
    """Return whether the ranks of a job wait in turn for longer batches: all steps tell that, and one batch how much of it is padding."""
    return case.ranks is not None and rank_verdict.wait_for_work(case.ranks.rows or ())


def shorter(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it is worth if the work of the networks is as long as the longest sample, rounded up; at best, as all that is no padding.

    Products and elementwise work grow with the length, attention with its square. None where rows are as long as the longest sample:
    how far batches of like lengths are possible, no batch tells.
    """
    seen = _counts(settings)
    if seen is None or not reaches_beyond(settings):
        return None
    ops = taken(case).ops
    if not ops:
        return None
    step = multiple(seen["length"], seen["longest"])
    then = min(-(-seen["longest"] // step) * step, seen["length"])
    likely = case.worth(ScaleOps(ops, then / seen["length"], less_work=True), cause=(StepPart.WORK,), bound=True)
    best = case.worth(
        ScaleOps(ops, seen["real"] / (seen["rows"] * seen["length"]), less_work=True),
        cause=(StepPart.WORK,),
        bound=True,
    )
    return replace(likely, most_ns=best.most_ns) if likely.likely_ns is not None and best.most_ns else likely


def reaches_beyond(settings: RecordedSettings | None) -> bool:
    """Return whether rows reach so far beyond the longest sample that what these rows cost is priced by itself."""
    seen = _counts(settings)
    return seen is not None and 1 - seen["longest"] / seen["length"] >= BEYOND_LONGEST_SAMPLE_SHARE


def rounding(settings: RecordedSettings | None) -> tuple[int, int]:
    """Return what the length of a batch is rounded up to, and how long rows are now, 0 where no batch was looked at."""
    seen = _counts(settings)
    return (SHORT_MULTIPLE, 0) if seen is None else (multiple(seen["length"], seen["longest"]), seen["length"])


def multiple(length: int, longest: int) -> int:
    """Return what the length of a batch is rounded up to: a share of the length that rows have now, as each new length makes its first step
    slower; less where that would lengthen rows beyond what they have, or give back most of what they reach beyond the longest sample.
    """
    step = min(LONG_MULTIPLE, max(SHORT_MULTIPLE, length // WIDTH_IN_MULTIPLES))
    step = 1 << (step.bit_length() - 1)
    beyond = length - longest
    given_back = ROUNDED_BACK_SHARE * beyond if beyond >= BEYOND_LONGEST_SAMPLE_SHARE * length else step
    while step > SHORT_MULTIPLE and (length % step or -longest % step > given_back):
        step //= 2
    return step


def taken(case: Case) -> Takes:
    """Return the work of the networks; where most of it has not the sizes of the padded rows, as of a network that is conditioned on them,
    that which has.
    """
    every = case.ops.filter(of_networks(case.profile, case.ops)).with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    padded_ops = every.filter(pl.col("op").is_in(list(_of_rows(case))))
    most = 2 * int(padded_ops["ns"].sum()) >= int(every["ns"].sum())
    return Takes(ops_of(every if most or not padded_ops.height else padded_ops))


def _of_rows(case: Case) -> frozenset[int]:
    """Return the GPU ops of operators, and their gradients, that are given tensors with the sizes of the padded rows; none if not known."""
    seen = _counts(settings_of(case.profile))
    if seen is None or case.program.compiled:  # what was compiled has no sizes
        return frozenset()
    try:
        operators = operator_work.numbered_operators(case.profile)
    except NotRecorded:
        return frozenset()
    rows, length = seen["rows"], seen["length"]
    sized = pl.col("shapes").cast(pl.String).str.contains(
        rf"\b{rows}, {length}\b|\b{rows * length}\b|\[{rows}, \d+, {length}, "
    )  # fmt: skip
    return ops_of(operator_work.work_of(case.profile, operators.filter(sized.fill_null(value=False))))
