"""Where the steady time of each thread went: inside which CUDA API calls, and in which phase outside of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.events import ledger
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.model import Column

KEY = "cpu_ledger"
TITLE = "CPU ledger"
_PARTS = ("launch_ns", "copy_ns", "sync_wait_ns", "alloc_ns", "load_ns", "other_api_ns")
#: The place after the last part.
_OUTSIDE = len(_PARTS)
COLUMNS = (
    Column("process", "Int64", "", "process key"),
    Column("thread", "Int64", "", "thread key"),
    Column("thread_name", "String", "", "name the OS knows, null when not recorded"),
    Column("window_ns", "Int64", "ns", "the steady steps on the CPU"),
    Column("launch_ns", "Int64", "ns", "in kernel and graph launches (self time)"),
    Column("copy_ns", "Int64", "ns", "in copies and memsets"),
    Column("sync_wait_ns", "Int64", "ns", "in synchronize calls"),
    Column("alloc_ns", "Int64", "ns", "in allocation and free calls, device and host"),
    Column("load_ns", "Int64", "ns", "in module and library loading"),
    Column("other_api_ns", "Int64", "ns", "in other API calls"),
    Column("outside_api_ns", "Int64", "ns", "outside CUDA: Python, framework, waiting elsewhere"),
    Column("outside_by_phase", "Object", "ns", "outside CUDA by the phase open on the thread; sums to outside_api_ns"),
)


def _before(times: I64, part: npt.NDArray[np.int8], done: I64, t: I64) -> I64:
    """Return the time inside API calls before each instant; ``done`` is that up to the end of each segment."""
    if not len(done):
        return np.zeros(len(t), np.int64)
    i = np.clip(np.searchsorted(times, t, side="right") - 1, 0, len(done) - 1)
    left = times[i + 1] - np.clip(t, times[0], times[-1])
    return done[i] - np.where(part[i] == _OUTSIDE, 0, left)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per thread that made API calls in the steady steps, busiest first."""
    if not profile.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")
    names = dict(profile.trace.thread_name.select("thread", pl.col("name").cast(pl.String)).iter_rows())
    windows = {p: (s, e) for p, s, e in profile.steps.cpu_windows.select("process", "start_ns", "end_ns").iter_rows()}
    parts = {k: _PARTS.index(p) for k, p in ledger.CPU_PARTS.items()}
    # The last place is where label -1 leads: outside CUDA.
    part_of_call = np.append(lookup.coded(profile.attributed.api_calls["kind"], parts), _OUTSIDE).astype(np.int8)
    spans = {t: part for (t,), part in profile.attributed.phase_spans.group_by("thread", maintain_order=True)}
    rows = []
    for thread in profile.steady_calls["thread"].unique().to_list():
        process = thread // (1 << 24)
        start, end = windows[process]
        calls = profile.ledgers.threads[thread].clip(start, end)
        part, length = part_of_call[calls.labels], np.diff(calls.times)
        row = dict(zip(_PARTS, lookup.totals(part, length, _OUTSIDE + 1).tolist(), strict=False))
        outside = end - start - sum(row.values())
        by_phase: dict[str, int] = {}
        if thread in spans:
            own = spans[thread].sort("start_ns")
            a, b = (np.clip(own[c].to_numpy(), start, end) for c in ("start_ns", "end_ns"))
            length[part == _OUTSIDE] = 0
            # In place: a thread has millions of segments.
            done = np.cumsum(length, out=length)
            free = (b - a) - (_before(calls.times, part, done, b) - _before(calls.times, part, done, a))
            named = own.select("phase", pl.Series("ns", free)).filter(pl.col("ns") > 0)
            by_phase = dict(named.group_by("phase", maintain_order=True).agg(pl.col("ns").sum()).iter_rows())
        rest = outside - sum(by_phase.values())
        if rest:
            by_phase["outside phases"] = rest
        rows.append(
            {
                "process": process,
                "thread": thread,
                "thread_name": names.get(thread),
                "window_ns": end - start,
                **row,
                "outside_api_ns": outside,
                "outside_by_phase": dict(sorted(by_phase.items(), key=lambda item: -item[1])),
            }
        )
    rows.sort(key=lambda r: (r["outside_api_ns"] - r["window_ns"], r["thread"]))
    types = {"Object": pl.Object, "String": pl.String, "Int64": pl.Int64}
    return pl.DataFrame(rows, schema={c.name: types[c.dtype] for c in COLUMNS})
