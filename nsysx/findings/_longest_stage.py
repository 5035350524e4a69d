"""Stages of a pipeline that compute for unlike times, told of the longest one: it waits for none, and all others wait for it.

Its own step is full of work, so nothing in it looks like a wait: what is lost shows on the other ranks alone.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.findings._case import Case, Rule, Saving
from nsysx.findings._found import Found
from nsysx.findings._pipeline_stages import cut_evenly, held_by_hosts, in_whole_layers, uneven
from nsysx.judging.judging_bounds import UNLIKE_STAGES_TIMES
from nsysx.judging.rank_waiting import per_step
from nsysx.judging.uneven_stages import UnevenStages
from nsysx.model import Finding, Row
from nsysx.saving import NOTABLE


def of_longest(case: Case, rule: Rule, kernels: pl.DataFrame, where: Row) -> Finding | None:
    """Return a finding about stages of a pipeline that compute for unlike times, None for others. ``kernels``: name, count, ns of
    communication. ``where``: the line of the shown rank that communicates.

    It costs what the step is longer for: nothing in the step of the shown rank is idle for it.
    """
    unlike = uneven(case, UNLIKE_STAGES_TIMES)
    if unlike is None:
        return None
    evidence = _evidence(unlike)
    longest_stage = Found(
        rule, rule.title, _waits(unlike), worth=Saving(), cost_ns=None, fix="", where=where, evidence=evidence
    )
    finding, stages = longest_stage.as_finding(case), uneven(case)
    told = in_whole_layers(case, finding, kernels) if stages is None else cut_evenly(case, finding, stages, kernels)
    told = told or held_by_hosts(case, finding, kernels)
    return None if told is None else replace(told, cost_ns_per_step=told.saving.most_ns or told.saving.likely_ns)


def _waits(stages: UnevenStages) -> str:
    """Return how long the stage that waits longest does so, in a sentence."""
    longest = stages.longest
    most = max((row for row in stages.rows if row is not longest), key=lambda row: per_step(row, "exposed_wait_ns"))
    wait, step = per_step(most, "exposed_wait_ns"), per_step(most, "window_ns")
    own_wait = per_step(longest, "exposed_wait_ns")
    waits = f"for {units.duration(round(own_wait))}" if own_wait >= NOTABLE * step else "for nobody"
    return (
        f"Of {units.duration(round(step))} as recorded rank {most['rank']} waits for {units.duration(round(wait))} "
        f"({units.share(wait, step)}); rank {longest['rank']}, which has most work, waits {waits}."
    )


def _evidence(stages: UnevenStages) -> list[Row]:
    """Return what each stage computes, and how long it does nothing but wait for others, in a step."""
    return [
        {
            "part": f"rank {row['rank']}",
            "computes_ns": round(per_step(row, "compute_ns")),
            "waits_ns": round(per_step(row, "exposed_wait_ns")),
        }
        for row in stages.rows
    ]
