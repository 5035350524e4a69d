"""Time by code for flame graphs: folded stacks, and a file for speedscope.app.

Three kinds of time in the steady steps, each a tower of its own: GPU time by the lines that launched it, the time of the host's thread
that drives the steps, and the idle time of the GPU by the lines that caused it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from nsysx.analyses import lines as lines_table
from nsysx.analyses import stacks
from nsysx.errors import EXIT_EMPTY, NsysxError
from nsysx.events.code_lines import CodeLines
from nsysx.events.profile import NotRecorded, Profile
from nsysx.render.safe_text import file_name

#: Name of a kind of time -> its column.
KINDS = {"GPU": "gpu_self_ns", "host": "host_self_ns", "GPU idle": "idle_caused_ns"}


def _lines_and_costs(profile: Profile) -> tuple[CodeLines, pl.DataFrame]:
    """Return the lines and what each stack did. Errors: NsysxError, exit code 4, where no line was noted."""
    try:
        lines = lines_table.lines_of_calls(profile)
    except NotRecorded as answer:
        raise NsysxError(
            f"no flame graph: {answer.reason}",
            slug="no-lines",
            hint=f"Profile with: {answer.fix} -- CMD",
            exit_code=EXIT_EMPTY,
        ) from None
    return lines, lines_table.by_stack(profile, lines)


def folded(profile: Profile) -> str:
    """Return a line for each stack and kind of time: "GPU;train.py:3 main;model.py:7 forward 1200" (ns in the steady steps)."""
    lines, rows = _lines_and_costs(profile)
    names = stacks.frames(lines)
    made = []
    for kind, column in KINDS.items():
        for stack, ns in _of_kind(rows, column):
            frames = [names[p] for p in lines.chain(stack)] or [lines_table.NOT_KNOWN]
            made.append(f"{';'.join((kind, *frames))} {ns}\n")
    return "".join(made)


def speedscope(profile: Profile, name: str, *, redact: bool) -> str:
    """Return the file of speedscope.app: a profile for each kind of time."""
    lines, rows = _lines_and_costs(profile)
    frames: list[dict[str, Any]] = [
        {"name": f"{function} {stacks.last_of(file)}:{line}", "file": file_name(file, redact), "line": line}
        for file, line, function in lines.places.iter_rows()
    ]
    frames.append({"name": lines_table.NOT_KNOWN})
    profiles = [_profile(lines, rows, kind, column, len(frames) - 1) for kind, column in KINDS.items()]
    content = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": name,
        "exporter": "nsysx",
        "shared": {"frames": frames},
        "profiles": profiles,
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _of_kind(rows: pl.DataFrame, column: str) -> Iterator[tuple[int, int]]:
    """Yield (stack, ns) with time of a kind, longest first."""
    yield from (
        rows.filter(pl.col(column) > 0)
        .sort(column, "stack", descending=[True, False])
        .select("stack", column)
        .iter_rows()
    )


def _profile(lines: CodeLines, rows: pl.DataFrame, kind: str, column: str, unknown: int) -> Mapping[str, Any]:
    samples, weights = [], []
    for stack, ns in _of_kind(rows, column):
        samples.append(lines.chain(stack) or [unknown])
        weights.append(ns)
    return {
        "type": "sampled",
        "name": kind,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
