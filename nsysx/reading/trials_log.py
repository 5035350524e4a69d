"""What was tried of a program and what was decided: NAME.log.jsonl beside its report, one JSON object a line, ``nsysx.log/1``.

``nsysx try`` and ``nsysx compare --change`` append to it; the answer reads it. The last line about a change holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from nsysx import records
from nsysx.advice import DECISIONS, Tried
from nsysx.reading import opening
from nsysx.reading.reading_bounds import MOST_TRIAL_LINES
from nsysx.reading.sidecar_files import report_name

LOG_SCHEMA = "nsysx.log/1"


def log_beside(report: Path) -> Path:
    """Return where the log of a report lies: ``a.log.jsonl`` for ``a.sqlite.xz``."""
    report = report if report.name else opening.real(report)  # "." has no name
    return report.with_name(f"{report_name(report)}.log.jsonl")


def logged(report: Path) -> tuple[Tried, ...]:
    """Return what the log of a report says of each change, in its order; lines that are damaged or of another version are left out."""
    latest: dict[str, Tried] = {}
    for entry in opening.json_lines_beside(log_beside(report))[-MOST_TRIAL_LINES:]:
        if not isinstance(entry, Mapping) or entry.get("schema") != LOG_SCHEMA:
            continue
        try:
            tried = records.record(Tried, entry, "line")
        except records.UnreadableError:
            continue
        latest.pop(tried.change, None)
        latest[tried.change] = tried
    return tuple(latest.values())


def append(report: Path, trials: Iterable[Tried]) -> Path | None:
    """Add a line for each change that was tried, with what is decided; return the log, None where nothing was tried.

    Raises OSError where the folder cannot be written to.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    entries = [
        {"schema": LOG_SCHEMA, "utc": now, **asdict(tried), "decided": DECISIONS[tried.verdict]} for tried in trials
    ]
    lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries]
    if not lines:
        return None
    path = log_beside(report)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write("".join(lines))
    return path
