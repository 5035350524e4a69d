"""The files of a side as Summaries: reports are analyzed, JSON is read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nsysx import pipeline
from nsysx.comparing.comparing_bounds import MOST_SUMMARY_BYTES
from nsysx.comparing.side import Captured, Side, captured, side
from nsysx.errors import EXIT_EMPTY, EXIT_INPUT, EXIT_USAGE, NsysxError
from nsysx.model import Summary
from nsysx.ranks import parallel_reading
from nsysx.selection import Selection

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raises NsysxError, exit code 3."""
    try:
        if path.stat().st_size > MOST_SUMMARY_BYTES:
            raise NsysxError(f"{path.name}: too large for a Summary", slug="not-a-summary")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NsysxError(f"{path}: cannot be read ({error.strerror})", slug="cannot-read") from error
    except (ValueError, RecursionError) as error:
        hint = "Make one with: nsysx report FILE.sqlite --json FILE.json"
        raise NsysxError(f"{path.name}: is not JSON", slug="not-a-summary", hint=hint) from error


def read_text(path: Path) -> str:
    """Return the text of a file. Raises NsysxError, exit code 3."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise NsysxError(f"{path}: cannot be read ({error.strerror})", slug="cannot-read") from error


def read_budget(path: Path) -> dict[str, Any]:
    """Return a budget. Raises NsysxError, exit code 2 if the file is not TOML, 3 if it cannot be read."""
    try:
        budget: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NsysxError(f"{path}: cannot be read ({error.strerror})", slug="cannot-read") from error
    except (ValueError, RecursionError) as error:
        raise NsysxError(f"{path.name}: is not TOML: {error}", slug="bad-budget", exit_code=EXIT_USAGE) from error
    return budget


def measured(path: Path, selection: Selection | None = None) -> Captured:
    """Return the capture of a file for a check. A file that exists but cannot be read measured nothing (exit code 4)."""
    try:
        return captured(summary_of(path, selection), path.name)
    except NsysxError as error:
        if error.exit_code != EXIT_INPUT or not path.is_file():
            raise
        raise NsysxError(error.message, slug=error.slug, hint=error.hint, exit_code=EXIT_EMPTY) from error


def summary_of(path: Path, selection: Selection | None = None) -> Summary:
    """Return the Summary of a report or a JSON file. Raises what ``pipeline.summarize`` and ``Summary.from_json`` raise."""
    if path.suffix.lower() == ".json":
        return Summary.from_json(read_json(path), path.name)
    return pipeline.summarize([path], selection)


def captures(
    files: Sequence[Path],
    selection: Selection | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    workers: int | None = None,
) -> list[Captured]:
    """Return the captures of these files, in order. Raises NsysxError, exit code 3 or 4, as for each file."""
    work = partial(summary_of, selection=selection)
    summaries = parallel_reading.run(work, files, workers=workers, progress=progress)
    # Captures without steps are compared with each other as they are, never with steps.
    spans = all(summary.steps.whole for summary in summaries)
    return [captured(summary, label, spans=spans) for summary, label in zip(summaries, _labels(files), strict=True)]


def _labels(files: Sequence[Path]) -> list[str]:
    """Return the name of each file, with its folder where another one has the same name."""
    names = [path.name for path in files]
    return [path.name if names.count(path.name) == 1 else "/".join(path.absolute().parts[-2:]) for path in files]


def sides(
    named: Sequence[tuple[str, Sequence[Path]]],
    selection: Selection | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    workers: int | None = None,
) -> list[Side]:
    """Return the sides, each from its name and files. Raises as ``captures``, and NsysxError for a side without files."""
    for name, files in named:
        if not files:
            raise NsysxError(
                f"{name}: no report", slug="no-report", hint="A side needs one report or more", exit_code=EXIT_USAGE
            )
    every = [path for _, files in named for path in files]
    read = captures(every, selection, progress=progress, workers=workers)
    groups, position = [], 0
    for name, files in named:
        groups.append(side(name, read[position : position + len(files)]))
        position += len(files)
    return groups
