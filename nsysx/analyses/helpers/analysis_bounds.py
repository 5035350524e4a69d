"""The numbers that the room ``analyses`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- copy_sites -------------------------------------------------------------------------------------------------
#: A place counts as hidden when this share of its copy time is.
HIDDEN_COPIES_SHARE = 0.9

# ---- event_windows ----------------------------------------------------------------------------------------------
#: Most windows that are listed; ``events`` holds the sums of all.
MOST_EVENT_WINDOWS = 500

# ---- events -----------------------------------------------------------------------------------------------------
#: A reading counts as kernel time if this share of it is.
TRUE_READING_SHARE = 0.9

# ---- first_calls ------------------------------------------------------------------------------------------------
#: Most rows listed one by one; the others share one row, so that the sum is the whole bill.
MOST_FIRST_CALLS = 60

# ---- flops ------------------------------------------------------------------------------------------------------
#: With less of the products counted, MFU would be a guess (share of the time of kernels that multiply).
COUNTED_PRODUCTS_SHARE = 0.95
#: Most rows listed one by one; the others share one row, so that the sums hold.
MOST_FLOPS_ROWS = 40

# ---- gpu_metrics ------------------------------------------------------------------------------------------------
#: Most rows of each kind, longest first; part of its time for which a counter is sampled at least where it is shown.
MOST_METRIC_ROWS, SAMPLED_METRIC_SHARE = 30, 0.8

# ---- helpers/allocator_retries ----------------------------------------------------------------------------------
#: The allocator goes straight from free to free, and from the last free to the retry (ns); a program that calls empty_cache()
#: and then allocates takes longer than this in Python.
ALLOCATOR_RETRY_NS = 100_000
#: Freeing memory takes longer than this (ns); cudaFree(0), which libraries use to start the driver, does not.
EMPTY_FREE_NS = 10_000

# ---- helpers/event_makers ---------------------------------------------------------------------------------------
#: DistributedDataParallel times itself in its first passes, and then in every so many (PyTorch, kDDPRuntimeLoggingSampleRate).
FIRST_SAMPLED_PASSES, SAMPLED_EVERY = 10, 100

# ---- helpers/event_rounds ---------------------------------------------------------------------------------------
#: Most places in one loop that are told apart, and fewest whole rounds that this takes.
MOST_LOOP_PLACES, FEWEST_LOOP_ROUNDS = 16, 3

# ---- helpers/host_stopwatch -------------------------------------------------------------------------------------
#: Fewer executions of a kind are not a measurement.
FEWEST_EXECUTIONS = 3

# ---- helpers/kernel_shapes --------------------------------------------------------------------------------------
#: A grid of at most this many blocks per SM leaves a fifth of the SMs or more without any.
SMALL_GRID_BLOCKS_PER_SM = 0.8
#: From this share of empty block slots on, the last wave is worth mentioning.
EMPTY_LAST_WAVE_SHARE = 0.25

# ---- helpers/launch_queue ---------------------------------------------------------------------------------------
#: A channel holds about 1024 pending commands, and a launch blocks when it is full. Slightly less here: not all are recorded.
FULL_QUEUE_OPS = 900
#: Without overhead rows, a launch blocked when the queue was full and it took this many times the median launch.
BLOCKED_LAUNCH_TIMES = 5

# ---- helpers/limits_of_work -------------------------------------------------------------------------------------
#: Executions that move this many caches show how fast the memory is.
CACHES_MOVED_TIMES = 4
#: The longer of limit and time may be the limit by this much: clocks of kernels are read to 32 ns.
KERNEL_CLOCK_TOLERANCE_NS = 64
#: By its counters, work below this share of every roof is bound by none of them (chosen): by latency, by what it waits for, or by
#: arithmetic that no counter here measures. How much of it could go is then not known.
NEITHER_ROOF_SHARE = 0.25
#: SMs that issue instructions in this share of their cycles or more are limited by that. Measured: FP32 products of cuBLAS 81 to 90 %
#: (H200), lgamma and pow in FP64 87 and 76 % (H100); 33 % at most for sums, exp, sin, remainders of int64 and other memory-bound work.
ISSUE_ROOF_SHARE = 0.6

# ---- helpers/module_names ---------------------------------------------------------------------------------------
#: Letters of a kernel's name in a sentence.
KERNEL_NAME_LETTERS = 48

# ---- helpers/one_time_cost --------------------------------------------------------------------------------------
#: From this many calls per steady step on, a function belongs to every step; with fewer, a cache is still being filled.
RECURRING_CALLS_PER_STEP = 0.5

# ---- helpers/operator_work --------------------------------------------------------------------------------------
#: A product shows how fast the device can be if it takes this long (ns): shorter ones are mostly launch, first and last wave.
LONG_PRODUCT_NS = 50_000
#: ... and was executed so often that its median is not one lucky execution.
FEWEST_PRODUCTS = 3
#: A measured rate beyond this (operations per second) is no rate: some hundred times the fastest device's.
MOST_RATE_PER_S = 1e18

# ---- helpers/picture_code ---------------------------------------------------------------------------------------
#: In a window with more calls than this no gap between two of them has a line of its own: a picture has 1,120 pixels.
MOST_DRAWN_GAPS = 20_000

# ---- helpers/picture_places -------------------------------------------------------------------------------------
#: Places of a picture: the longest ones stay.
MOST_DRAWN_PLACES = 400

# ---- helpers/picture_windows ------------------------------------------------------------------------------------
#: GPU operations in a closer look.
CLOSER_LOOK_OPS = 10

# ---- helpers/searching_events -----------------------------------------------------------------------------------
#: Fewest windows of a benchmark in a row (Triton and Inductor begin with 5), and the shortest time that a buffer of the size of an L2 cache
#: takes to be filled (ns): 50 MB at 5 TB/s take 10 us.
FEWEST_BENCHMARK_WINDOWS, SHORTEST_CACHE_FILL_NS = 5, 5_000

# ---- helpers/timeline_data --------------------------------------------------------------------------------------
#: With more boxes than this in a lane they are narrower than a pixel, and neighbors of one kind are merged.
MOST_LANE_SPANS = 1500
#: Lanes of a picture, threads among them, and letters of a kernel's name.
MOST_LANES, MOST_THREAD_LANES, LANE_LABEL_LETTERS = 12, 4, 200
#: Streams of each other process.
STREAMS_OF_OTHERS = 2
#: Devices whose queue is drawn.
MOST_DRAWN_QUEUES = 2
#: Instants at which the queue is drawn: two pixels each.
QUEUE_INSTANTS = 480
#: A shorter queue (ns) does not last until the next launch: the device runs dry.
DRY_QUEUE_NS = 1_000
#: Most strips of a picture, and most dots of one: more of them cover each other.
MOST_STRIPS, MOST_DOTS = 10, 300

# ---- kernel_limits ----------------------------------------------------------------------------------------------
#: Most shapes listed one by one; the others share one row, so that the sum is all kernel time.
MOST_LIMIT_ROWS = 60
#: A kernel has a row of its own for what its other shapes take from this share of all kernel time on: it is not hidden in the rest.
NAMED_SHAPES_SHARE = 0.01

# ---- kernel_spread ----------------------------------------------------------------------------------------------
#: Most kernels that are listed: those whose spread costs most.
MOST_SPREAD_ROWS = 50
#: A spread up to this share, or up to this many ns, is steady: Nsight's own resolution is 32 ns.
STEADY_SPREAD_SHARE, SPREAD_RESOLUTION_NS = 0.10, 64
#: The first execution is slow from so many times the median on.
SLOW_FIRST_TIMES = 1.25
#: A cause is accepted if chance gives it less often than the first share, and if it explains the second share of the spread; two
#: causes whose shares differ by less than the third are told together.
SPREAD_CHANCE, EXPLAINED_SPREAD_SHARE, TIED_CAUSES_SHARE = 0.01, 0.30, 0.05
#: A cold cache makes no kernel take so many times as long: HBM has a third of the L2 cache's bandwidth. Inputs of other sizes do. Chosen.
MOST_COLD_TIMES = 6
#: Fewer executions on either side are no groups to compare.
FEWEST_SPREAD_EXECUTIONS = 5
#: Most executions of one kernel that are tested.
MOST_TESTED_EXECUTIONS = 4_000
#: Executions that share one mean of what runs around them, without their own.
SPREAD_BINS = 64
#: Executions of a kernel from which a spread is told, and from which a reason of it. Chosen: a rank correlation of fewer says
#: little.
FEWEST_FOR_SPREAD, FEWEST_FOR_REASON = 3, 20

# ---- launches ---------------------------------------------------------------------------------------------------
#: A launch is slow when it takes this many times the median of its function, and more than 50 us.
SLOW_LAUNCH_TIMES, SLOW_LAUNCH_NS = 10, 50_000
#: If it idles for launches for less than this share of the steady window, the GPU does not wait for them.
NO_LAUNCH_WAIT_SHARE = 0.02

# ---- memory -----------------------------------------------------------------------------------------------------
#: Points per line of the picture.
MEMORY_LINE_POINTS = 300

# ---- module_stopwatch -------------------------------------------------------------------------------------------
#: Most modules that are listed: those that take longest.
MOST_TIMED_MODULES = 20
#: Whole models are not timed this way.
MOST_TIMED_KERNELS = 64
#: Most executions per module that are replayed.
MOST_REPLAYED_EXECUTIONS = 200

# ---- operators --------------------------------------------------------------------------------------------------
#: Most rows listed one by one; the others share one row, so that the sum is all GPU time.
MOST_OPERATOR_ROWS = 200

# ---- roofline ---------------------------------------------------------------------------------------------------
#: Most rows of one kind; the others share one, so that their sums hold.
MOST_ROOFLINE_ROWS = 60

# ---- stacks -----------------------------------------------------------------------------------------------------
#: Stacks that are listed; all others are one row.
MOST_STACKS = 200

# ---- step_parts -------------------------------------------------------------------------------------------------
#: A long run is kept as this many blocks of neighboring steps: enough for an interval, small enough for a file.
MOST_STEP_BLOCKS = 64
#: Most names kept per part; the others share one row of this name, so that sums hold.
MOST_PART_NAMES = 400

# ---- stopwatch --------------------------------------------------------------------------------------------------
#: Most rows that are listed: those that take longest.
MOST_STOPWATCH_ROWS = 30

# ---- waits ------------------------------------------------------------------------------------------------------
#: Each replay costs about a microsecond per item of the chain; this bounds what a report spends on savings.
MOST_REPLAYED_ITEMS = 200_000
