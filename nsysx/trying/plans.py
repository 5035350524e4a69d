"""How many steps a run makes, and how long it then takes: what is measured is cut to the budget."""

from __future__ import annotations

from dataclasses import replace

from nsysx.trying.trial_bounds import (
    BLOCK_HIGH,
    BLOCK_LONG,
    BLOCK_LOW,
    BLOCK_S,
    BLOCKS_S,
    BUDGET_PARTS,
    FIRST_RUN_PAIRS,
    LONG_STEP_S,
    MEASURED_S,
    MEASURED_STEPS_HIGH,
    MEASURED_STEPS_LEAST,
    MEASURED_STEPS_LOW,
    MEASURED_TIMES,
    PAIRS_HIGH,
    PAIRS_LOW,
    PAIRS_TIMES,
    WARM_UP_STEPS,
    WARM_UP_STEPS_LONG,
)
from nsysx.trying.trial_run import RunPlan, TrialRun


def enough_s(budget_s: float) -> float:
    """Return how long the measured steps of a run take (s)."""
    return min(MEASURED_S, budget_s / BUDGET_PARTS)


def first(steps: int | None, budget_s: float) -> RunPlan:
    """Return the plan of the first run: ``steps`` if they were asked for, else as many as take some seconds."""
    return RunPlan(WARM_UP_STEPS, steps or MEASURED_STEPS_HIGH, 0.0 if steps else enough_s(budget_s))


def turning(steps: int | None, budget_s: float) -> RunPlan:
    """Return the plan of a first run that makes a change, turns it off after the warm-up and then, in blocks, on and off."""
    return replace(first(steps, budget_s), pairs=FIRST_RUN_PAIRS, block_steps=BLOCK_LOW, turning_s=BLOCK_S)


def like(run: TrialRun, asked: int | None) -> RunPlan | None:
    """Return the plan of runs that make the steps of ``run``, None if that is no measure for others."""
    if run.outcome != "measured" or run.step_ns / 1e9 > LONG_STEP_S:
        return None
    return _with_blocks(run.record["warm"], run.record["steps"] - run.record["warm"], run.step_ns / 1e9, asked)


def after(run: TrialRun, asked: int | None, budget_s: float) -> RunPlan:
    """Return a plan of steps enough, or as many as were ``asked`` for; in a program that ends, as many as it has."""
    step_s = run.step_ns / 1e9
    warm = WARM_UP_STEPS if not step_s > LONG_STEP_S else WARM_UP_STEPS_LONG
    steps, seconds = asked, enough_s(budget_s)
    if steps is None and step_s > 0:
        steps = min(max(round(seconds / step_s), MEASURED_STEPS_LOW), MEASURED_STEPS_HIGH)
        steps = max(MEASURED_STEPS_LEAST, min(steps, round(seconds * MEASURED_TIMES / step_s)))
    steps = steps or MEASURED_STEPS_LOW
    if run.outcome == "ended":  # the last step holds what comes after the loop
        possible = run.record["steps"] - 1
        warm = min(warm, max(2, possible // 4))
        steps = min(steps, possible - warm)
    return _with_blocks(warm, steps, step_s, asked)


def _with_blocks(warm: int, steps: int, step_s: float, asked: int | None) -> RunPlan:
    if not step_s > 0:
        return RunPlan(warm, steps)
    size = min(max(round(BLOCK_S / step_s), BLOCK_LOW), BLOCK_HIGH) if step_s < LONG_STEP_S else BLOCK_LONG
    block_steps = BLOCKS_S / step_s if asked is None else PAIRS_TIMES * asked
    pairs = min(max(round(block_steps / (2 * size)), PAIRS_LOW), PAIRS_HIGH)
    return RunPlan(warm, steps, 0.0, pairs, size)


def shared(plan: RunPlan, unchanged: TrialRun, share_s: float) -> RunPlan:
    """Return the plan with as many pairs of blocks as fit into ``share_s`` beside what a run without blocks takes.

    `PAIRS_LOW` at least, because fewer decide nothing; the run is cut at its end of time. ``unchanged`` is a run of the plan; it
    has no blocks.
    """
    if not plan.pairs:
        return plan
    room = share_s - unchanged.wall_s
    fit = int(room / (2 * plan.block_steps * unchanged.step_ns / 1e9)) if room > 0 else 0
    return replace(plan, pairs=min(plan.pairs, max(PAIRS_LOW, fit)))


def changed_s(plan: RunPlan, unchanged: TrialRun) -> float:
    """Return what a run with a change takes (s), with its start and as few blocks as decide, if the change costs no time itself."""
    return unchanged.wall_s + 2 * min(plan.pairs, PAIRS_LOW) * plan.block_steps * unchanged.step_ns / 1e9


def least_s(plan: RunPlan, unchanged: TrialRun) -> float:
    """Return what a run takes (s) that is cut after as few measured steps as tell its step."""
    return unchanged.wall_s - max(0, plan.steps - MEASURED_STEPS_LEAST) * unchanged.step_ns / 1e9
