"""Whose event pairs are: the program's, which times something with them, or those of the wrapper that makes a program a rank of a job.

DistributedDataParallel times its forward and backward with events, in its first steps and then in every hundredth; FSDP orders
its streams with events that no stream waits for where the next gather is known to come later. Both record them in the forward of the
wrapper itself, or on the autograd thread, where no program sets a clock. Nobody reads the events of FSDP, nor those that order the
streams of collectives: in a process that communicates, pairs that are only paired by their order are torch's.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile

TORCH, PROGRAM = "torch", "program"
#: Classes whose instances make a module a part of a job.
_WRAPPER = r"DistributedDataParallel|FullyShardedDataParallel|^FSDP"


def with_makers(profile: Profile, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs of events with ``made_by``: TORCH for those of a wrapper of ranks, else PROGRAM."""
    ops = profile.attributed.gpu_ops
    ranks = ops.filter(ops["cls"] == DeviceActivity.COMM.value)["process"].unique()
    modules = profile.attributed.modules.select("module", pl.col("cls").cast(pl.String))
    wrappers = modules.filter(pl.col("cls").str.contains(_WRAPPER))["module"].cast(pl.String)
    driving = profile.steps.cpu["thread"].unique()
    wrapper = pl.col("module").is_in(wrappers.implode()) | pl.col("module").str.contains(_WRAPPER)
    elsewhere = ~pl.col("thread").is_in(driving.implode()) if len(driving) else pl.col("phase") == "backward"
    unread = pl.col("paired_by") == "order"
    torchs = pl.col("process").is_in(ranks.implode()) & (wrapper | elsewhere | unread).fill_null(value=False)
    torchs |= pl.col("process").is_in(_reading_themselves(profile))
    return pairs.with_columns(made_by=pl.when(torchs).then(pl.lit(TORCH)).otherwise(pl.lit(PROGRAM)))


def _reading_themselves(profile: Profile) -> list[int]:
    """Return the processes in which only DistributedDataParallel reads events: no thread with steps queries one outside its forward.

    elapsed_time shows up as two cudaEventQuery; threads that watch communication query events too, but time nothing.
    """
    calls = profile.attributed.api_calls.select("process", "thread", "name", "start_ns")
    asks = calls["name"].is_in(["cudaEventQuery", "cudaEventSynchronize", "cudaEventElapsedTime"])
    read = calls.filter(asks & calls["thread"].is_in(profile.steps.cpu["thread"].unique().implode()))
    spans = profile.ranges.ranges.filter(
        pl.any_horizontal(pl.col(c).cast(pl.String).str.contains("DistributedDataParallel") for c in ("cls", "label"))
    )
    within = np.zeros(read.height, np.bool_)
    thread, start = read["thread"].to_numpy(), read["start_ns"].to_numpy()
    for range_thread, a, b in spans.select("thread", "start_ns", "end_ns").iter_rows():
        within |= (thread == range_thread) & (start >= a) & (start < b)
    all_within = read.with_columns(within=within).group_by("process").agg(pl.col("within").all())
    return all_within.filter("within")["process"].to_list()
