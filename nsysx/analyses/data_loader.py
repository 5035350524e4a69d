"""The data loader per step: how long the step waited for its batch, and whether the device ran dry for it."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from nsysx.catalogue import Cause
from nsysx.events.ledger import windows_function
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames.intervals import I64, StepFunction, coverage
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "data_loader"
TITLE = "Data loader"
#: Names that the operating system shows for PyTorch's own loader threads.
_PIN_THREAD = r"pt_data_pin|pin_memory"
_NOTHING = np.empty(0, np.int64)


class BatchRow(TypedDict):
    """One step and the wait for its batch."""

    index: Annotated[int, Of("number of the step", label="step")]
    steady: Annotated[bool, Of("whether it is a steady step")]
    step_ns: Annotated[int, Of("length of the step on the thread that drives it", "ns", label="length of the step")]
    wait_ns: Annotated[int, Of("part of the step in data loading ranges", "ns", label="wait for the batch")]
    api_ns: Annotated[int, Of("part of wait_ns inside CUDA API calls: copies and pinning, not the loader", "ns")]
    gpu_idle_ns: Annotated[int, Of("idle time of the shown device during the wait that data loading explains", "ns")]
    gpu_hidden_ns: Annotated[
        int | None,
        Of("part of wait_ns while the process's busiest device worked: costs nothing; null without GPU work", "ns"),
    ]
    pin_thread_ns: Annotated[
        int | None, Of("time in CUDA API calls of the pin memory thread meanwhile; null without one", "ns")
    ]
    verdict: Annotated[
        str, Of("starved (the device idled for a tenth of the wait or more), hidden, or no_wait", codes=True)
    ]


COLUMNS = columns_of(BatchRow)
ROWS: TableOf[BatchRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="rows",
    place=190,
    group="where",
    intro=("Each step's wait for its batch. Waiting costs nothing while the GPU works on what was launched earlier."),
    first=names("index gpu_idle_ns wait_ns gpu_hidden_ns step_ns api_ns pin_thread_ns verdict steady"),
    bar="gpu_idle_ns",
    depth=2,
)


def _pin_threads(profile: Profile, process: int) -> list[StepFunction]:
    names = profile.trace.thread_name.filter(
        (pl.col("process") == process) & pl.col("name").cast(pl.String).str.contains(_PIN_THREAD)
    )
    return [
        profile.ledgers.threads[t] for t in names["thread"].unique().sort().to_list() if t in profile.ledgers.threads
    ]


def _waits_during(wait: StepFunction, function: StepFunction, least: int, start: I64, end: I64) -> I64:
    """Return, per step, the time of its waits in which the function is ``least`` or more (ns)."""
    if not len(wait.labels) or not len(function.labels):
        return np.zeros(len(start), np.int64)
    begin, stop = wait.times[:-1][wait.labels > 0], wait.times[1:][wait.labels > 0]
    # Only the segments in the waits matter, of millions.
    first = np.maximum(np.searchsorted(function.times, begin, side="right") - 1, 0)
    count = np.searchsorted(function.times[:-1], stop, side="left") - first
    row = np.arange(count.sum()) + np.repeat(first - np.cumsum(count) + count, count)
    s = np.maximum(function.times[row], np.repeat(begin, count))
    e = np.minimum(function.times[row + 1], np.repeat(stop, count))
    inside = windows_function(s, e, function.labels[row])
    return inside.within(inside.labels >= least, start, end)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per step of the shown process, in order of time."""
    loads = profile.attributed.phase_spans.filter(
        (pl.col("phase") == "data") & (pl.col("process") == profile.steps.process)
    )
    if not profile.attributed.phase_spans.height:
        raise NotRecorded("no phase range was recorded: run under `nsysx run`, or mark data loading", "-t nvtx")
    if not loads.height:
        raise NotRecorded(
            "no data loading range is in the report, and no wait for a batch was recorded: where batches come from is unknown"
        )
    process = profile.steps.process
    working = [f for (owner, _), f in profile.ledgers.activity.items() if owner == process and len(f.labels)]
    pins = _pin_threads(profile, process)
    # On the device, idling for a batch falls before the first work of its step, so the gap is looked up during the wait.
    idle_pieces = profile.ledgers.idle_of(process, profile.device).filter(pl.col("cause") == Cause.DATA_LOADER.number)
    dry = coverage([(idle_pieces["start_ns"].to_numpy(), idle_pieces["end_ns"].to_numpy())])
    parts = []
    for (thread,), steps in profile.steps.cpu.filter(profile.steps.cpu["process"] == process).group_by("thread"):
        waits = loads.filter(pl.col("thread").eq_missing(pl.lit(thread)))
        wait = coverage([(waits["start_ns"].to_numpy(), waits["end_ns"].to_numpy())])
        start, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
        api = profile.ledgers.threads.get(-1 if thread is None else int(thread), StepFunction(_NOTHING, _NOTHING))

        hidden = [_waits_during(wait, f, 1, start, end) for f in working]
        pinned = [_waits_during(wait, f, 0, start, end) for f in pins]
        idle = _waits_during(wait, dry, 1, start, end)
        none = pl.lit(None, dtype=pl.Int64)
        parts.append(
            steps.select(
                profile.steps_of_capture().alias("index"),
                "steady",
                (pl.col("end_ns") - pl.col("start_ns")).alias("step_ns"),
                pl.Series("wait_ns", wait.within(wait.labels > 0, start, end)),
                pl.Series("api_ns", _waits_during(wait, api, 0, start, end)),
                pl.Series("gpu_idle_ns", idle),
                pl.Series("gpu_hidden_ns", np.max(hidden, axis=0)) if hidden else none.alias("gpu_hidden_ns"),
                pl.Series("pin_thread_ns", np.sum(pinned, axis=0)) if pinned else none.alias("pin_thread_ns"),
            )
        )
    verdict = (
        pl.when(pl.col("wait_ns") == 0)
        .then(pl.lit("no_wait"))
        .when(pl.col("gpu_idle_ns") * 10 >= pl.col("wait_ns"))
        .then(pl.lit("starved"))
        .otherwise(pl.lit("hidden"))
    )
    return pl.concat(parts).with_columns(verdict.alias("verdict")).sort("index")
