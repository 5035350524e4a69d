"""A folder of Parquet files: the frames of events, the tables of the Summary, the steps, and a dictionary of all columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO

import polars as pl

from nsysx.analyses.helpers import step_record
from nsysx.events.profile import NotRecorded, Profile
from nsysx.export import frames
from nsysx.model import Column, Summary

#: The dictionary of all columns, the Summary, and the text that describes the folder.
DICTIONARY, SUMMARY, README = "columns.parquet", "summary.json", "README.md"


def steps(summary: Summary) -> pl.DataFrame:
    """Return one row per step of the shown process, columns as in ``step_record.STEPS``."""
    return frames.table_frame(step_record.STEPS, summary.steps.rows)


def _sources(
    given: Profile, summary: Summary
) -> Iterator[tuple[str, str, tuple[Column, ...], Callable[[], pl.DataFrame]]]:
    """Yield name, title, columns and maker of every frame."""
    for frame in frames.FRAMES:
        yield frame.name, frame.title, frame.columns, partial(frames.event_frame, given, frame.name)
    yield "steps", "Steps of the shown process, with the breakdown of each", step_record.STEPS, partial(steps, summary)
    for key, table in sorted(summary.tables.items()):
        yield f"table_{key}", table.title, table.columns, partial(frames.summary_table, summary, key)


def everything(given: Profile, summary: Summary) -> dict[str, pl.DataFrame]:
    """Return every frame that was recorded, and ``columns``: frame, title, rows, column, type, unit, meaning, reason.

    A frame that was not recorded is only in ``columns``, with null rows and the reason.
    """
    recorded: dict[str, pl.DataFrame] = {}
    lines: list[dict[str, object]] = []
    for name, title, columns, make in _sources(given, summary):
        rows, reason = None, None
        try:
            recorded[name] = frame = make()
            rows = frame.height
        except NotRecorded as answer:
            reason = answer.reason
        lines += [
            {
                "frame": name,
                "title": title,
                "rows": rows,
                "column": c.name,
                "type": str(frames.column_type(c)),
                "unit": c.unit,
                "meaning": c.meaning,
                "reason": reason,
            }
            for c in columns
        ]
    kinds = {k: pl.Int64 if k == "rows" else pl.String for k in lines[0]}
    recorded[DICTIONARY.removesuffix(".parquet")] = pl.DataFrame(lines, schema=kinds)
    return recorded


def _readme(columns: pl.DataFrame) -> str:
    """Return the dictionary as Markdown. Its meanings are ours: only the number of rows comes from the report."""
    lines = [
        "# The files in this folder",
        "",
        "Times are ns since the start of the Nsight Systems session, sizes are bytes. `call` and `op` join `calls`, `ops`,",
        "`blocking_calls` and `gpu_idle`. `columns.parquet` holds this text as a table, `summary.json` is what",
        "`nsysx report --json` writes. Frames named `table_...` are its tables. Names of kernels, files, threads and ranges are",
        "as the program gave them.",
    ]
    for (name,), part in columns.group_by("frame", maintain_order=True):
        rows, title, reason = part.select("rows", "title", "reason").row(0)
        lines += [
            "",
            f"## {name}",
            "",
            f"{title}. " + (f"{rows:,} rows." if rows is not None else f"Not recorded: {reason}."),
        ]
        if rows is not None:
            lines += ["", "| column | type | unit | meaning |", "|---|---|---|---|"]
            lines += [
                f"| {c} | {kind} | {unit} | {meaning.replace('|', '/')} |"
                for c, kind, unit, meaning in part.select("column", "type", "unit", "meaning").iter_rows()
            ]
    return "\n".join(lines) + "\n"


def _write(frame: pl.DataFrame, file: BinaryIO) -> None:
    frame.write_parquet(file, compression="zstd", statistics=True)


def files(
    given: Profile, summary: Summary, folder: Path, text: str
) -> Mapping[Path, str | Callable[[BinaryIO], object]]:
    """Return the contents of the files in ``folder``, by path; ``text`` is the Summary as JSON."""
    made = everything(given, summary)
    parts: dict[Path, str | Callable[[BinaryIO], object]] = {
        folder / f"{name}.parquet": partial(_write, frame) for name, frame in made.items()
    }
    columns = made[DICTIONARY.removesuffix(".parquet")]
    return {**parts, folder / SUMMARY: text, folder / README: _readme(columns)}
