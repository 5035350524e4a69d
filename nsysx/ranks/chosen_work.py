"""The part of a trace that a reader chose: the processes of one device, or of one rank."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from nsysx import ids
from nsysx.errors import EXIT_EMPTY, NsysxError
from nsysx.ranks import collect
from nsysx.reading import load


def one_process(trace: load.Trace, process: int) -> load.Trace:
    """Return the trace of one process, with the notes of its own probe."""
    kept = {n: f.filter(pl.col("process") == process) if "process" in f.columns else f for n, f in trace.frames.items()}
    of_process = tuple(ids.records_of(trace.capture.probe, process))
    return replace(trace, frames=kept, capture=replace(trace.capture, probe=of_process or trace.capture.probe))


def chosen_work(trace: load.Trace, device: int | None, rank: int | None) -> load.Trace:
    """Return the trace of the chosen rank and device. Raises NsysxError, exit code 4, if the report does not hold them."""
    if rank is not None:
        working = collect.processes(trace)
        if rank not in working:
            message = f"--rank {rank}: the report holds {len(working)} processes with GPU work"
            raise NsysxError(message, slug="rank-range", exit_code=EXIT_EMPTY)
        trace = one_process(trace, working[rank])
    if device is not None:
        if device not in {g.device for g in trace.capture.gpus}:
            devices = ", ".join(sorted({str(g.device) for g in trace.capture.gpus})) or "none"
            raise NsysxError(
                f"--device {device}: no such device in the report",
                slug="device-range",
                hint=f"It holds: {devices}",
                exit_code=EXIT_EMPTY,
            )
        # Drop processes that never use it, but keep all devices of the others: waits and the replay need all queued work.
        users = {g.process for g in trace.capture.gpus if g.device == device}
        keep = pl.col("process").is_in(list(users))
        kept = {n: f.filter(keep) if "process" in f.columns else f for n, f in trace.frames.items()}
        trace = replace(trace, frames=kept)
    return trace
