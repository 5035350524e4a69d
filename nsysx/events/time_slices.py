"""Kernels that another process interrupted: a GPU that several processes use gives each of them a slice of time in turn.

A kernel during which another process has its turn takes longer by that slice, whatever it computes. On an H100 that two programs shared,
kernels of 90 us took 2.58 ms, of 200 us 2.70 ms and of 560 us 3.07 ms now and then, and a step 174 ms instead of 91. Where the GPU has
nothing of the program's to do when its turn ends, the next work begins a slice late. (Three programs: 100, 33 and 39 ms of a step in slices
by both, and alone their steps were 83, 35 and 38 ms shorter.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.event_bounds import (
    ALIKE_SLICES_SHARE,
    FEWEST_OF_SHAPE,
    FEWEST_SLICED_SHAPES,
    FEWEST_SLICES,
    LEAST_SLICE_NS,
    SLICE_VARIES_SHARE,
    SLICED_SHAPES_TIMES,
    UNDISTURBED_QUANTILE,
)
from nsysx.events.profile import Profile


@dataclass(frozen=True)
class TakenSlices:
    """What another process takes of a device in the steady steps.

    ``slice_ns``: the usual slice. ``kernels`` are those that it interrupted: op, usual_ns (undisturbed time of its shape), ns. ``late_ns``:
    how long launched work waited for its turn while the device had nothing else of this process to do, summed.
    """

    slice_ns: int
    kernels: pl.DataFrame
    late_ns: int

    @property
    def taken_ns(self) -> int:
        """How much longer these kernels took, and how much later other work began, summed."""
        return int((self.kernels["ns"] - self.kernels["usual_ns"]).sum()) + self.late_ns


def of_shown(profile: Profile) -> TakenSlices | None:
    """Return the slices of another process among the steady kernels of the shown device; None where none show."""
    if profile.device is None:
        return None
    ops = profile.steady_ops
    return of_ops(ops.filter((ops["process"] == profile.steps.process) & (ops["device"] == profile.device)))


def of_ops(ops: pl.DataFrame) -> TakenSlices | None:
    """Return the slices of another process among the work of one process on one device; None where none show."""
    if not (ops["end_ns"] - ops["start_ns"] >= LEAST_SLICE_NS).any():
        return None
    # Communication waits for other ranks, and beside other work of the program's own a kernel may take longer.
    alone = ops.filter((ops["op_kind"] == "kernel") & (ops["cls"] != DeviceActivity.COMM.value) & ~_beside(ops))
    shape = ("name", "grid", "block")
    timed = alone.select("op", *shape, ns=pl.col("end_ns") - pl.col("start_ns")).with_columns(
        usual_ns=pl.col("ns").quantile(UNDISTURBED_QUANTILE, "lower").over(shape).cast(pl.Int64)
    )
    longer = timed.filter(
        (pl.len().over(shape) >= FEWEST_OF_SHAPE) & (pl.col("ns") - pl.col("usual_ns") >= LEAST_SLICE_NS)
    )
    if longer.height < FEWEST_SLICES:
        return None
    more = (longer["ns"] - longer["usual_ns"]).to_numpy()
    usual = float(np.median(more))
    if (np.abs(more - usual) <= SLICE_VARIES_SHARE * usual).sum() < ALIKE_SLICES_SHARE * len(more):
        return None
    lengths = longer.unique(shape)["usual_ns"].to_numpy()
    if len(lengths) < FEWEST_SLICED_SHAPES or lengths.max() < SLICED_SHAPES_TIMES * lengths.min():
        return None
    return TakenSlices(round(usual), longer["op", "usual_ns", "ns"], _late_ns(ops, round(usual)))


def _late_ns(ops: pl.DataFrame, slice_ns: int) -> int:
    """Return how long launched ops of a device waited although it had nothing of the program's to do, as long as a slice at most (ns)."""
    ordered = ops["start_ns", "end_ns", "call_end_ns", "cls"].sort("start_ns")
    free = pl.max_horizontal(pl.col("end_ns").cum_max().shift(1), "call_end_ns")
    waited = ordered.select(
        ns=pl.col("start_ns") - free, sent=pl.col("cls").cast(pl.String) == DeviceActivity.COMM.value
    )
    most = round((1 + SLICE_VARIES_SHARE) * slice_ns)
    return int(waited.filter(~pl.col("sent") & pl.col("ns").is_between(LEAST_SLICE_NS, most))["ns"].sum())


def _beside(ops: pl.DataFrame) -> pl.Series:
    """Return whether other work of the program's ran on the device at the same time as each op; ``ops`` are those of one device."""
    ordered = ops.select("start_ns", "end_ns", row=pl.int_range(pl.len())).sort("start_ns")
    before = pl.col("end_ns").cum_max().shift(1) > pl.col("start_ns")
    behind = pl.col("start_ns").shift(-1) < pl.col("end_ns")
    beside = before.fill_null(value=False) | behind.fill_null(value=False)
    return ordered.with_columns(beside=beside).sort("row")["beside"]
