"""NSX126 round-trips: a step asks the GPU the same small question many times, and reads each answer before it asks again.

What it means
    A policy that is called for each action, or a loop over images with a mask, a few kernels and .cpu() for each: the GPU gets
    a few launches, the CPU waits for the result, and only then come the next ones. No launch can be made ahead, so each round
    costs its launches, its copy and its wakeup, however fast the kernels are. A graph makes a round shorter, fewer rounds are
    what helps: one round for many inputs makes as many launches as for one.
    The saving is for all rounds but one, an upper bound: what depends on the answer before it cannot be asked at once.

In the trace
    A copy to the host after every few launches, many times a step, with the same launches between two copies.

Bad
    for obs in environment:                   # 32 rounds a step
        action = policy(obs.to("cuda")).argmax(-1).cpu()
    for boxes, scores in images:              # 16 rounds a step
        kept.append(boxes[nms(boxes, scores, 0.5)].cpu())

Good
    actions = policy(torch.stack(observations).to("cuda")).argmax(-1).cpu()    # 64 environments in each round
    kept = batched_nms(boxes.view(-1, 4), scores.view(-1), image, 0.5).cpu()   # one round

Harmless when
    The GPU has other work queued meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import Call, Limit, Part
from nsysx.events.attribute import IN_STEP
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Fix, Rule
from nsysx.findings._names import networks_called
from nsysx.frames.intervals import I64
from nsysx.frames.lookup import matching
from nsysx.judging import waiting
from nsysx.model import Finding

RULE = Rule(
    "NSX126",
    "round-trips",
    "Many small round trips to the GPU",
    cause=(Part.HOST, Part.LAUNCH, Part.SYNC),
    about=Limit.LAUNCH,
    leads=True,
)
#: Fewest alike rounds a step, fewest launches of one, and how far their number may be from the usual one (share).
_ROUNDS, _LAUNCHES, _ALIKE = 4, 2, 0.25
#: Least share of the step in which the GPU idles in rounds.
_FOUND = 0.15
_TRAINS, _CALLS = "^(backward|optimizer)$", "^(forward|evaluation)$"
_CLEAR = "no step asks the GPU the same four times or more and reads each answer before it asks again"


class Rounds(NamedTuple):
    """Rounds that are alike, in order of time: begin and end on the CPU (ns), the calls made in them, and what a round does.

    ``launches`` is the usual number of one; ``network``: it calls a network; ``uploads``: it copies its input to the device.
    ``reads`` counts the answers that are read, those of rounds with other work included.
    """

    start_ns: I64
    end_ns: I64
    calls: I64
    launches: int
    network: bool
    uploads: bool
    reads: int


def rounds(profile: Profile) -> Rounds | None:
    """Return the rounds of the steady steps that are alike, None where there are fewer than four a step.

    A round ends with a copy to the host, outside of every module, that its thread waits for; it trains nothing. Tokens that a model
    makes one by one are no rounds: such a round calls a network and gives it nothing that the CPU has.
    """
    reads = _reads(profile)
    steps = max(profile.scope.steps, 1)
    if len(reads) < _ROUNDS * steps:
        return None
    calls = profile.attributed.api_calls
    thread = calls["thread"].to_numpy()
    reads = reads[thread[reads] == np.bincount(thread[reads] - thread.min()).argmax() + thread.min()]
    begin, end = reads[:-1] + 1, reads[1:] + 1  # calls are numbered by thread and time

    def within(chosen: Flags) -> I64:
        sums = np.concatenate(([0], np.cumsum(chosen)))
        return np.asarray(sums[end] - sums[begin], np.int64)

    copied = profile.attributed.gpu_ops.filter(pl.col("name").cast(pl.String) == "HtoD")["call"].drop_nulls()
    uploads = np.zeros(calls.height, np.bool_)
    uploads[copied.to_numpy()] = True
    launches = within(calls["kind"].is_in(Call.LAUNCHES).to_numpy())
    candidate = (launches >= _LAUNCHES) & (within(matching(calls["phase"], _TRAINS)) == 0)
    if not candidate.any():
        return None
    usual = float(np.median(launches[candidate]))
    alike = candidate & (np.abs(launches - usual) <= _ALIKE * usual)
    network, upload = (
        2 * int((within(chosen)[alike] > 0).sum()) >= int(alike.sum())
        for chosen in (matching(calls["phase"], _CALLS), uploads)
    )
    if alike.sum() < _ROUNDS * steps or (network and not upload):
        return None
    first, last = begin[alike], end[alike] - 1
    made = np.concatenate([np.arange(a, b + 1) for a, b in zip(first.tolist(), last.tolist(), strict=True)])
    ends = calls["end_ns"].to_numpy()
    return Rounds(ends[first - 1], ends[last], made, round(usual), network, upload, len(reads))


def _reads(profile: Profile) -> I64:
    """Return the copies to the host outside of every module that the host waits for, in order of threads and time."""
    known = profile.once(waiting.waits).calls
    places = pl.col("module").cast(pl.String)
    outside = places.is_null() | (places == IN_STEP) | places.is_in(list(profile.attributed.without_path))
    reads = known.filter((pl.col("kind") == Call.COPY) & (pl.col("asks") == waiting.VALUE) & outside)
    return np.sort(reads["call"].to_numpy())


def check(case: Case) -> list[Finding]:
    """Return a finding where the GPU idles in such rounds for 15 % of the step or more."""
    if case.stepless:
        return case.no_steps(RULE)
    if case.device is None:
        return case.cannot_tell(RULE, case.missing("gpu_ledger") or "the steady steps hold no GPU work")
    if missing := case.missing("waits"):
        return case.cannot_tell(RULE, missing)
    seen = case.profile.once(rounds)
    if seen is None:
        return case.clear(RULE, _CLEAR)
    at = np.searchsorted(seen.start_ns, case.idle["start_ns"].to_numpy(), side="right") - 1
    inside = (at >= 0) & (case.idle["start_ns"].to_numpy() < seen.end_ns[np.maximum(at, 0)])
    idle = case.per_step(float(case.idle["real_ns"].to_numpy()[inside].sum()))
    cost = min(idle, case.taken_by(RULE.cause))
    if not case.notable(cost, _FOUND):
        return case.clear(RULE, f"the GPU idles {case.share(cost)} of the step in round trips, less than 15 %")
    count = seen.reads / case.steps
    often, asked = f"{count:.0f} times {case.per}", networks_called(case.profile)
    what = f"{asked} is called" if seen.network else "the same few kernels are launched"
    title = f"{often[:1].upper() + often[1:]} {what} and read back: the GPU idles {units.duration(cost)}"
    detail = (
        f"Each round makes {units.several(seen.launches, 'launch', 'launches')}"
        f"{' and copies its input to the GPU' if seen.uploads else ''}; the CPU waits for its result before it begins the next. In "
        f"these rounds the GPU idles for {case.share(cost)} of the step."
    )
    worth = case.bound(cost * (1 - 1 / count), "all rounds but one go")
    where = {"module": asked, "phase": "evaluation"} if seen.network and asked else {}
    return [
        case.found(
            RULE,
            title,
            detail,
            worth=worth,
            cost_ns=cost,
            where=where,
            fix=_fix(seen, f"{count:.0f}", asked),
            at=seen.calls.tolist(),
        )
    ]


def _fix(seen: Rounds, count: str, asked: str) -> Fix:
    """Return how to make fewer rounds: more inputs in each where a network answers, else all in one."""
    if seen.network:
        return Fix(
            f"Fewer, larger rounds: {asked or 'the network'} is called {count} times a step, each time for an input from the CPU, and read "
            "back. Give each call more inputs (more environments or requests at once), or run a network this small on the CPU",
            condition="What is asked at once must not depend on the answer before it.",
        )
    return Fix(
        f"Handle all {count} in one round: the same {seen.launches} launches are made for each, and each is read back. Use operations "
        "on the whole batch (a mask over all, torchvision.ops.batched_nms) and one .cpu() at the end",
        "kept = torchvision.ops.batched_nms(boxes.view(-1, 4), scores.view(-1), image_of_box, 0.5)\nresult = kept.cpu()",
    )
