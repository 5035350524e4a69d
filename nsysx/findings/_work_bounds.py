"""The numbers that the rules about the work of the GPU were tuned with, as ``_finding_bounds`` holds those of the other rules."""

from __future__ import annotations

# ---- nsx112_fusion ----------------------------------------------------------------------------------------------
#: The fewest kernels that make a chain.
FEWEST_CHAIN_KERNELS = 2
#: Threads of two elementwise kernels on tensors of one size differ by this factor at most.
SAME_SIZE_TIMES = 4
#: A bound has to promise more than a prediction does before it is worth a word (share of the step).
FUSION_BOUND_SHARE = 0.10
#: A compiler saves this part of the estimate at least (three networks where it was tried: 1.6 and 2.1 times that of transformers, 1.1 of
#: convolutions with batch normalization).
FUSED_LEAST_SHARE = 0.5
#: Chains of so many kernels within one call are written by hand. A class of modules in which these could save this share of the step is a
#: place: three with such a class had 41 to 60 %, of ten networks without one none had above 16 %.
HAND_WRITTEN_KERNELS, HAND_WRITTEN_SHARE = 3, 0.2
# ---- nsx116_fp32_math -------------------------------------------------------------------------------------------
#: How much faster tensor cores are: FP32 against TF32 on A100 and H100, against FP16 on V100 and T4 (data sheets).
TENSOR_CORES_TIMES = 8
#: The same of FP32 against BF16 on A100 (19.5 to 312 TFLOPS) and H100 (67 to 989), for work that a region of autocast takes in.
BF16_CORES_TIMES = 15
# ---- _without_autocast ------------------------------------------------------------------------------------------
#: What is left of the time of products in 16 bits: most, likely, least. Tensor cores do twice as many as with TF32 (A100: 312 of 156
#: TFLOPS, H100: 989 of 495; data sheets), under load at lower clocks; 15 times as many as FP32 without them, where memory does not limit.
TF32_IN_HALVES_LEFT, FP32_IN_HALVES_LEFT = (0.7, 0.6, 0.5), (0.5, 0.2, 1 / 15)
#: Of other kernels half of the bytes is left at best; some stay float32, and conversions come besides: of a quarter it is likely. Those in
#: the region go where it needs no float32. Chosen.
OTHERS_IN_HALVES_LEFT, CASTS_IN_HALVES_LEFT = (1.0, 0.75, 0.5), (1.0, 0.5, 0.0)
# ---- _outside_autocast ------------------------------------------------------------------------------------------
#: Products of 16 bits are like one of float32 within these times its operations; a rate is known if no more than the share of the time of
#: those of float32 has none like it. What is left at that rate, conversions included, may be so many times as much. Chosen.
LIKE_FLOPS_TIMES, MOST_UNLIKE_SHARE, SLOWER_THAN_OWN_TIMES = 4, 0.3, 1.3
#: A product of matrices with a shorter side gains little by tensor cores. Chosen: cuBLAS's smallest tiles have 16 rows.
SHORTEST_PRODUCT_SIDE = 16
# ---- _float32_adapters ------------------------------------------------------------------------------------------
#: What is left of the time of an adapter's products in 16 bits: most, likely, least. Memory limits them, and half of the bytes is left;
#: without tensor cores they may be limited by operations. Chosen.
ADAPTERS_IN_HALVES_LEFT = (0.8, 0.5, 0.25)
# ---- nsx117_layout_conversion -----------------------------------------------------------------------------------
#: Batch normalization in channels last takes about this part of what it takes over planes of NCHW (60.3 to 41.3 ms a step of a
#: detector in BF16 on an H100, without its conversions).
CHANNELS_LAST_NORM_LEFT = 0.6
# ---- nsx118_unfused_attention -----------------------------------------------------------------------------------
#: Most kernels between the two products: cast, scale, mask, softmax, dropout; twelve in the math path of PyTorch, which looks for rows
#: that are masked as a whole. This often in a step it belongs to the layers, not to the head.
MOST_ATTENTION_KERNELS, FEWEST_ATTENTIONS = 14, 2
# ---- nsx119_short_kernels ---------------------------------------------------------------------------------------
#: Pauses between short kernels are reported from this share of the step on; a normal step has 2 to 3 % of them.
SHORT_KERNELS_SHARE = 0.05
# ---- nsx120_mask_work -------------------------------------------------------------------------------------------
#: Most modules that are named: those with most work.
MOST_MASK_MODULES = 4
#: Work of indices is mostly the adding of equal rows from this share of it on.
ADDED_ROWS_SHARE = 0.6
# ---- _low_rank_weights ------------------------------------------------------------------------------------------
#: Products of small rank, and the kernels between them, take at most so many times what moving their rows takes. Chosen: they are bound
#: by memory, but none of them is fused with the next.
SMALL_PRODUCTS_AT_MOST_TIMES = 2.5
# ---- nsx122_small_grid ------------------------------------------------------------------------------------------
#: A shorter kernel takes the time it takes to start, whatever its grid (ns).
SMALL_GRID_KERNEL_NS = 10_000
#: While a kernel runs alone for less of its time than this, others may use the SMs that it leaves empty (share).
SMALL_GRID_ALONE_SHARE = 0.9
#: Most kernels that are replayed and listed.
MOST_SMALL_GRID_KERNELS = 8
# ---- nsx124_memory_bound ----------------------------------------------------------------------------------------
#: Most kernels that are listed: those that take longest.
MOST_MEMORY_BOUND_KERNELS = 6
# ---- nsx128_far_from_limits -------------------------------------------------------------------------------------
#: A kernel is far from its limits if they take this share of its time or less, and worth a word from this share of the step on.
FAR_FROM_LIMITS_SHARE, FAR_KERNEL_OF_STEP_SHARE = 0.4, 0.05
# ---- nsx129_optimizer_work --------------------------------------------------------------------------------------
#: Work of the optimizer is reported from this share of the step on.
OPTIMIZER_WORK_SHARE = 0.10
#: Numbers that a fused update moves over those that foreach kernels move: parameter, gradient and two states read, all but the
#: gradient written, against one pass for each operation of the update (torch/optim/adam.py).
FUSED_UPDATE_LEFT = 7 / 18
#: Of a dense update of embeddings about this part is left where only the rows that a step used are updated; the host then needs so long
#: (ns) for each table: about 45 launches and two reads (coalesce, sparse_mask; torch/optim/_functional.py), for which the GPU waits.
SPARSE_UPDATE_LEFT, SPARSE_TABLE_NS = 0.2, 300_000
#: A row that is looked up takes about so many times as long as in a dense update (19 passes of torch.optim.adagrad for 15, and scattered);
#: where more than this share of the rows is, sparse gradients save little. Chosen, not measured.
SPARSE_ROW_TIMES, SPARSE_ROWS_SHARE = 2.5, 0.25
#: The optimizer works for this many times as long as all matrix products together: the parameters are mostly tables.
MOSTLY_TABLES_TIMES = 3
# ---- _same_updates ----------------------------------------------------------------------------------------------
#: Updates that all ranks repeat are told if their products take this share of the step, and as much is saved: a program is changed for it
#: in several places. Products of two ranks whose number and time differ by less than the other share are the same. Both chosen.
SAME_UPDATES_SHARE, ALIKE_UPDATES_SHARE = 0.05, 0.2
# ---- nsx131_line_work -------------------------------------------------------------------------------------------
#: Lines of one function with at most so many others between them serve one purpose.
LINES_APART = 3
#: A matrix made for each row is told from this side on (`_row_matrices`); its formula passes so often over the rows, in torch operators.
ROW_MATRIX_SHORTEST, ROW_MATRIX_PASSES = 16, 8
# ---- _grown_by_cat --------------------------------------------------------------------------------------------------
#: A kernel that writes new rows in place takes this long at least (ns). Chosen: short elementwise kernels of an H100 take 2 to 3 us.
ROWS_WRITTEN_NS = 3_000
# ---- _grown_rows ----------------------------------------------------------------------------------------------------
#: A kernel that computes a few rows takes this long at least (ns): it reads the weights. Chosen, above what short kernels take.
FEW_ROWS_NS = 5_000
# ---- _grown_copies --------------------------------------------------------------------------------------------------
#: Copies of one place grow if there are so many, this share of them by one size, and this share of the bytes was moved before. Chosen.
FEWEST_GROWN_COPIES, GROWN_BY_ONE_SIZE_SHARE, OLD_BYTES_SHARE = 6, 0.8, 0.6
# ---- _copied_rows ---------------------------------------------------------------------------------------------------
#: Where copied rows had no gradient before, adding those of the copies takes so many times the copying. Picked rows of 128 numbers
#: Copies that are wider by more than this were numbers of tokens before, and are their rows then. Chosen.
MOST_TIMES_AS_WIDE = 16
#: (H200, 2.56 million): 1.55 ms to pick, 2.48 ms to add.
GRADIENT_OF_COPIES_TIMES = 2
#: Copies that nothing has written so far are written with so many bytes for each number, the most that networks compute with.
COPIED_NUMBER_BYTES = 4
# ---- _late_gradients -----------------------------------------------------------------------------------------
#: Buckets wait for one whose gradients come last if so many are reduced, the first when so much of backward (share) has passed. Chosen.
FEWEST_BUCKETS_WAITING, LATE_BUCKETS_SHARE = 3, 0.9
# ---- _repeated_backwards ----------------------------------------------------------------------------------------
#: Passes of one line are rounds of one loop if so much of the smaller runs in the other; norms of so many gradients are those of a network.
SAME_PASS_SHARE, FEWEST_NORMS = 0.8, 3
# ---- _einsum_orders -------------------------------------------------------------------------------------------------
#: Another order is told if it leaves this share of numbers and operations or less; products of small matrices run far from their limits,
#: so that it may take so many times what they say. Both chosen.
EINSUM_LEFT_SHARE, EINSUM_AT_MOST_TIMES = 0.6, 2.5
# ---- _joined_parts --------------------------------------------------------------------------------------------------
#: What layers of parts make is added up: of the joining's pass so many come, with gradients, for each part behind the first. A sum reads
#: what is there, adds a part and writes, and the gradient of what was broadcast is read once; fused, the first goes. Chosen.
SUMMED_PARTS_PASSES = (0.75, 2.0)
#: Rows of so many numbers of 16 bits begin at multiples of 16 bytes.
ALIGNED_NUMBERS = 8
# ---- _taken_pieces --------------------------------------------------------------------------------------------------
#: Of a tensor of which less is read than this share single rows are picked by their numbers; all of them are taken apart else. Chosen.
FEW_PIECES_SHARE = 0.5
#: So many lengths of pieces are written out. Chosen: a line holds no more.
MOST_LENGTHS_WRITTEN = 8
#: A line takes pieces of a tensor if so much of the time of their gradients is its own. Chosen.
LINE_OF_PIECES_SHARE = 0.1
#: Gradients of windows and of picked rows are joined, and then added into zeros: so many times the copies of the pieces, with the picking
#: in the forward. Each reads and writes as many bytes as these; the adding reads what it adds to, besides, as it does now for an index.
WINDOWED_COPIES, PICKED_COPIES, INDEXED_COPIES = 2.5, 3.5, 2
# ---- nsx132_models_in_turn --------------------------------------------------------------------------------------
#: Of models whose operators were not recorded, if they make this share of the launches; so much of a saving from times may stay (share).
MODELS_IN_TURN_LAUNCHES_SHARE, STACKED_MODELS_MAY_STAY_SHARE = 0.3, 0.2
#: From so many calls on, half of which at most need another one, if this share of the step goes.
FEWEST_CALLS_IN_TURN, CALLS_IN_TURN_SAVING_SHARE = 4, 0.1
# ---- _recomputed ----------------------------------------------------------------------------------------------------
#: Of the card's memory this share has to be free at the peak before recomputing is called needless; a repeated part of the forward that
#: is smaller may be the compiler's own choice.
FREE_MEMORY_SHARE, LEAST_RECOMPUTED_SHARE = 0.5, 0.3
#: So many times what it needs a kernel moves if it fetches lines of memory of which it uses a part (NSX128).
MOVES_MORE_TIMES = 1.5
# ---- nsx133_fixed_mask ----------------------------------------------------------------------------------------------
#: A causal mask leaves half of the scores; attention of fewer queries and keys of one sequence is not what a step waits for; another mask
#: that is known leaves enough out from this share of the scores on.
CAUSAL_SCORES_LEFT, SHORTEST_ATTENTION, MUCH_MASKED_SHARE = 0.5, 128, 0.4
# ---- _empty_masks -----------------------------------------------------------------------------------------------
#: Without a mask attention in 16 bits nears this share of the rate of products, half of it at this length (cuDNN on an H200, forward and
#: backward: 0.51 at 4672, 0.25 at 256); times the least and the most (FlashAttention 2 on an H100 stays below it, 3 comes above it).
UNMASKED_RATE_SHARE, HALF_RATE_LENGTH, SLOWEST_UNMASKED_TIMES, FASTEST_UNMASKED_TIMES = 0.52, 256, 0.75, 1.3
# ---- nsx134_odd_sizes -----------------------------------------------------------------------------------------------
#: What tensor cores are fed with at once.
FED_AT_ONCE_BYTES = 16
#: A product is slow at this share of the limit and below; large ones of even sizes reach about this share (H100: 0.72 to 0.93).
SLOW_PRODUCT_SHARE, EVEN_PRODUCT_SHARE = 0.55, 0.75
#: Products of odd sizes that take less of a step (share) are not worth other sizes. Chosen: twice what is told elsewhere,
#: because a network is changed for it.
ODD_SIZES_SHARE = 0.02
# ---- _costly_kernels --------------------------------------------------------------------------------------------
#: Of a saving that is computed from the time of kernels so much may stay (share of it).
DETERMINISM_MAY_STAY_SHARE = 0.2
# ---- _grown_inputs ----------------------------------------------------------------------------------------------
#: From so many calls on that are each one longer than the one before, if most are; shorter sequences (tokens) cost little.
GROWN_CALLS, GROWN_SHORTEST_TOKENS = 3, 16
#: With a cache one token is computed in place of all: so much of the work stays, which mostly reads the weights.
CACHED_WORK_STAYS_SHARE = 0.2
# ---- nsx135_weights_in_calls ------------------------------------------------------------------------------------
#: Operators named that compute weights anew.
WEIGHT_OPERATORS_NAMED = 3
# ---- nsx136_slow_operator ---------------------------------------------------------------------------------------
#: An operator of a line is worth a word if this share of the step is beyond its limit, and it reaches no more than the other share of
#: that: of 17 programs without a fault none had one above 13 %, and fused attention, convolutions and products reached more.
SLOW_OPERATOR_SHARE, SLOW_REACHED_SHARE = 0.2, 0.35
#: The same of an operator without a known limit, all of which is counted.
UNLIMITED_OPERATOR_SHARE = 0.3
# ---- nsx137_needless_work ---------------------------------------------------------------------------------------
#: With more of a program's launches than this outside of torch's operators, what is read of results is not known.
UNSEEN_LAUNCHES_SHARE = 0.01
#: No more lines of the program than these stand in a change that moves them.
MOST_PASTED_LINES = 4
# ---- _passes_over_batches -------------------------------------------------------------------------------------------
#: So many steps in a row are given the same, on average. Chosen: below, most batches are new ones.
FEWEST_PASSES = 1.5
# ---- _product_forms -------------------------------------------------------------------------------------------------
#: So many lines with forms of one kind are named. Chosen: a screen holds no more.
MOST_LINES_NAMED = 6
# ---- _gathered_logits -----------------------------------------------------------------------------------------------
#: A causal model's loss leaves out the last position of each sequence, which has so many of them at least. Chosen.
FEWEST_SHIFTED = 4
#: Classes may be padded to a multiple of 128, or of the ranks: so many times all of them at most. Chosen: 1,000 classes, to 1,024.
PADDED_CLASSES_TIMES = 1.03
#: Rows that are added up by number take this share of the time of the product that did it, or less. Not tried: numbers that many rows have,
#: and sums of 16 bits, are added one by one, and may take as long.
ADDED_AT_MOST_SHARE = 1.0
#: Rows that are moved by number take so many times what their bytes need, and this share of the products with masks that did it, or less: a
#: half of it where it was tried (H200; 8,192 tokens of 1024 numbers to 16 experts, 7.9 ms a step with masks).
ROUTED_AT_LEAST_TIMES, ROUTED_AT_MOST_SHARE = 2.0, 0.6
#: Of each of the k largest its value and its number are sent, as float64 both.
TOP_BYTES = 16
# ---- _rounds_by_group ----------------------------------------------------------------------------------------------
#: Work on the rows that a round picks has another size in most rounds: no size comes in more than this share of them. Chosen.
ONE_SIZE_SHARE = 0.5
# ---- _tables_of_ranks ----------------------------------------------------------------------------------------------
#: Of a table of which a step looks up more of the rows than this, sparse gradients are no shorter. Chosen.
LOOKED_UP_SHARE = 0.1
# ---- _late_gradients -----------------------------------------------------------------------------------------
#: Gradients may be reduced in half of the bytes of their parameters; messages of fewer carry a part of them. A twentieth less is padding.
HALVED_GRADIENTS_SHARE = 0.45
# ---- _layer_exchanges ----------------------------------------------------------------------------------------------
#: Exchanges that nothing runs beside for so much of their time are waited for where they are made. Chosen: launches leave some beside.
ALONE_IN_LINE_SHARE = 0.9
# ---- _roles_in_turn ------------------------------------------------------------------------------------------------
#: Two ranks take turns if each waits for the other one for so much of the time, and both work for no more than the other share. Chosen:
#: work at once that is as long as that would be worth no change.
LEAST_IN_TURN_SHARE, MOST_AT_ONCE_SHARE = 0.2, 0.35
# ---- _rows_of_all --------------------------------------------------------------------------------------------------
#: A reduction that scatters moves so much of the bytes of one that brings all to each rank, however many there are.
SCATTERED_SHARE = 0.5
# ---- _smaller_operators --------------------------------------------------------------------------------------------
#: Experts have room for so many times the tokens of an even share in common training recipes (Switch Transformer: 1.25).
USUAL_CAPACITY = 1.25
# ---- _synchronized_norms -------------------------------------------------------------------------------------------
#: With fewer samples a rank's own statistics are rough (Wu and He, Group Normalization). Chosen: layers and dimensions of norms by hand.
FEWEST_NORMALIZED_SAMPLES, FEWEST_NORMS_BY_HAND, FEWEST_DIMENSIONS_NORMALIZED = 16, 4, 3
# ---- _numbers_of_lines ---------------------------------------------------------------------------------------------
#: ``x[:, 0] += 1`` takes its part twice.
PART_TAKEN_TIMES = 2

# ---- _dealt_at_times ----------------------------------------------------------------------------------------------
#: Ranks have as many pieces of work by number if their kernels are as many up to this share. Chosen.
ALIKE_PIECES_SHARE = 0.2
# ---- _smaller_operators: few of a permutation ---------------------------------------------------------------------------
#: Of a random order of so many times the numbers that are taken of it, hardly one in a thousand comes twice if each is drawn alone. Chosen.
FEWEST_LEFT_OF_DRAWN = 100
# ---- _packed_attention ----------------------------------------------------------------------------------------------
#: So many documents of a packed sequence are worth one kernel for all, which a compiler writes. Chosen.
FEWEST_DOCUMENTS = 4
# ---- _neighbour_searches --------------------------------------------------------------------------------------------
#: One list of neighbours, searched with room, serves so many rounds. Chosen: points that move by less than half of the room in as many.
ROUNDS_OF_ONE_LIST = 4
# ---- _enlarged_logits -----------------------------------------------------------------------------------------------
#: Logits that are enlarged by less than this (times as many places) cost little more than smaller labels would. Chosen.
FEWEST_TIMES_ENLARGED = 3.5
# ---- _rows_as_numbers -----------------------------------------------------------------------------------------------
#: Rows of so many or more are worth it, and this share of the time stays (H200: 1.2 million rows of 4 int64 numbers took 2.6 ms, as
#: numbers 0.5 ms; 100,000 rows took as long either way).
FEWEST_UNIQUE_ROWS, UNIQUE_NUMBERS_SHARE = 200_000, 0.2
# ---- _suppressed_boxes ----------------------------------------------------------------------------------------------
#: So many boxes go into the suppression of common detectors at most; of fewer than the other number little is gained. An H200 took 37 ms
#: for 50,000 boxes and 0.35 ms for 1,000, with their choice.
SUPPRESSED_BOXES, FEWEST_SUPPRESSED_BOXES = 1_000, 8_000
# ---- _halos ---------------------------------------------------------------------------------------------------------
#: From so many exchanges of borders in a row on one of a wider border is told, if all borders together are this share of the field at most.
#: Messages that take no longer than this are mostly latency: NCCL's send and receive of a few rows take 20 to 60 us over NVLink. Chosen.
FEWEST_HALO_LAYERS, WIDEST_BORDER_SHARE, SHORT_EXCHANGE_NS = 4, 0.25, 100_000
# ---- _sent_levels ---------------------------------------------------------------------------------------------------
#: Tensors of so many levels or more, each of which has so many times the places of the next, are skips of a network of levels: halves in
#: each of two dimensions are a fourth.
FEWEST_SENT_LEVELS, LEVELS_APART_TIMES = 3, 3.5
# ---- _reordered_rows ------------------------------------------------------------------------------------------------
#: Rows that are put in another order within what holds them are read and written twice: picked, then copied back.
ORDERED_IN_PLACE_TIMES = 2
# ---- _decoded_text ----------------------------------------------------------------------------------------------
#: Text is encoded again at most so many lines behind the one that decodes it (chosen).
NEAR_LINES = 15
# ---- _skipped_layers --------------------------------------------------------------------------------------------
#: A list of so few modules is no stack of layers (chosen). Any seed will do that is the same on all ranks.
FEWEST_SKIPPED_LAYERS, SEED_OF_ALL_RANKS = 4, 17
# ---- _skipped_samples --------------------------------------------------------------------------------------------------
#: A line that deals samples runs about as often as the one that makes them, and that so many times for each that is handed out: with
#: two ranks each leaves half to the other. Chosen.
ALIKE_RUNS_SHARE, SKIPPED_TIMES = 0.9, 1.5
# ---- _refreshed_factors ------------------------------------------------------------------------------------------------
#: An optimizer makes factors anew in each step where it factorizes at least so many (share) as it writes to averages of their size, and
#: would do it each so many steps, as SOAP and Shampoo do by default. Chosen.
REFRESHED_OF_WRITTEN_SHARE, REFRESHED_EVERY = 0.5, 10
# ---- _ignored_targets -----------------------------------------------------------------------------------------------
#: Targets of which fewer are ignored are left where they are: to pick rows costs a copy, and sizes that change from step to step. Chosen.
MANY_IGNORED_SHARE = 0.25
# ---- nsx106: steps that wait for nothing ----------------------------------------------------------------------------
#: So many timed steps, within this of the shortest (times), are as long as steps are that wait for nothing. Chosen: of 26 steps of a job
#: whose workers were too slow (two H200) 9 were 76.1 to 76.2 ms long, the others up to 775; with a fast loader all took 76.4.
FEWEST_UNHINDERED_STEPS, SAME_LENGTH_TIMES = 4, 1.03
#: They hold so much of the GPU's mean work or more: less is another kind of step. Chosen: work is up to a tenth faster than recorded.
UNHINDERED_WORK_SHARE = 0.9
# ---- _kept_by_masks ---------------------------------------------------------------------------------------------
#: What keeps rows of a result stands within so many lines behind what makes it. Chosen: the call, the mask, a line between.
MASKED_LINES_APART = 4
# ---- nsx135_weights_in_calls ------------------------------------------------------------------------------------
#: A line makes what a class of modules makes again if this share of these operators are its own, or of what it calls. Chosen: a tensor of
#: zeros, and the like, are the step's.
CONSTANTS_OF_LINE_SHARE = 0.6
# ---- _shards_in_words -------------------------------------------------------------------------------------------
#: A loop that averages parameters is so many lines from what gathers them. Chosen.
LINES_AROUND_AVERAGE = 3
# ---- _converted_addends -----------------------------------------------------------------------------------------
#: What an addition into float32 takes that converts 16 bits by itself, of its time with numbers of float32 (slowest, fastest): it reads 6
#: bytes and not 8, and writes 4; kernels that convert what they read load it one by one. Estimated.
CONVERTING_ADDITION_TIMES = (1.25, 0.84)
# ---- _unwritten_keys --------------------------------------------------------------------------------------------
#: Keys are cut in steps of so many, so that few lengths come up, and attention over few takes this long at least (ns). Chosen.
KEYS_IN_STEPS_OF, SHORT_ATTENTION_NS = 512, 10_000
# ---- _prompt_passes ---------------------------------------------------------------------------------------------
#: The GPU's work of an X-ray step over a prompt is as long as a long step that was timed, but for this share of it. Chosen.
PROMPT_PASS_SHARE = 0.25
# ---- _short_reductions ------------------------------------------------------------------------------------------
#: Sums of so many bytes at most are made by one kernel on each rank of a host, which takes so long (slowest, likely, fastest). Estimated
#: for 4 to 8 H200; one in four sums waits for nobody (chosen).
ONE_SHOT_BYTES, ONE_SHOT_NS, UNDELAYED_QUANTILE = 1 << 20, (15_000, 11_000, 7_000), 0.25
# ---- _unlike_micro_batches --------------------------------------------------------------------------------------
#: Work between two messages is unlike that at the same place of other steps by so many times, in this share of the places or more, while
#: steps are as long by so many times; of so many steps and places at least. Chosen: 3 of 16 micro-batches with twice the work are a sixth.
UNLIKE_MICRO_BATCH_TIMES, UNLIKE_PIECES_SHARE, EVEN_STEPS_TIMES, FEWEST_COMPARED_STEPS = 1.4, 0.1, 1.3, 4
# ---- _gradient_penalties ----------------------------------------------------------------------------------------
#: Steps from one penalty on the gradient of a discriminator to the next (Karras et al., StyleGAN2: lazy regularization).
PENALTY_EVERY = 16
# ---- _whole_samples -------------------------------------------------------------------------------------------------
#: A line that takes one row of what lies in memory needs microseconds; what makes all rows first, this long (ns) or more. Chosen.
LONG_ROW_NS = 1_000_000
#: Such a line reads files if the worker has read so many bytes in each ns of it: unpacking gives 0.1 to 0.5, a column in memory 0.
STORED_BYTES_PER_NS = 0.01
#: Of files that are read as a whole so many times the bytes of a batch are read, packed as they are. Chosen: pieces of half of them are one
#: piece, and float32 is twice as long as 16 bits.
PART_READ_TIMES = 2
#: A picture that takes so long (ns) to decode is large: 1 megapixel of a JPEG takes some 10 ms, of a PNG 20 to 30. It has so many bytes for
#: each ns at least, and so many times as many as are handed over: draft() halves each side up to three times. Chosen.
LONG_DECODE_NS, DECODED_BYTES_PER_NS, DECODED_FOR_LITTLE_TIMES = 30_000_000, 0.1, 8
# ---- _stopped_workers -----------------------------------------------------------------------------------------------
#: Where no more than this share of a loader's workers gives batches, the others have nothing to make. Chosen.
STOPPED_WORKERS_SHARE = 0.5
# ---- _samples_on_gpu ------------------------------------------------------------------------------------------------
#: A dataset works on samples one by one where it launches a kernel or more for each of so many, or more. Chosen: what puts a batch together
#: on the GPU is one kernel.
FEWEST_SAMPLES_ON_GPU = 4
# ---- _late_samples --------------------------------------------------------------------------------------------------
#: Of so many steps or more, so many or more wait longer than this share of a step without waiting. Chosen.
FEWEST_TIMED_BATCHES, FEWEST_LATE_BATCHES, LATE_WAIT_SHARE = 10, 2, 0.2
#: They are no more than this share of the steps and hold this much of all waits. Chosen: every step waits for workers that are too slow.
FEW_LATE_SHARE, MOST_OF_WAITS_SHARE = 0.35, 0.8
#: Workers are fast enough that make a batch in this share of a step or less: of those too slow, too, some steps wait and others do not.
READY_SHARE = 0.7
#: The queue of each worker that is advised, or as long as the longest wait needs. Chosen: four times torch's own.
LONGER_QUEUE = 8
# ---- _fields_at_once ------------------------------------------------------------------------------------------------
#: So many copies of a line in a step, half of them no larger than this, are fields of samples; put together they are about so many. Chosen:
#: 16 samples with two fields; larger ones take as long as their bytes.
MANY_FIELD_COPIES, SMALL_FIELD_BYTES, FIELDS_OF_BATCH = 32, 1 << 18, 8
# ---- _copied_of_few -------------------------------------------------------------------------------------------------
#: A mask or one-hot labels of so many bytes take the link a notable time, and the host more. Chosen: 0.3 ms at 50 GB/s.
LARGE_OF_FEW_BYTES = 1 << 24
# ---- _edge_messages ---------------------------------------------------------------------------------------------
#: A graph with fewer edges for each node (times) has no messages to speak of beside its nodes. Chosen.
FEWEST_EDGES_OF_NODE = 2
#: What a sparse product takes of the copies, factors and sums that it replaces. Of five or six passes over a row for each edge one is left,
#: which reads rows in the order of the edges, at half of a copy's rate. Chosen.
EDGE_PRODUCT_LEFT = 0.35
# ---- _triple_cubes ----------------------------------------------------------------------------------------------
#: What is left of a cube of all triples where positives are a list: they are so many of the samples (share). Chosen: of batches for such
#: losses a class holds 4 to 8 of 64 to 1024 samples.
TRIPLES_LEFT = 0.12
# ---- _own_jacobians ---------------------------------------------------------------------------------------------
#: Fewer passes of one line over one graph are no Jacobian of a batch. Chosen.
FEWEST_OWN_PASSES = 8
# ---- _cached_rows -----------------------------------------------------------------------------------------------
#: Tables in host memory may fit where this share of the card is free at the peak: they are as large as that at most for certain. Chosen.
FREE_FOR_TABLES_SHARE = 0.3
# ---- _history_rounds --------------------------------------------------------------------------------------------
#: L-BFGS usually keeps so many pairs of vectors: the books take 3 to 20, torch's own default is 100.
USUAL_HISTORY_PAIRS = 10
# ---- _sampled_points --------------------------------------------------------------------------------------------
#: A round of a kernel that samples farthest points, which reads all distances of a sample and finds the largest (ns). Chosen: such kernels
#: take 1 to 2 ms for 1024 of 8192 points.
SAMPLED_POINT_NS = 1500
# ---- _pipeline_stages -------------------------------------------------------------------------------------------
#: What the host of a stage takes alone may be so much (share) less than replayed: mostly 0.1, once in another run on two H200s 0.26.
HOSTS_FASTER_SHARE = 0.3
# ---- _norm_loops ------------------------------------------------------------------------------------------------
#: So far from a line one looks for the loop around it, and for what is made of its result behind it. Chosen.
MOST_LOOP_LINES = 12
#: Of so many of a loop's rounds (share) products, or reductions, are the work (_rounds_in_modules): some groups are empty. Chosen.
WORK_OF_ROUNDS_SHARE = 0.5
# ---- _narrowing_edits -------------------------------------------------------------------------------------------
#: Products of so many rows or more run at a rate that hardly depends on their number: fewer take as long as reading the weights. A product
#: of fewer rows than before takes so many times its share at most. Kernels that read a piece by its strides read it so much faster (left)
#: once it lies in one piece: 0.65 and 0.24 ms for 8 x 256 rows of 128,256 numbers of 16 bits (H200). All but the last chosen.
ROWS_AT_FULL_RATE, NARROWED_MORE_TIMES, READS_IN_ONE_PIECE_LEFT = 512, 1.25, 0.4
#: Operators without products that make so many numbers or more fill the GPU: each takes its share of the time. Chosen: some per thread.
NUMBERS_AT_FULL_RATE = 2**20
# ---- _promoted_arithmetic ---------------------------------------------------------------------------------------
#: What is left of elementwise kernels, and of pooling with its indices of 64 bits, in 16 bits: most, likely, least. Half of the bytes are
#: left; kernels that read pieces by strides gain less. Chosen.
ARITHMETIC_IN_HALVES_LEFT, POOLING_IN_HALVES_LEFT = (0.7, 0.55, 0.45), (1.0, 0.85, 0.65)
