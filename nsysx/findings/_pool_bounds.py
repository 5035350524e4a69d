"""The numbers that the rule about pooling in large windows was tuned with, as ``_work_bounds`` holds those of other work of the GPU."""

from __future__ import annotations

# ---- _separable_pools -------------------------------------------------------------------------------------------
#: So many numbers of a window a multiprocessor reads in a cycle: 12.28 ms for 39.8 million windows of 21 x 21 (H200, 132 of them, 1.98
#: GHz, float32, planes).
WINDOW_READS_PER_CYCLE = 5.5
#: Windows of fewer numbers a side save little; one that is computed from the time has to be longer: a kernel may be slow for other
#: reasons. Its side may be so many times as long, or as short. Chosen.
SHORTEST_WINDOW, SHORTEST_COMPUTED_WINDOW, COMPUTED_WINDOW_TIMES = 5, 9, 1.4
#: Of a pass so much more than its reads may be left: what each window takes to begin. Chosen.
POOL_PASS_AT_MOST_TIMES = 1.5
#: What a pass moves of each number, in bytes: it is read and written in 32 bits, with its place in 64.
POOLED_NUMBER_BYTES = 16
