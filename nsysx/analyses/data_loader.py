"""The data loader per step: how long the step waited for its batch, and whether the device ran dry for it."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.facts import Facts, NotRecorded
from nsysx.intervals import I64, StepFunction, coverage, overlay
from nsysx.ledger import CAUSES
from nsysx.model import Column

KEY = "data_loader"
TITLE = "Data loader"
#: Names that the operating system shows for PyTorch's own loader threads.
_PIN_THREAD = r"pt_data_pin|pin_memory"
_NOTHING = np.empty(0, np.int64)
COLUMNS = (
    Column("index", "Int64", "", "step"),
    Column("steady", "Boolean", "", "whether it is a steady step"),
    Column("step_ns", "Int64", "ns", "length of the step on the thread that drives it"),
    Column("wait_ns", "Int64", "ns", "of it in data loading ranges"),
    Column("api_ns", "Int64", "ns", "of wait_ns inside CUDA API calls: copies and pinning, not the loader"),
    Column("gpu_idle_ns", "Int64", "ns", "device idle time during the wait that data loading explains, all devices"),
    Column(
        "gpu_hidden_ns",
        "Int64",
        "ns",
        "of wait_ns while a device of the process worked: costs nothing; null without GPU work",
    ),
    Column(
        "pin_thread_ns",
        "Int64",
        "ns",
        "time in CUDA API calls of the pin memory thread meanwhile; null when there is none",
    ),
    Column("verdict", "String", "", "starved (the device idled for a tenth of the wait or more), hidden, or no_wait"),
)


def _pin_threads(facts: Facts, process: int) -> list[StepFunction]:
    names = facts.trace.thread_name.filter(
        (pl.col("process") == process) & pl.col("name").cast(pl.String).str.contains(_PIN_THREAD)
    )
    return [facts.ledgers.threads[t] for t in names["thread"].unique().sort().to_list() if t in facts.ledgers.threads]


def table(facts: Facts) -> pl.DataFrame:
    """Return one row per step of the shown process, in order of time."""
    loads = facts.attributed.phase_spans.filter(
        (pl.col("phase") == "data") & (pl.col("process") == facts.steps.process)
    )
    if not facts.attributed.phase_spans.height:
        raise NotRecorded("no phase range was recorded: run under `nsysx run`, or mark data loading", "-t nvtx")
    if not loads.height:
        raise NotRecorded("no data loading range is in the capture: the program takes its batches without a DataLoader")
    process = facts.steps.process
    working = [
        coverage([(f.times[:-1][f.labels > 0], f.times[1:][f.labels > 0])])
        for (of, _), f in facts.ledgers.activity.items()
        if of == process and len(f.labels)
    ]
    pins = _pin_threads(facts, process)
    # The device idles for a batch before the first work of its step, so the gap is looked for during the wait itself.
    idle_pieces = facts.ledgers.idle.filter(
        (pl.col("process") == process) & (pl.col("cause") == CAUSES.index("data_loader"))
    )
    dry = [
        coverage([(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())])
        for _, part in idle_pieces.group_by("device")
    ]
    parts = []
    for (thread,), steps in facts.steps.cpu.filter(pl.col("process") == process).group_by("thread"):
        waits = loads.filter(pl.col("thread").eq_missing(pl.lit(thread)))
        wait = coverage([(waits["start_ns"].to_numpy(), waits["end_ns"].to_numpy())])
        start, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
        api = facts.ledgers.threads.get(-1 if thread is None else int(thread), StepFunction(_NOTHING, _NOTHING))

        def both(other: StepFunction, least: int, wait: StepFunction = wait, start: I64 = start, end: I64 = end) -> I64:
            """Return the time of each step in which it waited and ``other`` was at ``least``."""
            if not len(wait.labels):
                return np.zeros(len(start), np.int64)
            times, (waiting, label) = overlay([wait, other], int(wait.times[0]), int(wait.times[-1]))
            return StepFunction(times, label).within((waiting > 0) & (label >= least), start, end)

        hidden = [both(w, 1) for w in working]
        pinned = [both(p, 0) for p in pins]
        none = pl.lit(None, dtype=pl.Int64)
        parts.append(
            steps.select(
                "index",
                "steady",
                (pl.col("end_ns") - pl.col("start_ns")).alias("step_ns"),
                pl.Series("wait_ns", wait.within(wait.labels > 0, start, end)),
                pl.Series("api_ns", both(api, 0)),
                pl.Series("gpu_idle_ns", sum((both(d, 1) for d in dry), np.zeros(len(start), np.int64))),
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
