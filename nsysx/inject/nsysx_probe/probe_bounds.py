"""The numbers that the probe was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- at_limit -------------------------------------------------------------------------------------------------------
#: How often a thread looks for the file (s): a program without steps calls nothing of the probe's.
LIMIT_LOOK_S = 0.25

# ---- at_work --------------------------------------------------------------------------------------------------------
#: How many calls the shortest is taken of: before, and at each look, where nsys may record them; and how many times as long a traced
#: one takes at least.
BARE_CALLS, TRACED_CALLS, TRACED_LONGER = 500, 60, 1.5
#: How often to look, how long at most, and how long after nsys has begun to trace calls it has begun to record kernels (s).
AT_WORK_LOOK_S, AT_WORK_LONGEST_S, KERNELS_AFTER_CALLS_S = 0.01, 1.5, 0.05

# ---- attention_masks, given_masks, loss_targets ---------------------------------------------------------------------
#: Backwards of a step that are looked at, shapes of masks, masks held of one (layers may have their own), targets held, nodes near losses.
MOST_MASK_BACKWARDS, MOST_MASK_SHAPES, HELD_MASKS_OF_SHAPE, HELD_TARGETS, MOST_NODES_NEAR_LOSS = 4, 4, 3, 8, 256
#: Of a mask that is not empty about so many rows are looked at, of so many sequences and heads each; what is added to a score that is
#: masked is no more than this (transformers: the least number of its format; others: -1e4, -1e9, -inf). Decoding has FEW.
MASK_ROWS, MOST_MASK_LEADS, LEAST_MASKED, FEW_MASK_ROWS = 32, 4, -9_999.0, 16

# ---- autocast_places ------------------------------------------------------------------------------------------------
#: A definition has fewer lines of decorators.
MOST_DECORATOR_LINES = 20

# ---- backward -------------------------------------------------------------------------------------------------------
#: How deep into nested results the search for tensors goes, and how many items of each it looks at. Chosen: models return
#: tuples and dicts of few levels; a list of thousands of tensors would cost each call.
DEEPEST_RESULT, WIDEST_RESULT = 3, 32

# ---- batch_padding --------------------------------------------------------------------------------------------------
#: So many tensors of a batch are looked at, of so many elements at most, and samples shorter than this are not padded to a length.
MOST_BATCH_TENSORS, LARGEST_PADDED_TENSOR, SHORTEST_PADDED = 8, 1 << 22, 8
#: Tensors are held if they and what they are a view of are so small (bytes) that no allocation of the program misses them.
HELD_TENSOR_BYTES, HELD_STORAGE_BYTES = 1 << 20, 1 << 24
#: What torch's losses ignore: such targets say nothing about their samples.
IGNORED_TARGET = -100

# ---- batch_parts ----------------------------------------------------------------------------------------------------
#: Numbers of each tensor that are hashed, how many it must have, and batches of a loader. Chosen: 8 tensors take 1 ms and 2 kB.
MOST_PART_NUMBERS, FEWEST_PART_NUMBERS, MOST_PARTED = 64, 4, 8
#: Whole numbers that all differ are taken for numbers of samples if the largest is at least this share of how many samples there are, as
#: one of 64 drawn ones nearly always is. Chosen: users and items are fewer than what is known of them.
SAMPLE_NUMBERS_SPAN = 0.5

# ---- blocks ---------------------------------------------------------------------------------------------------------
#: One part of so many of a block's steps is not counted, at least one step.
UNCOUNTED_EVERY = 5

# ---- call_periods ---------------------------------------------------------------------------------------------------
#: Calls from which a word is learned.
MOST_PERIOD_CALLS = 256
#: How often a word must have come in a row.
PERIOD_REPEATS = 3

# ---- capture_range --------------------------------------------------------------------------------------------------
#: How long nsys usually needs to begin in another process than that which holds the range (s); `at_work` tells where it needs longer.
NSYS_BEGINS_S = 0.5

# ---- capture_window -------------------------------------------------------------------------------------------------
#: ``auto``: the window opens after this many steps that are alike in a row, ...
AUTO_ALIKE = 5
#: ... but not before this many steps in all, ...
AUTO_LEAST_BEFORE = 16
#: ... and after this many even if steps are never alike.
AUTO_MOST_BEFORE = 48
#: Steps at a window's end that carry everything, and how many plain ones come before them where the probe chooses.
XRAY_STEPS, PLAIN_STEPS = 3, 24

# ---- changes/compiling ----------------------------------------------------------------------------------------------
#: How long a program compiled with max-autotune may take until its first step (s). A try that ends too early measures nothing.
MAX_AUTOTUNE_START_S = 900.0

# ---- changes/distributed --------------------------------------------------------------------------------------------
#: Sizes of buckets (MB): larger ones, and those that DDP makes unless it is asked for others (25, torch's default).
LARGE_BUCKET_MB, USUAL_BUCKET_MB = 100, 25

# ---- changes/loading ------------------------------------------------------------------------------------------------
#: Batches that each worker makes ahead. Chosen: four times torch's default of 2.
PREFETCHED_BATCHES = 8

# ---- clock ----------------------------------------------------------------------------------------------------------
#: Number of steps that are remembered. Chosen: bounds the memory of a run of days.
MOST_CLOCKED_STEPS = 4_096
#: Steps at the start that do not count: caches fill, kernels are loaded, and the queue fills up.
WARM_UP_STEPS = 3
#: The real step is the median over this many blocks of steps.
CLOCK_BLOCKS = 5
#: Least number of steps in a block.
SMALLEST_CLOCK_BLOCK = 2
#: An event begins each of so many steps before the window.
MOST_CLOCK_EVENTS = 65
#: Between two windows events begin blocks of steps that take about so long (ns): 2 us would be 10 % of a step of 20 us.
BARE_BLOCK_NS = 200_000
#: Bare steps between two windows do not count before so many of them and this time: the pause at the first window's end lets the
#: device run dry.
BARE_SETTLING_STEPS, BARE_SETTLING_NS = 2, 500_000_000
#: They are measured at least and at most this long, ...
BARE_SHORTEST_NS, BARE_LONGEST_NS = 1_000_000_000, 3_000_000_000
#: ... but until there are so many (so many for an estimate of the mean's error), ...
BARE_FEWEST, BARE_ENOUGH = 3, 32
#: ... and no longer if the mean is known to this share (twice the standard error over blocks of steps).
BARE_ERROR_SHARE, BARE_ERROR_BLOCKS = 0.01, 8
#: A bare step is long from so many times the usual length on, and from this time on, where long ones come back from the second ...
LONG_STEP_TIMES, SHORTEST_LONG_STEP_NS, SHORTEST_RETURNING_NS = 3, 60_000_000, 15_000_000
#: ... on. It is looked for no more often than this, and its line noted this often, so many times; so many of the lines are told.
LONG_STEP_LOOK_NS, LONG_STEP_SAMPLE_NS = 200_000_000, 10_000_000
MOST_LONG_STEP_SAMPLES, MOST_LONG_STEP_PLACES = 1_000, 20
#: So many looks tell the usual length, and the last ones of them count; so many steps tell whether long ones come back.
FEWEST_LOOKS, LAST_LOOKS, LAST_STEPS = 5, 50, 64
#: Steps so many times as long as usual come back regularly if so many, and this share of all, are as far from the last one.
RETURNING_TIMES, FEWEST_RETURNS, REGULAR_SHARE = 2, 3, 0.7
#: A step that spends this share of its time in a loader's next has waited for its batch.
BARE_WAIT_SHARE = 0.2
#: What runs between steps and is none of them is told from this share of the time on.
BETWEEN_STEPS_SHARE = 0.01

# ---- draining -------------------------------------------------------------------------------------------------------
#: A wait ends after this time (s) and so many of the longest steps so far, at the latest after ``DRAIN_LONGEST_S``: a queue holds up to
#: 1,024 launches, which may be as many steps if each is one graph. In the middle of something no step tells, so it ends only then.
DRAIN_S, DRAIN_STEPS, DRAIN_LONGEST_S = 10.0, 1024, 60.0
#: The same in the middle of something for one of several processes, whose device may wait for one that is held as well.
DRAIN_OF_RANK_S = 5.0
#: How long to sleep between two looks at an event, at first and at most (s).
DRAIN_LOOK_S, DRAIN_MOST_LOOK_S = 0.001, 0.01
#: The same where the program's other threads are held back meanwhile (s). A switch interval that never ends (s).
DRAIN_HELD_LOOK_S, NEVER_SWITCHES_S = 0.02, 1e6

# ---- gathering ------------------------------------------------------------------------------------------------------
#: So many of the last steps tell how long one takes, twice over. An offer to wait stands at least and at most this long (s), and what
#: was waited for in vain is at most this, in all (s).
GATHERING_STEPS, GATHERING_LEAST_S, GATHERING_MOST_S, GATHERING_LOST_S = 12, 0.02, 0.5, 2.0
#: Ranks of one kind wait this long for each other, and twice as long as a step takes (s), before they are taken for ranks apart.
GATHERING_TOGETHER_S = 3.0
#: And their devices this long, and twice as long as a step takes (s), once the first of them has nothing to do.
GATHERING_RESTS_S = 1.5
#: The leading rank renames a file for each other one, and so it decides within less than this (s).
GATHERING_DECIDED_S = 1.0

# ---- dataset_facts --------------------------------------------------------------------------------------------------
#: Datasets inside each other that are looked at, attributes of one, and items of a list. Chosen: they take below 10 ms behind a window.
MOST_DATASETS, MOST_DATASET_VALUES, MOST_DATASET_ITEMS = 8, 64, 64

# ---- held_memory ----------------------------------------------------------------------------------------------------
#: Tensors are held if the memory that they lie in is no more than this (bytes), on a GPU than this share of its memory, of which the
#: program with them uses no more than that share. Chosen: a mask of 8 x 8192 x 8192 numbers of 16 bits on a card of 80 GB.
HELD_BYTES, HELD_MEMORY_SHARE, USED_MEMORY_SHARE = 1 << 28, 1 / 64, 0.9

# ---- job_ranks ------------------------------------------------------------------------------------------------------
#: How often a rank looks whether those of other nodes have come, and how often whether they have announced something (s).
RANKS_LOOK_S, RANKS_ASK_S = 0.005, 0.25
#: How long a rank looks whether all make steps (s): one of them may make its first when others have made hundreds.
RANKS_COME_S = 60.0

# ---- kernel_launches ------------------------------------------------------------------------------------------------
#: Functions of one kernel that are read for products, and kernels that are remembered.
MOST_KERNEL_FUNCTIONS, MOST_KERNELS = 50, 2_000

# ---- later_kind ----------------------------------------------------------------------------------------------------
#: Steps of another kind than the recorded ones take at least this time (ns) before they get a window; a run has so many more windows.
LATER_KIND_NS, MOST_LATER_KINDS = 2_000_000_000, 2

# ---- line_ranges ----------------------------------------------------------------------------------------------------
#: Most lines that a step begins, and how many of them may be those of packages.
MOST_STEP_LINES, MOST_PACKAGE_LINES = 20_000, 10_000
#: How often in a step a function that runs so many lines may become one range. Chosen: a few loops, and what they call.
MOST_FOLDS = 8
#: Lines may take this long (ns) in any step, however short.
LINES_LEAST_NS = 5_000_000
#: A line that took longer was interrupted (ns).
LINE_MOST_NS = 20_000
#: One of so many lines is timed, to know what all of them cost.
TIMED_LINES = 64
#: Texts of lines that are registered. Chosen: NVTX never frees one, and a program that makes code without end would fill its memory.
MOST_LINE_TEXTS = 20_000

# ---- line_tracing ---------------------------------------------------------------------------------------------------
#: One of so many calls is timed.
TIMED_CALLS = 64

# ---- main_loop ------------------------------------------------------------------------------------------------------
#: How often is looked whether something makes steps (s); for so long jumps are told (s). Looked for is a loop so many times.
LOOP_LOOK_S, LOOP_WATCH_S, LOOP_MOST_TRIES = 1.0, 3.0, 5
#: Looks at the stack in a second, and in which share of them a function has to be on it.
LOOP_LOOKS, LOOP_CODE_SHARE = 20, 0.5
#: The main loop has so many rounds while jumps are told, which take this long (ns): shorter ones are parts of something.
LOOP_FEWEST_ROUNDS, LOOP_SHORTEST_NS = 8, 1_000_000
#: The loop has ended once no round has begun for this long (s) and for so many rounds' time.
LOOP_QUIET_S, LOOP_QUIET_TIMES = 3.0, 20

# ---- marking --------------------------------------------------------------------------------------------------------
#: Marked steps of one shape: one to learn from, one to check it, and one to spare.
REFERENCE_STEPS = 3
#: In a capture window of fewer steps than this, only the last one is marked; otherwise too few would run without marks.
SHORT_WINDOW_STEPS = 8
#: Marking ends after this many marked steps even if no shape came up often enough.
MARKING_PATIENCE = 6
#: Least number of steps before another unknown shape turns marks on again. It doubles each time, so that a program whose steps
#: are never alike pays for marks in fewer and fewer of them.
MARKING_PAUSE = 8
#: Among the steps (or calls) without marks, module calls are counted only in those whose number this divides.
LOOK_EVERY = 8
#: Shapes, and counts of calls, that are remembered. Chosen: a program whose steps are never alike would fill its memory.
MOST_SHAPES = 1_000
#: Marked steps whose shape is written into the probe file. Chosen: bounds its size.
MOST_MARKED_STEPS = 1_000

# ---- meeting --------------------------------------------------------------------------------------------------------
#: How often a rank looks whether the others have come (s).
MEETING_LOOK_S = 0.002
#: A rank waits for the others this long (s), and for this many of its own longest steps. Ranks that never come do not hold it for good.
MEETING_S, MEETING_STEPS = 10.0, 2

# ---- monitoring -----------------------------------------------------------------------------------------------------
#: A loop in one line tells of that line so often, and then no more.
LOOP_LINES = 16

# ---- network_inputs -------------------------------------------------------------------------------------------------
#: Networks of a step whose calls are looked at, calls of one in a step, and of all windows (micro-steps differ already), and steps of each.
MOST_HELD_NETWORKS, HELD_CALLS, MOST_INPUT_SUMS, MOST_GIVEN_STEPS = 4, 4, 16, 64
#: Evaluations, calls of a network in one of which sums are kept, of these the first ones, numbers of a tensor (rows, columns), weights.
MOST_EVALUATIONS, MOST_EVALUATED, FIRST_EVALUATED, EVALUATED_NUMBERS, EVALUATED_WEIGHTS = 3, 8, 3, 256, 4

# ---- odometer -------------------------------------------------------------------------------------------------------
#: So many blocks are kept; one lasts at least so long at first (ns), and twice as long whenever they are too many.
ODOMETER_BLOCKS, ODOMETER_BLOCK_NS = 128, 100_000_000

# ---- operator_ranges ------------------------------------------------------------------------------------------------
#: Number of backward graphs that are inspected before all others count as like them, and the largest graph inspected (nodes).
BACKWARD_LOOKS, MOST_BACKWARD_NODES = 3, 50_000

# ---- output ---------------------------------------------------------------------------------------------------------
#: What a phase adds to the shape is its place in this table; so many are told apart. Chosen.
MOST_PHASES = 1_000
#: Errors of the probe that are written into its file. Chosen: the first ones tell, and one may come with each call.
MOST_ERRORS = 20
#: Texts that are kept for ranges. Chosen: names with numbers in them have no end, and NVTX never frees one.
MOST_TEXTS = 100_000
#: Least time (ns) between two flushes in a row of short steps: one takes 5 us.
FLUSH_EVERY_NS = 100_000_000

# ---- pauses ---------------------------------------------------------------------------------------------------------
#: Shorter collections of the young generations (ns) are not kept: there are thousands of them, and they explain nothing.
LONG_PAUSE_NS = 100_000
#: How many collections are kept between two steps, and how many marks a process sends at most: nvtx never frees a text.
MOST_KEPT_PAUSES, MOST_SENT_PAUSES = 1_000, 20_000
#: Characters of a recompilation's reason that are sent.
MOST_REASON_LETTERS = 300

# ---- phase_ranges ---------------------------------------------------------------------------------------------------
#: A thread that calls networks makes the steps once it has called so many while the one that made them called none. Chosen: a thread
#: that looks at an example now and then does not come to it, a server does within a second.
CALLS_OF_SERVER = 16
#: Networks whose first call is remembered. Chosen: bounds the memory of a program that makes networks without end.
MOST_FIRST_ROOTS = 1_000
#: Parameters of a network that are compared with those of an optimizer. Chosen: the largest networks have a few thousand.
MOST_ROOT_PARAMETERS = 10_000

# ---- probe_windows --------------------------------------------------------------------------------------------------
#: The first window closes after so many steps in a row without marks that are alike: eight steady ones, one that shows where the
#: last of them ends, and one to spare.
FIRST_WINDOW_ALIKE = 10
#: Such steps also take about as long: none of them this many times as long as their median, or else the longest of them at most this
#: many times as long as the longest of as many before, and not shorter by more.
FIRST_WINDOW_LONGER = 2.0
#: If steps are never alike, it closes after so many of them, or after this time from the first one's end on and so many more.
FIRST_WINDOW_STEPS, FIRST_WINDOW_NS, FIRST_WINDOW_LEAST = 64, 30_000_000_000, 3
#: A second window that reaches the limit closes once it has so many steps: with them the report takes its averages from it.
SECOND_WINDOW_WHOLE = 8
#: Ranks of a job close and open by the number of the step, which all have in common. The first window has so many steps.
RANKS_FIRST_WINDOW = 24
#: When the second one opens, and when a window closes at the limit, one rank says so many steps before: hosts run ahead of each other.
#: Those of other runs of nsysx look now and then, so the second one opens so much later for them (ns).
RANKS_AHEAD, RUNS_AHEAD_NS = 4, 2_000_000_000

# ---- qualified_names ------------------------------------------------------------------------------------------------
#: How often all roots are walked again because a module inside one of them is unknown; second names of a module that are written into
#: the probe file, and modules without children that are remembered by name. Chosen: they bound its size and the memory of the probe.
MOST_WALKS, MOST_ALIASES, MOST_LEAVES = 8, 50, 10_000

# ---- ranges ---------------------------------------------------------------------------------------------------------
#: nsys drops a range whose name has 65,535 bytes or more; nobody reads more than this anyway.
MOST_TEXT_LETTERS = 200
#: The same for the path of a file.
MOST_PATH_LETTERS = 1_000
#: Digits of a step's number: what 64 bits hold in any case.
MOST_STEP_DIGITS = 18

# ---- resting --------------------------------------------------------------------------------------------------------
#: So many steps in a row must have been alike before the probe rests.
RESTING_SETTLED = 4
#: So many steps before the window are followed in full again.
RESTING_AHEAD = 2

# ---- settings_card --------------------------------------------------------------------------------------------------
#: Processes on a device that NVML is asked for. Chosen: more are told as so many.
MOST_CARD_PROCESSES = 64

# ---- settings_compile -----------------------------------------------------------------------------------------------
#: Compilations, options, breaks and places that are written into the probe file, and letters of a reason. Chosen: its size.
MOST_COMPILE_ENTRIES, LONGEST_BREAK = 20, 300

# ---- settings_groups ------------------------------------------------------------------------------------------------
#: So many groups are looked at, of at most so many ranks in all.
MOST_GROUPS, MOST_GROUP_RANKS = 100, 20_000

# ---- settings_objects -----------------------------------------------------------------------------------------------
#: So many parameters, modules, objects of a kind, and tables of embeddings of different sizes are looked at.
MOST_PARAMETERS, MOST_MODULES, MOST_OBJECTS, MOST_TABLES = 5_000, 5_000, 20, 100

# ---- settings_reader ------------------------------------------------------------------------------------------------
#: So many results of modules are looked at, and of nested ones so many items.
MOST_OUTPUTS, WIDEST_OUTPUT = 5_000, 8
#: Loaders, and lines that save, that are written into the probe file. Chosen: bounds its size.
MOST_LOADERS = 20
#: Batches of a loader whose samples are noted, samples of one that are looked at, and how many a batch must have: two ranks draw one
#: sample alike by chance. Chosen: a checksum of 1,000 numbers takes 0.1 ms.
MOST_DRAWS, MOST_DRAWN, FEWEST_DRAWN = 16, 1_000, 2

# ---- settings_state -------------------------------------------------------------------------------------------------
#: Letters of an environment variable that are written into the probe file. Chosen: settings are short, lists and paths longer.
LONGEST_VARIABLE = 100

# ---- sources --------------------------------------------------------------------------------------------------------
#: Lines whose text is kept, and how much of each.
MOST_SOURCE_LINES, MOST_SOURCE_LETTERS = 2_000, 200
#: Lines that may take a rank's share, of all files, and those of a loop that a long step is at. Chosen: a program has a few.
MOST_RANK_LINES, MOST_LOOP_LINES = 100, 100
#: No more of a file is read (bytes).
MOST_SOURCE_BYTES = 8_000_000

# ---- statements -----------------------------------------------------------------------------------------------------
#: No longer text is parsed for lines that go on below: a tenth of a million takes 20 to 100 ms, behind a window.
MOST_PARSED_LETTERS = 1_000_000

# ---- step_follower --------------------------------------------------------------------------------------------------
#: After this many steps of other optimizers, the one that ended rounds is gone or steps too rarely to end one.
GONE_AFTER_STEPS = 12
#: So often an optimizer may step in a round before one that is expected: the critic's steps for one of the generator.
MOST_TURNS = 12
#: After so many steps in a row behind which a network acts, what it does belongs to the step.
ACTS_FOR_STEPS = 3
#: Steps without an optimizer's that are remembered. Chosen: bounds the size of the probe file.
MOST_EMPTY_STEPS = 100

# ---- tensor_checksum ------------------------------------------------------------------------------------------------
#: Numbers of each tensor of a batch that are looked at (1 ms of 8 images), and how many unlike ones one needs: masks are alike by chance.
MOST_BATCH_NUMBERS, FEWEST_BATCH_VALUES = 256, 16

# ---- timing ---------------------------------------------------------------------------------------------------------
#: Borders of steps that are timed. Chosen: each holds an event of CUDA.
MOST_TIMED_STEPS = 100_000

# ---- trial ----------------------------------------------------------------------------------------------------------
#: Least number of measured steps, least number of those that together took S seconds, and how many times S fewer than the least
#: number may take. Chosen.
TRIAL_LEAST_STEPS, TRIAL_LEAST_LONG, TRIAL_MANY_TIMES = 30, 5, 3
#: Most steps of a block where the run itself finds how many take its time, and so many pairs of blocks must fit, fewer tell nothing.
TRIAL_MOST_BLOCK_STEPS, TRIAL_FEWEST_PAIRS = 100, 8
#: How long a finished process waits to be killed (s).
TRIAL_KILLED_S = 60.0
#: Parameters are looked at after so many steps, or after the warm-up if that is shorter: later, rounding may have grown.
TRIAL_EARLY_STEPS = 5

# ---- unread_gradients -----------------------------------------------------------------------------------------------
#: So many parameters of a network are looked at: the first ones of its modules; and of so many it is seen whether an optimizer holds them.
FIRST_PARAMETERS, MOST_HELD_PARAMETERS = 4, 20_000
#: So deep are the tuples, lists and dictionaries that a network is called with searched for a tensor that needs a gradient.
DEEPEST_INPUT = 4

# ---- untrained_weights ----------------------------------------------------------------------------------------------
#: So many parameters are compared, spread over all; more parts are not listed (chosen: 0.1 ms each, and adapters lie in each layer). Before
#: a window the device is asked so often, for so long. Behind one they are compared after so many steps, then twice as many, and so on.
MOST_COMPARED_WEIGHTS, MOST_PARTS, WEIGHTS_LOOK_S, WEIGHTS_REST_S, FIRST_COMPARED_STEPS = 64, 64, 0.001, 2.0, 8

# ---- weights --------------------------------------------------------------------------------------------------------
#: Numbers of a parameter that its projections cover, evenly spread over it, and projections of each.
PROJECTED_NUMBERS, PROJECTIONS = 65_536, 4

# ---- worker_lines ---------------------------------------------------------------------------------------------------
#: Batches of a worker before the one that is counted: they open files and fill caches.
WORKER_BATCH = 1
#: Lines and functions that are written into the probe file, those with most time. Chosen: bounds its size.
WORKER_LINES = 30
#: Transforms of compositions that are followed. Chosen: programs have some ten.
WORKER_TRANSFORMS = 60
#: Counting stops after so many lines and returns, and after this time (ns): a batch may take minutes.
WORKER_MOST_EVENTS, WORKER_MOST_NS = 200_000, 5_000_000_000

# ---- xray -----------------------------------------------------------------------------------------------------------
#: X-rayed steps that are written into the probe file. Chosen: bounds its size.
MOST_XRAY_STEPS = 1_000
#: So many of the last plain steps tell how long one takes. Chosen.
XRAY_RECENT_STEPS = 16
#: What a capture of a CUDA graph may cost more (ns): it happens once.
XRAY_CAPTURE_NS = 100_000_000
#: Functions whose returned values are looked at, calls of one in a step, for how long in a step (ns: lines cost time as well), and numbers
#: of a value whose first sample is all alike: banks of filters are zeros but for one number in two hundred.
MOST_RETURNING, MOST_RETURNED, RETURNED_MOST_NS, MOST_SPARSE_NUMBERS = 128, 64, 5_000_000, 16_384
