"""Bounds of rooms that read the operators of an X-ray step, beside those in ``event_bounds``."""

# ---- frozen_operators -----------------------------------------------------------------------------------------------
#: Numbers of a sample that are worth keeping for each: a megabyte in 16 bits. Chosen: logits of a vocabulary are far more.
MOST_KEPT_NUMBERS = 1 << 19
# ---- grown_tensors --------------------------------------------------------------------------------------------------
#: So many cats of one tensor in a step are a loop that makes it longer. Chosen: a network joins what its levels make in fewer.
FEWEST_GROWING_CATS = 6
#: Of what they write this share at least stood in the tensor before. Chosen: of a tensor that doubles it is half.
COPIED_AGAIN_SHARE = 0.6
#: Of the modules that are called before each cat at least this share is called before another one, too: a loop runs the same ones in each
#: round. Layers of a network that each add their own part to it (dense connections) may share an activation.
RECURRING_MODULES_SHARE = 0.6
#: Layers' weights have another size for each length: of those that read it more than this share differ in size. Chosen.
GROWING_WEIGHTS_SHARE = 0.5
# ---- growing_calls --------------------------------------------------------------------------------------------------
#: A network computes a longer sequence in each call if this share of its linear layers has more rows. Chosen: what attends to a memory
#: that grows has more rows of keys and values alone.
GROWING_LAYERS_SHARE = 0.6
# ---- written_parts --------------------------------------------------------------------------------------------------
#: Nodes of autograd that one write makes: of what is written, of the tensor, and of its view.
NODES_OF_WRITE = 3
# ---- taken_apart ----------------------------------------------------------------------------------------------------
#: So many pieces of one tensor are taken one by one: fewer save little. A larger piece is most of its tensor. Both chosen.
FEWEST_PIECES, LARGEST_PIECE_SHARE = 3, 0.5
#: A kernel of one grid works for their gradients if this share of those that are known does. Chosen.
LIKE_WORK_SHARE = 0.9
# ---- padded_experts -------------------------------------------------------------------------------------------------
#: Rows of experts that are so many times the tokens are mostly padding. Chosen: usual capacities are 1 to 1.5 times.
PADDED_EXPERTS_TIMES = 2
#: Between two picks of one router lie no more operators that make and apply a mask. Chosen: three or four do.
MOST_OPERATORS_OF_MASKS = 64
# ---- product_forms --------------------------------------------------------------------------------------------------
#: A product with turned one-hot rows of fewer classes is bound by memory, and what adds up by number waits for itself. Chosen.
FEWEST_CLASSES_ADDED = 256
# ---- routing_masks --------------------------------------------------------------------------------------------------
#: A product is one with zeros if no more than this share of a factor is set. Chosen: of experts and places a thousandth is, or less.
MOSTLY_ZEROS_SHARE = 1 / 64
# ---- copied_rows ----------------------------------------------------------------------------------------------------
#: Copies are so many times the rows that they are of. Chosen: below, what is saved is less than half of the work.
FEWEST_COPIES = 2

#: Rows that are cut off before a loss, as the last position of each sequence, are one of so many at most. Chosen.
FEWEST_LEFT_OF_ROWS = 8
# ---- narrowed_operators ---------------------------------------------------------------------------------------------
#: Of a tensor that is narrowed no more than this share is kept.
MOST_KEPT_SHARE = 0.9
# ---- narrowed_messages ----------------------------------------------------------------------------------------------
#: Of what a message brings no more than this share is read. Chosen: of two ranks each one reads half.
MOST_OF_SENT_SHARE = 0.75
#: A border is no more of a neighbour's part than this, and a part has so many neighbours along one dimension. Chosen: wide halos are a
#: few percent of it.
MOST_OF_BORDER_SHARE, NEIGHBOURS = 0.25, 2
# ---- product_forms --------------------------------------------------------------------------------------------------
#: Another order of a chain of products is looked at where it takes at most this share of the operations. Chosen: half of them are
#: seldom twice as fast.
FEWER_OPERATIONS_SHARE = 0.5
#: All pairs of two tensors are written out where they are this many times as many numbers as both together. Chosen.
WRITTEN_OUT_TIMES = 4

# ---- untrained_gathers ----------------------------------------------------------------------------------------------
#: Parameters gathered more often in a step, outside of forward and backward, are so in a loop. Chosen: of micro-batches there are few.
GATHERED_OFTEN_TIMES = 3
# ---- nested_recomputation ------------------------------------------------------------------------------------------
#: Checkpoints nest two or three deep; what backward calls more often for each call of the forward is an iteration of its own. Chosen.
MOST_RECOMPUTATIONS = 3
# ---- reordered_rows ------------------------------------------------------------------------------------------------
#: Numbers of rows come from a search by no more operators than these: a quotient, a sum, casts. Chosen.
MOST_OPERATORS_TO_SEARCH = 40
# ---- growing_calls: those that begin a cache anew -----------------------------------------------------------------
#: So many of a step are a loop; calls between them compute fewer rows by this factor at least. Chosen.
FEWEST_BEGUN_ANEW, FEW_ROWS_TIMES = 3, 8
# ---- wide_adapters --------------------------------------------------------------------------------------------------
#: The rank of an adapter is this share of the longer of the rows that it is given and makes, or less, and of the shorter ones (keys and
#: values of a few heads) no more than the other share. Chosen: ranks are 4 to 128, rows 768 and longer, those of keys 128 and longer.
ADAPTER_SHARE, HELD_RANK_SHARE = 0.125, 0.5
#: Of so many tensors all orders of an einsum are looked at.
MOST_EINSUM_TENSORS = 5
#: A sharded network of whose parameters no more than this share is trained is kept for what is frozen. Chosen: adapters are 0.1 to 5 %.
MOST_TRAINED_SHARE = 0.1
#: A unit of a sharded network is large beside so many others in a forward if it is so many times as large as the usual one. Chosen.
FEWEST_UNITS_BESIDE, LARGE_UNIT_TIMES = 5, 4
# ---- unwritten_keys ------------------------------------------------------------------------------------------------
#: Decoding attends with so few queries at most (drafts are several), and in so many calls of a step at least. Chosen.
MOST_DECODED_QUERIES, FEWEST_CACHED_ROUNDS = 16, 4
# ---- cached_passes --------------------------------------------------------------------------------------------------
#: Between the two products of attention that is written out lie so few operators: a scale, a mask, a softmax, conversions. Chosen.
MOST_BETWEEN_PRODUCTS = 16
# ---- nearest_pairs --------------------------------------------------------------------------------------------------
#: Points have no more coordinates, with a colour or a normal: what has more numbers is made by a network, and compared by products.
MOST_COORDINATES = 9
# ---- sampled_layers -------------------------------------------------------------------------------------------------
#: Sampled nodes are so many times the seeds at least. Chosen: of fewer hops little can be left out.
FEWEST_SAMPLED_TIMES = 4
# ---- sampled_levels -------------------------------------------------------------------------------------------------
#: So many levels or more are sampled one by one. Chosen: of one level nothing is put together.
FEWEST_SAMPLED_LEVELS = 2
# ---- gradient_penalties ---------------------------------------------------------------------------------------------
#: A batch of images has so many dimensions; points of physics, by which energies are differentiated, have fewer.
FEWEST_IMAGE_DIMENSIONS = 4

# ---- gathered_products ----------------------------------------------------------------------------------------------
#: So many sums by row may read a matrix of gathered rows and columns: two of a loss both ways, with two of metrics; more are by row and
#: by column in turn. Of them so many may be of a softmax that is written out: whether these are by row or by column is not known.
MOST_SUMS_OF_GATHERED, MOST_SUMS_BY_HAND = 4, 2
# ---- steps_to_meetings ------------------------------------------------------------------------------------------
#: So many meetings in a window, with as many passes from each to the next, are no accident: a metric comes behind far more passes.
FEWEST_MEETINGS = 4
# ---- messages_of_layers ---------------------------------------------------------------------------------------------
#: Fewer bytes are no activations of a layer, but a metric. Messages are alike if this share of them is; so far behind one looks. A line
#: sends activations if more of its communication does, by time. What works on a smaller share of a message's numbers one by one, such as
#: the conversion of a bias, hides nothing of it. Chosen.
LEAST_LAYER_MESSAGE_BYTES, MOST_AT_ONCE_SHARE, OPERATORS_BEHIND, MOST_OF_LINE_SHARE = 4096, 0.8, 16, 0.5
LITTLE_BESIDE_SHARE = 0.02
# ---- looped_updates --------------------------------------------------------------------------------------------------
#: Fewer operators of a line in a step, or launches in a row, are no loop over the parameters of a network. As launches of a loop.
FEWEST_LOOPED_UPDATES = 20
# ---- backward_passes ---------------------------------------------------------------------------------------------
#: A pass of fewer nodes is nothing that a step waits for. Chosen.
FEWEST_NODES_OF_PASS = 3
#: recomputed_gathers: backward gathers each unit twice if it gathers so many times as often as forward, of so many gathers in a step.
GATHERED_TWICE_TIMES, FEWEST_GATHERED_TWICE = 1.5, 4
# ---- whole_tokens ------------------------------------------------------------------------------------------------
#: Fewer outputs of layers that a step adds up over the ranks are no network of split layers.
FEWEST_SUMS_OF_LAYERS = 2

# ---- history_rounds ---------------------------------------------------------------------------------------------
#: A round over a pair of vectors (L-BFGS) makes so few operators, and a direction so many rounds. Chosen: torch's makes five to seven.
MOST_HISTORY_OPERATORS, FEWEST_HISTORY_ROUNDS = 9, 8

# ---- sampled_points ---------------------------------------------------------------------------------------------
#: A loop that samples farthest points goes so many rounds, of so many operators. Chosen: 128 to 1024 rounds of a dozen are usual.
FEWEST_SAMPLED_POINTS, MOST_SAMPLING_OPERATORS = 12, 30

# ---- triple_cubes -----------------------------------------------------------------------------------------------
#: A cube of all triples with a shorter side takes nothing. Chosen.
SHORTEST_CUBE_SIDE = 16

# ---- threshold_counts -------------------------------------------------------------------------------------------
#: A number that is added to its cell of a histogram takes as long as so many of a cube of scores and thresholds that are compared, weighted
#: and summed: atomic additions wait for each other. A metric of 12 columns of 65,536 scores and 1,024 thresholds (H200): 17.5 ms, and 0.6
#: as two histograms. A grid of fewer thresholds than this is as good as its histogram.
FEWEST_COUNTED_THRESHOLDS = 32

# ---- promoted_arithmetic ----------------------------------------------------------------------------------------
#: An operand is small beside one with so many times its numbers: a scale of each channel, a bias. Chosen.
SMALL_OPERAND_TIMES = 16
# ---- counted_targets ------------------------------------------------------------------------------------------------
#: The last positions of rows hold all that count where they are no more than so many times as many: others are chosen one by one. Chosen.
MOST_LAST_TIMES = 1.25
# ---- accumulated_operators --------------------------------------------------------------------------------------
#: What a log shows of a step has at most so many numbers: averages of weights and of their factors have more, most of them. So many
#: operators in a row move an average on at most. Both chosen.
MOST_SUMMED_NUMBERS, LONGEST_SUM_CHAIN = 4096, 4
# ---- overlapping_pools ----------------------------------------------------------------------------------------------
#: Between a comparison and a pooling of its planes, and between that and a reduction, lie no more operators. Chosen: one or two do.
MOST_BEHIND_POOL = 6
# ---- masked_losses --------------------------------------------------------------------------------------------------
#: A loss is of the logits of one head, or of two, as of a student and its teacher; what is made of more layers is made of hidden states.
MOST_HEADS_OF_A_LOSS = 2
