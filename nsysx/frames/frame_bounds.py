"""The numbers that the room ``frames`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- instants that no event has, in every room ----------------------------------------------------------------------
#: Before every event (ns); times can be negative.
LONG_AGO_NS = -(1 << 62)

# ---- lookup ---------------------------------------------------------------------------------------------------------
#: Long columns are processed in blocks of this many rows, which stay in the cache.
LOOKUP_BLOCK = 1 << 16
#: A lookup table of this size costs less than sorting a million numbers.
LOOKUP_TABLE = 1 << 24

# ---- statistics -----------------------------------------------------------------------------------------------------
#: Host code of one program runs up to this share slower or faster from process to process, above all under a profiler
#: (measured: a host-bound loop, H200 hosts).
PROCESS_DRIFT = 1 / 3
#: Degrees of freedom beyond which Student's t is the normal distribution, to four digits.
MOST_DEGREES = 1e4
