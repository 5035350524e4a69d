"""How many steps a run makes, and how long it then takes: what is measured is cut to the budget."""

from __future__ import annotations

from dataclasses import replace

from nsysx.trying.trial_run import RunPlan, TrialRun

#: Steps that warm up, and those of a program whose step takes longer than `_LONG_S`.
_WARM, _WARM_LONG, _LONG_S = 10, 3, 2.0
#: Measured steps of a run: as many as take `_ENOUGH_S`, within these limits, but not more than take `_MANY` times that.
_ENOUGH_S, _MANY, _STEPS_LOW, _STEPS_HIGH, _STEPS_LEAST = 5.0, 6, 30, 200, 5
#: One part of so many of the budget is the most that the measured steps of a run take: a short budget has several runs, too.
_PARTS = 20
#: A block takes as many steps as take `_BLOCK_S`, within these limits; and fewer if a step takes longer than `_LONG_S`.
_BLOCK_S, _BLOCK_LOW, _BLOCK_HIGH, _BLOCK_LONG = 0.12, 4, 100, 3
#: Pairs of blocks: as many as take `_BLOCKS_S` or, if steps were asked for, make `_TIMES` as many; within these limits.
_BLOCKS_S, _TIMES, _PAIRS_LOW, _PAIRS_HIGH = 10.0, 4, 8, 30


def enough_s(budget_s: float) -> float:
    """Return how long the measured steps of a run take (s)."""
    return min(_ENOUGH_S, budget_s / _PARTS)


def first(steps: int | None, budget_s: float) -> RunPlan:
    """Return the plan of the first run: ``steps`` if they were asked for, else as many as take some seconds."""
    return RunPlan(_WARM, steps or _STEPS_HIGH, 0.0 if steps else enough_s(budget_s))


def like(run: TrialRun, asked: int | None) -> RunPlan | None:
    """Return the plan of runs that make the steps of ``run``, None if that is no measure for others."""
    if run.outcome != "measured" or run.step_ns / 1e9 > _LONG_S:
        return None
    return _with_blocks(run.record["warm"], run.record["steps"] - run.record["warm"], run.step_ns / 1e9, asked)


def after(run: TrialRun, asked: int | None, budget_s: float) -> RunPlan:
    """Return a plan of steps enough, or as many as were ``asked`` for; in a program that ends, as many as it has."""
    step_s = run.step_ns / 1e9
    warm = _WARM if not step_s > _LONG_S else _WARM_LONG
    steps, seconds = asked, enough_s(budget_s)
    if steps is None and step_s > 0:
        steps = min(max(round(seconds / step_s), _STEPS_LOW), _STEPS_HIGH)
        steps = max(_STEPS_LEAST, min(steps, round(seconds * _MANY / step_s)))
    steps = steps or _STEPS_LOW
    if run.outcome == "ended":  # the last step holds what comes after the loop
        possible = run.record["steps"] - 1
        warm = min(warm, max(2, possible // 4))
        steps = min(steps, possible - warm)
    return _with_blocks(warm, steps, step_s, asked)


def _with_blocks(warm: int, steps: int, step_s: float, asked: int | None) -> RunPlan:
    if not step_s > 0:
        return RunPlan(warm, steps)
    size = min(max(round(_BLOCK_S / step_s), _BLOCK_LOW), _BLOCK_HIGH) if step_s < _LONG_S else _BLOCK_LONG
    block_steps = _BLOCKS_S / step_s if asked is None else _TIMES * asked
    pairs = min(max(round(block_steps / (2 * size)), _PAIRS_LOW), _PAIRS_HIGH)
    return RunPlan(warm, steps, 0.0, pairs, size)


def shared(plan: RunPlan, unchanged: TrialRun, share_s: float) -> RunPlan:
    """Return the plan with as many pairs of blocks as fit into ``share_s`` beside what a run without blocks takes.

    `_PAIRS_LOW` at least: fewer decide nothing. ``unchanged`` is a run of the plan; it has no blocks.
    """
    if not plan.pairs:
        return plan
    room = share_s - unchanged.wall_s
    fit = int(room / (2 * plan.block_steps * unchanged.step_ns / 1e9)) if room > 0 else 0
    return replace(plan, pairs=min(plan.pairs, max(_PAIRS_LOW, fit)))


def changed_s(plan: RunPlan, unchanged: TrialRun) -> float:
    """Return what a run with a change takes (s), with its start and as few blocks as decide, if the change costs no time itself."""
    return unchanged.wall_s + 2 * min(plan.pairs, _PAIRS_LOW) * plan.block_steps * unchanged.step_ns / 1e9
