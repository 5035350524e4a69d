"""The numbers that the room ``export`` was tuned with: each with what it bounds, its unit and its reason, by the file that uses it."""

from __future__ import annotations

# ---- nsight_compute -------------------------------------------------------------------------------------------------
#: Nsight Compute runs a kernel about 40 times over for these sections: with more launches than this it takes minutes.
MOST_LAUNCHES = 64
#: Steps that are skipped beyond the start: what is profiled is neither compiled, nor the first of its kind.
SETTLING_STEPS = 3
#: Steps that are skipped where the start was not recorded.
START_STEPS = 20

# ---- track_events ---------------------------------------------------------------------------------------------------
#: Events that are put into bytes at once.
EVENT_CHUNK = 1 << 16
#: Letters of the name of a track or an event. Chosen: Perfetto shows one line.
LONGEST_TRACK_NAME = 500
