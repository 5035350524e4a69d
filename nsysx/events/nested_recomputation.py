"""Modules that backward computes again more than once for each call: a checkpoint inside of another one, each of which runs them anew."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_bounds import MOST_RECOMPUTATIONS
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64


class ComputedAgain(NamedTuple):
    """Calls of modules that backward makes although it has made them before: outermost ones, in order of thread and time.

    ``names``: path and class of each; ``times``: how often all in all a call of such a module is computed, the forward included.
    """

    thread: I64
    start_ns: I64
    end_ns: I64
    names: list[tuple[str, str]]
    times: int

    def within(self, thread: I64, time_ns: I64) -> Flags:
        """Return which instants of threads lie in such a call."""
        inside = np.zeros(len(thread), np.bool_)
        for each in np.unique(self.thread).tolist():
            of_thread, there = self.thread == each, thread == each
            begun = np.searchsorted(self.start_ns[of_thread], time_ns[there], side="right") - 1
            inside[there] = (begun >= 0) & (self.end_ns[of_thread][np.maximum(begun, 0)] > time_ns[there])
        return inside


def computed_again(profile: Profile) -> ComputedAgain | None:
    """Return the calls that are more than one for each of the forward; None where backward computes nothing twice."""
    return profile.once(_computed_again)


def _computed_again(profile: Profile) -> ComputedAgain | None:
    rows = profile.ranges.ranges.filter(
        pl.col("process") == profile.process, pl.col("kind").cast(pl.String) == "module", ~pl.col("crossing")
    ).select("thread", "start_ns", "end_ns", "recompute", pl.col("name").cast(pl.String), pl.col("cls").cast(pl.String))
    again = rows.filter("recompute").select("name").unique()
    rows = rows.join(again, on="name", how="semi").sort("start_ns").with_row_index("row")
    surplus, times = list[int](), 0
    for _, of_module in rows.group_by("name", maintain_order=True):
        numbers, kinds = of_module["row"].to_list(), of_module["recompute"].to_list()
        for row, each in _beyond_one(numbers, kinds):
            surplus.append(row)
            times = max(times, each)
    chosen = rows.filter(pl.col("row").is_in(surplus)).sort(
        "thread", "start_ns", "end_ns", descending=[False, False, True]
    )
    if not chosen.height:
        return None
    reach = pl.col("end_ns").cum_max().shift(1).over("thread").fill_null(0)
    outermost = chosen.filter(chosen["start_ns"] >= reach)
    thread, start, end = (outermost[column].to_numpy() for column in ("thread", "start_ns", "end_ns"))
    return ComputedAgain(thread, start, end, list(zip(outermost["name"], outermost["cls"], strict=True)), times)


def _beyond_one(numbers: list[int], again: list[bool]) -> Iterator[tuple[int, int]]:
    """Yield the calls of a module that are computed again once more than each of the forward needs, and how often a call is computed.

    ``again``: whether a call is one of backward. Those of the forward come first, as many of backward for each of them follow.
    """
    runs = [(kind, list(run)) for kind, run in groupby(range(len(numbers)), key=again.__getitem__)]
    for (before, forward), (kind, run) in pairwise(runs):
        each, left = divmod(len(run), len(forward))
        if kind and not before and 1 < each <= MOST_RECOMPUTATIONS and not left:
            yield from ((numbers[call], 1 + each) for i, call in enumerate(run) if i % each)
