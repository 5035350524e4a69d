"""Whose event pairs are: the program's, which times something with them, or PyTorch's: those of the wrapper that makes a program a rank
of a job, and those inside its operators.

DistributedDataParallel times its forward and backward with events, in its first steps and then in every hundredth; FSDP orders
its streams with events that no stream waits for where the next gather is known to come later. Both record them in the forward of the
wrapper itself, or on the autograd thread, where no program sets a clock. Nobody reads the events of FSDP, nor those that order the
streams of collectives: in a process that communicates, pairs that are only paired by their order are torch's.

An operator that looks for its fastest kernel (cudnn.benchmark) times each with events; no program sets a clock inside an operator. Where
no operator was recorded, and for compilers, see ``searching_events``.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.analyses.helpers.analysis_bounds import FIRST_SAMPLED_PASSES, SAMPLED_EVERY
from nsysx.analyses.helpers.searching_events import searching
from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile

TORCH, PROGRAM = "torch", "program"
#: Ranges of PyTorch's operators: its own, and those of DLProf and PyProf.
_OPERATOR = r"^(aten::|torch\.nn\.functional\.)"
#: Classes whose instances make a module a part of a job.
_WRAPPER = r"DistributedDataParallel|FullyShardedDataParallel|^FSDP"
#: The class that times itself in some of its passes.
_SAMPLING = r"DistributedDataParallel"


def with_makers(profile: Profile, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs of events with ``made_by``: TORCH for those of a wrapper of ranks or of an operator, else PROGRAM."""
    ops = profile.attributed.gpu_ops
    ranks = ops.filter(ops["cls"] == DeviceActivity.COMM.value)["process"].unique()
    modules = profile.attributed.modules.select("module", pl.col("cls").cast(pl.String))
    wrappers = modules.filter(pl.col("cls").str.contains(_WRAPPER))["module"].cast(pl.String)
    driving = profile.steps.cpu["thread"].unique()
    wrapper = pl.col("module").is_in(wrappers.implode()) | pl.col("module").str.contains(_WRAPPER)
    elsewhere = ~pl.col("thread").is_in(driving.implode()) if len(driving) else pl.col("phase") == "backward"
    unread = pl.col("paired_by") == "order"
    torchs = pl.col("process").is_in(ranks.implode()) & (wrapper | elsewhere | unread).fill_null(value=False)
    torchs |= pl.col("process").is_in(_reading_themselves(profile)) | _of_operators(profile, pairs)
    torchs |= pl.Series(searching(profile, pairs), dtype=pl.Boolean)
    made = pairs.with_columns(made_by=pl.when(torchs).then(pl.lit(TORCH)).otherwise(pl.lit(PROGRAM)))
    if not modules["cls"].str.contains(_SAMPLING).any():
        return made
    sampled = pl.col("process").is_in(ranks.implode()) & pl.col("process").is_in(_only_sampled(profile, made))
    return made.with_columns(made_by=pl.when(sampled).then(pl.lit(TORCH)).otherwise("made_by"))


def _only_sampled(profile: Profile, pairs: pl.DataFrame) -> list[int]:
    """Return the processes all of whose pairs that seem the program's lie in steps in which DistributedDataParallel times itself.

    In steps whose modules were not marked its own forward has no name. It times its first ten passes and then every hundredth.
    """
    cpu = profile.steps.cpu.sort("start_ns")["process", "number", "start_ns", "end_ns"]
    begun = profile.attributed.api_calls["start_ns"].gather(pairs["call"])
    of_program = (
        pairs.select("process", "made_by", start_ns=begun).filter(pl.col("made_by") == PROGRAM).sort("start_ns")
    )
    step = of_program.join_asof(
        cpu.rename({"start_ns": "begin_ns"}),
        left_on="start_ns",
        right_on="begin_ns",
        by="process",
        check_sortedness=False,
    )
    number = pl.when(pl.col("start_ns") < pl.col("end_ns")).then("number")
    timed = ((number < FIRST_SAMPLED_PASSES) | ((number + 1) % SAMPLED_EVERY == 0)).fill_null(value=False)
    return step.group_by("process").agg(timed.all().alias("timed")).filter("timed")["process"].to_list()


def _of_operators(profile: Profile, pairs: pl.DataFrame) -> pl.Series:
    """Return the pairs whose first record is made inside an operator of PyTorch, on the same thread."""
    ranges = profile.ranges.ranges.filter(
        pl.col("label").cast(pl.String).str.contains(_OPERATOR).fill_null(value=False)
    )
    within = np.zeros(pairs.height, np.bool_)
    thread, recorded_ns = (
        pairs["thread"].to_numpy(),
        profile.attributed.api_calls["start_ns"].gather(pairs["call"]).to_numpy(),
    )
    for (number,), of_thread in ranges.sort("start_ns").group_by("thread"):
        ends = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(of_thread["end_ns"].to_numpy()))
        begun = np.searchsorted(of_thread["start_ns"].to_numpy(), recorded_ns, side="right")
        within |= (thread == number) & (ends[begun] > recorded_ns)
    return pl.Series(within, dtype=pl.Boolean)


def _reading_themselves(profile: Profile) -> list[int]:
    """Return the processes in which only DistributedDataParallel reads events: no thread with steps queries one outside its forward.

    elapsed_time shows up as two cudaEventQuery; threads that watch communication query events too, but time nothing.
    """
    calls = profile.attributed.api_calls["process", "thread", "name", "start_ns"]
    asks = calls["name"].is_in(["cudaEventQuery", "cudaEventSynchronize", "cudaEventElapsedTime"])
    read = calls.filter(asks & calls["thread"].is_in(profile.steps.cpu["thread"].unique().implode()))
    spans = profile.ranges.ranges.filter(
        pl.any_horizontal(pl.col(c).cast(pl.String).str.contains("DistributedDataParallel") for c in ("cls", "label"))
    )
    within = np.zeros(read.height, np.bool_)
    thread, start = read["thread"].to_numpy(), read["start_ns"].to_numpy()
    for range_thread, a, b in spans["thread", "start_ns", "end_ns"].iter_rows():
        within |= (thread == range_thread) & (start >= a) & (start < b)
    all_within = read.with_columns(within=within).group_by("process").agg(pl.col("within").all())
    return all_within.filter("within")["process"].to_list()
