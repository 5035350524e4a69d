"""Phases of a step: time on the driving thread, device time of the work they launched, device idle before that work."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx import columns
from nsysx.facts import Facts, NotRecorded
from nsysx.intervals import nesting
from nsysx.ledger import windows_function
from nsysx.model import Column

KEY = "phases"
TITLE = "Phases"
COLUMNS = (
    Column("name", "String", "", "phase; null outside every phase"),
    Column(
        "cpu_ns", "Int64", "ns", "time on the thread that drives the steps, over the steady steps; sums to their length"
    ),
    Column(
        "gpu_busy_ns", "Int64", "ns", "device time of its GPU work, each busy instant in one phase; sums to GPU busy"
    ),
    Column("gpu_idle_ns", "Int64", "ns", "device idle time before its GPU work; sums to GPU idle"),
)


def _gpu(facts: Facts) -> dict[str | None, list[int]]:
    """Return phase -> [busy, idle] over the steady windows of all devices of the shown process."""
    found: dict[str | None, list[int]] = {}
    phase = facts.attributed.gpu_ops["phase"]
    names = [None, *(p for p in phase.drop_nulls().unique().cast(pl.String))]
    number = columns.coded(phase, {p: i for i, p in enumerate(names) if p is not None}, default=0)
    for process, device, start, end in facts.steps.windows.select(
        "process", "device", "start_ns", "end_ns"
    ).iter_rows():
        if process != facts.steps.process:
            continue
        ops = facts.attributed.gpu_ops.filter(
            (pl.col("process") == process)
            & (pl.col("device") == device)
            & (pl.col("end_ns") > start)
            & (pl.col("start_ns") < end)
        )
        # Of work that runs at once, the one that began last has the instant.
        top = nesting(ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()).top.clip(start, end)
        working = top.labels >= 0
        of = number[ops["op"].to_numpy()[top.labels[working]]]
        busy = np.zeros(len(names), np.int64)
        np.add.at(busy, of, np.diff(top.times)[working])
        idle = facts.ledgers.idle.filter(
            (pl.col("process") == process)
            & (pl.col("device") == device)
            & (pl.col("end_ns") > start)
            & (pl.col("start_ns") < end)
        )
        gap = np.minimum(idle["end_ns"].to_numpy(), end) - np.maximum(idle["start_ns"].to_numpy(), start)
        op = idle["op"].fill_null(-1).to_numpy()
        idle_ns = np.zeros(len(names), np.int64)
        np.add.at(idle_ns, np.where(op >= 0, number[op], 0), gap)
        for name, worked, waited in zip(names, busy.tolist(), idle_ns.tolist(), strict=True):
            both = found.setdefault(name, [0, 0])
            both[0] += worked
            both[1] += waited
    return found


def _cpu(facts: Facts) -> dict[str | None, int]:
    """Return phase -> time on the driving thread."""
    steps = facts.steps.cpu.filter(
        (pl.col("process") == facts.steps.process) & (pl.col("steady") | pl.lit(facts.steps.whole))
    )
    found: dict[str | None, int] = {}
    for (thread,), own in steps.group_by("thread", maintain_order=True):
        start, end = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        spans = facts.attributed.phase_spans.filter(pl.col("thread").eq_missing(pl.lit(thread))).sort("start_ns")
        function = windows_function(
            spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy(), np.arange(spans.height, dtype=np.int64)
        )
        names = spans["phase"].to_numpy()
        inside = 0
        for name in spans["phase"].unique().to_list():
            mine = (function.labels >= 0) & (names[np.maximum(function.labels, 0)] == name)
            found[name] = found.get(name, 0) + int(function.within(mine, start, end).sum())
            inside += found[name]
        found[None] = found.get(None, 0) + int((end - start).sum()) - inside
    return found


def table(facts: Facts) -> pl.DataFrame:
    """Return one row per phase of the shown process, longest on the CPU first."""
    if not facts.attributed.phase_spans.height:
        raise NotRecorded(
            "no phase range was recorded: run under `nsysx run`, or mark forward, backward and optimizer", "-t nvtx"
        )
    cpu, gpu = _cpu(facts), _gpu(facts)
    rows = [(name, cpu.get(name, 0), *gpu.get(name, [0, 0])) for name in cpu.keys() | gpu.keys()]
    rows = [r for r in rows if any(r[1:])]
    return pl.DataFrame(
        rows,
        schema={"name": pl.String, "cpu_ns": pl.Int64, "gpu_busy_ns": pl.Int64, "gpu_idle_ns": pl.Int64},
        orient="row",
    ).sort("cpu_ns", "gpu_busy_ns", "name", descending=[True, True, False])
