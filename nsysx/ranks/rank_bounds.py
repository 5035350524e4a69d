"""The numbers that the room ``ranks`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- collect ----------------------------------------------------------------------------------------------------
#: This many kernels are enough to tell whether a device runs all of them slower.
MOST_COMPARED_KERNELS = 60
#: A rank of so many digits is none.
MOST_RANK_DIGITS = 10

# ---- collective_costs -------------------------------------------------------------------------------------------
#: Ranks whose lateness is told by itself at most.
MOST_LATE_RANKS = 6

# ---- communication_places ---------------------------------------------------------------------------------------
#: Places that are told by themselves, for each rank; what is left is one row without a place.
MOST_COMMUNICATION_PLACES = 12

# ---- few_steps --------------------------------------------------------------------------------------------------
#: In one or two steps alone a rank has far more work if it is behind by this share of them: no interval tells what is chance. Chosen: the
#: second half of a causal sequence makes half of a step, while a rank's host code differs by a few per cent.
FAR_BEHIND_SHARE = 0.2
#: Such steps are like all others if bare ones lie no further apart than this share of their length, and the recorded ones no further from
#: them. Chosen: bare steps of a rank that always has as much lay within 4 %; lengths drawn for each step differ by far more.
LIKE_BARE_STEPS_SHARE = 0.1
#: It is behind by its GPU work where that makes this share of the delay. Chosen.
MOST_WORK_SHARE = 0.8

# ---- job_ledger -------------------------------------------------------------------------------------------------
#: Ranks that have rows of their own at most: of more those that wait least and longest.
MOST_LEDGER_RANKS = 16

# ---- job_whatif -------------------------------------------------------------------------------------------------
#: Links that are listed where nothing is asked for: so many times as fast.
FASTER_LINKS_TIMES = 2

# ---- late_lines -------------------------------------------------------------------------------------------------
#: Lines of a rank that are kept: those that take longest.
MOST_KEPT_LINES = 60
#: A line is a rank's own if it takes this many times as long as on its peers.
OWN_LINE_TIMES = 2.0
#: A rank makes calls of its own if it makes this many times as many as its peers. Chosen: in 29 recorded jobs of equal ranks they make
#: the same number within 0.1 %; one that alone reads the norms of its gradients made 1.8 times as many.
OWN_CALLS_TIMES = 1.1
#: Lines that are told at most.
MOST_LATE_LINES = 5

# ---- late_work --------------------------------------------------------------------------------------------------
#: Kinds of work at lines that are kept for each rank: those that take longest; what is left of a kind has no line.
MOST_KEPT_WORK_PLACES = 120
#: A surplus lies in one kind of work if that holds this share of it, and all others together differ by no more than this share of what
#: they take on the peers. Rank 1 of a causal sequence split at its middle: all of it in attention, the others differ by 6 %.
ONE_KIND_SHARE, ALIKE_WORK_SHARE = 0.8, 0.1
#: A call holds no more than this share of all work of a kind, where that is what it deals out: the call of a whole step holds all of it.
MOST_DEALT_SHARE = 0.9
#: All others together are this share of the peers' work or more: of a program of one kind of work nothing else can tell what is uneven.
OTHER_KINDS_SHARE = 0.1
#: It lies in every kind if kinds with this share of the peers' work take longer by at least half of what all work does.
EVERY_KIND_SHARE = 0.8
#: Kinds that are told at most, each with this share of the surplus or more.
MOST_LATE_KINDS, NOTABLE_KIND_SHARE = 5, 0.02

# ---- lone_work --------------------------------------------------------------------------------------------------
#: Others wait for an evaluation if it runs in this share of the time in which they wait.
DURING_EVALUATION_SHARE = 0.5
#: They wait for longer than this share of a step, or it is not worth a word.
NOTABLE_EVALUATION_SHARE = 0.25
#: A rank that waits has done its part of an evaluation if it has evaluated for this share of the time that the late one does: contiguous
#: halves of a sorted pool take 2.5 times as long as each other; a teacher's one pass in a step is far less than an evaluation.
ITS_PART_SHARE = 0.2

# ---- late_at_times ----------------------------------------------------------------------------------------------
#: A rank is late in a step if it takes longer than its peers, and than it usually does, by so many times a usual step: a pause of the host
#: is shorter, or comes to all ranks in turn. Chosen.
LATE_STEP_TIMES = 0.5
#: By how much it usually is behind is this quantile of its steps. Two healthy processes with `.item()` in each step were 7 to 14 ms apart,
#: in steps of 24 ms.
USUAL_BEHIND_SHARE = 0.25
#: A step in which it is late by less than this share of what it is late by in the middle one of all such steps is late for another reason:
#: one pause of 21 ms beside four refreshes of 190 ms. Chosen.
LEAST_LATE_SHARE = 0.25
#: It is late in this share of them at most: beyond, it always is.
MOST_LATE_STEPS_SHARE = 0.5
#: Of all that ranks are late by in single steps it makes this share, and this share of all steps: a note of less is of no use. Chosen.
ALONE_AT_TIMES_SHARE, LATE_AT_TIMES_SHARE = 0.8, 0.05

# ---- work_at_times ----------------------------------------------------------------------------------------------
#: In late steps peers have a part of what a rank computes then if it is this share of the rank's: one of 20 items of equal cost. What
#: usual steps hold varies by less.
LEAST_PART_SHARE = 0.05
#: The kind of work that is told holds this share of what the rank has more of. Chosen.
ONE_KIND_AT_TIMES_SHARE = 0.5

# ---- match ------------------------------------------------------------------------------------------------------
#: Ranks take part in one collective if their kernels for it run at the same time; this share of a sequence has to.
COLLECTIVES_TOGETHER_SHARE = 0.8
#: Data may arrive before the receiver asks for it, so fewer sends and receives run at the same time (two H200s with NVLink, a
#: pipeline of two stages: 75 %).
SENDS_TOGETHER_SHARE = 0.5
#: Shifts between two ranks' collectives that are tried. Chosen: each compares all of them.
MOST_SHIFTS = 256
#: The n-th steps of all ranks are the same one if they hold the same collectives, so many of them. Chosen: one at a border may be cut.
SAME_STEPS_SHARE = 0.9

# ---- one_job ----------------------------------------------------------------------------------------------------
#: So many foreign reports are named.
MOST_FOREIGN_REPORTS = 8

# ---- other_lanes ------------------------------------------------------------------------------------------------
#: Other ranks that are drawn at most, the lanes of a picture with them, how many have room even beside many lanes, and streams of each.
MOST_DRAWN_RANKS, MOST_DRAWN_LANES, FEWEST_DRAWN_RANKS, MOST_DRAWN_STREAMS = 7, 14, 3, 2
#: Boxes of all their lanes together.
MOST_DRAWN_SPANS = 3_000

# ---- own_time ---------------------------------------------------------------------------------------------------
#: More ranks than these are not replayed together: each takes 0.1 s.
MOST_REPLAYED_RANKS = 16
FEWEST_REPLAYED_STEPS = 3
#: A replay of all ranks that is this far (share) off the recorded steps is none. In 15 recorded jobs it is off by 2.5 % at most; ranks that
#: meet in each tenth step alone, one of them on a slow clock, by 58 %.
MOST_JOB_ERROR_SHARE = 0.2
#: Ranks are one job only if this share of a rank's matched collectives has its counterparts in the replayed steps of the others.
REPLAYED_TOGETHER_SHARE = 0.8
#: Steps of a rank have as much GPU work if it differs by no more than this share of their mean; a step with so many times as much as the
#: median one has something that the others do not hold. Chosen: the same kernels take up to a tenth longer as clocks change.
ALIKE_STEPS_SHARE, FAR_MORE_TIMES = 0.15, 1.5

# ---- parallel_reading -------------------------------------------------------------------------------------------
#: With fewer bytes to read than this, starting workers takes longer than the work.
POOL_BYTES = 24_000_000
#: Threads of polars in each process that reads a report: more of them wait for each other.
MOST_READING_THREADS = 4
#: How long a cluster may take to answer.
CLUSTER_ANSWER_S = 10.0

# ---- rank_checks ------------------------------------------------------------------------------------------------
#: The clocks of one host agree better than this (ns); more is worth a warning.
CLOCKS_AGREE_NS = 1_000_000
#: Ranks that a sentence names. Chosen.
NAMED_RANKS = 8

# ---- rank_table -------------------------------------------------------------------------------------------------
#: Ranks whose rows stand in their order; of more, those that the others wait for most come first.
MOST_RANKS_IN_ORDER = 8

# ---- rank_waits -------------------------------------------------------------------------------------------------
#: Steps that are listed one by one; of more, neighbors are listed together.
MOST_LISTED_STEPS = 60

# ---- straggler --------------------------------------------------------------------------------------------------
#: A rank is called a straggler if it makes the others wait for this share of a step.
STRAGGLER_SHARE = 0.01
#: The chance that a group of equal ranks shows a straggler.
FALSE_ALARM_CHANCE = 0.05
#: On a slower clock nearly all kernels of equal shape take longer, by at least this share.
SLOWER_CLOCK_SHARE = 0.01
#: Without samples no clock is taken to drop this far (share): kernels that take this much longer do more work.
SLOWEST_CLOCK_SHARE = 1.0
#: A sampled clock that is lower than the peers' by this share is another one: equal GPUs at their power limit differed by up to 3 %. What
#: it explains of a rank's delay, so that the clock is the cause.
LOWER_CLOCK_SHARE, LATE_BY_CLOCK_SHARE = 0.1, 0.5
#: A rank does the same work as its peers where no more of it (share) is in kernels that they do not run as large and as often. Chosen: in
#: networks of matrix products what shows the number of rows (activations, norms) takes a tenth of the time.
SAME_KERNELS_UNLIKE_SHARE = 0.05
#: In an earlier window, a straggler comes last in this share of the collectives of its second half, if there are so many. Of five jobs
#: of equal ranks on two H100s, the rank that comes last was another one in each window in four; one that sleeps was last in 94 %.
LAST_BEFORE_SHARE, FEWEST_COLLECTIVES_BEFORE = 0.75, 8

# ---- work_in_turn -------------------------------------------------------------------------------------------------
#: Ranks wait for each other's GPU work if it explains this share of their waiting, what it would by chance taken off.
WAITS_FOR_WORK_SHARE = 0.5

# ---- uneven -----------------------------------------------------------------------------------------------------
#: A GPU that works for this share of the step leaves no time to anything else.
GPU_BOUND_SHARE = 0.9
#: Uneven work is the cause if this share of the work of a rank is in kernels that its peers do not run alike.
UNLIKE_KERNELS_SHARE = 0.5
#: Kernels that are told at most.
MOST_UNEVEN_KERNELS = 5

# ---- unreadable_reports -----------------------------------------------------------------------------------------
#: So many of them are named.
MOST_UNREADABLE_REPORTS = 8
