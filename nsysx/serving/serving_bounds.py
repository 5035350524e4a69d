"""The numbers that the room ``serving`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- actions --------------------------------------------------------------------------------------------------------
#: How often progress is told (s), and how long a process gets to end what it has started before it is killed.
PROGRESS_EACH_S, GRACE_S = 1.0, 15.0

# ---- shelf ----------------------------------------------------------------------------------------------------------
#: Reports that are kept, the last asked for first: a report of a million kernels takes a few hundred MB.
MOST_LOADED = 3
