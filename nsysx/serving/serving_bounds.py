"""The numbers that the room ``serving`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- actions --------------------------------------------------------------------------------------------------------
#: How often progress is told (s), and how long a process gets to end what it has started before it is killed.
PROGRESS_EACH_S, GRACE_S = 1.0, 15.0
#: How much of the end of stderr is read (bytes): an answer of 25 lines, whose bars are of three bytes a sign, stands behind other lines.
LAST_LINES_BYTES = 16_000

# ---- shelf ----------------------------------------------------------------------------------------------------------
#: Reports that are kept, the last asked for first: a report of a million kernels takes a few hundred MB.
MOST_LOADED = 3
