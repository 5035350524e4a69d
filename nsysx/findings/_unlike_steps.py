"""Ranks that go through unlike batches at the same time, where nothing of the shown rank's step is seen to wait for that.

Without the profiler the step of a rank alone has no waiting in it, and as recorded its peers' hosts may be what it waits for. That in each
step the ranks have unlike amounts of GPU work, and by which line, is known all the same: all take as long as the one with most of it.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx import units
from nsysx.findings._case import Case, Rule, Saving
from nsysx.findings._finding_bounds import UNLIKE_ORDERS_SHARE
from nsysx.findings._flow_work import in_short
from nsysx.findings._found import Found
from nsysx.findings._rank_rows import rank_rows
from nsysx.findings._ranks_in_seeds import decided_by, in_one_order
from nsysx.findings._shares_of_ranks import order_by_rank, work_in_steps
from nsysx.findings._skipped_layers import skipped_layers
from nsysx.model import Finding


def in_unlike_steps(case: Case, rule: Rule) -> Finding | None:
    """Return a finding about ranks whose batches are of unlike size in most steps, by a seed that holds the rank; None for others.

    What like batches save is the longest work of each step less the mean of the ranks: all of it at most, and at least what is left of that
    where no step gets shorter than the shortest one that was recorded, in which the host may be what takes long.
    """
    rows = rank_rows(case)
    apart = any(r["straggler"] or r.get("late_at_times") or r.get("bubble_ns") is not None for r in rows)
    order = order_by_rank(case.profile)
    if len(rows) < 2 or apart or not order or case.profile.once(skipped_layers) is not None:
        return None
    work = work_in_steps(case.profile)
    longest, even = work.max(axis=0, initial=0), work.mean(axis=0)
    if not longest.size or (longest - even).sum() < UNLIKE_ORDERS_SHARE * longest.sum():
        return None
    most = round(float((longest - even).mean()))
    shortest = _shortest_step_ns(case)
    least = round(float((np.maximum(longest, shortest) - np.maximum(even, shortest)).mean()))
    if not case.notable(least):
        return None
    saving = Saving.between(
        least, most, "no step gets shorter than the mean of the ranks' GPU work in it; the host may hold short ones up"
    )
    longest_ns, even_ns = (round(float(each.mean())) for each in (longest, even))
    detail = (
        f"In each step the ranks have unlike amounts of GPU work: the one with most {units.duration(longest_ns)} on average, all in the "
        f"mean {units.duration(even_ns)}; every step takes as long as the longest. The rank is in the seed "
        f"{decided_by(case.profile, order)} ({in_short(order)})."
    )
    title = f"Ranks go through unlike batches at the same time: {units.duration(most)} {case.per} at most"
    unlike = Found(rule, title, detail, worth=saving, cost_ns=most, fix="", where=dict(order), evidence=[])
    return in_one_order(case.profile, order).into(unlike.as_finding(case))


def _shortest_step_ns(case: Case) -> int:
    """Return how long the shortest steady step that was recorded takes without the profiler (ns)."""
    steps = case.profile.steps
    first, last = steps.steady or (0, -1)
    cpu = steps.cpu.filter((pl.col("process") == steps.process) & pl.col("index").is_between(first, last))
    durations = (cpu["end_ns"] - cpu["start_ns"]).to_numpy()
    return round(float(durations.min(initial=case.recorded_ns)) * case.step_ns / max(case.recorded_ns, 1))
