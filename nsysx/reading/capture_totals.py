"""Counts and times of all rows of a long capture of which parts were read: totals stay those of the whole."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import polars as pl

from nsysx.reading import decoding, schema, selecting, table_rows
from nsysx.reading.reading_bounds import CALL_LENGTH_BITS, MOST_CALL_NAMES
from nsysx.reading.trace import Totals

#: Tables of GPU work, whose rows are counted and added up.
_WORK = ("kernel", "memcpy", "memset", "graph")


def read(
    database: Path,
    connection: sqlite3.Connection,
    tables: dict[str, set[str]],
    progress: Callable[[str], None] | None,
) -> Totals | None:
    """Return the totals of a report; None if a row has no length, or one that is impossible, so that all rows must be looked at."""
    pieces = []
    for frame in _WORK:
        source = schema.SOURCES[frame]
        if source.table in tables:
            lengths = '"end" - "start"'
            columns = (
                f"count({lengths}) AS number, COALESCE(sum({lengths}), 0) AS ns, COALESCE(min({lengths}), 0) AS least"
            )
            pieces += _pieces(connection, frame, columns, ("number", "ns", "least"))
    runtime = schema.SOURCES["runtime"].table
    if runtime in tables:
        length = '"end" - "start"'
        fits = f'"nameId" BETWEEN 0 AND {MOST_CALL_NAMES - 1} AND {length} BETWEEN 0 AND {(1 << CALL_LENGTH_BITS) - 1}'
        value = f'CASE WHEN {fits} THEN "nameId" * {1 << CALL_LENGTH_BITS} + ({length}) END AS value'
        copies = f'"eventClass" <> {schema.BACKTRACE_CLASS}' if "eventClass" in tables[runtime] else "1 = 1"
        pieces += _pieces(connection, "runtime", value, ("value",), copies)
    made = dict(table_rows.read(database, pieces, progress))
    calls = made.pop("runtime", None)
    if any(f["least"].to_numpy().min() < 0 for f in made.values()) or (
        calls is not None and calls["value"].null_count()
    ):
        return None
    work = {name: (int(f["number"].sum()), int(f["ns"].sum())) for name, f in made.items()}
    return Totals(work, () if calls is None else _by_name(database, calls["value"]))


def _pieces(
    connection: sqlite3.Connection, frame: str, columns: str, names: tuple[str, ...], where: str = "1 = 1"
) -> list[selecting.Piece]:
    table, types = schema.SOURCES[frame].table, {name: pl.Int64() for name in names}
    parts = selecting.parts_of(connection, table)
    return [
        selecting.Piece(frame, f'SELECT {columns} FROM "{table}" WHERE {where} AND {part}', dict(types))
        for part in parts
    ]


def _by_name(database: Path, values: pl.Series) -> tuple[tuple[str | None, int, int], ...]:
    """Return name, calls and time (ns) of each API function."""
    split = pl.DataFrame(
        {"id": values.to_numpy() >> CALL_LENGTH_BITS, "ns": values.to_numpy() & ((1 << CALL_LENGTH_BITS) - 1)}
    )
    grouped = split.group_by("id").agg(pl.len(), pl.col("ns").sum()).sort("id")
    names, _ = decoding.strings_of(database, grouped["id"].to_numpy())
    return tuple((names.get(key), int(number), int(ns)) for key, number, ns in grouped.iter_rows())
