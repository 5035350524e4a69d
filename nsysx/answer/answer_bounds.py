"""The numbers that the room ``answer`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- __init__ ---------------------------------------------------------------------------------------------------
#: A step at best below this share of the step now is no figure (chosen: nobody plans with "30x at best"): the replay's stands in its place.
NOTHING_LEFT_SHARE = 0.1

# ---- advised_cause ----------------------------------------------------------------------------------------------
#: A finding that costs this share of the time that limits the step is about all of it (chosen).
WHOLE_CAUSE_SHARE = 0.9
#: Of several changes the first one names what is to be fixed if it wins this share of what all of them win (chosen).
FIRST_OF_SEVERAL_SHARE = 0.25

# ---- bars -------------------------------------------------------------------------------------------------------
#: Parts of a bar below this share are shown together.
SMALL_PART_SHARE = 0.02
#: Bars in a picture, and named parts of a bar by module or kind of work.
MOST_BARS, MOST_NAMED_PARTS = 8, 5
#: A bar whose parts without a name are more than this says nothing (share).
MOST_UNNAMED_SHARE = 0.5
#: Single steps shown to say how long each waits for its batch; more would say the same.
MOST_BATCH_BARS = 3
#: Two sums that differ by less than this are the same work (share).
SAME_WORK_SHARE = 0.01
#: A GPU busy for this share of the step is pictured by what it works on.
BUSY_GPU_SHARE = 0.8
#: The window of a capture without steps is shorter than the GPU's by this share where long pauses are left out.
PAUSED_WINDOW_SHARE = 0.02
#: What is left of a bar is a part of its own from here on (ns): less is rounding.
LEAST_REST_NS = 0.5

# ---- certainty --------------------------------------------------------------------------------------------------
#: A rank that is late by its work is told to come last where it does so in this share of the collectives: most of them.
LAST_IN_MOST_SHARE = 0.5
#: A step without the profiler that is known this closely raises no doubt, wherever it comes from (share of the step).
CLOSELY_KNOWN_SHARE = 0.03
#: Letters of a check's detail that a reason quotes.
QUOTED_DETAIL_LETTERS = 150
#: A GPU that idles under the profiler may be busy in the real step. Above the first share its idle time is only a likely limit,
#: above the second an unknown one.
MOSTLY_BUSY_SHARE, ALL_BUSY_SHARE = 0.75, 0.95
#: Steps of one kind of work differ in length by less than this factor, without the shortest and the longest tenth.
UNEVEN_STEPS_TIMES = 3.0

# ---- change_savings ---------------------------------------------------------------------------------------------
#: What is replayed is told beside a bound if the two steps differ by this share.
REPLAY_APART_SHARE = 0.1
#: Most changes that come before one for the whole program. A recording of a graph network has some.
MOST_CHANGES_BEFORE = 2
#: Of changes that were tried, nine in ten made a program faster by a factor between these powers of the likely one, beyond the errors of
#: the replay and of the step. With 0.75 below, 2 of 6 programs that nobody had seen gained less than that holds, and none gained more than
#: 1.5 does. `tests/answer/test_tried_savings.py` and `tests/answer/test_tried_programs.py` hold them.
TRIED_LEAST_POWER, TRIED_MOST_POWER = 0.6, 1.5
#: The same upper power of remedies of which each program that was tried gained more than that holds: powers of 1.7 and 2.7 would have
#: (in `tests/answer/tried_programs.json`). Convolutions that determinism slows down are not counted.
WIDER_MOST_POWERS = {"not-deterministic": 3.0}
#: The work that a change leaves takes this much less time in another run (share of it).
WORK_REPEATS_SHARE = 0.02

# ---- clock_bars -------------------------------------------------------------------------------------------------
#: cuda.Event windows in a picture, and how many times the median a reading may be before it is left out.
MOST_EVENT_WINDOWS, OUTLYING_READING_TIMES = 6, 20

# ---- factors ----------------------------------------------------------------------------------------------------
#: A change saves at most this share of a step.
MOST_SAVED_SHARE = 0.99

# ---- first_action -----------------------------------------------------------------------------------------------
#: An exact change is worth a word of its own from this share of the step on, and stands behind a bound that promises more than
#: so many times as much.
EXACT_CHANGE_SHARE, BOUND_LEADS_TIMES = 0.15, 3.0
#: Before a program is divided among its ranks in another way, what saves this share of the step for sure is done as it is; what nobody
#: meant is done before all of it is compiled, too (chosen).
NOTABLE_BEFORE_SHARE = 0.1
#: A compiler that fuses what it can has to promise more than so many times what work saves that was recorded (`Rule.direct`).
COMPILER_LEADS_TIMES, RECORDED_DIRECTNESS = 2.0, 2
#: A change whose saving nobody can compute is still advised where its cause costs this share of the step.
UNPRICED_CAUSE_SHARE = 0.3
#: A setting that is known to cost this share of the step comes first, too; nothing does that saves less: all four programs of 156 that
#: were led by less had no fault there. Nor does what fuses or launches whatever stands there: that is an option of any program.
LEAST_LEADING_SHARE = 0.05
#: Of a bound of what fewer launches could gain half may be had: below this share of the step that is less than leads.
BOUND_OF_ANYTHING_SHARE = 0.1

# ---- near_limits ------------------------------------------------------------------------------------------------
#: Work below this share of the step decides nothing about how near the step is to its limits. A program of products has some of 5 to 20 %.
NEAR_LIMIT_STEP_SHARE = 0.05
#: Work whose limits are known for less of its time than this is not told by its limits.
KNOWN_LIMITS_SHARE = 0.5
#: A line that launches this share of the GPU's work is where most of it is (chosen: two or three such lines are a part of a program that
#: one can look at).
LINE_OF_WORK_SHARE = 0.25
#: Kernels of a step that together take longer than it by this share overlap.
OVERLAPPING_SHARE = 0.02
#: From this share of its limit on there is nothing to gain by the same operators.
NEAR_LIMIT_SHARE = 0.8

# ---- moved_most -------------------------------------------------------------------------------------------------
#: An operator, or a line, that multiplies nothing is what to look at where it takes so much of the GPU's time of a step. Chosen: a network
#: of many small layers has this of all elementwise operators together, not of one.
MOVED_MOST_SHARE = 0.4

# ---- others -----------------------------------------------------------------------------------------------------
#: A finding whose saving is not known is a line of its own where it costs at least this part of the step.
UNKNOWN_SAVING_COST_SHARE = 0.2
#: Most lines under "also found", and most of them from one rule.
MOST_ALSO_FOUND, MOST_OF_A_RULE = 5, 2
#: A change that saves more than so many times what its title names removes other time, too, and the line says so.
MORE_THAN_NAMED_TIMES = 1.05
#: Letters of a title that are read: the rest is cut wherever it is shown. One public capture has titles of more than 110.
TITLE_LETTERS = 440
#: Where the GPU waits for host code for this share of the step, a run that finds the lines is worthwhile.
MUCH_HOST_CODE_SHARE = 0.1
#: A wait is worth a word from this share of the device's window; a saving below the other share of the wait is little of it.
LONG_WAIT_SHARE, LITTLE_SAVING_SHARE = 0.05, 0.2

# ---- unnamed ----------------------------------------------------------------------------------------------------
#: A capture without steps in which the GPU works for less than this share of its time, on fewer operations than this: start-up. Chosen.
LITTLE_WORK_SHARE, LITTLE_WORK_OPS = 0.01, 100
#: A step in which the GPU idles for a larger share than this is not left to its work.
MOSTLY_IDLE_SHARE = 0.5
#: A step that takes this share of its time with a GPU that has nothing to do is paced by its host: of two such jobs on two H200 (0.86 and
#: 0.95) half of a network's kernels, and the copies around each convolution, were taken off, and their steps stayed as long.
PACED_BY_HOST_SHARE = 0.85

# ---- remarks ----------------------------------------------------------------------------------------------------
#: Letters of a detail on a card: what goes beyond is told with the finding.
CARD_DETAIL_LETTERS = 220
