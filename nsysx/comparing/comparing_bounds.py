"""The numbers that the room ``comparing`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- budget -----------------------------------------------------------------------------------------------------
#: Headroom that --init leaves above a measured time (factor), at least; and the share of the step below which it sets no limit,
#: because two captures of one program differ by as much.
BUDGET_ROOM_TIMES, BUDGET_LEAST_SHARE = 1.05, 0.01
#: So many known names stand in a message.
MOST_NAMED_KNOWN = 20
#: Calls per step beyond a whole allowed number that are no breach: what only some steps do, such as logging.
SELDOM_CALLS = 0.5

# ---- comparability ----------------------------------------------------------------------------------------------
#: The programs share their kernels if those on both sides take this share of GPU time.
SAME_KERNELS_SHARE = 0.5
#: Two programs with names of their modules, at least so many each, share them if those on both sides take this share of their GPU
#: time. Of the sample reports, pairs of one program reach 1.0 and pairs of two at most 0.04.
FEWEST_NAMED_MODULES, SAME_MODULES_SHARE = 3, 0.2
#: With equal clocks, unchanged kernels differ by less than this share.
EQUAL_CLOCKS_SHARE = 0.015
#: If step counts differ by more than this factor, so do warm-up and caches.
STEP_COUNTS_TIMES = 4.0
#: Counts per step that differ by no more are the same: both are quotients of whole numbers.
SAME_PER_STEP = 1e-9
#: Kernels from which a clock is told to be another. Chosen.
FEWEST_EQUAL_KERNELS = 5
#: A value that both sides share is shown if it has fewer letters. Chosen.
MOST_VALUE_LETTERS = 100

# ---- comparison -------------------------------------------------------------------------------------------------
#: A step is GPU-bound, and follows its GPU work, if the device waits for the host or other ranks for at most this share of it.
GPU_BOUND_WAIT_SHARE = 0.1
#: Compute time is split by module if modules account for this share of it.
MODULES_ATTRIBUTED_SHARE = 0.5
#: Most parts that are named one by one; the smaller ones share one part, so that the sum holds.
MOST_NAMED_PARTS = 20
#: GPU-bound steps with the same GPU work are the same if they differ by no more than this many margins.
SAME_WORK_MARGINS = 2

# ---- comparison_sentence ----------------------------------------------------------------------------------------
#: Most parts that a sentence names, and the share of the difference that one needs to be worth naming.
MOST_SENTENCE_PARTS, SENTENCE_PART_SHARE = 3, 0.02
#: Causes of idle time that make up less than this share of the difference are named together.
OWN_CAUSE_SHARE = 0.1
#: Differences from which the unit is ms and us (ns), and the number from which one digit follows the point: two or three digits
#: are seen.
SHOWN_IN_MS_NS, SHOWN_IN_US_NS, ONE_DIGIT_FROM = 1e5, 100, 10

# ---- difference_answer ------------------------------------------------------------------------------------------
#: The share of the step before below which a part that differs, and a row, is named in no answer: tables have it.
NAMED_PART_SHARE = 0.01

# ---- difference_intervals ---------------------------------------------------------------------------------------
#: GPU work differs by up to this share from process to process: clocks, temperature, addresses (measured on one H200).
GPU_DRIFT_SHARE = 0.005
#: Two means are the same if their difference, with all its doubt, stays within this share.
SAME_MEANS_SHARE = 0.01
#: Confidence for the step, and for single rows: there are hundreds of those, so theirs is higher.
STEP_LEVEL, ROW_LEVEL = 0.95, 0.99
#: A row that differs by less than this share of the step is not worth a verdict of its own.
ROW_FLOOR_SHARE = 0.001

# ---- renamed_modules ------------------------------------------------------------------------------------------------
#: A part of a path with so many digits is no index of a list, but a name.
MOST_INDEX_DIGITS = 10

# ---- side_inputs ------------------------------------------------------------------------------------------------
#: No Summary is this large; a larger file is not read.
MOST_SUMMARY_BYTES = 1_000_000_000
