"""Short sums over the ranks that split layers need at once, where nothing is trained: each takes a latency, which one-shot kernels shorten.

A token of a network that does not fit on one GPU is 2 such sums for each layer, of a few hundred KB. NCCL's ring passes them on from rank
to rank, or waits for a protocol of several steps; a kernel that reads the parts of all ranks of a host over their links is done at once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.findings._case import Case, Fix
from nsysx.findings._finding_bounds import FEWEST_LAYER_MESSAGES
from nsysx.findings._layer_messages import of_layers
from nsysx.findings._work_bounds import ONE_SHOT_BYTES, ONE_SHOT_NS, UNDELAYED_QUANTILE
from nsysx.model import Finding
from nsysx.reading import nccl_notes
from nsysx.replay.engine import ScaleOps


def in_one_shot(case: Case, finding: Finding) -> list[Finding]:
    """Return the finding about exposed communication with one-shot sums, where these save 1 % of the step; nothing for others.

    Ranks that come late are waited for in any sum: what the shorter ones take is the sum itself.
    """
    layers = of_layers(case)
    comm = case.ops.filter(case.ops["op"].is_in(list(layers.at_once)))
    trains = (case.ops["phase"].cast(pl.String) == "backward").fill_null(value=False).any()
    if trains or comm.height < FEWEST_LAYER_MESSAGES * case.steps or not 0 < layers.most_bytes <= ONE_SHOT_BYTES:
        return []
    if any(nccl_notes.kind_of(name) != "allreduce" for name in comm["name"].cast(pl.String).drop_nulls().unique()):
        return []
    ns = (comm["end_ns"] - comm["start_ns"]).to_numpy()
    usual, ops = float(np.quantile(ns, UNDELAYED_QUANTILE)), frozenset(comm["op"].to_list())
    slow, likely, fast = (
        [ScaleOps(ops, 1 - len(ns) * max(0.0, usual - each) / float(ns.sum()), less_work=True)] for each in ONE_SHOT_NS
    )
    shortest, longest = (units.duration(ONE_SHOT_NS[which]) for which in (-1, 0))
    worth = case.worth_between(
        slow, likely, fast, f"a one-shot sum takes {shortest} to {longest}", cause=(StepPart.COMM,)
    )
    if worth.likely_ns is None or not case.notable(worth.likely_ns):
        return []
    often = round(comm.height / case.steps)
    detail = (
        f"{finding.detail} {units.count(often)} sums over the ranks of {units.size(layers.most_bytes)} at most, each needed by the next "
        f"operator, take {units.duration(usual)} each where no rank is late: that is their latency, not their bytes."
    )
    return [Fix.by_name("one-shot-sums").into(replace(finding, detail=detail, saving=worth), torch=case.program.torch)]
