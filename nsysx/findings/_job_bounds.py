"""The numbers that the rules about jobs of several ranks were tuned with, as ``_finding_bounds`` holds those of the other rules."""

from __future__ import annotations

# ---- _costly_jobs -----------------------------------------------------------------------------------------------
#: A host that FSDP's units keep from launching leaves the GPU idle for this share of the step or more. Chosen: a fifth shows on any host.
IDLE_FOR_UNITS_SHARE = 0.2
#: Blocks as units leave at most this share of the units of now. Chosen: fewer do not change the pace.
MOST_UNITS_LEFT_SHARE = 0.5
#: A unit has at most so many launches a step, its own and those of its layers. A linear layer that is a unit has about 20 (FSDP2), of which
#: most are FSDP's; with more, the host works for the network. Chosen: three times as many.
MOST_LAUNCHES_OF_UNIT = 64

# ---- _units_in_words --------------------------------------------------------------------------------------------
#: What FSDP's hooks of one more unit take on a host in a step (forward, backward and reduction). Measured: 10 more units of blocks made a
#: step on two H200 7.2 ms longer where the host sets the pace, although 17 ms of communication were hidden. Chosen: less than that, and
#: as the most what makes that step so much longer than its host by itself.
HOOKS_OF_UNIT_NS, MOST_HOOKS_OF_UNIT_NS = 500_000, 1_500_000
# ---- _zigzag_parts ----------------------------------------------------------------------------------------------
#: A call of attention has no more lines behind its first; what it is given is made in so many lines before. Chosen.
LINES_OF_ATTENTION, LINES_TO_ATTENTION = 4, 20
# ---- _stage_layers ----------------------------------------------------------------------------------------------
#: Hosts of stages mostly take so much (share) less than replayed, see HOSTS_FASTER_SHARE. With 9 and 3 layers for 6 and 6 one took
#: 0.16 less.
HOSTS_OFTEN_FASTER_SHARE = 0.1
# ---- nsx132_models_in_turn --------------------------------------------------------------------------------------
#: A kernel of up to so long (ns) starts and ends for a notable part of it: one for the inputs of several calls may take no longer. Of 47
#: calls of a convolutional network on an H200 such kernels took 47 of 100 ms; one call left 60 of a step of 202 ms, 39 less than all took.
SMALL_KERNEL_NS = 20_000
# ---- _loops_between ---------------------------------------------------------------------------------------------
#: A network that is called so often between two steps is given batches in a loop. Chosen: a rollout passes once, or once for each of two.
BATCHES_EVALUATED = 3
#: A loop launches a kernel so often between two steps, which works so long on average; its rounds follow each other within this time.
#: Chosen; measured: 1,024 rounds of nine kernels of 1 us.
LAUNCHES_OF_KERNEL_BETWEEN, SHORT_BETWEEN_NS, ROUND_PAUSE_NS = 100, 20_000, 1_000_000
#: A scan makes about so many launches, whatever its length; of a loop in a graph this share of the time is left, for its kernels; compiled,
#: its kernels are fewer, and at least this share goes. Chosen; measured: 10 doublings of six launches, and 1.5 us of 12 a kernel.
LAUNCHES_OF_SCAN, LAUNCH_LEFT_IN_GRAPH, GOES_BY_FUSION = 100, 0.15, 0.5
#: A loop reads values back so often between two steps. Chosen: what is read once at the end of an evaluation or for a log is less.
READS_BETWEEN = 20

# ---- graphed_rounds -------------------------------------------------------------------------------------------------
#: No later round needs what a line computes if one needs at most this share of its operators. Chosen; measured: those of one round in 63.
NEEDED_LATER_SHARE = 0.1
#: torch.compile takes minutes for a loop that it unrolls to so many launches in a step or more. Chosen: one
#: loop of 64 rounds took minutes; its launches were not counted.
UNROLLED_FOR_MINUTES = 1000
# ---- _summed_metrics --------------------------------------------------------------------------------------------
#: Steps that read more numbers than most are those that log if they are no more than this share. Chosen: in a third a mean is needed.
RARELY_READ_SHARE = 0.34
# ---- _pickled_in_steps ------------------------------------------------------------------------------------------
#: What a replay without a line that sends objects saves may be off by this share. Chosen: a message of tensors comes instead, and copies of
#: what was unpickled go, too, or stay.
SENDING_STAYS_SHARE = 0.25
# ---- _object_calls ----------------------------------------------------------------------------------------------
#: A call that sends objects is written over so many lines at most. Chosen: one for each argument, and more.
LINES_OF_OBJECT_CALL = 8
# ---- _cells_in_sequence -----------------------------------------------------------------------------------------
#: What kernels of a recurrent layer take of those of its cells, called at each position: at the least, likely and at the most. All
#: chosen; the likely one by a single program (H200, TF32, two layers of 512 numbers, 768 rows): about 0.73, if all that its step took with
#: the layer, and the GPU did not do elsewhere before, is the layer's. At the least: large products at once, and layers beside each other.
#: None of 16 bits.
OVER_SEQUENCE_SHARES = (0.3, 0.7, 1.0)
