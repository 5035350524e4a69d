"""What ran between bare steps, told apart from them: a probe that rests sees the end of each optimizer's step and nothing else.

A network that acts between steps in training mode (a rollout without ``Module.eval``) is then in the length of every n-th bare step, while
the recorded steps have none of it: the same time would be told twice, as a long step and as what runs between steps. Bare steps that
come as often as the recorded stretches between steps, and are longer by about as much, hold such a stretch. Their own length is not
known, so they are left out, as those are that a probe knows to hold an evaluation, and all lengths are those of the loop.

A recorded stretch of many launches takes longer than a bare one by what tracing adds to each: thousands of them may take twice as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import compress, pairwise
from typing import Any

import numpy as np
import polars as pl

from nsysx import ids
from nsysx.catalogue import Call
from nsysx.events import bare, trend
from nsysx.events.event_bounds import AS_LONG_TIMES, LONG_BARE_STEP_SHARE, MOST_TRACED_TIMES, TRACED_LAUNCH_NS
from nsysx.events.steps import StepTable
from nsysx.frames.intervals import I64, interval_of
from nsysx.model import Row
from nsysx.reading.load import Trace

#: Of a stretch of bare steps: the names of their lengths, of their times in loaders, and of the lengths of the loop.
_STRETCHES = (("lengths_ns", "fetch_ns", "loop_ns"), ("after_ns", "after_fetch_ns", "after_loop_ns"))


def told_apart(trace: Trace, steps: StepTable, calls: pl.DataFrame) -> Trace:
    """Return the capture with the noted bare steps of each process without those that hold what runs between steps.

    ``calls``: the API calls of all processes.
    """
    records = trace.capture.probe
    if steps.in_rounds or not any(isinstance(record.get("unrecorded_steps"), dict) for record in records):
        return trace
    apart = {}
    for (process,), between in steps.between.filter("evaluation").group_by("process"):
        for record in ids.records_of(records, int(str(process))):
            if (noted := _apart(record, between, calls)) is not None:
                apart[record["pid"]] = noted
    if not apart:
        return trace
    told = tuple(_with(record, apart) for record in records)
    return replace(trace, run={**trace.run, "probe": [*told]}, capture=replace(trace.capture, probe=told))


def steps_until_next(between: pl.DataFrame) -> int:
    """Return behind how many steps such a stretch comes, 0 where that differs, or only one was recorded."""
    behind = between["index"].unique().sort().to_list()
    distances = Counter(b - a for a, b in pairwise(behind))
    every, often = distances.most_common(1)[0] if distances else (0, 0)
    return every if every > 1 and often >= max(len(behind) - 2, 1) else 0


def _with(record: Row, apart: Mapping[object, Row]) -> Row:
    noted = apart.get(record.get("pid"))
    return record if noted is None else {**record, "unrecorded_steps": noted}


def last_as_long(more_ns: float, between: pl.DataFrame, calls: pl.DataFrame) -> bool:
    """Return whether long steps, longer by ``more_ns``, may hold what the last recorded stretch between steps does."""
    return _as_long(more_ns, *(each[-1:] for each in _recorded(between, calls)))


def _as_long(more_ns: float, recorded_ns: I64, launches: I64) -> bool:
    """Return whether long steps, longer by ``more_ns``, may hold what recorded stretches with so many launches do, by their median."""
    bare_ns = np.maximum(recorded_ns - TRACED_LAUNCH_NS * launches, recorded_ns / MOST_TRACED_TIMES)
    least, most = float(np.median(bare_ns)) / AS_LONG_TIMES, float(np.median(recorded_ns)) * AS_LONG_TIMES
    return least <= more_ns <= most


def _recorded(between: pl.DataFrame, calls: pl.DataFrame) -> tuple[I64, I64]:
    """Return how long the recorded stretches between steps are on the CPU (ns), in order, and how many launches their process makes."""
    stretches = between.sort("cpu_start_ns")
    start, end = (stretches[c].to_numpy() for c in ("cpu_start_ns", "cpu_end_ns"))
    made = calls.filter(
        pl.col("process").is_in(stretches["process"].implode()) & pl.col("kind").is_in([*Call.LAUNCHES, Call.COPY])
    )
    held = interval_of(made["start_ns"].to_numpy(), start, end)
    return end - start, np.bincount(held[held >= 0], minlength=len(start))


def _apart(record: Mapping[str, Any], between: pl.DataFrame, calls: pl.DataFrame) -> Row | None:
    """Return what a probe noted of bare steps, without those that hold a stretch like those ``between``; None where none is known to.

    ``between``: the recorded stretches of its process that hold the forward of a network without gradients.
    """
    noted, every = record.get("unrecorded_steps"), steps_until_next(between)
    if not isinstance(noted, dict) or not every or bare.loader_sets_pace(record):
        return None
    # What `bare` returns is checked: those are numbers, and none is absurd.
    noted_ns = [np.asarray(lengths, np.int64) for lengths in bare.noted_lengths(record)]
    usual = float(np.median(np.concatenate(noted_ns))) if any(map(len, noted_ns)) else 0.0
    rhythm = trend.period_of_parts(noted_ns, LONG_BARE_STEP_SHARE * usual)
    more = 0 if rhythm is None else rhythm.excess_ns
    if rhythm is None or rhythm.every != every or not _as_long(more, *_recorded(between, calls)):
        return None
    told = dict(noted)
    for (lengths, fetches, loops), ns in zip(_STRETCHES, noted_ns, strict=True):
        told |= _without(noted, (lengths, fetches, loops), ns, usual + more / AS_LONG_TIMES)
    kept = np.asarray(told["lengths_ns"] or [0], np.int64)
    return told | {
        "count": len(told["lengths_ns"]),
        "median_ns": round(float(np.median(kept))),
        "low_ns": int(kept.min()),
        "high_ns": int(kept.max()),
    }


def _without(noted: Row, names: tuple[str, str, str], ns: I64, most_ns: float) -> Row:
    """Return a stretch of bare steps without those that take longer than ``most_ns``; the loop has all of them."""
    lengths, fetches, loops = names
    keep = (ns <= most_ns).tolist()
    waited = noted.get(fetches) or []
    short = {
        lengths: list(compress(ns.tolist(), keep)),
        fetches: list(compress(waited, keep)) if len(waited) == len(ns) else [],
    }
    return {**short, loops: noted.get(loops) or ns.tolist()} if len(ns) else {}
