"""The numbers that the room ``findings`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- several files ----------------------------------------------------------------------------------------------
#: What takes less of the step is not worth a word of its own: a normal step has 2 to 3 % of most of it.
REPORTED_SHARE = 0.05
#: What has this share of a time, a count or a size has most of it: it is the cause, the place, or the kind of the whole. Chosen.
#: Host work with a remedy of its own is it from less on, where many functions run.
MOST_SHARE, OWN_REMEDY_SHARE = 0.5, 0.3
#: Kernels that reach this share of the roof that holds for them gain no more than what is left to it, whatever is done about them, unless
#: the change leaves less work (chosen: the fastest products and copies of each card reach 0.8 to 1).
NEAR_ROOF_SHARE = 0.75
#: A cause of a longer step or gap is mentioned from this share of the difference on, and named in the title if it is most of it.
CAUSE_NAMED_SHARE = 0.1
# ---- _anomaly ---------------------------------------------------------------------------------------------------
#: From an operator's begin until what it calls begins, where no traceback is kept (ns); a gradient's check is read as one flag (bytes).
ANOMALY_OPERATOR_BEGINS_NS, ANOMALY_FLAG_BYTES, FEWEST_ANOMALY_CHECKS = 5_000, 8, 10
# ---- _case ------------------------------------------------------------------------------------------------------
#: In another run GPU work takes this share less, a host this share longer (two jobs: 0.16, 0.23); WAITED_FOR: idle of a GPU that is full.
SAME_WORK_REPEATS_SHARE, SLOWER_HOST_SHARE, WAITED_FOR_SHARE = 0.02, 0.15, 0.1
# ---- _built_kernels ---------------------------------------------------------------------------------------------
#: What is built is launched by one of so many ops behind it: a workspace is filled first.
LOADED_FOR_OPS = 3
#: Kernels are built again and again if they are in this share of the steps: of a job whose batches have ever new lengths each of two ranks
#: built in 9 and 8 of 24 steps. In so many of all it is each step.
BUILT_IN_STEPS_SHARE, NEARLY_ALL_STEPS_SHARE = 1 / 3, 0.9
# ---- _copied_weights --------------------------------------------------------------------------------------------
#: Fewer copies may be of anything; those of weights have all of their bytes, but for so much (share): buffers are copied with them. An
#: average reads itself and the weights, and is written.
FEWEST_WEIGHT_COPIES, BYTES_OF_BUFFERS_SHARE, UPDATE_PASSES = 8, 0.1, 3
# ---- _costly_collectives ----------------------------------------------------------------------------------------
#: So many gathers in a phase of each step are those of units.
FEWEST_GATHERS_PER_STEP = 2
#: A gather that begins so soon after its call (ns) waited for the host alone; if most of them do, the host comes late.
LAUNCHED_LATE_NS = 50_000
#: Rank's Python and backward take a core each, or ranks take turns; fewer than loader workers matter if the GPU waits for this share.
CORES_PER_RANK, WAITS_FOR_CORES_SHARE = 2, 0.2
#: A value that a line reduces is read by one of the next lines, at most so far behind it.
LINES_TO_A_READ = 10
#: A shape, a type and a number of dimensions have no more bytes.
SIZES_BYTES = 256
# ---- _costly_exchanges ------------------------------------------------------------------------------------------
#: Exchanges that hold the host for this share of the step lead.
HELD_BY_GROUP_SHARE = 0.1
# ---- _costly_jobs -----------------------------------------------------------------------------------------------
#: The size of DDP's buckets, and what a step may be divided into before they are called small (times as many).
USUAL_BUCKET_BYTES, SMALL_BUCKETS_TIMES = 25 << 20, 2
#: Chosen: gradients are rounded to fewer bits only where that may save so much of a step. A healthy job, whose reductions run beside
#: backward but for the last bucket, would save at most 1.7 %.
ROUNDED_FOR_SHARE = 0.05
#: A gather of so many bytes takes no longer than the launch and the meeting for it (20 us at 100 GB/s); so many of them in a step count.
SMALL_UNIT_BYTES, FEWEST_SMALL_UNITS = 2 << 20, 16
#: Of the card's memory this share stays free when all parameters are gathered.
SPARE_MEMORY_SHARE = 0.1
# ---- _costly_when -----------------------------------------------------------------------------------------------
#: A launch that waits for nothing returns after this time (ns), traced.
FREE_LAUNCH_NS, LONG_KERNEL_NS, CLOCKS_APART_NS, FEWEST_BLOCKED, BLOCKED_SHARE = 6_000, 20_000, 7_000, 20, 0.98
#: A kernel of these takes this time or more to build and try (ns): shorter pauses are others'.
CONVOLUTION_TRIAL_NS = 200_000
#: An iterator is made again after at most so many steps; so many backwards in a step are micro-steps.
LOADER_RESTART_STEPS, FEWEST_MICRO_STEPS = 200, 2
#: Workers that start anew are what a loader is waited for where so much of the waits is in the steps in which epochs begin. A long step is
#: so many times as long as usual.
RESTARTS_WAIT_SHARE, LONG_STEP_TIMES = 0.8, 3
#: Epochs begin as often as steps are long where these periods differ by so little: chosen, an epoch may end in the middle of a step.
RESTARTS_RHYTHM_SHARE = 0.1
#: Long steps that were recorded, and those that were timed while nothing was, are the same where these are longer by less than so many
#: times as much, or as little. Chosen: 257 and 261 ms in a program whose others took 155 to 258.
ALIKE_LONG_STEP_TIMES = 2
#: A line of so many of these or more is one of steps that come again.
FEWEST_LONG_STEPS = 2
#: More autocast regions in one backward's forward than this are entered per layer.
AUTOCAST_REGIONS = 8
#: A power limit below this share of the card's own costs; clocks below this share of their most are held down; power alone holds no lower.
LITTLE_POWER, LOW_CLOCK, LOWEST_CLOCK_BY_POWER = 0.95, 0.9, 0.6
#: The least, usual and most that clocks at load are of the highest (H100s: 0.65 in dense products, else 0.84 to 1); grain of factors.
CLOCKS_AT_LOAD, CLOCK_FACTOR_GRAIN = (0.65, 0.85, 1.0), 0.02
#: A main thread that has no core for more than this share of the time in which it could run is slowed by what else runs there.
CROWDED_CORES = 0.1
# ---- _cpu_operators ---------------------------------------------------------------------------------------------
#: An operator that takes less (ns) has little to divide among threads; so many cores have to be there for each process.
LONG_CPU_OPERATOR_NS, FEWEST_CORES_PER_PROCESS = 200_000, 4
# ---- _float64 ---------------------------------------------------------------------------------------------------
#: Float64 is for a solver if most of its time is in lines that solve, or so much in the solvers' own kernels where no line is known.
SOLVER_KERNELS_SHARE = 0.2
#: Products of float64 against those of float32, of which tensor cores make most: twice as long without, sixteen times with TF32.
FLOAT32_PRODUCT_LEFT, FLOAT32_PRODUCT_LEFT_BEST = 0.18, 1 / 16
#: All other kernels: half of the bytes, and less where they compute exponentials.
FLOAT32_OTHER_LEFT, FLOAT32_OTHER_LEFT_BEST = 0.5, 0.3
#: What ranks send is float64 where so much of what they compute is (share); of a message that takes so long (ns) the bytes are what takes
#: the time, and half of them half of it.
ALL_FLOAT64_SHARE, LONG_MESSAGE_NS, HALF_OF_BYTES_LEFT = 0.9, 100_000, 0.5
# ---- _gathered_losses -------------------------------------------------------------------------------------------
#: Bytes of gradients are those of all parameters if they differ by no more than this share of those of a head. Chosen: without the head's
#: they differ by all of it; a metric is reduced besides.
BYTES_OF_HEAD_SHARE = 0.5
# ---- _held ------------------------------------------------------------------------------------------------------
#: Host code before a call is more than launching takes from this time on (ns), if it is also so many times the usual pause: of a
#: line that mostly does something else (``FOR_A_LAUNCH_NS``), and before any other.
HELD_BY_LINE_NS, HELD_BY_LINE_TIMES = 50_000, 4
HELD_ANYWHERE_NS, HELD_ANYWHERE_TIMES = 500_000, 20
# ---- _late_rank_lines -------------------------------------------------------------------------------------------
#: A rank copies weights, and no value that is read, if its copies take this share of what it is late by, or more. Chosen: one average of
#: the weights on the CPU has 0.29; lines that read a value were not measured.
COPIES_LATE_SHARE = 0.05
# ---- _layer_messages --------------------------------------------------------------------------------------------
#: Exposed communication is what layers need at once if this share of it is. Layers are small whose messages have no more bytes (40 us over
#: NVLink) and take this share of the step; a loss of the samples of all ranks sends fewer in a step.
AT_ONCE_SHARE, SMALL_LAYER_BYTES, SMALL_LAYERS_SHARE, FEWEST_LAYER_MESSAGES = 0.8, 16 << 20, 0.25, 8
# ---- _line_causes -----------------------------------------------------------------------------------------------
#: Lines of the program's own Python that run in one step, from which they are a loop over single items; one call of numpy over all
#: of them takes less than so many lines do (about 50 ns a line, 20 us a call). A line of such a loop runs at least so often.
MANY_LINE_RUNS, LOOPED_RUNS = 1_000, 2
#: A line is one call, or a few, if this share of its own time lies in runs of a millisecond and more, and it runs no more often in a step.
ONE_CALL_SHARE, FEW_CALLS = 0.8, 8
# ---- _line_remedies ---------------------------------------------------------------------------------------------
#: Letters of a line that a title quotes; launches in a step from which a line is a loop over something.
QUOTED_LINE_LETTERS, LOOP_LAUNCHES = 60, 20
# ---- _lines -----------------------------------------------------------------------------------------------------
#: Work is of one line if that launches so much of it, else of the innermost line below which so much of it is launched. A line below which
#: so much of all work is launched says nothing: of one that launches most of what is asked the place is known.
OF_ONE_LINE_SHARE, BELOW_ONE_LINE_SHARE, BELOW_ALL_WORK_SHARE = 0.8, 0.6, 0.9
#: A line that takes less than this for each of its launches (ns) is busy launching.
FOR_A_LAUNCH_NS = 250_000
# ---- _looped_parameters -----------------------------------------------------------------------------------------
#: What it takes to put a tensor into a list, of what an operator on it took in the loop (share): parts of a DTensor, and plain tensors.
#: Measured with two processes of gloo: 3.5 of 23 us and 1.6 of 2.8 us, of which less than 1 us is the call for all on a GPU.
LISTED_PART_SHARE, LISTED_SHARE = 0.15, 0.4
#: The body of a loop has no more lines.
MOST_BODY_LINES = 12
# ---- _meetings --------------------------------------------------------------------------------------------------
#: Large messages move at far more than this share of what NVLink of the card can, even where half of its links join a pair.
SLOW_NVLINK_SHARE = 0.1
#: Chosen: messages of one size reach half of it beside computation, so a group of ranks is slower for another reason if it is this many
#: times as slow as another with messages of a size within so many times.
SLOWER_GROUP_TIMES, LIKE_SIZE_TIMES = 3, 2
#: Ranks that are named. Smaller messages reach no link's bandwidth. Launches between exchanges of a loop. A norm's kernels on activations.
NAMED_RANKS, LARGE_MESSAGE_BYTES, MOST_BETWEEN_EXCHANGES, KERNELS_ON_ACTIVATIONS = 8, 4 << 20, 4, 2
# ---- _names -----------------------------------------------------------------------------------------------------
#: Networks that are named; the others are counted.
MOST_NAMED_NETWORKS = 2
# ---- _needs -----------------------------------------------------------------------------------------------------
#: The program's thread, and that of autograd.
THREADS_WITH_AUTOGRAD = 2
#: From so many groups on, of so few tensors each, an optimizer's launches are those of its groups: it updates one after the other.
MANY_PARAMETER_GROUPS, TENSORS_OF_SMALL_GROUP = 20, 2
#: Copies to the GPU of so few bytes are single numbers of the program; so many of them in each step are made by a loop.
NUMBER_COPY_BYTES, MANY_NUMBER_COPIES = 64, 20
#: So many launches for each such copy at most: the copies are what keeps launches from running ahead.
LAUNCHES_PER_NUMBER_COPY = 20
# ---- _noted -----------------------------------------------------------------------------------------------------
#: Most lines that are named; and what a line calls that stands for all of it: so many kinds, of which none takes more (share).
MOST_NOTED_LINES, FEWEST_KINDS_TOGETHER, MOST_OF_TOGETHER_SHARE = 5, 3, 0.65
#: A remedy takes most of a line's time, not always all of it (share of it that may stay). Of a function that intercepts operators their own
#: host code stays; how long that takes is only estimated (share that may stay).
LINE_MAY_STAY_SHARE, OPERATORS_MAY_STAY_SHARE = 0.2, 0.5
#: Other threads are told from this share of the step on; a line that takes longer (ns) waits there, or is not Python's own work.
OTHER_THREADS_SHARE, RUNNING_LINE_NS = 0.1, 1_000_000
#: Launches of one line in one module from which it is a loop there: a layer or a function of a library makes fewer. A loop that calls has
#: so many rounds (a statement of several lines runs two or three times); so many lines that it calls are named.
LOOP_LAUNCHES_IN_MODULE, FEWEST_CALLING_ROUNDS, MOST_CALLED_LINES, MOST_RUNS_OF_ONE_CALL = 100, 4, 3, 1.5
#: A finding about a stall of the host is that of a line if this share of its time is.
OF_NOTED_LINE_SHARE = 0.6
# ---- _once ------------------------------------------------------------------------------------------------------
#: Findings that share less than this part of the step do not overlap.
OVERLAP_SHARE = 0.01
# ---- _read_one_by_one -------------------------------------------------------------------------------------------
#: So many reads of one line in a step are a loop over values. Chosen.
FEWEST_READS = 32
# ---- _requests --------------------------------------------------------------------------------------------------
#: A forward-only step as short as this (on a slow host) pays for guards and copied inputs as much as a graph of it saves. The worth of
#: batching requests is computed for a batch of so many inputs.
SHORT_FORWARD_STEP_NS, BATCHED_INPUTS = 5_000_000, 8
# ---- _shared_factors --------------------------------------------------------------------------------------------
#: Operations of Cholesky's factorization of a matrix, as a share of those of one with pivots (n^3 / 3 of 2 n^3 / 3).
CHOLESKY_SHARE = 0.5
# ---- _shares_of_ranks -------------------------------------------------------------------------------------------
#: Ranks go through unlike batches at the same time if this share of the longest GPU work in each step goes with one order for all. Nine
#: recorded jobs: 0.01 to 0.09; batches of like length that each rank shuffles by a seed of its own 0.22.
UNLIKE_ORDERS_SHARE = 0.1
# ---- _sharded_models --------------------------------------------------------------------------------------------
#: Bytes of each number that a conversion reads (float32) and writes (16 bits); of weights, gradients and two moments of each parameter.
BYTES_OF_A_CAST, BYTES_OF_TRAINING = 6, 16
# ---- _transform_lengths -----------------------------------------------------------------------------------------
#: The largest prime factor of a length for which cuFFT has a kernel of its own; beyond it uses Bluestein's algorithm (cuFFT's manual).
LARGEST_FFT_PRIME = 127
#: Bluestein's algorithm makes two complex transforms of at least twice the length, and products before, between and behind them; a real
#: transform of a length with small factors moves a quarter to an eighth of these numbers.
BLUESTEIN_LEFT_SHARE = 0.2
# ---- _unread ----------------------------------------------------------------------------------------------------
#: Backwards that nothing reads are not worth a word below this share of the step.
MUCH_UNREAD_SHARE = 0.03
# ---- _leaf_activations ------------------------------------------------------------------------------------------
#: A part is the lowest that is trained if no more than this of the backward below all that is trained lies in it.
LEFT_BELOW_SHARE = 0.1
#: Of the products of a backward half make the gradients of weights, the other half those of inputs. Parts with less of it go unnamed.
WEIGHT_GRADIENTS_SHARE, FROZEN_PART_SHARE = 0.5, 0.05
# ---- _unrecorded_steps ------------------------------------------------------------------------------------------
#: Of so many steps without the profiler some may be called long.
FEWEST_UNRECORDED_STEPS = 20
# ---- nsx102_launch_bound ----------------------------------------------------------------------------------------
#: Least share of the step in which the GPU idles for launches that is reported; a normal step has 2 to 3 % of such pauses.
LAUNCH_BOUND_SHARE = 0.05
#: A model that is called so many times a step overwrites its last output.
SEVERAL_MODEL_CALLS = 2
#: Recurrent cells run over a sequence one element at a time from so many calls a step on.
SEQUENCE_CELL_CALLS = 8
#: Kernels that a compiler can fuse lead from so many times on what a graph saves.
FUSION_LEADS_TIMES = 1.5
# ---- nsx103_first_call ------------------------------------------------------------------------------------------
#: First calls are reported from this share of the window, or of a step, on.
FIRST_CALL_SHARE = 0.02
# ---- nsx104_allocator_thrash ------------------------------------------------------------------------------------
#: The program frees the cache itself where so much of the calls that free memory are at lines that do.
FREED_BY_PROGRAM_SHARE = 0.5
#: A limit of memory is what frees the cache where the most that was reserved comes so near to it: a new block did not fit.
NEAR_MEMORY_LIMIT_SHARE = 0.75
# ---- nsx105_exposed_copy ----------------------------------------------------------------------------------------
#: The GPU waits for data that the CPU makes where it idles before the copies for this share of the step.
MADE_ON_CPU_SHARE = 0.05
#: Kernels that take less than this share of the copies' time hide none of it.
HIDING_KERNELS_SHARE = 0.1
#: Copies that run for this share of the steps keep the link busy all the time.
ALL_COPIES_SHARE = 0.98
#: Most places that copy that are findings of their own: the costliest ones.
MOST_COPY_PLACES = 4
#: More than this in each step is no result that somebody reads: it should be selected or reduced on the GPU.
MUCH_READ_BACK_BYTES = 1 << 20
# ---- nsx106_input_starvation ------------------------------------------------------------------------------------
#: From this batch size on most of a batch's time is the call and the stacking of each row, whatever a row is.
MANY_BATCH_ROWS = 512
#: Cores are there for so many times the workers or so many new ones, whose batches come so much later; or so slow that steps wait. Chosen.
MORE_WORKERS, NEW_WORKERS, LATE_BATCH_TIMES, SLOWER_WORKERS_TIMES = 1.25, 8, 3, 1.3
# ---- _values_of_ranks -------------------------------------------------------------------------------------------
#: Single values are messages of at most so many bytes: a few numbers. Chosen: from so many messages a step at one line they are a loop's.
VALUE_OF_RANKS_BYTES, FEWEST_VALUES_OF_RANKS = 64, 8
# ---- _untrained -------------------------------------------------------------------------------------------------
#: Sizes tell of parts that nothing trains from this share of what is reduced, and only where all optimizers were noted: fewer than this.
#: More parts than this are not named in code. No GPU reads and writes more bytes than that for an update (a ns). Chosen: a B200's memory.
FEWEST_UNTRAINED_SHARE, MOST_LIVING_OPTIMIZERS, MOST_NAMED_PARTS, MOST_UPDATED_BYTES_NS = 0.05, 20, 6, 8_000
# ---- _worker_lines ----------------------------------------------------------------------------------------------
#: A function that begins so many times for each sample does work that is thrown away, if it has most of a worker's batch.
AGAIN_FOR_A_SAMPLE = 1.5
#: A worker that is on a CPU for less than this share of a batch waits.
WORKING_SHARE = 0.5
# ---- _worker_remedies -------------------------------------------------------------------------------------------
#: So many times the bytes of a batch are read for it: unpacked images are read in fewer, and float32 of 8 bits in a quarter. Chosen.
READ_FOR_LITTLE_TIMES = 10
#: A line runs for single items where it runs so often for each sample, each time for less than this (ns; counting takes 1 to 3 us).
LOOPED_FOR_A_SAMPLE, LOOPED_LINE_NS = 16, 10_000
#: It does so as often as there are workers if the two numbers differ by no more than this share.
SAME_AS_WORKERS_SHARE = 0.1
# ---- nsx107_inflated_event --------------------------------------------------------------------------------------
#: Most places that time with events that are named: those read most often.
MOST_EVENT_PLACES = 4
#: A reading this much above its kernels is inflated (share of the kernels' time).
INFLATED_READING_SHARE = 0.1
#: Places whose kernel times differ by no more than this share do the same work.
ALIKE_PLACES_SHARE = 0.05
# ---- nsx108_kernel_spread ---------------------------------------------------------------------------------------
#: A spread that sums to a smaller share of the kernel time is not worth a word.
SPREAD_OF_KERNELS_SHARE = 0.01
# ---- nsx109_slow_steps ------------------------------------------------------------------------------------------
#: A step is slow if it takes this share longer than the median one; of fewer steps than the second number none is told.
SLOW_STEP_SHARE, SLOW_STEPS_FEWEST_STEPS = 0.2, 4
#: A clock lower by less than this share explains nothing: it changes by a few percent all the time.
SLOWER_CLOCK_SHARE = 0.05
#: Slow steps read something back that others do not, if it is so many bytes, and so many times what the others read.
SAVED_BYTES, SAVED_TIMES = 1 << 20, 10
#: Slow steps whose numbers are given.
MOST_LISTED_SLOW_STEPS = 8
#: Slow steps that the title names; a cause that explains less of the difference than this says how much.
MOST_NAMED_SLOW_STEPS, SLOW_CAUSE_ALL_SHARE = 2, 0.9
# ---- nsx110_exposed_comm ----------------------------------------------------------------------------------------
#: So many times as many micro-batches are what is likely, and this share of the bubble that they remove stays gone: kernels of smaller
#: batches use a GPU less well (two stages on H100s, 1 to 4 micro-batches: 86.4 to 72.1 ms, where 54 ms would be without that).
MORE_MICRO_BATCHES_TIMES, BUBBLE_GAINED_SHARE = 4, 0.45
# ---- _pipeline_stages -------------------------------------------------------------------------------------------
#: Micro-batches for each stage that hide most of the bubble (two stages: a ninth is left), and so many that they are too small (chosen).
ENOUGH_MICRO_BATCHES_TIMES, MANY_MICRO_BATCHES_TIMES = 4, 8
#: Of the time in which stages took turns so much goes where they work beside each other, and how wrong that may be: messages come late.
TURNS_GAINED_SHARE, TURNS_ERROR_SHARE = 0.8, 0.4
# ---- _stage_layers ----------------------------------------------------------------------------------------------
#: Layers are what a stage is cut in where they take this share of its work; another number of them is told if it saves this share of a
#: step. So many parts that a stage has besides are named. All chosen.
LAYERS_OF_STAGE_SHARE, EVEN_STAGES_SAVING_SHARE, NAMED_STAGE_PARTS = 0.3, 0.05, 3
#: The longest of like layers takes at most so many times as long as the shortest (chosen: 1.03 times on a GPU of their own, and 1.2 on one
#: that two ranks share; layers of a CNN that halves its maps differ more).
LIKE_LAYERS_TIMES = 1.5
#: So many modules of one class whose names end with a number are layers (chosen: a block has two of a kind, norm1 and norm2).
FEWEST_NAMED_LAYERS = 3
#: Of what lies between the least and the most that a better cut saves, so much is likely where ranks share a GPU: there the other one works
#: while one waits, and faster. Measured of two such programs: nothing between 0.3 and 16 ms, and 8.9 between 9 and 27.
SHARED_CUT_SHARE = 0.25
# ---- _dispatched -------------------------------------------------------------------------------------------------
#: A batch is broadcast if so many bytes a step are: sizes, flags and seeds that ranks agree on are far smaller.
DISPATCHED_BYTES = 100_000
# ---- _uneven_tables ---------------------------------------------------------------------------------------------
#: Tables lie unevenly where a rank looks up this many times as much as its peers (chosen: tables that are dealt out by cost come nearer).
LOOKED_UP_MORE_TIMES = 1.25
# ---- _compressing_hooks -----------------------------------------------------------------------------------------
#: A hook compresses if it sends no more than this share of the bytes: half of them is another type, which costs next to nothing.
COMPRESSED_SHARE = 0.3
# ---- _lone_updates ----------------------------------------------------------------------------------------------
#: Of the bytes that are reduced so many are sent back as parameters: a quarter, of float32 gradients and 16 bits, leaves room for others.
SENT_BACK_SHARE = 0.25
# ---- _uneven_experts --------------------------------------------------------------------------------------------
#: Experts lie unevenly where a rank is sent so many times as many rows as its peers, and all send as many but for this share. Chosen:
#: routers are trained to nearly even loads of experts, and a batch differs from the next by a few percent.
SENT_MORE_TIMES, SENT_ALIKE_SHARE = 1.25, 0.1
# ---- nsx111_straggler -------------------------------------------------------------------------------------------
#: From this share of a step, with what runs between steps, sharing what one rank does there comes first. Peers run a line, too, where
#: it takes them this share of what it takes a late rank.
RANK_WORK_LEADS_SHARE, RUN_ON_PEERS_SHARE = 0.05, 0.1
# ---- nsx113_tiny_launches ---------------------------------------------------------------------------------------
#: A module makes many tiny launches from so many in a step on, if their median kernel is shorter than this (ns): about what it
#: takes to launch one.
MANY_TINY_LAUNCHES, TINY_KERNEL_NS = 20, 10_000
#: Most modules that are findings of their own: those with most launches.
MOST_TINY_MODULES = 3
# ---- nsx114_host_stall ------------------------------------------------------------------------------------------
#: A pause of the host is a stall from this length on (ns), and from so many times the usual pause on.
STALL_NS, STALL_TIMES = 100_000, 10
#: Most places that are findings of their own: the costliest ones.
MOST_STALL_PLACES = 3
#: A line with this share of the samples, or a call with this share of the time, is named as what the thread did.
STALL_STANDS_OUT_SHARE = 0.3
#: A line that runs for this share of a stall has about all of it (chosen); a change of another saves its own share.
WHOLE_STALL_SHARE = 0.9
#: A pause before a pageable copy of this many bytes to the device made that data.
STALL_MADE_BYTES = 64 << 10
# ---- nsx115_wrong_timing ----------------------------------------------------------------------------------------
#: A reading is wrong when it is off from the kernel's time by this factor, up or down.
WRONG_READING_TIMES = 1.5
#: Fewer readings than this say nothing: one may be off by accident.
FEWEST_WRONG_READINGS = 3
#: A kernel of which more are launched for each synchronize is work of a loop that waits now and then, as solvers do: nobody times it.
MOST_LAUNCHES = 10
#: Who measures, measures what the GPU mostly does: of a database that waits for its small kernels in between, these are 0.3 % (gpudb).
LEAST_MISREAD_SHARE = 0.03
# ---- nsx123_python_line -----------------------------------------------------------------------------------------
#: Most lines that are named, and fewest samples behind a figure: with 10 its 95 % interval is from half to twice the figure.
MOST_PYTHON_LINES, FEWEST_LINE_SAMPLES = 3, 10
# ---- _recorded_graphs -------------------------------------------------------------------------------------------
#: CUDA graphs are recorded anew for new shapes where so many steps do it, and so many (share) do not, whose length is then the usual one.
FEWEST_RECORDING_STEPS, STEPS_WITHOUT_RECORDING_SHARE = 2, 0.25
# ---- nsx125_gpus_take_turns -------------------------------------------------------------------------------------
#: GPUs that share the work of a step idle now and then while another works; for this share of the step they take turns.
GPUS_IN_TURNS_SHARE = 0.1
# ---- nsx126_round_trips -----------------------------------------------------------------------------------------
#: Fewest alike rounds a step, fewest launches of one, and how far their number may be from the usual one (share).
FEWEST_ROUNDS, FEWEST_ROUND_LAUNCHES, ALIKE_ROUNDS_SHARE = 4, 2, 0.25
#: Least share of the step in which the GPU idles in rounds; of what a module asks, the share of sizes from which on it gathers groups.
ROUND_TRIPS_SHARE, SIZES_ASKED_SHARE = 0.15, 0.3
# ---- _checked_rounds --------------------------------------------------------------------------------------------
#: A line that checks whether a round was the last reads so often in a step; it may ask in every so many rounds at the rarest (chosen).
FEWEST_CHECKED_ROUNDS, MOST_UNCHECKED_ROUNDS = 8, 20
# ---- nsx130_between_steps ---------------------------------------------------------------------------------------
#: Of what runs between steps, parts are named from this share on; copies to the host lead the advice from this one. An evaluation that
#: copies all its outputs (885 MB) spends half of its time there.
NAMED_BETWEEN_SHARE, COPIED_BETWEEN_SHARE = 0.05, 0.2
#: What runs between steps is reported from this share of the loop on.
BETWEEN_STEPS_SHARE = 0.10
#: A policy is called so often in a row, every so many steps, and this share of the calls has a copy in and out, of few bytes. Chosen.
POLICY_CALLS, STEPS_TO_ROUNDS, EACH_ROUND_SHARE, ROUND_BYTES = 8, 10, 0.9, 64 << 10
# ---- _made_between -----------------------------------------------------------------------------------
#: A rollout draws numbers this often for each call of its network; what is made for the steps is read in no more of the stretches than this
#: share: the first may hold what begins with the loop. Chosen; measured: 3 draws a call, and 1 of 2 stretches.
DRAWS_A_CALL, STRETCHES_READ_SHARE = 0.5, 0.5
#: Of the rows of a step so many were given to a network before it if they are those of a rollout, and so few of these came before. Chosen.
TRAINED_ROWS_SHARE, OLD_ROWS_SHARE = 0.5, 0.1
# ---- _same_evaluations -----------------------------------------------------------------------------------------------
#: Of what goes when ranks share an evaluation, so much may stay: what is done once for each, and its reduction. Measured: 3 % of 25 ms.
SHARED_EVALUATION_STAYS = 0.15
#: The GPU works between steps if it does so for this share of the time. Chosen.
BUSY_BETWEEN_SHARE = 0.5
# ---- _reduced_twice, _ranks_apart -----------------------------------------------------------------------------------
#: Two sums of bytes are of the same gradients if they differ by less than this share (chosen: metrics may be beside), so few are metrics
SAME_BYTES_SHARE, MOST_METRIC_BYTES = 0.01, 64 << 10
# ---- _shared_tensors --------------------------------------------------------------------------------------------
#: So many numbers of a tensor must be able to differ (those compared, less what is alike by chance), and of them this share is alike where
#: ranks have the same samples. Of labels, one number for each sample, nearly all: 12 are so by chance in one case of millions.
FEWEST_LABELS, SHARED_LABELS = 12, 0.95
#: Of tensors with many numbers for each sample, what masks, noise and flips leave: by chance it is half of 32 in one case of a thousand.
FEWEST_NUMBERS, SHARED_NUMBERS = 32, 0.5
#: Lines of a function that run this share as often are of one loop. Chosen: a parameter without a gradient is left out.
SAME_LOOP_SHARE = 0.8
# ---- _sent_again ----------------------------------------------------------------------------------------------------
#: Most modules, and most layers of each, that are named in a sentence.
MOST_NAMED_LAYERS = 4
# ---- _whole_batches ---------------------------------------------------------------------------------------------
#: Bytes of a number of what comes of a network, whose type is not recorded: the more of those that networks compute in.
GATHERED_ELEMENT_BYTES = 4
#: Scales are messages of so many bytes at most, and one message for all of them is advised from so many in a step on. Chosen.
SCALE_BYTES, FEWEST_SCALES = 64, 16
