"""The numbers that the room ``events`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- alignment --------------------------------------------------------------------------------------------------
#: Below this product of lengths every pair may be looked at.
SMALL_ALIGNMENT_PAIRS = 20_000

# ---- attribute --------------------------------------------------------------------------------------------------
#: Rows are looked up in blocks: what is needed in between stays in the cache and costs no new memory.
LOOKUP_BLOCK_ROWS = 1 << 18
#: How often a node of a CUDA graph is followed to the node that it was copied from. Chosen: clones of clones are rare, a circle
#: would not end.
MOST_NODE_COPIES = 16

# ---- bare -------------------------------------------------------------------------------------------------------
#: No step is longer than an hour (ns); a larger value in a file is rejected. From so many steps on, their course is that of the program.
LONGEST_STEP_NS, ENOUGH_BARE_STEPS = 3_600e9, 24
#: A step is long if it takes this share longer than the median, and longer than the usual spread explains; of fewer steps none is. It
#: holds what was recorded between steps if it is longer by half to twice of that. Chosen; measured: 486 ms of 488, 69 ms of 80.
LONG_BARE_STEP_SHARE, BARE_FEWEST_STEPS, AS_LONG_TIMES = 0.2, 4, 2.0
#: What tracing adds to each launch there (ns), and how many times as long what only launches is at most. Measured: 129 ms with 9,200
#: launches for 90, and on another host 200 for 95; loops of single launches take 1.2 to 2.7 times as long.
TRACED_LAUNCH_NS, MOST_TRACED_TIMES = 5_500, 2.7
#: A step waits for its batch if its loader's next takes this share of the median step. That a queue has run dry is told by at least so
#: many waits, behind so many times the longest stretch between two of them without one. Chosen: 32 batches made ahead lasted a
#: program for 51 steps, and its waits came every 2 to 8; a loader that waits once in an epoch waits as often before as behind.
STARVED_WAIT_SHARE, FEWEST_STARVED_WAITS, STOCK_GAPS = 0.2, 4, 2.0
#: Whole rounds of such a loader count where they are this share of the noted steps: of fewer, the mean is of too few.
WHOLE_ROUNDS_SHARE = 0.75

# ---- bare_alone -------------------------------------------------------------------------------------------------
#: A step is alone with its length if it takes so many times the median of at least so many steps, and no other one does; of hundreds, if
#: no more than this share of them do. Chosen: the probe looks where a step is once it takes three times the usual one.
ALONE_STEP_TIMES, FEWEST_STEPS_AROUND, MOST_ALONE_SHARE = 3, 20, 0.01
#: It is none if it waits for its batch for this share of what it takes longer, or if less than this share of it is at usual lines.
WAITED_SHARE_OF_ALONE, USUAL_LINES_SHARE = 0.5, 0.5
#: Steps that stay in the mean are told beside it if they take so many times the median, are no more than this share of all, and the mean
#: is longer with them by this share. Chosen: one of 50 that takes 2.7 times the others adds 3.5 % and is the length of none.
FAR_LONGER_TIMES, MOST_FAR_LONGER_SHARE, MOVED_MEAN_SHARE = 2, 0.05, 0.02

# ---- bare_settled -----------------------------------------------------------------------------------------------
#: Steps behind a window are not settled if they are longer by this share of the later ones, and by so many times the distance of the
#: quartiles of these. Measured on two H200s: 43.1 ms for a second, then 34.4 as without the profiler. Fewer steps, a smaller share of
#: them, a lower standard score, or later ones whose deciles are this share of them apart (a host that drifts: 173 to 226 ms) tell nothing.
UNSETTLED_SHARE, UNSETTLED_SPREADS, LEAST_SETTLED_SCORE, SETTLED_DECILES_SHARE = 0.02, 1.5, 3.15, 0.1
FEWEST_UNSETTLED_STEPS, FEWEST_SETTLED_STEPS, FEWEST_SETTLED_SHARE = 3, 6, 0.25
CALLS_ALONE_TIMES, FEWEST_CALLS_ALONE = 1.7, 2  # whole steps over single calls; ranges too many

# ---- batch_waits ------------------------------------------------------------------------------------------------
#: A wait shorter than this (ns) is no wait for work; a loop takes at least so many batches.
LONG_BATCH_WAIT_NS, FEWEST_BATCHES = 100_000, 3

# ---- beat -------------------------------------------------------------------------------------------------------
#: Sums over so many steps show whether deviations add up; so many steps are needed for a few such sums.
BEAT_SUM_STEPS, BEAT_FEWEST_STEPS = 8, 24
#: On a beat these sums vary as much as one step, else so many times as much as they have steps (variances).
BEAT_SUMS_TIMES = 1.5
#: Steps that differ by less than this share have nothing to make up for; steps on a beat stay within this part of one.
BEAT_LEAST_SPREAD_SHARE, BEAT_APART_SHARE = 0.001, 0.25

# ---- gil --------------------------------------------------------------------------------------------------------
#: A sample tells what a holder ran this many sampling periods before or after.
GIL_SAMPLE_PERIODS = 10

# ---- gpu_samples ------------------------------------------------------------------------------------------------
#: With fewer samples a mean is not given: at 20 kHz these are 0.5 ms of a kernel, at 10 kHz 1 ms.
FEWEST_GPU_SAMPLES = 10
#: A kernel that takes this share of the memory bandwidth and more gains by moving fewer bytes and by nothing else: what is left is the
#: price of turning the memory between reading and writing, and of refreshing it. Measured on an H200: a kernel that reads and writes
#: 4 GB takes 89.8 % (Nsight Compute says 89.3 %); it moves what its bytes over its time say.
MEMORY_BOUND_SHARE = 0.85
#: A share whose standard error is larger than this (points of a share) is not known.
SURE_SHARE_ERROR = 0.03
#: Most kinds of work whose shares are unknowns, samples for each, and the least part of the time that one takes: all others are one.
MOST_SAMPLED_KINDS, SAMPLES_PER_KIND, SMALL_SAMPLED_KIND_SHARE = 60, 4, 0.003
#: So many parts of the samples are left out in turn.
LEFT_OUT_PARTS = 8
#: What two kinds of work have together, and nothing more, is numbered where they always run in one ratio: neither is alone apart then.
SINGULAR_RATIO, APART_RATIO = 1e-8, 1e-3
#: Work that shares this part of its time with other work has no shares: what each of them had is not to be alone apart.
RUN_TOGETHER_SHARE = 0.2
#: Where the device is at work for this share of its idle time, other processes use it.
OTHERS_AT_WORK_SHARE = 0.15
#: A counter is used if it is missing in less than this share of its samples. Chosen.
MOST_EMPTY_SAMPLES = 0.5

# ---- host_activity ----------------------------------------------------------------------------------------------
#: Gaps are split in blocks: what is needed in between stays in the cache and costs no new memory.
GAP_BLOCK_ROWS = 1 << 16

# ---- idle_blame -------------------------------------------------------------------------------------------------
#: A median of fewer is none.
FEWEST_FOR_MEDIAN = 20
#: Where it is not known: the time from the call of a launch to its kernel, under tracing, and the pause between two kernels (ns).
USUAL_LAUNCH_NS = 20_000
USUAL_PAUSE_NS = 5_000

# ---- kernel_math ----------------------------------------------------------------------------------------------------
#: The compute capability from which devices have tensor cores (CUDA C++ programming guide).
TENSOR_CORES_FROM = 7

# ---- kernel_names -----------------------------------------------------------------------------------------------
#: Longer names are template arguments of a megabyte; the function stands early.
LONGEST_KERNEL_NAME = 2000

# ---- kernel_sequence --------------------------------------------------------------------------------------------
#: Fewer elements than this repeat everywhere (a GEMM and its reduction); a launch of a CUDA graph may be a step by itself.
SHORTEST_PERIOD = 8
#: A level needs this many markers, so that two distances between them can agree.
FEWEST_MARKERS = 3
#: With fewer distances than this the work in them must agree, too: three runs of a query are not steps.
FEW_DISTANCES = 4
#: Distances between markers agree when they differ by no more than this share: a step may reach for another kernel.
ALIKE_DISTANCES_SHARE = 0.1
#: So many distances may differ from the others (share of them).
DIFFERING_DISTANCES_SHARE = 0.25
#: Neighboring periods hold the same kinds of work to at least this share; training two networks in turn does not.
SAME_KINDS_SHARE = 0.8
#: A level must hold this share of the computing: the test that steps from ranges must pass, too.
LEVEL_COVERAGE_SHARE = 0.5
#: A longer period is a level of its own when so much of its work, by count or by time, lies outside the shorter ones.
LEVEL_EXTRA_SHARE = 0.005
#: Up to this many periods, what lies between two markers is one step (the first one is longer); behind that something else ran.
LONGEST_STEP_PERIODS = 1.5
#: Copies from the host that take more than this share of a period move weights, not an input.
INPUT_COPIES_SHARE = 0.1
#: A copy of an input has at least this many bytes; less is an index or a scalar.
INPUT_COPY_BYTES = 1024
#: So many repetitions of one period, alike to this share of their launches, are a loop, whatever they hold.
LOOP_REPETITIONS, LOOP_ALIKE_SHARE = 64, 0.95
#: So many pairs of neighbors are compared.
COMPARED_NEIGHBORS = 16

# ---- layers -----------------------------------------------------------------------------------------------------
#: A path of nested ranges that is longer (characters) is not continued: what lies deeper is one entry. Without a bound the text
#: of a recursion grows with the square of its depth.
LONGEST_RANGE_PATH = 2_000

# ---- levels -----------------------------------------------------------------------------------------------------
#: Two steps whose lengths are neighbors in size are of two levels if the longer one is so many times the shorter.
LEVELS_APART_TIMES = 1.5
#: With more levels than this the lengths are spread, and no level is usual.
MOST_LEVELS = 4
#: A mean that is off the usual length by no more than this share of it misleads nobody.
MISLEADING_MEAN_SHARE = 0.05
#: Steps of a level are spread, and its median is the length of few, if that is more than so many times the shortest, and the longest so
#: many times the median. Chosen: an outlier to one side leaves the median usual.
SPREAD_LEVEL_TIMES = 1.1
#: Two steps alone are periodic if their distance is at least this, and their numbers are those that a loop asks for by modulo.
TWO_STEPS_APART = 8

# ---- line_runs --------------------------------------------------------------------------------------------------
#: A run of a line that takes so long by itself (ns) is one call, or a wait: Python's own lines take microseconds.
LONG_RUN_NS = 1_000_000

# ---- line_shares ------------------------------------------------------------------------------------------------
#: What the stack of time inside of a call stands for, and of time in which no line was open.
STACK_IN_CALL, STACK_UNKNOWN = -2, -1
#: Two calls with more than this many between them, in the X-ray, do not show what lies between two that follow each other.
FAR_CALLS = 64

# ---- masked_runs ------------------------------------------------------------------------------------------------
#: A comparison and a selection lie within so many launches behind a network. Runs of networks are alike if their launches differ by this
#: share at most. Chosen: the two, and copies of the next one's input.
MOST_KERNELS_OF_MASKS, ALIKE_RUNS_SHARE = 8, 0.1

# ---- measuring --------------------------------------------------------------------------------------------------
#: Fewer readings are no loop of measurements.
FEWEST_READINGS = 4
#: GPU operations between the two events of a pair, at most: more is a step, or a part of one, that the program times.
MOST_TIMED_OPS = 8
#: The timed operations are this share of all that the thread launches while it measures: the rest prepares them (copies, a flush).
TIMED_OPS_SHARE = 0.25
#: The two questions of one reading follow each other within this time.
READ_GAP_NS = 20_000

# ---- micro_steps ------------------------------------------------------------------------------------------------
#: Rounds of an optimizer that have to be alike, as a share of all, and how many are needed.
ALIKE_ROUNDS_SHARE, FEWEST_ROUNDS = 0.8, 2
#: The kinds of a copy within a device, to it and from it, as CUPTI numbers them.
ON_DEVICE_KIND, TO_DEVICE_KIND, FROM_DEVICE_KIND = 8, 1, 2
#: A wrapper that averages gradients divides each on its way into the bucket: a product with a number, for nearly all of those copied out.
ALL_DIVIDED_SHARE = 0.95

# ---- nvtx_ranges ------------------------------------------------------------------------------------------------
#: What ``Repeats.calls`` says of a call: its step was marked (or it is in none), it repeats one of a marked step, or none.
MARKED, REPEATED, UNMATCHED = 0, 1, 2

# ---- occupancy --------------------------------------------------------------------------------------------------
#: Threads of a warp on every device of NVIDIA.
THREADS_PER_WARP = 32
#: Registers are given to a warp in this many at once (compute capability 3.0 and newer).
REGISTER_UNIT = 256
#: What the system takes of each block's shared memory (bytes), and the unit in which it is given, from 8.0 on and before.
SYSTEM_SHARED_BYTES, SHARED_UNIT_BYTES, OLD_SHARED_UNIT_BYTES = 1024, 128, 256
#: What nothing limits: more blocks than an SM ever holds.
UNLIMITED_BLOCKS = 1 << 40

# ---- one_time ---------------------------------------------------------------------------------------------------
#: One-time work explains a long step from this share of its excess on.
ONE_TIME_EXPLAINS_SHARE = 0.5
#: So many long steps come back, if the longest distance between two of them is at most so many times the shortest.
FEWEST_RETURNS, UNEVEN_RETURNS_TIMES = 3, 2
#: One step so many times as long as any other but the first, in this first part of at least so many steps, is a start that no recorded
#: call explains. Chosen: a first meeting of two ranks took 2.6 s, the next longest of 1,367 steps 0.11 s.
LATE_START_TIMES, LATE_START_SHARE, LATE_START_STEPS = 5, 0.05, 200

# ---- operator_flops ---------------------------------------------------------------------------------------------
#: Sizes of one operator longer than this are not read.
LONGEST_SIZES_TEXT = 20_000
#: No operator computes more than this.
MOST_OPERATIONS = 1 << 62

# ---- profile ----------------------------------------------------------------------------------------------------
#: More pieces than this make a frame slow.
MOST_FRAME_PIECES = 16

# ---- python_lines -----------------------------------------------------------------------------------------------
#: How long before its call a backtrace may lie; measured: 30 to 60 ns. No call that waits is as short as this.
LINE_EARLY_NS = 500
#: torch calls the copy and the wait for it from one C++ function; between two calls from Python lies more than this.
SAME_BREATH_NS = 1_500

# ---- python_pauses ----------------------------------------------------------------------------------------------
#: Longer than any pause (ns, a day), and older than any that waits for its mark.
LONGEST_PYTHON_PAUSE_NS = 86_400 * 10**9
#: The bits of a global thread id that are the thread's; the process is above them.
THREAD_BITS = 0xFFFFFF

# ---- sampled_lines ----------------------------------------------------------------------------------------------
#: A sample speaks for its thread this many sampling periods before and after it: near ones first (nsys 2025.3 at 1 kHz was never
#: more than 2.1 late), then those of a sampler that is kept waiting, for Python's lock (5 ms at a time) or for a core.
NEAR_SAMPLE_PERIODS, FAR_SAMPLE_PERIODS = 2, 10
#: Quantile of the normal distribution of a two-sided interval of 95 %.
QUANTILE_OF_95_PERCENT = 1.959964

# ---- sampling ---------------------------------------------------------------------------------------------------
#: Steps of the cold start, of the stretch (or so many more), and of those in front of it: they fill the queue of the device.
COLD_START_STEPS, STRETCH_STEPS, MORE_STRETCH_STEPS, LEADING_STEPS = 48, 128, 32, 8
#: A capture with fewer steps than so many times those that would be read is read as a whole.
WORTH_SAMPLING_TIMES = 3
#: A step is long if it takes so many times as long as the median one, and rare if fewer than one in a stretch are.
RARE_LONG_STEP_TIMES = 1.5
#: Rare long steps that take more than this share of the time are what the report is about: then every step is read.
RARE_LONG_STEPS_SHARE = 0.1
#: The stretch stands for all steps if their means differ by less than this share; so close ones are equally close.
CLOSE_MEANS_SHARE, AS_CLOSE_MEANS_SHARE = 0.01, 0.001
#: And so far each tenth of the stretch may be from the same tenth of all.
TENTHS_APART_SHARE = 0.1
#: So far the time of all GPU work may be from what the steps that were read make expect.
WORK_AS_EXPECTED_SHARE = 0.02
#: So far the mean step on the device may be from that on the CPU.
DEVICE_AND_CPU_STEP_SHARE = 0.02
#: Long steps that are read, each with so many before and after it; and the last steps, with what comes after them.
MOST_LONG_STEPS_READ, STEPS_READ_BESIDE, LAST_STEPS_READ = 8, 1, 2

# ---- sequence ---------------------------------------------------------------------------------------------------
#: So many different marked sequences are compared with one that is like none of them.
COMPARED_SEQUENCES = 4

# ---- sampled_clocks ---------------------------------------------------------------------------------------------
#: A GPU works where this share of its SMs is active in a sample; fewer such samples tell no mean of its clock. Chosen.
AT_WORK_SHARE, FEWEST_WORKING_SAMPLES = 0.05, 20

# ---- time_slices ------------------------------------------------------------------------------------------------
#: Kernels of a shape are compared from so many on, by the fastest tenth of them. What is longer by less than the shortest slice of time
#: that the driver gives (1 to 2 ms by its documents; an H100 gave 2.5 ms) is another shape's work (ns).
FEWEST_OF_SHAPE, UNDISTURBED_QUANTILE, LEAST_SLICE_NS = 8, 0.1, 1_000_000
#: Kernels were interrupted if so many are longer, this share of them by the same time within this share of it, among so many shapes of
#: which the longest takes so many times as long as the shortest: nothing of a kernel's own costs long and short ones the same.
FEWEST_SLICES, ALIKE_SLICES_SHARE, SLICE_VARIES_SHARE = 20, 0.9, 0.25
FEWEST_SLICED_SHAPES, SLICED_SHAPES_TIMES = 4, 3.0

# ---- sm_clocks --------------------------------------------------------------------------------------------------
#: Fewer samples say nothing.
FEWEST_CLOCK_SAMPLES = 5
#: The last sample holds for so long (ns).
LAST_CLOCK_HOLDS_NS = 1_000_000_000

# ---- steady -----------------------------------------------------------------------------------------------------
#: A step belongs to the warm-up while it is this much longer than the later ones, or carries first-call work.
WARMUP_EXCESS = 0.15
#: First-call work of this share of a step makes it one of the warm-up.
FIRST_CALL_STEP_SHARE = 0.02
#: Of two steps, the first of the program is start-up from so many times the other one on. A step that is X-rayed takes up to twice as long.
START_UP_STEP_TIMES = 3
#: So many steps without marks tell more than the same with those that were marked.
UNMARKED_STEPS_TIMES = 3
#: A second window with so many steps is whole enough to be the one that averages are taken over, however long the first one is.
WHOLE_WINDOW_STEPS = 8

# ---- step_periods -----------------------------------------------------------------------------------------------
#: The whole must be seen so many times: from fewer, a short capture would have hardly any step, and an evaluation after every few
#: steps looks the same.
FEWEST_PERIODS = 6
#: What lies between belongs to the step if it takes this share of the time, and follows at most so many proposed steps.
BETWEEN_OF_STEP_SHARE, MOST_STEP_PARTS = 0.25, 16
#: At least this share of what lies between launches kernels: a pause of the host is no work.
BETWEEN_WORKS_SHARE = 0.9

# ---- step_sources -----------------------------------------------------------------------------------------------
#: Ranges that overlap their neighbor by less than this share of their length are neighbors that were stamped in two places.
NEIGHBORS_OVERLAP_SHARE = 0.5
#: So many optimizers under one name are told apart, by this share of equal work from one turn to the next.
MOST_OPTIMIZERS, SAME_TURN_SHARE = 4, 0.8
#: Repetitions whose middle half differs by more than this factor are different work, of a like sequence.
REPETITIONS_SPREAD_TIMES = 3.0
#: Fewer repetitions than this are not judged by their place, and by their spread.
FEWEST_PLACED, FEWEST_SPREAD = 4, 8
#: Repetitions are parts of a pass if one range of a forward, a backward or a module holds this share of them.
IN_ONE_RANGE_SHARE = 0.75
#: Between so many pairs of steps what comes between them repeats, and behind this share of the steps it is a part of each iteration: a
#: rollout behind every second or third one, which in a window is behind a little less. An index or an evaluation comes less often. Chosen.
FEWEST_BETWEEN, REPEATED_BETWEEN_SHARE = 3, 0.25

# ---- streams ----------------------------------------------------------------------------------------------------
#: GPU and CPU stamps come from two clocks; work was seen to end up to 7 us after the synchronize that waited for it returned.
CLOCK_ERROR_NS = 20_000
#: How a stream was made (``creation`` of the frame ``cuda_stream``).
BLOCKING_STREAM, DEFAULT_STREAM = 1, 3

# ---- thread_roles -----------------------------------------------------------------------------------------------
#: A thread without a name of PyTorch's works for backward if it launches work, at least this share of it while a backward runs.
HELPS_BACKWARD_SHARE = 0.9

# ---- tiles ------------------------------------------------------------------------------------------------------
#: What delays the next step by less than this share of a step, beyond what every step pays, is part of the loop.
NOTICED_DELAY_SHARE = 0.05
#: The same for a pause without GPU work: the host's own time spreads more.
NOTICED_PAUSE_SHARE = 0.25
#: In captures of so few steps there is no neighbor to make up for the host time before the first op: it counts.
FEW_STEPS = 3
#: A run of so many steps can spare its last one.
SPARED_RUN_STEPS = 4
#: A stretch of this share of the longest one's steps may represent all steady steps; means that differ by less than the second
#: share are equally good.
LEAST_RUN_SHARE, AS_GOOD_MEAN_SHARE = 0.5, 0.01

# ---- trend ------------------------------------------------------------------------------------------------------
#: With fewer steps nothing is said about their course.
FEWEST_TREND_STEPS = 5
#: Steps that change by less than this share of the median over the window are level.
LEVEL_CHANGE_SHARE = 0.15
#: Mann-Kendall: the normal score beyond which a trend is no accident, 99 % on both sides.
TREND_SCORE = 2.58
#: How often a period may be seen in steps whose order is random, and which part of the other steps may be as long.
PERIOD_BY_ACCIDENT, OTHER_LONG_STEPS_SHARE = 0.005, 0.1
#: A middle 80 % wider than this share of the median is uneven.
UNEVEN_SPREAD_SHARE = 0.25
#: Pairs grow with the square of the steps; a trend shows in this many.
MOST_TREND_STEPS = 500
#: A course shows in so many blocks of steps, each longer than the one before.
TREND_BLOCKS = 4
#: Which part of a change of the steps their GPU work has to make: what else changes is the host or the profiler.
WORK_OF_CHANGE_SHARE = 0.5

# ---- wait_parts -------------------------------------------------------------------------------------------------
#: An allocation that waited for the device returns this soon after it has drained, where its usual duration is not known.
DRAINED_SOON_NS = 50_000
#: The usual duration of an allocation call is the median of at least so many that found nothing queued.
FEWEST_USUAL_CALLS = 3
#: torch calls the copy and the wait for it from one function: no more than this lies between them, tracing included.
COPY_AND_WAIT_NS = 20_000

# ---- work_operators ---------------------------------------------------------------------------------------------
#: A step in which more than this share of operators has calls unlike those that they inherit from has other sizes.
OTHER_SIZES_SHARE = 0.1
#: ``aten::conv2d`` holds ``aten::convolution``, ``aten::_convolution`` and ``aten::cudnn_convolution``.
DEEPEST_CONVOLUTION = 2

# ---- operator_flow --------------------------------------------------------------------------------------------------
#: A step of more operators is not looked at.
MOST_FLOW_OPERATORS = 200_000
#: The step before, or behind, was recorded with its operators if it has this share of those of the step. Chosen: steps differ.
RECORDED_BESIDE_SHARE = 0.5

# ---- operator_of_calls ----------------------------------------------------------------------------------------------
#: Another step runs nearly the same operators if this share of them correspond. Chosen: what a step logs is less.
CORRESPONDING_OPERATORS_SHARE = 0.9

# ---- needless_networks ----------------------------------------------------------------------------------------------
#: A backward of a call of a network that is needless to this share of its API calls could be left out.
WHOLE_BACKWARD_SHARE = 0.9
# ---- needless_gradients ---------------------------------------------------------------------------------------------
#: What reads a gradient, or what a call needs, is not known where a larger share of kernels is launched outside of operators.
UNSEEN_READERS_SHARE = 0.01
# ---- earlier_nodes ----------------------------------------------------------------------------------------------
#: Nodes are those of a flow's operators, numbered earlier, if this share of them has the name of theirs: products have several. Chosen.
LIKE_NODES_SHARE = 0.7
# ---- attention_backends -----------------------------------------------------------------------------------------
#: The most numbers of a head that FlashAttention takes (PyTorch, sdp_utils).
FLASH_HEAD_SIZE = 256
# ---- frozen_parameters ----------------------------------------------------------------------------------------------
#: Sums of bytes are of the same parameters if they differ by less than this share (chosen: buckets are padded). Gradients that are zero
#: are ready all at once: fewer fills and reductions in a row may be anything.
SAME_PARAMETERS_SHARE, FEWEST_READY_AT_ONCE = 0.01, 4
# ---- rounds_in_sequence ---------------------------------------------------------------------------------------------
#: Fewer rounds of a line in a step are no loop; rounds need one another if this share of what the later ones run needs a round before.
FEWEST_ROUNDS_IN_SEQUENCE, IN_SEQUENCE_SHARE = 3, 0.5
