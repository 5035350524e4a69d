"""Times in which Python itself stood still, as the probe noted them: garbage collections and compilations of torch.compile.

The probe sends a mark between two steps for each that ended before (``inject.nsysx_probe.pauses``), with its length and how long ago
it ended; here it gets its own place in time. What a mark says is checked like all that a report holds.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from nsysx.events.event_bounds import LONGEST_PYTHON_PAUSE_NS, THREAD_BITS
from nsysx.frames import frame_columns
from nsysx.frames.intervals import I64, coverage
from nsysx.inject.nsysx_probe import ranges as vocabulary

_SCHEMA = frame_columns.schema(frame_columns.PAUSES)


def _whole(value: Any, most: int = LONGEST_PYTHON_PAUSE_NS) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _pause(process: int | None, thread: int | None, time: int, kind: str, text: str) -> dict[str, Any] | None:
    """Return one pause, None for a mark that says nothing sensible."""
    try:
        note = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    if not isinstance(note, dict):
        return None
    ago, ns = _whole(note.get("ago_ns")), _whole(note.get("ns"))
    if ago is None or ns is None:
        return None
    low_bits = _whole(note.get("thread"), THREAD_BITS)
    if thread is not None and low_bits:
        thread = (thread & ~THREAD_BITS) | low_bits
    backward = note.get("backward")
    return {
        "process": process,
        "thread": thread,
        "start_ns": time - ago - ns,
        "end_ns": time - ago,
        "kind": kind,
        "generation": _whole(note.get("generation")),
        "collected": _whole(note.get("collected")),
        "id": _text(note.get("id")),
        "function": _text(note.get("function")),
        "file": _text(note.get("file")),
        "line": _whole(note.get("line")),
        "backward": backward if isinstance(backward, bool) else None,
        "reason": _text(note.get("reason")),
        "failed": _text(note.get("failed")),
    }


def decode(marks: pl.DataFrame) -> pl.DataFrame:
    """Return the pauses of marks (process, thread, start_ns, kind, name) in order of time, columns as declared (PAUSES)."""
    rows = marks["process", "thread", "start_ns", "kind", "name"].iter_rows()
    pauses = [pause for row in rows if (pause := _pause(*row))]
    return pl.DataFrame(pauses, schema=_SCHEMA).sort("start_ns", "end_ns")


def listened(notes: pl.DataFrame, process: int) -> bool:
    """Say whether the probe of this process told that it notes pauses."""
    for text in notes.filter(pl.col("process") == process)["name"].to_list():
        try:
            note = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            continue
        if isinstance(note, dict) and note.get("pauses") is True:
            return True
    return False


def time_in(pauses: pl.DataFrame, start: I64, end: I64) -> I64:
    """Return how much of each [start, end) lies in pauses (ns)."""
    function = coverage([(pauses["start_ns"].to_numpy(), pauses["end_ns"].to_numpy())])
    return function.within(function.labels > 0, start, end)


KINDS = vocabulary.PAUSES
#: What Python does in pauses of a kind, where they lie in the steps.
NAMES = {"gc": "garbage collection", "compile": "recompilation by torch.compile"}
