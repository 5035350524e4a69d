"""Evaluations that every rank of a job repeats: the whole held-out set on each, with the same weights, and the same sums come out n times.

A probe notes checksums of what networks are given in the first evaluations between steps, how many calls each makes, and of some trained
weights. Ranks that are given the same in the same calls, with one network, do the same work. Shared out, each evaluates its part and one
reduction puts the sums together.

Nothing is said of ranks that must be given the same, because they share layers, a sequence or a pipeline and exchange what they make of it;
of those with weights of their own (an ensemble, ranks that have not averaged yet), whose results differ; of a network that evaluates in a
single call, which may be of one whole graph; and of what runs behind every step: it may be a part of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.events.between_parts import BetweenSteps
from nsysx.events.recorded_settings import RecordedSettings, file_and_line, settings_of
from nsysx.findings._case import Case, Fix
from nsysx.findings._finding_bounds import BUSY_BETWEEN_SHARE, SHARED_EVALUATION_STAYS
from nsysx.findings._fix import way
from nsysx.findings._flow_work import in_short
from nsysx.findings._made_between import is_unread
from nsysx.findings._ranks_apart import evaluates_alone
from nsysx.findings._same_samples import settings_of_rank
from nsysx.frames import intervals
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.replay import peers

#: The part of each rank: of tensors in memory, of a loader, and of one whose ranks must make as many calls.
_ROWS = "held_out = [rows[dist.get_rank() :: dist.get_world_size()] for rows in held_out]  # its tensors, once, before the loop\n"
_SUBSET = (
    "loader = DataLoader(Subset(held_out, range(dist.get_rank(), len(held_out), dist.get_world_size())), batch_size)\n"
)
_SAMPLER = "loader = DataLoader(held_out, batch_size, sampler=DistributedSampler(held_out, shuffle=False))\n"
_REDUCED = (
    "totals = torch.stack([loss_sum, count])  # behind the loop, of this rank's part\n"
    "dist.all_reduce(totals)\nloss = totals[0] / totals[1]  # not a mean of means"
)
_SUMS = (
    "Reduce sums and counts, not means: parts may be unequal. A metric of all predictions at once has to be gathered."
)
_AS_MANY_CALLS = " Ranks must make as many calls, because the wrapper exchanges in each: DistributedSampler repeats samples for that."


#: Of a call: the class of the network and the line. What is compared of it: the number of calls, the checksums, and that of the weights.
_Call = tuple[object, object]
_Given = tuple[int, tuple[object, ...], object]


class SavedEvaluation(NamedTuple):
    """What goes of an evaluation that is shared out (ns a step): at least, likely, and at most."""

    least_ns: int
    likely_ns: int
    most_ns: int


class SameEvaluation(NamedTuple):
    """What ``ranks`` ranks all evaluate: ``calls`` of a network of class ``network`` at ``line`` with tensors of ``rows`` rows.

    ``loaded``: the batches come from a loader. ``wrapped``: a wrapper exchanges in the forward. ``made``: it is no evaluation, but what the
    steps work with: an index, features, labels.
    """

    ranks: int
    network: str
    calls: int
    rows: int | None
    line: Row
    loaded: bool
    wrapped: bool
    made: bool = False

    @property
    def everyone(self) -> str:
        """Return "all 8 ranks"."""
        return "both ranks" if self.ranks == 2 else f"all {self.ranks} ranks"

    def sentence(self) -> str:
        """Return what was seen."""
        there = f" at {in_short(self.line)}" if self.line else ""
        rows = f", {units.count(self.rows)} rows each" if self.rows else ""
        calls = f"{units.count(self.calls)} calls of {self.network}{there}{rows}"
        do = "compute between steps what nobody reads there, each all of it, of" if self.made else "evaluate"
        return f"{units.capitalized(self.everyone)} {do} the same samples, with the same weights: {calls}."

    def fix(self) -> Fix:
        """Return the advice to share the evaluation, or what is made."""
        if self.made:
            fix = Fix.by_name("shared-making")
            return fix.but(
                text=f"{fix.text}: {self.everyone} compute the same of the same samples, with the same weights. Or make it more rarely, if "
                "training goes as well with an older one"
            )
        of_loader = _SAMPLER if self.wrapped else _SUBSET
        text = f"Give each rank its own part of the evaluation: {self.everyone} evaluate the same samples, with the same weights"
        paste = (of_loader if self.loaded else _ROWS) + _REDUCED
        return Fix.by_name(way("shared-evaluation", text, paste, _SUMS + (_AS_MANY_CALLS if self.wrapped else "")))

    def saved_ns(self, least_ns: float, most_ns: float, *, works: bool) -> SavedEvaluation:
        """Return what goes of an evaluation of ``least_ns`` to ``most_ns``: batches stay whole, and some of the work is no batch's.

        ``works``: the GPU works meanwhile. Where it waits for launches, calls that depend on each other take as long for fewer rows.
        """
        whole = 1 - -(-self.calls // self.ranks) / self.calls
        least = (1 - SHARED_EVALUATION_STAYS) * whole * least_ns if works else 0
        likely = whole * (least_ns + most_ns) / 2
        return SavedEvaluation(round(least), round(likely), round((1 - 1 / self.ranks) * most_ns))


def gpu_works(case: Case, recorded: BetweenSteps | None) -> bool:
    """Return whether the GPU works for most of the recorded time between steps; False where none was recorded."""
    if recorded is None:
        return False
    ops = case.profile.attributed.gpu_ops.filter(pl.col("process") == case.process)
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    either = intervals.length(np.append(start, recorded.start_ns), np.append(end, recorded.end_ns))
    return intervals.length(start, end) + recorded.ns - either >= BUSY_BETWEEN_SHARE * recorded.ns


def same_evaluation(case: Case) -> SameEvaluation | None:
    """Return what all ranks of the job evaluate alike, None where one evaluates something else, or it is not known."""
    settings = settings_of(case.profile)
    if settings is None:
        return None
    every = [settings_of_rank(case, process) for process in peers.ranks(case.profile)]
    together = settings.groups_of_ranks()
    if (
        len(every) < 2
        or not together
        or any(len(ranks) != len(every) for ranks in together)
        or settings.divides_network()
    ):
        return None
    wrappers = settings.rows("wrappers") or ()
    divided = any(row.get("kind") != "DDP" for row in wrappers)
    noted = [_noted(each, divided=divided) for each in every]
    compared = set.intersection(*({*steps} for steps in noted))
    if not compared or any(steps[step] != noted[0][step] for steps in noted for step in compared):
        return None
    steps = sorted(noted[0])
    if any(after - before < 2 for before, after in pairwise(steps)) or not evaluates_alone(case, settings):
        return None
    step = max(compared)  # behind the first one several may have run in a row
    if not all(_tells(given) for given in noted[0][step].values()) or _calls(noted[0][step]) < len(every):
        return None
    row = max(
        (r for r in settings.rows("evaluations") or () if r.get("step") == step), key=lambda r: r.get("calls") or 0
    )
    return SameEvaluation(
        len(every),
        str(row.get("class")),
        _calls(noted[0][step]),
        whole_number(row.get("rows")),
        file_and_line(row.get("place")),
        bool(row.get("loader")),
        any(row.get("kind") != "DDP" or row.get("buffers") != 0 for row in wrappers),
        is_unread(case.profile),
    )


def _noted(settings: RecordedSettings, *, divided: bool) -> dict[int, dict[_Call, _Given]]:
    """Return what was given to each network in each evaluation, by the step behind which it ran.

    ``divided``: a wrapper divides the weights of one network over the ranks, so that what each has of them differs.
    """
    steps: dict[int, dict[_Call, _Given]] = {}
    for row in settings.rows("evaluations") or ():
        step, calls, sums = whole_number(row.get("step")), whole_number(row.get("calls")), row.get("sums")
        if step is not None and step >= 0 and calls and isinstance(sums, list):
            weights = "divided" if divided else row.get("weights")
            steps.setdefault(step, {})[row.get("class"), row.get("place")] = calls, tuple(sums), weights
    return steps


def _calls(given: Mapping[_Call, _Given]) -> int:
    """Return how often the network that is called most is called in an evaluation."""
    return max(calls for calls, _, _ in given.values())


def _tells(given: _Given) -> bool:
    """Return whether what a network was given is known in each call that was looked at, and is not the same in all: that is no data."""
    _, sums, weights = given
    return None not in sums and weights is not None and len(set(sums)) > 1
