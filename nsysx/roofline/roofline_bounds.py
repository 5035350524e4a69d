"""The numbers that the room ``roofline`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- device_rates ---------------------------------------------------------------------------------------------------
#: L2 caches are read about this many times as fast as the memory behind them: H100 5.5 to 7 of 3.35 TB/s, A100 5.1 of 2 (Chips and
#: Cheese, "Nvidia's H100: Funny L2, and Tons of Bandwidth", 2023). The upper end: it is a limit.
CACHE_FACTOR = 2.5

# ---- element_types --------------------------------------------------------------------------------------------------
#: Names longer than this are not read: template arguments of a megabyte exist.
LONGEST_KERNEL_NAME = 20_000

# ---- work that comes in place of other work (``findings._instead``) -------------------------------------------------
#: It takes at most this part of what it replaces: of changes that were tried after a replay had made them, nine in ten saved 0.7 of what
#: it said, or more.
INSTEAD_AT_MOST_SHARE = 0.3
#: Transforms of real numbers take at most this share of whole ones: half of the bytes, and a kernel for the real side.
HALF_TRANSFORM_AT_MOST_SHARE = 0.6
#: Products of any shape take at most so many times as long as the fastest of their number format.
PRODUCTS_AT_MOST_TIMES = 4.0
#: A kernel that normalizes rows, or applies a function, takes at most so many times what its reads and writes need, its gradient included:
#: torch's layer_norm reaches 0.4 to 0.9 of the bandwidth.
ONE_PASS_AT_MOST_TIMES = 2.5
#: Elementwise kernels on tensors of one order take so many times what their reads and writes need. Chosen: vectorized additions of torch
#: reach 0.9 of the bandwidth, joins of parts of a tensor about half of it.
IN_ORDER_TIMES = 2.0
#: Sums of rows that become shorter take at most so many times what their width leaves: a row is then read less well. A sparse product
#: (H200, 10 million edges) took 4,747 us with 512 numbers in a row, 834 us with 64: 1.4 times an eighth.
SHORTER_ROWS_AT_MOST_TIMES = 2.0

# ---- latency (``findings.nsx128_far_from_limits``) --------------------------------------------------------------------
#: With fewer warps on an SM than this share of what it can hold, loads in flight seldom cover the latency of the memory: 16 of 64 warps
#: with 16 bytes a thread are 8 KB, and an H100 needs 18 KB for each SM (3.35 TB/s for 700 ns, over 132 SMs).
HIDING_OCCUPANCY = 0.25
