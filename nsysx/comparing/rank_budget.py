"""What a budget can hold of a job: how its ranks wait for each other, by the table that compares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nsysx.comparing.comparing_bounds import GPU_DRIFT_SHARE
from nsysx.comparing.side import Captured
from nsysx.frames.frame_bounds import PROCESS_DRIFT
from nsysx.ranks import rank_table
from nsysx.ranks.rank_table import RankRow

#: Two captures of one job differ in their waiting by what the hosts of two processes differ by (share of it).
_DRIFT = PROCESS_DRIFT + GPU_DRIFT_SHARE


def _per_step(row: RankRow, ns: int) -> float:
    return ns / max(row["steps"], 1)


#: Times of a rank in a step (ns), by the name of their limit: the largest of all ranks counts.
_TIMES: Mapping[str, Callable[[RankRow], float]] = {
    "exposed_comm": lambda row: _per_step(row, row["comm_ns"]),
    "exposed_transfer": lambda row: _per_step(row, row["exposed_transfer_ns"] or 0),
    "waiting": lambda row: _per_step(row, row["exposed_wait_ns"] or 0),
    "straggler": lambda row: float(row["late_ns"] or 0) if row["straggler"] else 0.0,
}
TIMES = tuple(_TIMES)
#: Of these, the part of the rank's step can have a limit, too.
SHARES = ("exposed_comm", "exposed_transfer", "waiting")


def _rows(capture: Captured) -> list[RankRow]:
    """Return the ranks of a job; none where there is one, or no collective of two ranks was matched."""
    rows = [row for row in capture.summary.typed_rows(rank_table.ROWS) if row["exposed_wait_ns"] is not None]
    return rows if len(rows) > 1 else []


def times(capture: Captured, name: str) -> tuple[float, float] | None:
    """Return the largest of a time over the ranks, and its noise (ms a step); None without ranks that can be compared."""
    most = max((_TIMES[name](row) for row in _rows(capture)), default=None)
    return None if most is None else (most / 1e6, _DRIFT * most / 1e6)


def shares(capture: Captured, name: str) -> tuple[float, float] | None:
    """Return the largest share of a time in the step of its rank, and its noise; None without ranks that can be compared."""
    parts = [_TIMES[name](row) / _per_step(row, row["window_ns"]) for row in _rows(capture) if row["window_ns"]]
    return None if not parts else (max(parts), _DRIFT * max(parts))
