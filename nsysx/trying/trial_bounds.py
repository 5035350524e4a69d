"""The numbers that the room ``trying`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

from nsysx.inject.nsysx_probe.probe_bounds import TRIAL_FEWEST_PAIRS

# ---- chosen_changes ---------------------------------------------------------------------------------------------
#: Most remedies of a report that are tried unless others are asked for.
MOST_TRIED_REMEDIES = 3

# ---- plans ------------------------------------------------------------------------------------------------------
#: Steps that warm up, and those of a program whose step takes longer than `LONG_STEP_S`.
WARM_UP_STEPS, WARM_UP_STEPS_LONG, LONG_STEP_S = 10, 3, 2.0
#: Measured steps of a run: as many as take `MEASURED_S`, within these limits, but not more than take `MEASURED_TIMES` times that.
MEASURED_S, MEASURED_TIMES, MEASURED_STEPS_LOW, MEASURED_STEPS_HIGH, MEASURED_STEPS_LEAST = 5.0, 3, 30, 200, 5
#: One part of so many of the budget is the most that the measured steps of a run take: a short budget has several runs, too.
BUDGET_PARTS = 20
#: A block takes as many steps as take `BLOCK_S`, within these limits; and fewer if a step takes longer than `LONG_STEP_S`.
BLOCK_S, BLOCK_LOW, BLOCK_HIGH, BLOCK_LONG = 0.12, 4, 100, 3
#: Pairs of blocks: as many as take `BLOCKS_S` or, if steps were asked for, make `PAIRS_TIMES` as many; within these limits.
BLOCKS_S, PAIRS_TIMES, PAIRS_LOW, PAIRS_HIGH = 10.0, 4, 8, 30
#: Pairs of blocks of a first run that has the change: so many that the interval leaves out one pair on each side.
FIRST_RUN_PAIRS = 12

# ---- same -------------------------------------------------------------------------------------------------------
#: Rounding may alter this much of the first update: the square root of the numbers' spacing, times this; of the first few, which it
#: grows in, the fourth root. With AdamW and float32, 1.4e-3 and 0.07: rounding gave 1e-7 and 2e-4, a rate that is 1 % off 1e-2, no
#: decay 4e-3. In bfloat16, 0.35: autocast gave 0.15.
ROUNDING_TIMES = 4.0
#: Differences are told from those of unchanged runs if they are so many times as large.
DIFFERENT_TIMES = 10.0
#: Weights that differ by more than this (relative) are not the same.
LEAST_WEIGHT_DIFFERENCE = 1e-4
#: Sums in float64 differ by this much by themselves (relative).
FLOAT64_SUMS_DIFFERENCE = 1e-12
#: A loss so many times as high as all of the unchanged run is no longer learning.
DIVERGED_LOSS_TIMES = 2.0

# ---- session ----------------------------------------------------------------------------------------------------
#: A budget below this (s) begins with a change that is turned off and on in the first run: two starts of 16 s, as were measured, leave
#: nothing of 44 s.
SHORT_BUDGET_S = 60.0
#: Pairs that each change gets; more than the second do not decide either, nor do more runs of blocks than `MOST_BLOCK_RUNS`.
FEWEST_PAIRS, MOST_PAIRS, MOST_BLOCK_RUNS = 3, 20, 5
#: While no change has run, a second start is hoped to take this share of the first one, which read its files from the disk. Chosen.
LATER_START_SHARE = 0.4
#: What is left for writing and ending a run (s, and share of the budget at most).
ENDING_S, ENDING_SHARE = 1.5, 0.05
#: A step this many times the unchanged one is no step any more.
HANGING_STEP_TIMES = 10

# ---- trial_run --------------------------------------------------------------------------------------------------
#: A program with fewer steps than this cannot be measured.
FEWEST_PROGRAM_STEPS = 8
#: Pairs of blocks in a run that tell more than a pair of runs.
FEWEST_BLOCK_PAIRS = TRIAL_FEWEST_PAIRS
#: How often a run is asked whether it has ended (s).
RUN_POLL_S = 0.05
#: How long other ranks of a job get to finish after the first one (s).
OTHER_RANKS_END_S = 10.0
#: How much of a run's output is kept to say why it failed.
KEPT_LOG_BYTES = 200_000

# ---- trial_steps ------------------------------------------------------------------------------------------------
#: A step is the median over this many blocks of steps.
BLOCKS_OF_STEPS = 5

# ---- trial_sentences --------------------------------------------------------------------------------------------
#: Names of changes that were not tried for lack of time; of more it is said how many there are.
MOST_UNTRIED = 8
#: Steps are told to differ if their 90th percentile is this many times the 10th.
UNLIKE_STEPS_TIMES = 3
#: Weights that differ so many times as much at the end as early on: the difference grew.
GROWN_DIFFERENCE_TIMES = 10
#: Per cent from which no digit follows the point, and beyond which an interval says nothing.
WHOLE_PERCENT, WIDEST_PERCENT = 10, 1000
#: A later start from which on it is told (ns). Chosen.
NOTABLE_START_NS = 1e9

# ---- verdicts ---------------------------------------------------------------------------------------------------
#: A step that changes by less than this is the same, wherever in the interval the change lies (share).
SAME_STEP_SHARE = 0.03
#: Confidence of an interval. It is looked at after each pair, so it is higher than that of one look.
PAIRS_LEVEL = 0.98
#: What the steps of two runs of one program differ by (standard deviation, share), where too few pairs of runs show it: as much as
#: those of launch-bound programs, whose runs differ most.
START_SCATTER = 0.05
