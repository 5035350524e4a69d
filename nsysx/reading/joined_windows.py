"""Two reports of one run as one capture: the cold start and the steady steps, between which nothing was recorded.

nsys writes a report for each of its capture windows. Both exports stay as nsys made them: they are joined here, after reading,
because ids, strings and domains have their own numbers in each file, and a file whose rows nsysx had renumbered would be nobody's
report. The clock of the joined capture stands still while nothing is recorded: the second part follows the first
immediately, so that shares of the recorded time are shares of recorded time. No step lies across the place where they meet
(``Trace.seams``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from nsysx.gpus import UNKNOWN_GPU, Gpu
from nsysx.model import Capture
from nsysx.reading import capture_facts, opening, schema
from nsysx.reading.reading_bounds import JOINED_WINDOWS_APART_NS, SECOND_REPORT_DOMAINS
from nsysx.reading.trace import Trace, summed_notes

#: Columns that hold a time; 0 in the last one means that it was not noted.
_TIMES, _DEVICE_TIME = ("start_ns", "end_ns", "time_ns"), "device_ns"
#: Frames of which both reports have the same rows.
_SAME = ("cuda_stream", "thread_name")


def cold_of(path: Path, name: str, run: Mapping[str, Any]) -> Path | None:
    """Return the report of the cold start that belongs to the report at ``path``, packed or not; None without one.

    ``name`` is the report's name without its endings, and ``run`` what ``nsysx run`` wrote about it.
    """
    files = run.get("files")
    if not isinstance(files, dict) or not files.get("cold"):
        return None
    stem = path.with_name(f"{name}.cold.sqlite")
    named = (stem.with_name(stem.name + ending) for ending in ("", *opening.PACKED_MAGIC.values()))
    return next((file for file in named if file.is_file()), None)


def joined(cold: Trace, steady: Trace) -> Trace:
    """Return both as one capture, with the facts of the run from ``steady``."""
    last = max((t for c in _ends(cold) if isinstance(t := c.max(), int)), default=0)
    first = min((t for c in _ends(steady) if isinstance(t := c.min(), int)), default=0)
    begin_ns = last + JOINED_WINDOWS_APART_NS
    shift = begin_ns - first
    ids = 1 + max((_most(frame, "correlation_id") for frame in cold.frames.values()), default=0)
    frames = {name: pl.concat([frame, _moved(steady.frames[name], shift, ids)]) for name, frame in cold.frames.items()}
    frames |= {name: frames[name].unique(maintain_order=True) for name in _SAME}
    beside = {
        name: _one_after_another(getattr(cold, name), getattr(steady, name), shift)
        for name in ("nccl", "gpu_metrics", "python_lines")
    }
    domains = steady.domains.with_columns(_renumbered("domain"))
    return replace(
        steady,
        frames=frames,
        recorded=cold.recorded | steady.recorded,
        domains=pl.concat([cold.domains, domains]),
        capture=_capture(cold.capture, steady.capture, steady.run),
        nccl=beside["nccl"],
        gpu_metrics=beside["gpu_metrics"],
        python_lines=beside["python_lines"],
        samples=_shifted(steady.samples, shift),
        left_out=summed_notes((*cold.left_out, *steady.left_out)),
        limits={**steady.limits, **cold.limits},
        seams=(begin_ns,),
        main=1,
    )


def _ends(trace: Trace) -> list[pl.Series]:
    """Return all columns of times of what happened; a domain is made whenever a session begins."""
    frames = {**trace.frames, "nvtx": trace.nvtx.filter(pl.col("event_type") != schema.NVTX_DOMAIN)}
    return [f[c] for f in frames.values() for c in _TIMES if c in f.columns]


def _most(frame: pl.DataFrame, column: str) -> int:
    most = frame[column].max() if column in frame.columns else None
    return most if isinstance(most, int) else 0


def _renumbered(domain: str) -> pl.Expr:
    return (
        pl.when(pl.col(domain) > 0).then(pl.col(domain) + SECOND_REPORT_DOMAINS).otherwise(pl.col(domain)).alias(domain)
    )


def _shifted(frame: pl.DataFrame, shift: int) -> pl.DataFrame:
    return frame.with_columns(pl.col(c) + shift for c in _TIMES if c in frame.columns)


def _one_after_another(cold: pl.DataFrame | None, steady: pl.DataFrame | None, shift: int) -> pl.DataFrame | None:
    """Return the rows of a frame that not every report has, those of the second one later; None where neither has it."""
    parts = [*([] if cold is None else [cold]), *([] if steady is None else [_shifted(steady, shift)])]
    return pl.concat(parts) if parts else None


def _moved(frame: pl.DataFrame, shift: int, ids: int) -> pl.DataFrame:
    """Return a frame of the second report with later times, and ids that the first report has not."""
    changed = [pl.col(c) + shift for c in _TIMES if c in frame.columns]
    if _DEVICE_TIME in frame.columns:
        noted = pl.col(_DEVICE_TIME)
        changed.append(pl.when(noted != 0).then(noted + shift).otherwise(noted).alias(_DEVICE_TIME))
    if "correlation_id" in frame.columns:
        correlation = pl.col("correlation_id")
        changed.append(pl.when(correlation > 0).then(correlation + ids).otherwise(correlation).alias("correlation_id"))
    if "domain" in frame.columns:
        changed.append(_renumbered("domain"))
    return frame.with_columns(changed)


def _capture(cold: Capture, steady: Capture, run: Mapping[str, Any]) -> Capture:
    durations = (cold.duration_ns, steady.duration_ns)
    both = [*cold.gpus, *steady.gpus]
    named: dict[tuple[int, int], Gpu] = {}
    for gpu in both:
        gpu_before = named.get((gpu.process, gpu.device))
        if gpu_before is None or gpu_before.name == UNKNOWN_GPU:
            named[gpu.process, gpu.device] = gpu
    nsysx_pids = capture_facts.own_processes(run)
    processes = {row["process"]: row for row in (*steady.processes, *cold.processes) if row["pid"] not in nsysx_pids}
    more = [note for note in steady.diagnostics if note not in cold.diagnostics]
    identity = repr((cold.content_id, steady.content_id))
    return replace(
        steady,
        gpus=tuple(named[key] for key in sorted(named)),
        processes=tuple(processes[process] for process in sorted(processes)),
        duration_ns=sum(d for d in durations if d is not None) if None not in durations else None,
        diagnostics=(*cold.diagnostics, *more),
        utc_epoch_ns=cold.utc_epoch_ns,
        content_id=hashlib.sha256(identity.encode()).hexdigest()[:16],
        cupti_left=cold.cupti_left,
    )
