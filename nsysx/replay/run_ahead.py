"""Hosts that lie behind their device at the begin of the replayed steps, and ahead of it at their end.

A replay repeats these steps: each round begins as far ahead as the round before ended, and the device does not idle for the host as it
did at the begin of the recorded ones. That the replay is shorter by this is no error of it.
"""

from __future__ import annotations

import polars as pl

from nsysx.catalogue import Cause
from nsysx.events.profile import Profile
from nsysx.replay import real_idle
from nsysx.replay.replayed_window import ReplayedWindow

#: Why a device idles that a host which runs ahead does not let it idle for.
_OF_HOST = [cause.number for cause in (Cause.HOST_CODE, Cause.LAUNCH_LATENCY, Cause.OTHER_API, Cause.COPY_CALL)]


def gone_in_repeats_ns(profile: Profile, window: ReplayedWindow) -> int:
    """Return how long the device idles for the host in the window (ns) and does not where the host begins as far ahead as it ends."""
    ahead_at_begin, ahead_at_end = window.gpu_span[0] - window.start_ns, window.gpu_span[1] - window.end_ns
    begin, end = window.gpu_span
    idle = real_idle.recorded(profile)
    of_host = idle.filter(pl.col("cause").is_in(_OF_HOST), pl.col("start_ns") >= begin, pl.col("start_ns") < end)
    return min(max(ahead_at_end - max(ahead_at_begin, 0), 0), int(of_host["ns"].sum()))
