"""Networks without gradients that every rank of a group runs on the whole of one batch, alike on all of them.

The ranks share another network and read the same batch, or each has its own, and they gather these before. Each rank could run its part,
and all gather what comes of it. The replay says what that is worth: a host that is as long at work for a part of the rows leaves little of
it. The gather's price is by the rate of the reductions that were recorded, or by that of the gather that it is in place of.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity
from nsysx.events.collective_operators import collective_operators
from nsysx.events.gathered_inputs import GatheredInput, gathered_inputs
from nsysx.events.message_calls import with_messages
from nsysx.events.narrowed_operators import result_sizes, sizes_of
from nsysx.events.operator_flow import ModuleCall, OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, file_and_line, settings_of
from nsysx.events.trained_operators import trained_of
from nsysx.findings._case import Case, Saving, ops_of, way
from nsysx.findings._exposed_transfer import transfer_of_ops_ns
from nsysx.findings._finding_bounds import GATHERED_ELEMENT_BYTES, LARGE_MESSAGE_BYTES
from nsysx.findings._flow_work import in_short, place_of_operator, work_of_operators
from nsysx.findings._once import Takes
from nsysx.findings._parting_lines import parting_line
from nsysx.findings._ranks_apart import apart, chooses_network, forwards_alone
from nsysx.findings._repeated_work import with_less, with_more, worth_of_own_part
from nsysx.findings._same_samples import calls_given_alike, settings_of_rank
from nsysx.findings._ungathered_lines import ungathered_line
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.replay import peers


class _WholeBatch(NamedTuple):
    """What ``rows`` rows, the same on ``ranks`` ranks, are given to: operators (``between``), those of a frozen network as a rule (class).

    ``made``: numbers that come of it. ``gathered``: the gather that has brought these rows.
    """

    network: str
    line: Row
    rows: int
    ranks: int
    between: Collection[int]
    made: int
    gathered: GatheredInput | None = None


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
            between = range(calls[0].first, calls[0].last)
            batches.append(_WholeBatch(str(network), file_and_line(row.get("place")), rows, ranks, between, made))
    return batches


def _gathered_batches(case: Case) -> list[_WholeBatch]:
    """Return what is run, without gradients, on rows that were gathered of all ranks."""
    flow = flow_of(case.profile)
    inputs = gathered_inputs(case.profile) if flow is not None and not case.program.compiled else ()
    if flow is None or not inputs or chooses_network(case.profile):
        return []
    trained, batches = trained_of(case.profile), list[_WholeBatch]()
    for each in inputs:
        if each.gathers and not trained[sorted(each.between)].any():
            network = _network_of(flow, each)
            line = _place_of_gather(case, flow, each)
            batches.append(_WholeBatch(network, line, each.rows, each.ranks, each.between, 0, each))
    return batches


def _network_of(flow: OperatorFlow, each: GatheredInput) -> str:
    """Return the class of the first module that is given what came, "" where none is."""
    behind = (call for call in flow.calls if call.start_ns >= each.start_ns)
    return next((call.cls for call in behind if any(call.first <= row < call.last for row in each.between)), "")


def _place_of_gather(case: Case, flow: OperatorFlow, each: GatheredInput) -> Row:
    """Return the line at which the gather and what works on its rows part."""
    return parting_line(case, [[(flow.thread, each.start_ns), (flow.thread, int(flow.start_ns[min(each.between)]))]])


def _batches(case: Case) -> list[_WholeBatch]:
    """Return all of these."""
    return _whole_batches(case) or _gathered_batches(case)


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
    sends = case.ops.filter(case.ops["cls"] == DeviceActivity.COMM.value)["op"]
    inside = set[int]().union(*(each.between for each in batches))
    return work.filter(work["row"].is_in(sorted(inside)) & ~work["op"].is_in(sends.implode()))


def _gather_ns(case: Case, numbers: int) -> float | None:
    """Return how long so many numbers take to come from all ranks, None where no message tells: a reduction moves twice its bytes."""
    noted = case.profile.once(with_messages).join(
        case.ops.select("op", ns=pl.col("end_ns") - pl.col("start_ns")), on="op", how="inner"
    )
    large = noted.filter((noted["bytes"] >= LARGE_MESSAGE_BYTES) & (noted["kind"] == "allreduce"))
    if not large.height:
        return None
    fastest = large.select((pl.col("ns") / pl.col("bytes")).min()).item()  # the others wait for a rank besides
    return float(fastest * numbers * GATHERED_ELEMENT_BYTES)


def _gathers(batches: list[_WholeBatch]) -> frozenset[int]:
    return frozenset[int]().union(*(each.gathered.gathers for each in batches if each.gathered))


def encoded_whole(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that every rank runs a network without gradients on the same batch, where that takes a notable time."""
    batches = _batches(case)
    work_ns = case.per_step(int(_work(case, batches)["ns"].sum()))
    if not batches or not case.notable(work_ns):
        return ""
    first = batches[0]
    ranks = "both ranks" if first.ranks == 2 else f"all {first.ranks} ranks"
    line = f" ({in_short(first.line)})" if first.line else ""
    if first.gathered is not None:
        network = first.network or "the same operators"
        made = units.share(first.gathered.made_share, 1)
        return (
            f"{ranks} gather the rows of all{line} and run {network} on all {units.count(first.rows)} of them in each step, "
            f"{units.duration(work_ns)} of the GPU's time on each. No gradients go through it, it works on each row by itself, and what "
            f"is read of several ranks then has {made} of the numbers that are gathered"
        )
    return (
        f"{ranks} run {first.network}{line} on the same {units.count(first.rows)} rows in each step, {units.duration(work_ns)} of the "
        "GPU's time on each. Nothing trains it, and nothing goes between the ranks in it"
    )


def shared_out(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it saves if each rank runs its part of the rows, less what the gather takes; nothing where that is not known."""
    batches = _batches(case)
    if any(each.gathered is not None for each in batches):
        return _before_the_gather(case, batches)
    gather_ns = _gather_ns(case, sum(each.made for each in batches))
    if not batches or gather_ns is None:
        return Saving(None, "how long the gather takes is not known")
    why = f"each rank runs 1 of {batches[0].ranks} parts of the rows, and the gather takes {units.duration(round(gather_ns))}"
    return with_less(worth_of_own_part(case, ops_of(_work(case, batches)), batches[0].ranks, why), gather_ns)


def _before_the_gather(case: Case, batches: list[_WholeBatch]) -> Saving:
    """Return what it saves if each rank runs its own rows, and what is made of them is gathered: fewer numbers than now."""
    work, ranks = _work(case, batches), min(each.ranks for each in batches)
    less = 1 - max(each.gathered.made_share for each in batches if each.gathered)
    transfer = round(less * transfer_of_ops_ns(case, _gathers(batches)))
    gone = case.per_step((1 - 1 / ranks) * int(work["ns"].sum()))
    why = (
        f"each rank runs its own rows, {units.duration(gone)} less on the GPU, and of what is gathered now "
        f"{units.share(1 - less, 1)} is sent"
    )
    worth = worth_of_own_part(case, ops_of(work), ranks, why)
    if worth.likely_ns is None:
        return replace(case.bound(transfer + gone, why), confidence=why)
    return with_more(worth, transfer, max(worth.likely_ns, worth.most_ns or 0))


def taken(case: Case) -> Takes:
    """Return the work of these calls, and the gathers before them."""
    batches = _batches(case)
    return Takes(_gathers(batches) | ops_of(_work(case, batches)))


def place_of_call(case: Case) -> Row:
    """Return the line of the first of these calls."""
    batches = _batches(case)
    return batches[0].line if batches else {}


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy for rows that are gathered first, with the program's own line where that has the gather and the network."""
    batches, flow, code = _batches(case), flow_of(case.profile), case.profile.code()
    gathered = batches[0].gathered if batches else None
    if gathered is None or flow is None or code is None:
        return title, remedy
    where, remedy = batches[0].line, way("own-rows-before-gather")
    readers = [place_of_operator(code, flow, flow.start_ns[[row]]) for row in gathered.readers]
    text = lines.text_of(lines.texts(case.profile), where["file"], where["line"]) if where else None
    line = ungathered_line(str(text or "")) if where not in readers else None
    title = "Every rank runs a network on the rows of all ranks"
    return title, remedy if line is None else replace(
        remedy,
        paste=f"part = {line[1]}  # of this rank's own rows\n{line[0]} = part.new_empty(world * len(part), *part.shape[1:])\n"
        f"dist.all_gather_into_tensor({line[0]}, part.contiguous())",
    )
