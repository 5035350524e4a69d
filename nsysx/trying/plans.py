"""How many steps a run makes."""

from __future__ import annotations

from nsysx.trying.trial_run import RunPlan, TrialRun

#: Steps that warm up, and those of a program whose step takes longer than `_LONG_S`.
_WARM, _WARM_LONG, _LONG_S = 10, 3, 2.0
#: Measured steps of a run: as many as take `_ENOUGH_S`, within these limits, but not more than take `_AT_MOST_S`.
_ENOUGH_S, _AT_MOST_S, _STEPS_LOW, _STEPS_HIGH, _STEPS_LEAST = 5.0, 30.0, 30, 200, 5
#: A block takes as many steps as take `_BLOCK_S`, within these limits; and fewer if a step takes longer than `_LONG_S`.
_BLOCK_S, _BLOCK_LOW, _BLOCK_HIGH, _BLOCK_LONG = 0.12, 4, 100, 3
#: Pairs of blocks: as many as take `_BLOCKS_S` or, if steps were asked for, make `_TIMES` as many; within these limits.
_BLOCKS_S, _TIMES, _PAIRS_LOW, _PAIRS_HIGH = 10.0, 4, 8, 30


def first(steps: int | None) -> RunPlan:
    """Return the plan of the first run: ``steps`` if they were asked for, else as many as take some seconds."""
    return RunPlan(_WARM, steps or _STEPS_HIGH, 0.0 if steps else _ENOUGH_S)


def like(run: TrialRun, asked: int | None) -> RunPlan | None:
    """Return the plan of runs that make the steps of ``run``, None if that is no measure for others."""
    if run.outcome != "measured" or run.step_ns / 1e9 > _LONG_S:
        return None
    return _with_blocks(run.record["warm"], run.record["steps"] - run.record["warm"], run.step_ns / 1e9, asked)


def after(run: TrialRun, asked: int | None) -> RunPlan:
    """Return a plan of steps enough, or as many as were ``asked`` for; in a program that ends, as many as it has."""
    step_s = run.step_ns / 1e9
    warm = _WARM if not step_s > _LONG_S else _WARM_LONG
    steps = asked
    if steps is None and step_s > 0:
        steps = min(max(round(_ENOUGH_S / step_s), _STEPS_LOW), _STEPS_HIGH)
        steps = max(_STEPS_LEAST, min(steps, round(_AT_MOST_S / step_s)))
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
