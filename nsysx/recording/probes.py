"""Reads what the probe of each process wrote about itself."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: How the probe notes that it could not open a window of steps.
_NOT_CALLED = "cudaProfilerStart was not called: "


def read_probe(probe_dir: Path) -> list[dict[str, Any]]:
    """Return what the probe of each process wrote about itself, sorted by process id as text; damaged files are left out.

    Two have one process id if a program has replaced itself by another (exec): that of the one with more ranges comes first.
    """
    records = []
    for path in probe_dir.glob("probe-*.json"):
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(record, dict):
                records.append(record)
    return sorted(records, key=lambda record: (str(record.get("pid", "")), -_pushed(record)))


def _pushed(record: Mapping[str, Any]) -> int:
    pushed = record.get("ranges_pushed")
    return pushed if isinstance(pushed, int) else 0


def armed(record: Mapping[str, Any]) -> bool:
    """Return whether the probe sent ranges from this process."""
    return record.get("backend") not in (None, "off")


def final(record: Mapping[str, Any]) -> bool:
    """Return whether the counts are the last ones: those of a process that a signal or ``os._exit`` ended are from its start."""
    return not armed(record) or record.get("ended") is not False


def no_cuda(probes: Sequence[Mapping[str, Any]]) -> str:
    """Return why no process could open the window of steps that came, "" if none tried in vain."""
    errors = [str(error) for probe in probes for error in probe.get("errors") or ()]
    return next((error.removeprefix(_NOT_CALLED) for error in errors if error.startswith(_NOT_CALLED)), "")
