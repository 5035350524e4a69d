"""The collectives, sends and receives that the flow's thread calls in its step, as torch's operators name them."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.operator_flow import ID, MADE, SIZES, OperatorFlow, once_of_flow, results_in
from nsysx.events.profile import Profile

#: What hands on the result of a functional collective, once it is there.
WAITS = "_c10d_functional::wait_tensor"


class CollectiveOperator(NamedTuple):
    """A collective: its times, ``name`` and ``number`` (None: not noted), the sizes of its arguments, and what made each (-1: no name).

    ``which``: of each argument which of that one's results it is.
    """

    start_ns: int
    end_ns: int
    name: str
    number: int | None
    sizes: list[Size]
    given: list[int]
    which: list[int]


def collective_operators(flow: OperatorFlow, profile: Profile) -> list[CollectiveOperator]:
    """Return the collectives on the flow's thread in the flow's step, in order."""
    return list(once_of_flow(flow, profile, _read))


def _read(flow: OperatorFlow, profile: Profile) -> list[CollectiveOperator]:
    if not len(flow.start_ns):
        return []
    ops = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process) & (pl.col("thread") == flow.thread) & (pl.col("kind") == "op"),
        pl.col("start_ns").is_between(int(flow.start_ns[0]), int(flow.end_ns.max())),
        pl.col("name").cast(pl.String).str.contains("c10d"),
    ).sort("start_ns")
    text = ops["label"].cast(pl.String)
    columns = (text.str.extract(ID, 1).cast(pl.Int64), text.str.extract(SIZES, 1), text.str.extract(MADE, 1))
    return [
        CollectiveOperator(
            start,
            end,
            name,
            number,
            sizes_of(listed or ""),
            [made if which >= 0 else -1 for made, which in results_in(makers or "")],
            [which for _, which in results_in(makers or "")],
        )
        for start, end, name, number, listed, makers in zip(
            ops["start_ns"], ops["end_ns"], ops["name"].cast(pl.String), *columns, strict=True
        )
    ]
