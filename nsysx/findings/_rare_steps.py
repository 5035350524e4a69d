"""The rare long steps of a long capture of which parts were read: they lie apart from the steady ones, which they are compared with."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.findings._case import Case
from nsysx.judging.judging_bounds import LONG_STEP_TIMES
from nsysx.reading.trace import Sampled
from nsysx.replay.engine import idle_of


@dataclass(frozen=True)
class _Beside(Case):
    """The case of the steady steps, with the idle time and the work of some more of them, ``more``, as recorded."""

    more: pl.DataFrame | None = None

    @property
    def _spans(self) -> list[tuple[int, int]]:
        return [] if self.more is None else list(self.more["start_ns", "end_ns"].iter_rows())

    @cached_property
    def idle(self) -> pl.DataFrame:
        """The idle pieces of the steady steps and of the long ones, each clipped to its steps."""
        steady = self.profile.once(idle_of).with_columns(pl.col("start_ns").clip(lower_bound=self.window[0]))
        pieces = self.profile.ledgers.idle_of(self.process, self.device)
        made = [steady]
        for start, end in self._spans:
            begin, until = pl.max_horizontal("start_ns", pl.lit(start)), pl.min_horizontal("end_ns", pl.lit(end))
            inside = pieces.filter((pieces["end_ns"] > start) & (pieces["start_ns"] < end))
            inside = inside.with_columns(ns=until - begin, real_ns=until - begin, start_ns=begin)
            made.append(inside.select(steady.columns).cast(steady.schema))
        return pl.concat(made).sort("start_ns")

    @property
    def ops(self) -> pl.DataFrame:
        """The GPU ops of the steady steps and those that run in the long ones."""
        every = self.profile.attributed.gpu_ops
        in_spans = pl.any_horizontal(
            pl.lit(False), *(pl.col("start_ns").is_between(a, b, closed="left") for a, b in self._spans)
        )
        return pl.concat([self.profile.steady_ops, every.filter(in_spans).select(self.profile.steady_ops.columns)])


class Rare(NamedTuple):
    """Long steps beside the steady ones.

    ``case`` holds both, ``tiles`` those that were read, index, start_ns, end_ns; ``long`` of ``steps`` are long, which costs
    ``cost_ns`` on average over all (ns as recorded).
    """

    case: Case
    tiles: pl.DataFrame
    long: int
    steps: int
    cost_ns: int


def rare_steps(case: Case, steady: pl.DataFrame) -> Rare | None:
    """Return the rare long steps of a long capture that were read, None without any; ``steady`` are the tiles of the steady steps."""
    sampled, steps = case.profile.trace.sampled, case.profile.steps
    if sampled is None or not sampled.long or not steady.height:
        return None
    median = float(np.median((steady["end_ns"] - steady["start_ns"]).to_numpy()))
    whole = steps.cpu.filter(
        (pl.col("process") == case.process) & ~pl.col("cut") & ~pl.col("warmup") & ~pl.col("steady")
    )
    tiles = steps.gpu.filter(
        (pl.col("process") == case.process)
        & (pl.col("device") == case.device)
        & pl.col("index").is_in(whole["index"].to_list())
        & (pl.col("end_ns") - pl.col("start_ns") > LONG_STEP_TIMES * median)
    )
    if not tiles.height:
        return None
    given = {f.name: getattr(case, f.name) for f in fields(Case)}
    return Rare(_Beside(**given, more=tiles), tiles.select(steady.columns), len(sampled.long), *_cost(case, sampled))


def _cost(case: Case, sampled: Sampled) -> tuple[int, int]:
    """Return the number of all steps but the warm-up and the last, and by how much the long ones raise their mean (ns)."""
    warm_up = case.profile.steps.cpu.filter((pl.col("process") == case.process) & pl.col("warmup")).height
    count = len(sampled.lengths_ns) - warm_up - 1
    return count, round(sum(ns - sampled.usual_ns for _, ns in sampled.long) / count)
