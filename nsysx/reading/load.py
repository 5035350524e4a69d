"""Loads a report into frames. Only this package reads the report's file.

as_sqlite     makes a finished SQLite file of any form of a report
selecting     builds the queries              table_rows reads integers and blobs, fast
placing       drops impossible rows           decoding   makes names, and columns as ``schema`` declares them
capture_facts, device_limits, backtraces, nccl_ranges, samples, counter_samples   read what is not in those tables
joined_windows   joins the two reports of a run with two capture windows      capture_parts   reads some of a long capture
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import polars as pl

from nsysx.reading import (
    as_sqlite,
    backtraces,
    capture_facts,
    capture_parts,
    capture_totals,
    columnar,
    counter_samples,
    decoding,
    device_limits,
    joined_windows,
    nccl_ranges,
    opening,
    placing,
    samples,
    schema,
    selecting,
    sidecar_files,
    table_rows,
    tried,
)
from nsysx.reading.reading_bounds import LONG_CAPTURE_ROWS
from nsysx.reading.source_table import Source
from nsysx.reading.trace import LeftOut, Trace, Window, summed_notes

__all__ = ["LeftOut", "Trace", "Window", "load"]

#: Each table of a report with its columns.
_Tables = dict[str, set[str]]

#: The tables whose rows are counted for that.
_LONG = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS")


def load(
    path: Path,
    progress: Callable[[str], None] | None = None,
    *,
    window: Window | None = None,
    choice: capture_parts.Choice | None = None,
    most_bytes: int | None = None,
) -> Trace:
    """Read the report at ``path`` into frames.

    It may be a SQLite export, packed or not, nsys's own report (if nsys is installed to export it), or a folder that nsys exported
    as Parquet or Arrow. With ``window`` (ns), only rows that overlap it are read, of tables whose rows have a start and an end;
    GPU work that starts after the window is read, too, because its launch may lie inside. ``choice`` is asked about a capture of many
    rows, and says which parts of it are read, see ``parts``. No more than ``most_bytes`` of a packed report are unpacked.
    Raises NsysxError with exit code 3 for anything that cannot be read; the error names the file and what to do.
    """
    path = path if path.name else opening.real(path)  # "." has no name for messages
    files = sidecar_files.run_json(path).get("files")
    two = isinstance(files, dict) and files.get("cold")
    trace = _read_report(path, progress, window, None if two or window is not None else choice, most_bytes)
    if window is not None or not two:
        return trace  # a part of a run with two windows is a part of the second one
    cold = joined_windows.cold_of(path, sidecar_files.report_name(path), trace.run)
    if cold is None:
        return replace(trace, cold_missing=True)
    return joined_windows.joined(_read_report(cold, progress, most_bytes=most_bytes), trace)


def _read_report(
    path: Path,
    progress: Callable[[str], None] | None,
    window: Window | None = None,
    choice: capture_parts.Choice | None = None,
    most_bytes: int | None = None,
) -> Trace:
    """Read one report."""
    with opening.sqlite_errors(path), as_sqlite.opened(path, progress, most_bytes) as database:
        before = database.stat()
        with closing(opening.connect(database)) as connection:
            trace = _read(path, database, connection, window, progress, choice)
        after = database.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise opening.fail(path, "changed while it was read", "Wait for the export to finish", "input-busy")
    return trace


def _tables(path: Path, connection: sqlite3.Connection) -> _Tables:
    """Return each table of a report with its columns, without empty tables. Raises NsysxError for a database that is no report.

    nsys writes only tables that have rows, but with ``--lazy=false`` every table that it knows, so an empty table does not show
    that something was recorded.
    """
    # SQLite reads a table by its CREATE statement, so a row of the list whose type is damaged still names a table.
    kinds = "type = 'table' OR sql LIKE 'CREATE TABLE%'"
    listed = connection.execute(f"SELECT CAST(name AS TEXT) FROM sqlite_master WHERE {kinds}").fetchall()
    names = [t for (t,) in listed if t and '"' not in t]
    known_as = {s.table.lower(): s.table for s in schema.SOURCES.values()}  # SQLite ignores case
    columns_of = {t: {r[1] for r in connection.execute(f'PRAGMA table_info("{t}")')} for t in names}
    tables = {known_as.get(t.lower(), t): columns for t, columns in columns_of.items()}
    if not tables:
        what = "holds no tables: the export did not finish"
        raise opening.fail(path, what, "Export the report again", "input-empty")
    read_tables = tables.keys() & {s.table for s in schema.SOURCES.values()}
    if not read_tables and "StringIds" not in tables:
        what = "is a database, but not an export of nsys"
        raise opening.fail(path, what, "Give the file that nsys export wrote", "input-foreign")
    empty = {t for t in read_tables if connection.execute(f"SELECT 1 FROM {t} LIMIT 1").fetchone() is None}
    return {t: columns for t, columns in tables.items() if t not in empty}


def _asked_tables(
    path: Path, connection: sqlite3.Connection, tables: _Tables, window: Window | None
) -> tuple[dict[str, pl.DataFrame], list[selecting.Piece]]:
    """Return the tables read from a Parquet export beside the report, and the pieces of all other tables.

    Raises NsysxError if a table lacks a required column.
    """
    pieces: list[selecting.Piece] = []
    exported_to = path.with_name(f"{path.stem}_pqtdir")
    converted: dict[str, pl.DataFrame] = {}
    for frame, source in schema.SOURCES.items():
        if source.table not in tables:
            continue
        missing = [c.sql for c in source.columns if c.required and c.sql not in tables[source.table]]
        if missing and not source.optional:
            what = f"its table {source.table} has no column {', '.join(missing)}"
            raise opening.fail(path, what, "Export it again with the nsys that captured it", "input-columns")
        if missing:
            continue
        given = (connection, source, tables[source.table], window)
        of_frame = selecting.pieces_of(*given[:3], selecting.inside(source, window))
        # For a short table the Parquet export saves no time.
        exported = columnar.parquet(exported_to, *given) if len(of_frame) > 1 else None
        if exported is None:
            pieces += of_frame
        else:
            converted[frame] = exported
    return converted, pieces


def _read(
    path: Path,
    database: Path,
    connection: sqlite3.Connection,
    window: Window | None,
    progress: Callable[[str], None] | None,
    choice: capture_parts.Choice | None,
) -> Trace:
    tables = _tables(path, connection)
    zero = capture_facts.time_zero(connection, tables)
    asked = window and (window[0] + zero, window[1] + zero)
    raw, pieces = _asked_tables(path, connection, tables, asked)
    chosen = None
    if choice is not None and not raw and _rows(connection, tables) >= LONG_CAPTURE_ROWS:
        chosen, raw, pieces = _glance(path, database, connection, tables, zero, pieces, choice, progress)
    raw |= dict(table_rows.read(database, pieces, progress))
    raw = {name: raw[name] for name in schema.SOURCES if name in raw}
    recorded, long = frozenset(raw), len(pieces) > len(raw)
    around = placing.center(raw)
    frames, notes = _frames(database, tables, raw, zero, around)
    domains = _domains(frames["nvtx"])
    noted = "NVTX_EVENTS" in tables
    run = sidecar_files.run_json(path)
    lines = backtraces.python_lines(connection, tables, domains) if noted else None
    nccl = nccl_ranges.nccl(connection, tables, domains) if noted else None
    counters = counter_samples.read(database, connection, tables, asked, zero)
    capture = capture_facts.capture_of(path, connection, tables, frames, run)
    limits = device_limits.limits_of(connection, tables, [(g.process, g.device) for g in capture.gpus])
    sampled = samples.python_samples(database, connection, tables, domains, asked, around) if noted else None
    if sampled is not None:
        recorded |= {"python_sample"}
        notes += sampled.left_out
    sampled = sampled or samples.nothing()
    trace = Trace(
        path=path,
        frames=frames,
        recorded=recorded,
        domains=domains,
        capture=capture,
        limits=limits,
        gpu_metrics=counters,
        run=run,
        python_lines=None if lines is None else placing.since(lines, zero),
        samples=placing.with_process(placing.since(sampled.samples, zero)),
        stacks=sampled.stacks,
        nccl=None if nccl is None else placing.since(nccl, zero),
        host=capture_facts.host_of(connection, tables),
        window=window,
        tried=tried.beside(path),
        left_out=summed_notes(notes),
    )
    if long:
        table_rows.give_back()
    return trace if chosen is None else capture_parts.cut(trace, chosen)


def _rows(connection: sqlite3.Connection, tables: _Tables) -> int:
    """Return about how many rows the long tables have, 0 where that is not known without counting them."""
    try:
        lasts = [connection.execute(f'SELECT max(rowid) FROM "{t}"').fetchone()[0] for t in _LONG if t in tables]
    except sqlite3.OperationalError:  # a table made WITHOUT ROWID
        return 0
    return sum(n for n in lasts if isinstance(n, int))


def _glance(
    path: Path,
    database: Path,
    connection: sqlite3.Connection,
    tables: _Tables,
    zero: int,
    pieces: list[selecting.Piece],
    choice: capture_parts.Choice,
    progress: Callable[[str], None] | None,
) -> tuple[capture_parts.CaptureParts | None, dict[str, pl.DataFrame], list[selecting.Piece]]:
    """Read the steps of a long capture; return which parts of it are read, what was read of them, and what is to be read."""
    nvtx = schema.SOURCES["nvtx"]
    if not any(p.frame == "nvtx" for p in pieces):
        return None, {}, pieces
    steps = capture_parts.steps_alone(connection, tables, choice.is_step)
    raw = dict(table_rows.read(database, selecting.pieces_of(connection, nvtx, tables[nvtx.table], steps), progress))
    frames, _ = _frames(database, tables, dict(raw), zero, placing.center(raw))
    run = sidecar_files.run_json(path)
    capture = capture_facts.capture_of(path, connection, tables, frames, run)
    chosen = choice.choose(
        Trace(path, frames, recorded=frozenset(raw), domains=_domains(frames["nvtx"]), capture=capture, run=run)
    )
    counted = None if chosen is None else capture_totals.read(database, connection, tables, progress)
    if chosen is None or counted is None:
        return None, {}, pieces
    chosen = replace(chosen, sampled=replace(chosen.sampled, totals=counted))
    shared = capture_parts.touching(chosen.since(zero))
    ranges = selecting.pieces_of(connection, nvtx, tables[nvtx.table], shared)
    given = [(s, tables[s.table], chosen.since(zero)) for s in schema.SOURCES.values() if s.table in tables]
    asked = {piece.frame for piece in pieces} - {"nvtx", "runtime"}
    calls = [g for g in given if g[0].frame == "runtime"]
    raw = dict(table_rows.read(database, [*ranges, *_in_parts(connection, calls, None)], progress))
    rest = [g for g in given if g[0].frame in asked]
    return chosen, raw, _in_parts(connection, rest, raw.get("runtime"))


def _in_parts(
    connection: sqlite3.Connection,
    given: Iterable[tuple[Source, set[str], Sequence[Window]]],
    runtime: pl.DataFrame | None,
) -> list[selecting.Piece]:
    """Return the pieces of tables, with their columns, of which some windows are read."""
    return [
        piece
        for source, present, windows in given
        for piece in selecting.pieces_of(connection, source, present, capture_parts.inside(source, windows, runtime))
    ]


def _frames(
    database: Path, tables: _Tables, raw: dict[str, pl.DataFrame], zero: int, around: int | None
) -> tuple[dict[str, pl.DataFrame], list[LeftOut]]:
    """Turn the raw tables into declared frames, removing each from ``raw``; return the frames and what was left out."""
    recorded = frozenset(raw)
    notes: list[LeftOut] = []
    for frame in raw:
        kept, left_out = placing.sane(raw[frame], schema.SOURCES[frame], around)
        raw[frame] = placing.since(kept, zero)
        notes += left_out
    strings: dict[int, str | None] = {}
    if {"id", "value"} <= tables.get("StringIds", set()):
        strings, left_out = decoding.strings_of(database, decoding.names_wanted(raw))
        notes += left_out
    frames: dict[str, pl.DataFrame] = {}
    for frame, source in schema.SOURCES.items():
        if frame in raw:
            unpacked, left_out = decoding.unpacked(raw.pop(frame), source, strings)
            frames[frame] = placing.with_process(unpacked)
            notes += left_out
        else:
            frames[frame] = schema.empty(frame)
    return frames, notes + placing.with_own_process(frames, recorded)


def _domains(nvtx: pl.DataFrame) -> pl.DataFrame:
    """Return the names of the NVTX domains: process, domain, domain_name (Categorical)."""
    created = nvtx["process", "domain", "text", "event_type"].filter(nvtx["event_type"] == schema.NVTX_DOMAIN)
    named = created["process", "domain", "text"].rename({"text": "domain_name"})
    return named.unique(["process", "domain"], maintain_order=True) if named.height else named
