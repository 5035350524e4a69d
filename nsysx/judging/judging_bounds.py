"""The numbers that the room ``judging`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- capture_checks ---------------------------------------------------------------------------------------------
#: Reports of this and older major versions of the export were read (2.x in nsys 2019.6 to 3.25 in 2026.2).
NEWEST_READ_SCHEMA = 3

# ---- gpu_work_checks --------------------------------------------------------------------------------------------
#: GPU work that starts this long before its call (ns) is a warning. Chosen.
MOST_SKEW_NS = 1_000_000

# ---- gpu_work ---------------------------------------------------------------------------------------------------
#: Modules are named if the largest has this share of the GPU's work; a second one needs the lower share.
FIRST_MODULE_SHARE, SECOND_MODULE_SHARE = 1 / 3, 0.2
#: A kind of work is named from this share of all work on; for a module, if it is half of the module's work.
KIND_OF_WORK_SHARE, MOST_OF_MODULE_SHARE = 0.1, 0.5

# ---- growth -----------------------------------------------------------------------------------------------------
#: A kernel is named if it makes this share of the growth; the steps at the beginning and at the end are this part of all.
GROWING_KERNEL_SHARE, GROWTH_PART_OF_STEPS = 0.15, 4
GROWING_KERNEL_LETTERS = 60

# ---- limit_causes -----------------------------------------------------------------------------------------------
#: Pauses of Python with this share of the idle time are told before the line in which they lie.
IDLE_IN_PAUSES_SHARE = 0.5

# ---- limit_words ------------------------------------------------------------------------------------------------
#: From this share of the step on, a cause that could be removed limits it.
LIMITING_SHARE = 0.15
#: From this share of the step on, a sentence on what else limits it begins with the GPU's own work: readers took "communication-bound"
#: at 17 % of a step beside 82 % of compute for a mistake. Chosen.
MOSTLY_WORK_SHARE = 2 / 3
#: A part below this share of the step, such as waiting for other ranks, is not worth a word.
NOTABLE_PART_SHARE = 0.01
#: From this share of the copy time on, the main direction stands for all copies; above the second, for most of them.
NEARLY_ALL_COPIES_SHARE, MOST_COPIES_SHARE = 0.95, 0.5
#: A cause of this share of the idle time is the cause of all of it: with 0.9 a headline blamed one for a tenth that the bar below gives
#: to others.
ALL_IDLE_OF_CAUSE_SHARE = 0.98

# ---- line_of_most -----------------------------------------------------------------------------------------------
#: A line with this share of the idle time, or of the GPU's work, is named as where it is; one with the last share of the work
#: calls the whole model, which says nothing.
IDLE_AT_LINE_SHARE, GPU_AT_LINE_SHARE, WHOLE_AT_LINE_SHARE = 0.4, 0.4, 0.9
#: Of a function that has as much together, the lines from the first to the last with this share of it are named; further apart than
#: this (a screen of an editor) they are no place. Chosen.
MUCH_OF_FUNCTION_SHARE, LINES_OF_A_PLACE = 0.1, 40

# ---- limits -----------------------------------------------------------------------------------------------------
#: In a capture without steps, a pause of the host this long (ns) is some other part of the program, not GPU work. People and
#: other programs take this long; a training loop that does would have steps, which were not recognized.
OTHER_PART_PAUSE_NS = 100_000_000
#: A recorded step this much longer than the real one is worth mentioning (share of the real one).
SAME_STEP_SHARE = 0.05

# ---- other_work -------------------------------------------------------------------------------------------------
#: Work of others for less than this share of the steps changes no figure that is shown.
OTHERS_WORK_SHARE = 0.01

# ---- probe_checks -----------------------------------------------------------------------------------------------
#: Of ranks that do not close the windows themselves, up to so much of their ranges lies in the steps in which they close.
ACROSS_WINDOWS_SHARE = 0.05
#: From this share of a step on, the cost of profiling is worth a warning.
COSTLY_PROFILING_SHARE = 0.05
#: From this share of unmatched launches on, the modules miss enough to warn about. A program that compiles anew in its steps has 3 to 12 %.
UNMATCHED_LAUNCHES_SHARE = 0.03

# ---- program ----------------------------------------------------------------------------------------------------
#: When PyTorch 2.0, the first with torch.compile, came out: 2023-03-15, in ns since 1970.
TORCH_2_NS = 1_678_838_400_000_000_000

# ---- rank_verdict -----------------------------------------------------------------------------------------------
#: Below this share of the step, transferring the data itself is no problem.
NO_NETWORK_PROBLEM_SHARE = 0.02
#: Of what ranks make each other wait, this part decides why.
RANKS_WAIT_MOSTLY_SHARE = 0.5
#: Exposed communication of which this share is waiting for hosts is no matter of links: it takes twice as long as its transfers. Chosen.
MOSTLY_WAITING_SHARE = 2 / 3

# ---- rank_waiting -----------------------------------------------------------------------------------------------
#: A rank that comes last in this share of the collectives, and causes this share of all waiting, is the one that is waited for.
LAST_RANK_SHARE = 0.75
#: From so many common steps on it is tested whether a rank is late in each. Chosen: of fewer no spread is known.
STRAGGLER_FEWEST_STEPS = 3

# ---- sample_checks ----------------------------------------------------------------------------------------------
#: If more of the idle time in host code than this has no sample, the lines say too little (share).
MUCH_UNSAMPLED_SHARE = 0.15

# ---- step_checks ------------------------------------------------------------------------------------------------
#: Fewer steady steps than this are too few.
FEW_STEADY_STEPS = 5

# ---- unprofiled_checks ------------------------------------------------------------------------------------------
#: A step whose bounds are further apart than this share of it is only roughly known.
WIDE_BOUNDS_SHARE = 0.2

# ---- verdict ----------------------------------------------------------------------------------------------------
#: From this share of the step on, the GPU's own work is the limit if nothing else is.
GPU_IS_LIMIT_SHARE = 0.5
#: If the passes per step are this far from a whole number, they are no regular pattern.
WHOLE_PASSES_SHARE = 0.2

# ---- waiting ----------------------------------------------------------------------------------------------------
#: A size is one number, and the kernels that need it are launched next; no more calls than this lie between.
SIZE_COPY_BYTES, CALLS_UNTIL_SIZED_KERNELS = 8, 8
#: A place is listed if it waits, or leaves the GPU idle, for this share of the steps; and at most this many are.
LISTED_WAIT_SHARE, MOST_WAIT_PLACES = 0.001, 8

# ---- window_checks ----------------------------------------------------------------------------------------------
#: A step is long if it takes so many times as long as their median.
LONG_STEP_TIMES = 1.5
#: Quarters of so many bare steps are compared, and differ from this share of the mean on.
BARE_QUARTERS, BARE_DRIFT_SHARE = 4, 0.02

# ---- late_hosts -------------------------------------------------------------------------------------------------
#: A line stands out at which the GPU of a late rank idles for more than this share of what it idles in all lines (chosen).
HOLDING_LINE_OF_IDLE_SHARE = 0.3

# ---- host_pace --------------------------------------------------------------------------------------------------
#: Where a change saves this share of a step, as much as other advice must save, nobody asks what the host alone takes (chosen).
LITTLE_KNOWN_SHARE = 0.05

# ---- stages_in_turn -------------------------------------------------------------------------------------------------
#: Stages work in turn where they compute at once for no more than this share of what could be. Kernels of a stage that begin so soon behind
#: the one before (ns) are one piece of work, with the host's launches between them. Both chosen; two micro-batches leave about a half.
STAGES_AT_ONCE_SHARE, WITHIN_STAGE_NS = 0.1, 200_000

# ---- uneven_stages --------------------------------------------------------------------------------------------------
#: Stages of a pipeline are cut unevenly where the longest has so many times the GPU work that they have on average: layers are
#: units that are not cut further, and embedding and head lie at the ends.
UNEVEN_STAGES_TIMES = 1.25
#: From so many times on they are not called equal, and are cut otherwise where it is known what whole layers of them take: 6 and 6 layers
#: with a head and a loss behind the last took 1.19 times, and 1.05 times as long a step as 8 and 4 (two ranks that share an H200).
UNLIKE_STAGES_TIMES = 1.1
#: Hosts hold an even cut up where it would save less than this share of a step: as much as other advice must save (chosen).
HELD_BY_HOSTS_SHARE = 0.05
#: Layers and samples are not cut further: even stages, and even batches, are so to about this share of what evening them out saves.
UNEVEN_CUT_SHARE = 0.2
