"""The numbers that the room ``replay`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- call_data --------------------------------------------------------------------------------------------------
#: The bits of an event's number; what is beyond them is a mark of damage.
MOST_EVENTS = (1 << 62) - 1
#: The kind of a copy to a device, and that of pageable memory, as CUPTI numbers them.
HOST_TO_DEVICE_KIND, PAGEABLE_KIND = 1, 0
#: The slowest that a CPU fills a staging buffer: 2 GB/s.
STAGED_NS_PER_BYTE = 0.5

# ---- chain ------------------------------------------------------------------------------------------------------
#: Before every event (ns): the time of what nothing waits for.
NOT_AWAITED = -(1 << 62)
#: A launch with at least this many pending ops on its stream can find that stream's queue full; CUDA's limit is 1024.
DEEP_QUEUE_OPS = 900
#: The pause between two queued kernels if the report shows none (H200).
USUAL_KERNEL_PAUSE_NS = 1_000
#: A copy that begins this soon after its stream is free may have waited for it (ns).
STREAM_FREE_SOON_NS = 3_000
#: Later than any time.
END_OF_TIME_NS = 1 << 62
#: Plain calls of one kind with less host code than this before them (ns) join the item before, since no edit concerns them.
MERGED_CALLS_NS = 20_000

# ---- chain_columns ----------------------------------------------------------------------------------------------
#: At least this share of a recorded time remains, because tracing is never all of it.
TRACED_TIME_STAYS_SHARE = 0.2
#: Tracing also slows the host code around its events, whose data it drives out of caches, by up to this much of the code before
#: each call (ns). Over the same programs as in ``overhead``, 50 to 200 us are equally good. A longer pause is the program's own
#: work, such as a compilation, which is as long without tracing.
TRACED_CODE_NEAR_CALL_NS = 100_000

# ---- edits ------------------------------------------------------------------------------------------------------
#: CPU time that each node adds to a graph launch (H200: 2.4 ns), and the pause between the kernels of a graph.
GRAPH_NODE_NS, GRAPH_GAP_NS = 3, 1_000
#: Time of a kernel that does not depend on its bytes; fused kernels take it once. The shortest kernels on an H200 take 1.0 us.
KERNEL_FLOOR_NS = 1_000
#: Rate of copies from pinned memory over PCIe 5 x16 (H200 host), used if the report has no copy of this size itself.
PINNED_BYTES_PER_S = 55e9
#: Only copies of this size show what a link can do (bytes).
LARGE_COPY_BYTES = 1 << 20

# ---- engine -----------------------------------------------------------------------------------------------------
#: If the unchanged replay is off by more than this, the model does not describe the program and makes no claims.
TRUSTED_ERROR = 0.05

# ---- held_lines -------------------------------------------------------------------------------------------------
#: Host code between two calls that is shorter (ns) is looked at by no line: it is what a launch takes.
LONG_PAUSE_NS = 250_000
#: A line's own code in such pauses holds a host where it takes this share of the steps, and so long (ns) for each launch that it makes;
#: the longest few are replayed.
HOLDING_LINE_SHARE, HOLDING_FOR_LAUNCH_NS, MOST_HOLDING_LINES = 0.05, 250_000, 3
#: A line that sends and copies so many bytes in each step by way of pageable memory sends tensors as objects. Chosen: names, counts and
#: texts are a few KB, which cost the meeting of the ranks and not the pickling.
LEAST_SENT_BYTES = 256 << 10

# ---- idle_lines -------------------------------------------------------------------------------------------------
#: With more pieces of idle time than this their lines are told for all together.
MOST_IDLE_PIECES = 200_000

# ---- job_changes ------------------------------------------------------------------------------------------------
#: What is worth a change comes at least so often in a step.
FEWEST_CHANGES_PER_STEP = 2
#: A call (ns) that takes less looks up a kernel that is loaded: 0.2 to 17 us there, 44 us and more to load one (H100, nsys 2025.3).
LEAST_LOAD_NS = 20_000

# ---- overhead ---------------------------------------------------------------------------------------------------
#: What this share of calls of a name, or of stretches of code between calls, falls below is the least that they take. Chosen.
LEAST_SEEN_QUANTILE = 0.1
#: Limits of the factor by which a host's launches are slower than those of the host on which the costs were measured. The sample
#: ddp_per_rank is between them.
SLOWEST_HOST_TIMES, FASTEST_HOST_TIMES = 3.0, 0.4
#: Trivial calls of one name, and of all names, with fewer of which nothing can be said about the speed of the host.
ENOUGH_CALLS_OF_A_NAME, ENOUGH_TRIVIAL_CALLS = 50, 100
#: Calls that begin sooner than this behind a pause of this length find the caches cold (ns), and say nothing about the host.
COLD_AFTER_PAUSE_NS = 1_000_000
#: On a host that nothing slows down, the median trivial call takes this many times as long as the fastest tenth of its name does.
UNDISTURBED_CALL_TIMES = 1.1
#: If trivial calls are slower than that by a factor, host code around calls is slower by this power of it. Over 31 programs on
#: H200 hosts with a known unprofiled step (5 to 78 ms), these two give a median error of 4 to 5 % and no bias.
SLOW_HOST_POWER = 0.5
#: Least such factor. The sample ddp_per_rank is between the limits.
SLOWED_HOST_LEAST = 0.4

# ---- peers ------------------------------------------------------------------------------------------------------
#: At most this many other ranks are replayed, because more of them tell little that is new.
MOST_REPLAYED_PEERS = 8
#: Ranks that spend less than this share of the time sending and receiving are not stages of a pipeline.
LEAST_SENDING_SHARE = 0.01
#: Processes are ranks of one job if more than this share of a rank's collectives have a counterpart at the same time.
RANKS_TOGETHER_SHARE = 0.5

# ---- replayed_window --------------------------------------------------------------------------------------------
#: At most this many GPU ops are replayed; if there are more, a run of consecutive steady steps represents all.
MOST_REPLAYED_OPS = 8_000
#: Ranks are compared over this many steps or more, if so few have no more GPU ops than the second number.
FEWEST_STEPS_OF_JOB, MOST_OPS_OF_JOB = 3, 24_000
#: A host that is slower than its device in a run of steps by more than this lives on what it launched before (share). Chosen: a job
#: that fell back by 0.07 was replayed 4 % too long, one that did by 0.10 10 % (`TRUSTED_ERROR` lies between).
HOST_FALLS_BACK_SHARE = 0.08
#: A call of the CUDA API that lasts this long waits (ns): launches take 3 to 20 us, with tracing.
WAITING_CALL_NS = 100_000
#: Threads that are in CUDA calls at the same time for more than this share of that time do not take turns.
MOST_CROSSING_SHARE = 0.05

# ---- requested_edits --------------------------------------------------------------------------------------------
#: Calls of one flush of the cache follow each other within this time (ns); calls from Python lie further apart.
CACHE_FLUSH_NS = 200_000
#: How many of the longest waits are tried if the command line asks for nothing.
MOST_WAITS_TRIED = 4
#: A change that saves less of the step than this saves nothing (share).
SAVES_NOTHING_SHARE = 0.005
#: Letters that the names of what could be changed are padded to at most, so that a row of 80 columns holds what it is worth.
LISTED_NAME = 24

# ---- simulate ---------------------------------------------------------------------------------------------------
#: Rounds of the steps: one to settle, one to measure, and one after it.
REPLAYED_ROUNDS = 3
#: Number of pending ops of a stream at which launches stall, if the report shows no other number.
USUAL_QUEUE_OPS = 1024
#: Fewer items than this are run one by one, which is faster (about 40 us per stretch, less than 1 us per item).
SHORT_STRETCH_ITEMS = 48

# ---- hidden communication ---------------------------------------------------------------------------------------
#: A transfer that runs beside computation makes that longer by these shares of its own time (least, likely, most), since NCCL takes
#: multiprocessors and memory from it: 0.29 to 0.41 in 14 of 18 recordings on two GPUs, 0.21 and 0.27 in two, 0.54 and 0.78 in two, and,
#: by what was gained and not by its kernels, all of it in a sharded language model whose fix hid 10 ms of 65 and gained nothing.
HIDDEN_SLOWS_SHARES = (0.3, 0.65, 1.0)

# ---- slowed_kernels ---------------------------------------------------------------------------------------------
#: Least number of runs alone, and of runs beside communication, from which a kernel's slowdown is derived.
FEWEST_KERNEL_RUNS = 3
#: A kernel whose longest tenth of runs takes more than this many times its shortest tenth, with nothing beside it, does not always
#: do the same work. In four jobs on H100s half of the GPU time is in kernels with 1.02 to 1.04; copies of differing sizes have 10,
#: attention over texts of differing lengths 3.5.
STEADY_KERNEL_TIMES = 1.2

# ---- tracing_costs ----------------------------------------------------------------------------------------------
#: No cost and no step is longer than an hour (ns); a larger value in a file is rejected.
LONGEST_COST_NS = 3_600e9
#: Least error bar of a mean of measured steps, as a share: a host's and a device's speed drift by that between two stretches of
#: one process.
LEAST_MEASURED_BAR_SHARE = 0.02
#: A bare step between two windows, as a share of one with CUPTI in each call: 0.73 to 1.04 over eight host-bound programs, each
#: against a process of its own (H100, nsys 2025.3, 500 to 1,500 launches a step).
ATTACHED_STEP_SHARE = 0.7
#: The bootstrap: resamples, fewest steps, and the share of resampled means between the bounds.
BOOTSTRAP_RESAMPLES, BOOTSTRAP_FEWEST_STEPS, BOOTSTRAP_SHARE = 2_000, 10, 0.95
#: Tracing increases the distance between two queued kernels of a stream by this much (H200: 1.83 to 2.01 us).
KERNEL_GAP_NS = 200
#: A host can be slower by this share while it is recorded, and faster by this one, independently of the profiler: in one process,
#: the same Python loop took 30 us at one time and 55 at another. Over 53 steps of 33 programs on H200 hosts 0.3 held 96 %; of 19
#: further programs, on H100 and H200 hosts, two took half of the modelled step (a language model and a denoiser).
SLOWER_WHILE_RECORDED, FASTER_WHILE_RECORDED = 0.6, 0.15
#: A process without the profiler takes no more than the recorded step on a host that is slower by this share: of 72 captures on
#: H100 and H200 hosts whose bare step is known, three took longer (two 1.08 times the recorded step, and a loader).
SLOWER_ELSEWHERE = 0.06

# ---- unprofiled -------------------------------------------------------------------------------------------------
#: Median error of the predictions over twelve before/after pairs, most of them GPU-bound. No error bar is smaller.
VALIDATED_ERROR_SHARE = 0.01
#: Least error bar of a modelled step, as shares below and above: GPU-bound programs, which the model does not change, took 1.4 %
#: less to 2.6 % more in another process.
MODEL_BAR_BELOW_SHARE, MODEL_BAR_ABOVE_SHARE = 0.02, 0.03
#: The same if nodes of CUDA graphs were traced, which prolongs the work on the GPU itself: steps were off by up to 9 %.
GRAPH_NODES_BAR_SHARE = 0.1
#: How far costs are scaled to match a measured step, and how closely it must be matched.
MOST_COST_SCALE, CLOSE_TO_MEASURED_SHARE = 4.0, 0.002
#: Bisections of that range until a scale is good enough.
SCALE_HALVINGS = 9
#: A rank may wait for others at most this many times as long as recorded: where no wait makes the step as long, the search ends.
MOST_RANK_WAITING_TIMES = 64.0
#: If the step stays longer than the measured one at any scale, all host code is faster, down to this factor.
LEAST_HOST_TIMES = 0.3
#: If the measured steps were longer than the recorded ones, the host was slower, up to this factor, or else the device.
MOST_HOST_TIMES, MOST_WORK_TIMES = 3.0, 1.5
#: If even that is not enough, the device is faster without tracing, down to this factor: copies from pageable memory, which the
#: host makes, took 10.1 ms per step with tracing and 8.3 ms without (H200).
LEAST_WORK_TIMES = 0.7

# ---- removed_work -----------------------------------------------------------------------------------------------
#: So many stretches of host code between launches tell how long one usually is. Chosen.
NEAR_STRETCHES = 20
#: More host code than this (ns) around launches that go is something else: 99 in 100 copies into DDP's buckets take 90 and 98 us more
#: than usual, without tracing, and 90 in 100 all-reduces 73 us (two jobs on H100s).
MOST_CODE_OF_LAUNCH_NS = 100_000

# ---- held_streams -----------------------------------------------------------------------------------------------
#: A pause of a stream is a wait for a collective of another one if it lasts this long (ns; queued kernels pause for 1 to 5 us) and the
#: collective, which ends before it does, takes this share of it. DDP with a hook that copies its buckets, two ranks of one H200: in each of
#: the pauses of 1 to 18 ms 98 % or more, the rest is the bucket's copy.
HELD_FROM_NS, HELD_COVERED_SHARE = 50_000, 0.9

# ---- tracing_costs, of the loop -----------------------------------------------------------------------------------
#: Pauses between steps take this many times as long as a usual step; they count from this share of the mean step on. Chosen: epochs begin
#: with one of them, and clocks that change make no step three times as long.
PAUSED_STEP_TIMES, BETWEEN_PAUSES_SHARE = 3.0, 0.05
#: Pauses with at most so many steps between them are one that comes back; it has a period where its distances differ by this share at
#: most. Chosen: workers that start anew pause the fetch of the first batch and of a few of the next ones.
STEPS_OF_ONE_PAUSE, PERIOD_SPREAD = 4, 0.1
