"""The idle time of the busiest device by the line that keeps it waiting, without tracing, in one place so that all figures agree."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.catalogue import Cause
from nsysx.events.line_shares import divided
from nsysx.events.profile import Profile
from nsysx.replay.engine import idle_of
from nsysx.replay.replay_bounds import MOST_IDLE_PIECES


def by_line(profile: Profile) -> pl.DataFrame:
    """Return piece (row of ``idle_of``; -1: several), place (of ``CodeLines.places``, -1 not known), stack, host, ns, real_ns of idle time.

    ``host``: the ledger calls it host code; the rest was in calls, for data, or launch latency.
    """
    return profile.once(_by_line)


def _by_line(profile: Profile) -> pl.DataFrame:
    code, idle = profile.code(), profile.once(idle_of)
    assert code is not None
    host = (idle["cause"] == Cause.HOST_CODE.number).to_numpy()
    number = np.arange(idle.height) if idle.height <= MOST_IDLE_PIECES else np.full(idle.height, -1)
    begin, end = profile.window
    cut = idle.select(
        "thread", pl.col("start_ns").clip(begin), pl.col("end_ns").clip(None, end), group=pl.Series(2 * number + host)
    )
    late = divided(profile, code, cut.filter(pl.col("thread").is_not_null()))
    waited = idle.filter(pl.col("thread").is_null() & (pl.col("cause") == Cause.LAUNCH_LATENCY.number))
    rest = pl.DataFrame(
        {
            "group": 2 * number[(idle["thread"].is_null() & (idle["cause"] == Cause.LAUNCH_LATENCY.number)).to_numpy()],
            "stack": np.append(code.op, -1)[waited["op"].fill_null(-1).to_numpy()],
            "ns": waited["ns"],
        },
        schema=late.schema,
    )
    rows = pl.concat([late, rest])
    piece = rows["group"].to_numpy() >> 1
    left = (idle["real_ns"] / idle["ns"].clip(1)).to_numpy()
    left = np.append(left, idle["real_ns"].to_numpy().sum() / max(idle["ns"].to_numpy().sum(), 1))
    return rows.select(
        pl.Series("piece", piece),
        pl.Series("place", code.places_of(rows["stack"].to_numpy())),
        "stack",
        pl.Series("host", rows["group"].to_numpy() % 2 == 1),
        "ns",
        (pl.col("ns") * pl.Series(left[piece])).alias("real_ns"),
    )
