"""Frozen networks that every rank of a group runs on the whole of one batch, because the ranks share another network and read the same.

Each rank could run its part of the batch, and all gather what comes of it. The replay says what that is worth: a host that is as long at
work for a part of the rows leaves little of it. The gather's price is by the rate of the reductions that were recorded.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.events.collective_operators import collective_operators
from nsysx.events.message_calls import with_messages
from nsysx.events.narrowed_operators import result_sizes, sizes_of
from nsysx.events.operator_flow import ModuleCall, OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, file_and_line, settings_of
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import GATHERED_ELEMENT_BYTES, LARGE_MESSAGE_BYTES
from nsysx.findings._flow_work import in_short, work_of_operators
from nsysx.findings._once import Takes
from nsysx.findings._ranks_apart import apart, forwards_alone
from nsysx.findings._repeated_work import own_part
from nsysx.findings._same_samples import calls_given_alike, settings_of_rank
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.replay import peers


class _WholeBatch(NamedTuple):
    """A call of a frozen network (class ``network``) with ``rows`` rows, the same on ``ranks`` ranks; ``made``: numbers that come of it."""

    network: str
    line: Row
    rows: int
    ranks: int
    call: ModuleCall
    made: int


def _whole_batches(case: Case) -> list[_WholeBatch]:
    """Return these calls; none where the ranks share nothing but gradients: they can have batches of their own."""
    settings, flow = settings_of(case.profile), flow_of(case.profile)
    if settings is None or flow is None or case.program.compiled:
        return []
    others = _other_ranks(case)
    wrapped = any(row.get("kind") != "DTensor" for row in settings.rows("wrappers") or ())
    if not others or wrapped or apart(case, settings) or forwards_alone(case, settings):
        return []
    frozen = {
        (row.get("class"), row.get("place"))
        for row in settings.rows("given_again") or ()
        if row.get("trained") is False
    }
    ranks, batches = 1 + len(others), list[_WholeBatch]()
    for row in calls_given_alike(settings, others):
        rows, network = whole_number(row.get("rows")) or 0, row.get("class")
        calls = [call for call in flow.calls if call.cls == network]
        # Of several calls in a step only one was looked at.
        if (network, row.get("place")) not in frozen or len(calls) != 1 or rows < ranks or rows % ranks:
            continue
        made = _made_of(flow, calls[0])
        if made and not _sends(case.profile, flow, calls[0]):
            batches.append(_WholeBatch(str(network), file_and_line(row.get("place")), rows, ranks, calls[0], made))
    return batches


def _other_ranks(case: Case) -> list[RecordedSettings]:
    """Return what the probes of the other ranks read."""
    return [settings_of_rank(case, process) for process in peers.ranks(case.profile) if process != case.process]


def _sends(profile: Profile, flow: OperatorFlow, call: ModuleCall) -> bool:
    """Return whether anything goes between the ranks in a call: the network is split over them."""
    return any(call.start_ns <= each.start_ns < call.end_ns for each in collective_operators(flow, profile))


def _made_of(flow: OperatorFlow, call: ModuleCall) -> int:
    """Return how many numbers come of a call: those of its tensors that the first operator behind it reads that reads any; 0 for none."""
    made = set(flow.number[call.first : call.last])
    sizes = result_sizes(flow, [sizes_of(text) for text in flow.size])
    # What operators behind that name may only lie where a tensor of the call lay.
    behind = (flow.made[row] for row in flow.outermost if row >= call.last)
    first = next((read for numbers in behind if (read := made.intersection(numbers))), set[int]())
    return sum(math.prod(sizes[number]) for number in first if number in sizes)


def _work(case: Case, batches: list[_WholeBatch]) -> pl.DataFrame:
    """Return the GPU ops (op, ns) of these calls."""
    flow = flow_of(case.profile)
    work = pl.DataFrame(schema={"op": pl.Int64, "ns": pl.Int64, "row": pl.Int64})
    if not batches or flow is None:
        return work
    work = work_of_operators(case, flow, gradients=False)
    inside = [pl.col("row").is_between(each.call.first, each.call.last - 1) for each in batches]
    return work.filter(pl.any_horizontal(inside))


def _gather_ns(case: Case, numbers: int) -> float | None:
    """Return how long so many numbers take to come from all ranks, None where no message tells: a reduction moves twice its bytes."""
    noted = case.profile.once(with_messages).join(
        case.ops.select("op", ns=pl.col("end_ns") - pl.col("start_ns")), on="op", how="inner"
    )
    large = noted.filter((pl.col("bytes") >= LARGE_MESSAGE_BYTES) & (pl.col("kind") == "allreduce"))
    if not large.height:
        return None
    fastest = large.select((pl.col("ns") / pl.col("bytes")).min()).item()  # the others wait for a rank besides
    return float(fastest * numbers * GATHERED_ELEMENT_BYTES)


def encoded_whole(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that every rank runs a frozen network on the same batch, where that takes a notable time."""
    batches = _whole_batches(case)
    work_ns = case.per_step(int(_work(case, batches)["ns"].sum()))
    if not batches or not case.notable(work_ns):
        return ""
    first = batches[0]
    ranks = "both ranks run" if first.ranks == 2 else f"all {first.ranks} ranks run"
    line = f" ({in_short(first.line)})" if first.line else ""
    return (
        f"{ranks} {first.network}{line} on the same {units.count(first.rows)} rows in each step, {units.duration(work_ns)} of the "
        "GPU's time on each. Nothing trains it, and nothing goes between the ranks in it"
    )


def shared_out(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it saves if each rank runs its part of the rows, less what the gather takes; nothing where that is not known."""
    batches = _whole_batches(case)
    gather_ns = _gather_ns(case, sum(each.made for each in batches))
    if not batches or gather_ns is None:
        return Saving(None, "how long the gather takes is not known")
    least, part = own_part(ops_of(_work(case, batches)), batches[0].ranks)
    why = f"each rank runs 1 of {batches[0].ranks} parts of the rows, and the gather takes {units.duration(round(gather_ns))}"
    worth = case.worth_between([least], [part], [part], why)
    if worth.likely_ns is None:
        return worth
    likely = max(round(worth.likely_ns - gather_ns), 0)
    return replace(worth, likely_ns=likely, error_ns=min(worth.error_ns or 0, likely))


def taken(case: Case) -> Takes:
    """Return the work of these calls."""
    return Takes(ops_of(_work(case, _whole_batches(case))))


def place_of_call(case: Case) -> Row:
    """Return the line of the first of these calls."""
    batches = _whole_batches(case)
    return batches[0].line if batches else {}
