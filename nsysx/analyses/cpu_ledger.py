"""Where the steady time of each thread went: inside CUDA API calls by kind, and outside of them by phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, TypedDict

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import ids
from nsysx.catalogue import CpuPart
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns, lookup
from nsysx.frames.intervals import I64, StepFunction
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "cpu_ledger"
TITLE = "CPU breakdown"
_PARTS = tuple(part for part in CpuPart if part is not CpuPart.OUTSIDE)
#: The place after the last part.
_OUTSIDE = len(_PARTS)


class CpuRow(TypedDict):
    """One thread over its steady steps; the parts sum to ``window_ns``."""

    process: Annotated[int, Of("process key")]
    thread: Annotated[int, Of("thread key")]
    thread_name: Annotated[str | None, Of("name in the operating system, null when not recorded")]
    role: Annotated[str, Of("what the thread is for: main, autograd, pin memory, ..., user for any other")]
    steps: Annotated[int | None, Of("steps that the row covers; null where it covers the whole capture")]
    window_ns: Annotated[int, Of("the steady steps on the CPU", "ns")]
    launch_ns: Annotated[int, Of("in kernel and graph launches (self time)", "ns")]
    copy_ns: Annotated[int, Of("in copies and memsets", "ns")]
    sync_wait_ns: Annotated[int, Of("in synchronize calls", "ns")]
    alloc_ns: Annotated[int, Of("in allocation and free calls, device and host", "ns")]
    load_ns: Annotated[int, Of("in module and library loading", "ns")]
    other_api_ns: Annotated[int, Of("in other API calls", "ns")]
    outside_api_ns: Annotated[int, Of("outside CUDA: Python, framework, waiting elsewhere", "ns")]
    outside_by_phase: Annotated[
        Mapping[str, int], Of("outside CUDA by the phase open on the thread; sums to outside_api_ns", "ns")
    ]


def by_part(row: CpuRow) -> dict[CpuPart, int]:
    """Return where the thread's time went (ns); the parts sum to the window."""
    return {
        CpuPart.LAUNCH: row["launch_ns"],
        CpuPart.COPY: row["copy_ns"],
        CpuPart.SYNC: row["sync_wait_ns"],
        CpuPart.ALLOC: row["alloc_ns"],
        CpuPart.LOAD: row["load_ns"],
        CpuPart.OTHER: row["other_api_ns"],
        CpuPart.OUTSIDE: row["outside_api_ns"],
    }


COLUMNS = columns_of(CpuRow)
ROWS: TableOf[CpuRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="rows",
    place=20,
    ledger=True,
)


def _api_ns_before(times: I64, part: npt.NDArray[np.int8], done: I64, t: I64) -> I64:
    """Return the time inside API calls before each instant (ns); ``done`` is that time up to the end of each segment."""
    if not len(done):
        return np.zeros(len(t), np.int64)
    i = np.clip(np.searchsorted(times, t, side="right") - 1, 0, len(done) - 1)
    left = times[i + 1] - np.clip(t, times[0], times[-1])
    return done[i] - np.where(part[i] == _OUTSIDE, 0, left)


def _by_phase(
    spans: pl.DataFrame, calls: StepFunction, free: npt.NDArray[np.int8], start: int, end: int
) -> dict[str, int]:
    """Return phase -> its time outside API calls in [start, end) (ns). ``free`` is each segment's place in the parts."""
    length = np.diff(calls.times)
    length[free == _OUTSIDE] = 0
    # In place: a thread has millions of segments.
    done = np.cumsum(length, out=length)
    in_order = spans.sort("start_ns")
    a, b = (np.clip(in_order[c].to_numpy(), start, end) for c in ("start_ns", "end_ns"))
    ns = (b - a) - (_api_ns_before(calls.times, free, done, b) - _api_ns_before(calls.times, free, done, a))
    named = in_order.select("phase", pl.Series("ns", ns)).filter(pl.col("ns") > 0)
    return dict(named.group_by("phase", maintain_order=True).agg(pl.col("ns").sum()).iter_rows())


def _calling(profile: Profile) -> Iterator[tuple[int, int, int]]:
    """Yield (thread, start, end) for each thread that makes API calls in the window of its process."""
    calls = profile.attributed.api_calls
    windows = {p: (s, e) for p, s, e in profile.steps.cpu_windows["process", "start_ns", "end_ns"].iter_rows()}
    # Calls are sorted by (thread, start).
    thread, start_ns = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    for key in profile.ledgers.threads:
        low, high = np.searchsorted(thread, [key, key + 1]).tolist()
        start, end = windows.get(ids.process_of(key), (0, 0))
        first, last = np.searchsorted(start_ns[low:high], [start, end]).tolist()
        if last > first:
            yield key, start, end


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per thread that made API calls in the steady steps, busiest first."""
    if not profile.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")
    names = dict(profile.trace.thread_name.select("thread", pl.col("name").cast(pl.String)).iter_rows())
    parts = {kind: number for number, part in enumerate(_PARTS) for kind in part.kinds}
    # The last place is where label -1 leads: outside CUDA.
    part_of_call = np.append(lookup.coded(profile.attributed.api_calls["kind"], parts), _OUTSIDE).astype(np.int8)
    spans = {t: part for (t,), part in profile.attributed.phase_spans.group_by("thread", maintain_order=True)}
    rows = []
    for thread, start, end in _calling(profile):
        calls = profile.ledgers.threads[thread].clip(start, end)
        part = part_of_call[calls.labels]
        row = dict(
            zip(
                (part.column for part in _PARTS),
                lookup.totals(part, np.diff(calls.times), _OUTSIDE + 1).tolist(),
                strict=False,
            )
        )
        outside = end - start - sum(row.values())
        by_phase = _by_phase(spans[thread], calls, part, start, end) if thread in spans else {}
        unphased = outside - sum(by_phase.values())
        if unphased:
            by_phase["outside phases"] = unphased
        process = ids.process_of(thread)
        rows.append(
            {
                "process": process,
                "thread": thread,
                "thread_name": names.get(thread),
                "role": profile.attributed.roles.get(thread),
                "steps": profile.scope_of(process).steps or None,
                "window_ns": end - start,
                **row,
                "outside_api_ns": outside,
                "outside_by_phase": dict(sorted(by_phase.items(), key=lambda item: -item[1])),
            }
        )
    rows.sort(key=lambda r: (r["outside_api_ns"] - r["window_ns"], r["thread"]))
    return pl.DataFrame(rows, schema=frame_columns.schema(COLUMNS))
