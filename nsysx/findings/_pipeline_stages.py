"""Stages of a pipeline: how many micro-batches their messages leave possible, and what it saves to cut them evenly."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, Saving
from nsysx.judging.judging_bounds import UNEVEN_CUT_SHARE
from nsysx.judging.uneven_stages import UnevenStages, uneven_stages
from nsysx.model import Finding
from nsysx.reading import nccl_notes


def uneven(case: Case) -> UnevenStages | None:
    """Return stages of a pipeline that are cut unevenly; two ranks that a wrapper spans are no stages: they send parts of a sequence."""
    settings, rows = settings_of(case.profile), (case.ranks.rows if case.ranks is not None else None) or ()
    spanned = settings is not None and bool(settings.rows("wrappers")) and len(rows) == 2
    return None if spanned else uneven_stages(rows)


def cut_evenly(case: Case, finding: Finding, stages: UnevenStages, kernels: pl.DataFrame) -> Finding:
    """Return the finding with what it saves that all stages have as much work; ``kernels``: name, count, ns.

    At least the longest stage's extra work goes, but for the bubble of the fewest micro-batches that the messages leave possible; at most
    all that a step takes shrinks like that, host code and gaps, too, with the bubble of the most.
    """
    few, many = least_micro_batches(case, kernels), _messages(case, kernels)
    least = min(stages.step_ns(few) - stages.even_step_ns(few), case.step_ns)
    most = max(case.step_ns * (1 - stages.even_step_ns(many) / stages.step_ns(many)), least)
    settings, count = settings_of(case.profile), len(stages.work_ns)
    line = settings.place("stage") if settings is not None else {}
    # The shown rank's own line says nothing of the place where another one works.
    of_shown = finding.where if stages.longest["process"] == case.process else {}
    each = ", ".join(
        f"rank {row['rank']} {units.duration(ns)}"
        for row, ns in ((stages.longest, max(stages.work_ns)), (stages.shortest, min(stages.work_ns)))
    )
    told = (
        f"GPU work of a step: {each} as recorded; {units.duration(round(sum(stages.work_ns) / count))} on each of {count} if the "
        "stages are cut evenly."
    )
    likely = round((least + most) / 2)
    saving = Saving(
        likely,
        "the longest stage sets the pace; layers are not cut exactly evenly",
        error_ns=max(round((most - least) / 2), round(UNEVEN_CUT_SHARE * likely)),
        source="time",
    )
    return Fix.by_name("even-stages").into(
        replace(
            finding,
            title=f"Rank {stages.longest['rank']} has most of the pipeline's work; the others wait for it",
            detail=f"{finding.detail} {told}",
            where={**(line or of_shown), "near": f"rank {stages.longest['rank']}"},
            saving=saving,
        )
    )


def stages_of(case: Case) -> int:
    return max(len(case.ranks.rows or ()) if case.ranks is not None else 0, 2)


def _messages(case: Case, kernels: pl.DataFrame) -> float:
    """Return how many messages the shown stage sends or receives in a step: it has no more micro-batches than that."""
    kinds = ((nccl_notes.kind_of(name), count) for name, count in kernels.select("name", "count").iter_rows())
    return max(float(sum(count for kind, count in kinds if kind == nccl_notes.SEND_RECEIVE)) / case.steps, 1.0)


def of_schedule(case: Case, finding: Finding) -> Finding:
    """Return a finding about the bubble at the line that makes the schedule, with its micro-batches, where the settings have them."""
    settings = settings_of(case.profile)
    line = {} if settings is None else settings.place("schedule")
    if settings is None or not line:
        return finding
    count = settings.micro_batches()
    batches = f" The schedule has {units.several(count, 'micro-batch', 'micro-batches')}." if count else ""
    return replace(finding, where=line, detail=f"{finding.detail}{batches}")


def least_micro_batches(case: Case, kernels: pl.DataFrame) -> float:
    """Return the fewest micro-batches that a stage may have in a step: as its schedule has them, else by its messages.

    ``kernels``: name, count, ns.
    """
    settings = settings_of(case.profile)
    if settings is not None and (count := settings.micro_batches()):
        return float(count)
    return max(_messages(case, kernels) / (2 if stages_of(case) == 2 else 4), 1.0)
