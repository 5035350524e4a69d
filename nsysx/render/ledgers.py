"""Ledgers as parts that sum to their window, and the steps for the step-by-step picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nsysx import ids, units
from nsysx.advice import BarPart
from nsysx.analyses import cpu_ledger, gpu_ledger
from nsysx.analyses.helpers.step_record import gpu_parts, rows_of
from nsysx.catalogue import WORKING, CpuPart, DeviceActivity, Paint
from nsysx.gpus import UNKNOWN_GPU
from nsysx.model import Row, Summary
from nsysx.ranks import rank_table
from nsysx.render.labels import CAUSES, label
from nsysx.render.safe_text import clean, scrub


@dataclass(frozen=True, slots=True)
class Ledger:
    """One device or thread over one window: the parts sum to ``window_ns``."""

    label: str
    device: bool
    window_ns: float
    parts: tuple[BarPart, ...]

    def sentence(self) -> str:
        """Return the ledger in words, largest parts first."""
        top = sorted((p for p in self.parts if p.ns), key=lambda p: -p.ns)[:4]
        shares = ", ".join(
            f"{'idle: ' if p.idle else ''}{p.label} {units.duration(p.ns)} ({units.share(p.ns, self.window_ns)})"
            for p in top
        )
        return f"{self.label}: {units.duration(self.window_ns)}; {shares}."


@dataclass(frozen=True, slots=True)
class StepBar:
    """One step of the step-by-step picture: kinds of GPU work where they are known, else phases of the CPU step."""

    index: int
    length_ns: float
    cpu_ns: float | None
    steady: bool
    parts: Mapping[str, float]


def process_words(summary: Summary, process: Any) -> str:
    """Return what tells a process apart: nothing where there is only one, else its rank or pid."""
    pids = {g.process: g.pid for g in summary.capture.gpus}
    if len(pids) < 2 and len(summary.capture.processes) < 2:
        return ""
    ranks = [r["rank"] for r in summary.typed_rows(rank_table.ROWS) if r["process"] == process]
    if len(ranks) == 1:
        return f"rank {ranks[0]} "
    row = next((r for r in summary.capture.processes if r.get("process") == process), {})
    if row.get("rank") is not None:
        return f"rank {row['rank']} "
    pid = pids.get(process) or row.get("pid") or (ids.pid_of(process) if isinstance(process, int) else process)
    return f"process {clean(pid, 20)} "


def busy_threads(summary: Summary) -> list[cpu_ledger.CpuRow]:
    """Return the rows of the CPU ledger, without threads that spend under 1 % in CUDA calls; the first row always stays."""
    rows = list(summary.typed_rows(cpu_ledger.ROWS))

    def busy(row: cpu_ledger.CpuRow) -> bool:
        return (row["window_ns"] - row["outside_api_ns"]) * 100 >= row["window_ns"]

    return rows[:1] + [row for row in rows[1:] if busy(row)]


def ledgers_of(summary: Summary) -> Iterable[Ledger]:
    """Yield the ledgers of the devices, then of the threads, each as the mean of its own steps."""
    names: dict[tuple[Any, Any], str] = {(g.process, g.device): g.name for g in summary.capture.gpus}
    for row in summary.typed_rows(gpu_ledger.ROWS):
        scope, did = summary.scope_of(row), gpu_ledger.by_activity(row)
        parts = [BarPart(a.label, scope.per_step(did[a]), a.value) for a in WORKING]
        causes = {k: v for k, v in row["idle_causes"].items() if v}
        for cause, ns in sorted(causes.items(), key=lambda c: -c[1]):
            kind, text = CAUSES.get(cause.removesuffix("_ns"), (Paint.IDLE, label(cause)))
            parts.append(BarPart(text, scope.per_step(ns), kind, idle=True))
        rest = did[DeviceActivity.IDLE] - sum(causes.values())
        if rest > 0:
            text = "cause not known" if causes else "GPU idle"
            parts.append(BarPart(text, scope.per_step(rest), Paint.IDLE, idle=True))
        name = names.get((row["process"], row["device"]), UNKNOWN_GPU)
        where = f"{process_words(summary, row['process'])}GPU {row['device']}"
        yield _ledger(summary, row, where if name == UNKNOWN_GPU else f"{where} ({name})", True, parts)
    for calling in busy_threads(summary):
        scope, spent = summary.scope_of(calling), cpu_ledger.by_part(calling)
        parts = [BarPart(p.label, scope.per_step(spent[p]), p.color) for p in CpuPart]
        # A thread's name may be a path, and it is also in the text alternative of the picture.
        thread = clean(scrub(str(calling.get("thread_name") or ids.tid_of(calling["thread"]))[:500]), 30)
        yield _ledger(
            summary, calling, f"CPU {process_words(summary, calling['process'])}thread {thread}", False, parts
        )


def _ledger(summary: Summary, row: Row, where: str, device: bool, parts: Sequence[BarPart]) -> Ledger:
    """Return one ledger; its label says how many steps it is the mean of, where those are not the shown ones."""
    scope, shown = summary.scope_of(row), summary.steps.scope
    text = clean(where, 60)
    if shown is not None and scope.steps != shown.steps:
        text += f", {scope.mean}"
    return Ledger(text, device, scope.per_step(row.get("window_ns") or 0), tuple(parts))


def step_bars(summary: Summary) -> tuple[StepBar, ...]:
    """Return the steps for their picture: on the GPU where most steps have a GPU side, else on the CPU."""
    rows = [r for r in rows_of(summary.steps) if not r.get("cut")]
    steady = summary.steps.steady or (0, -1)
    on_gpu = bool(rows) and sum(r.get("gpu_ns") is not None for r in rows) * 2 > len(rows)
    bars = []
    for row in rows:
        index = int(row.get("index") or 0)
        start, end = row.get("start_ns"), row.get("end_ns")
        cpu = row.get("cpu_ns", end - start if start is not None and end is not None else None)
        length = row.get("gpu_ns") if on_gpu else cpu
        if not length or length < 0:
            continue
        if on_gpu:
            ns_of = gpu_parts(row)
            parts = {activity.value: float(ns_of[activity.column] or 0) for activity in DeviceActivity}
        else:
            parts = {str(k): float(v) for k, v in (row.get("phases") or {}).items() if v}
        bars.append(StepBar(index, float(length), cpu, steady[0] <= index <= steady[1], parts))
    return tuple(bars)
