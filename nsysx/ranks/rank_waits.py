"""How long each rank waits for others in each step: whether one rank is late in all steps, or another one in each."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np

from nsysx.frames.intervals import I64
from nsysx.model import Row, Table, TableSpec
from nsysx.ranks.collective_costs import CollectiveCosts, waiting_per_step
from nsysx.ranks.job_compared import JobCompared
from nsysx.ranks.job_ledger import chosen
from nsysx.ranks.rank_bounds import MOST_LISTED_STEPS
from nsysx.ranks.rank_columns import CoveredSteps, ExposedWait, RankNumber
from nsysx.ranks.rank_record import Rank, number
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "rank_waits"
TITLE = "Waiting by rank and step"


class RankWaitRow(TypedDict):
    """Exposed waiting of a rank for others, step by step."""

    rank: RankNumber
    steps: CoveredSteps
    wait_ns: ExposedWait
    longest_ns: Annotated[int, Of("the most of it in one step", "ns", label="longest in a step")]
    longest_step: Annotated[int, Of("that step, counted from the first steady one, 0", label="in step")]
    by_step_ns: Annotated[
        list[int],
        Of(
            f"the same in each step; of more than {MOST_LISTED_STEPS} steps the mean of as many groups of neighbors",
            "ns",
        ),
    ]


COLUMNS = columns_of(RankWaitRow)
ROWS: TableOf[RankWaitRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="rows",
    place=243,
    group="rank-tables",
    first=names("rank wait_ns longest_ns longest_step steps"),
    hide=("by_step_ns",),
    bar="wait_ns",
)


def table(compared: JobCompared | None, reason: str) -> Table:
    """Return the waiting of each rank by step. Without a second rank no rows, and the reason."""
    if compared is None:
        return Table(KEY, TITLE, COLUMNS, None, reason, shown=SHOWN)
    ranks = compared.ranks
    waits = [_per_step(rank, cost) for rank, cost in zip(ranks, compared.costs, strict=True)]
    shown = chosen(ranks, [int(w.sum()) for w in waits])
    rows = [_row(number(ranks, r), waits[r]) for r in sorted(shown) if len(waits[r])]
    if not rows:
        return Table(KEY, TITLE, COLUMNS, None, "no steady steps were found", shown=SHOWN)
    return Table(KEY, TITLE, COLUMNS, tuple(rows), shown=SHOWN)


def _per_step(rank: Rank, costs: CollectiveCosts) -> I64:
    """Return the exposed waiting of each steady step (ns); none without steps."""
    if rank.tiles is None:
        return np.empty(0, np.int64)
    return waiting_per_step(rank, costs, range(len(costs.waiting)))


def _row(rank: int, waits: I64) -> Row:
    groups = np.array_split(waits, min(len(waits), MOST_LISTED_STEPS))
    row: RankWaitRow = {
        "rank": rank,
        "steps": len(waits),
        "wait_ns": int(waits.sum()),
        "longest_ns": int(waits.max()),
        "longest_step": int(waits.argmax()),
        "by_step_ns": [round(float(group.mean())) for group in groups],
    }
    return dict(row)
