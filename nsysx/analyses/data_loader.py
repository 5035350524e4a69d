"""The data loader per step: how long the step waited for its batch, and whether the device ran dry for it."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.facts import Facts, NotRecorded
from nsysx.intervals import StepFunction, coverage
from nsysx.ledger import CAUSES
from nsysx.model import Column

KEY = "data_loader"
TITLE = "Data loader"
#: Names that the operating system shows for PyTorch's own loader threads.
_PIN_THREAD = r"pt_data_pin|pin_memory"
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
    loader = {t: part for (t,), part in loads.group_by("thread")}
    # The device idles for a batch before the first work of its step, so the gap is looked for during the wait itself.
    idle_pieces = facts.ledgers.idle.filter(
        (pl.col("process") == process) & (pl.col("cause") == CAUSES.index("data_loader"))
    )
    dry = [
        coverage([(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())])
        for _, part in idle_pieces.group_by("device")
    ]
    rows = []
    for index, steady, thread, start, end in (
        facts.steps.cpu.filter(pl.col("process") == process)
        .select("index", "steady", "thread", "start_ns", "end_ns")
        .iter_rows()
    ):
        spans = loader.get(thread, loads.head(0))
        spans = spans.filter((pl.col("end_ns") > start) & (pl.col("start_ns") < end))
        s = np.maximum(spans["start_ns"].to_numpy(), start)
        e = np.minimum(spans["end_ns"].to_numpy(), end)
        wait = int((e - s).sum())
        api = facts.ledgers.threads.get(thread)
        idle = sum(int(d.within(d.labels > 0, s, e).sum()) for d in dry)
        hidden = [int(w.within(w.labels > 0, s, e).sum()) for w in working]
        verdict = "no_wait" if not wait else "starved" if idle * 10 >= wait else "hidden"
        rows.append(
            {
                "index": index,
                "steady": steady,
                "step_ns": end - start,
                "wait_ns": wait,
                "api_ns": int(api.within(api.labels >= 0, s, e).sum()) if api else 0,
                "gpu_idle_ns": idle,
                "gpu_hidden_ns": max(hidden) if hidden else None,
                "pin_thread_ns": sum(int(p.within(p.labels >= 0, s, e).sum()) for p in pins) if pins else None,
                "verdict": verdict,
            }
        )
    types = {"String": pl.String, "Int64": pl.Int64, "Boolean": pl.Boolean}
    return pl.DataFrame(rows, schema={c.name: types[c.dtype] for c in COLUMNS})
