"""The numbers that the rule about picked rows was tuned with, as ``_work_bounds`` holds those of other work of the GPU."""

from __future__ import annotations

# ---- _picked_rows -----------------------------------------------------------------------------------------------
#: The backward of an embedding sums rows in so many times what reading and writing each of them once takes: 7 times for 29,000 rows of 128
#: numbers of 32 bits, 14 times for 8,192 rows of 1024 of 16 bits (H200). Its sort takes so much longer than that of an index (ns): 43,000.
SEGMENT_SUMS_TIMES, SORT_FOR_SUMS_NS = (5.0, 16.0), (20_000, 100_000)
#: That of index_select (indexFuncLargeIndex) adds 141 to 147 numbers a nanosecond, of 16 bits 120 (H200): of 32 bits 3.7 to 3.9 times
#: the reading and writing, for 0.25 to 1 million rows of 128 to 384 numbers, of which one was picked 9,000 times as well as once.
ATOMIC_SUMS_TIMES = (3.0, 6.0)
#: Threads that add to equal rows at once wait for each other: in rows of fewer numbers than a warp has threads, and where each row is
#: picked more often than this on average. Chosen: how long they do was not measured.
FEWEST_ATOMIC_NUMBERS, MOST_ATOMIC_EQUAL, MEETING_ATOMIC_SUMS_TIMES = 32, 256, (3.0, 16.0)
#: Sums that take less than so many times the reading and writing hardly wait for rows that are picked often. Chosen: above the most of the
#: others.
WAITING_SUMS_TIMES = 8.0
#: Numbers of fewer bytes lose what is added to them one by one: an index and an embedding add up in float32.
FLOAT32_BYTES = 4
