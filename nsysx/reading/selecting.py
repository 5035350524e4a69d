"""Builds the queries that SQLite answers: the columns of a table, with small ones packed into one integer, in pieces by rowid.

Reading takes time per value rather than per row, so columns that need few bits travel packed into one integer.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
from dataclasses import dataclass
from decimal import Decimal

import polars as pl

from nsysx.errors import EXIT_USAGE, NsysxError
from nsysx.reading.reading_bounds import LEAST_ROW_BYTES, PIECE_ROWS
from nsysx.reading.source_table import Source, SourceColumn
from nsysx.reading.trace import Window

#: The column that carries those with ``bits``, see ``packing``.
PACKED = "_packed"


@dataclass(frozen=True)
class PackedColumn:
    """The position of a column with ``bits`` in the packed integer, and the values that stand for null and "does not fit"."""

    column: SourceColumn
    shift: int
    null: int
    unfit: int


def packing(source: Source) -> list[PackedColumn]:
    """Return the places of the columns that travel in one integer. Only names distinguish null and "does not fit" from 0."""
    shift, result = 0, []
    for column in source.columns:
        if column.bits:
            most = (1 << column.bits) - 1
            null, unfit = (most, most - 1) if column.kind == "name" else (0, 0)
            result.append(PackedColumn(column, shift, null, unfit))
            shift += column.bits
    assert shift <= 63, source.frame
    return result


def value_of(column: SourceColumn, present: set[str]) -> str:
    """Return the SQL expression of a column, "NULL" if the table lacks a column that it needs."""
    if column.parts:
        return column.sql if present.issuperset(column.parts) else "NULL"
    return f'"{column.sql}"' if column.sql in present else "NULL"


def selected(source: Source, present: set[str]) -> tuple[str, dict[str, pl.DataType]]:
    """Return the SELECT list for a table with the columns ``present``, and the type in which each result column arrives."""
    values, types = [], dict[str, pl.DataType]()
    for column in source.columns:
        if column.bits:
            continue
        value = value_of(column, present)
        types[column.name] = pl.Int64()
        if column.kind == "text":
            value, types[column.name] = f"CAST(COALESCE({value}, '') AS BLOB)", pl.Binary()
        values.append(f"{value} AS {column.name}")
    if expression := packed(source, present):
        values.append(f"{expression} AS {PACKED}")
        types[PACKED] = pl.Int64()
    return ", ".join(values), types


def packed(source: Source, present: set[str]) -> str:
    """Return the SQL expression of the packed integer, "" if no column of the table has ``bits``."""
    terms = []
    for packed_column in packing(source):
        value = value_of(packed_column.column, present)
        if value == "NULL":
            terms.append(str(packed_column.null << packed_column.shift))
            continue
        if packed_column.column.kind == "flag":  # a comparison, which can only be 0, 1 or null
            terms.append(f"COALESCE({value}, 0) * {1 << packed_column.shift}")
            continue
        most = (1 << packed_column.column.bits) - 1 - (2 if packed_column.column.kind == "name" else 0)
        fitting = f"WHEN {value} BETWEEN 0 AND {most} THEN {value}"
        terms.append(
            f"(CASE {fitting} WHEN {value} IS NULL THEN {packed_column.null} ELSE {packed_column.unfit} END) * {1 << packed_column.shift}"
        )
    return " + ".join(terms)


def nothing_fits(source: Source) -> int:
    """Return the packed integer of a row in which no value fits."""
    return sum(packed_column.unfit << packed_column.shift for packed_column in packing(source))


@dataclass(frozen=True)
class Piece:
    """Some rows of one table: the query for them and the types of its columns."""

    frame: str
    query: str
    types: dict[str, pl.DataType]


def window_of(text: str) -> Window:
    """Return A:B in seconds as ns. Raises NsysxError, exit code 2."""
    match = re.fullmatch(r"(\d{0,9}(?:\.\d{1,9})?):(\d{0,9}(?:\.\d{1,9})?)", text)
    start, end = (Decimal(match[1] or 0), Decimal(match[2] or 10**9)) if match else (Decimal(0), Decimal(0))
    if start >= end:
        message = f"--time-range {text}: not a range of time"
        hint = "Write A:B in seconds from the start of the session, such as 1.5:4"
        raise NsysxError(message, slug="time-range-syntax", hint=hint, exit_code=EXIT_USAGE)
    return int(start * 10**9), int(end * 10**9)


def inside(source: Source, window: Window | None) -> str:
    """Return the SQL condition that a row overlaps the window; rows without an end, or without times, always pass.

    GPU work may run long after its launch, so all GPU work from the start of the window on passes.
    """
    if window is None or not {"start_ns", "end_ns"} <= {c.name for c in source.columns}:
        return "1 = 1"
    begun = "1 = 1" if source.frame in ("kernel", "memcpy", "memset", "graph") else f'"start" < {window[1]}'
    return f'({begun} AND ("end" > {window[0]} OR "end" IS NULL))'


def borders(connection: sqlite3.Connection, table: str, rows: int | None = None) -> list[int]:
    """Return the last rowid of every piece except the last: [] if the table is one piece.

    nsys numbers rows from 1 without gaps, so equal parts of the numbers are equal parts of the rows. If the numbers span
    more rows than the file can hold, the rows themselves are counted.
    """
    rows = rows or PIECE_ROWS
    # Asked one by one, each is looked up; asked together, SQLite reads the whole table.
    query = f'SELECT (SELECT min(rowid) FROM "{table}"), (SELECT max(rowid) FROM "{table}")'
    try:
        low, high = connection.execute(query).fetchone()
    except sqlite3.OperationalError as error:
        if "rowid" in str(error):  # a table made WITHOUT ROWID
            return []
        raise
    if not isinstance(low, int) or not isinstance(high, int):  # no rows, or a column named rowid
        return []
    (pages,), (page_bytes,) = (connection.execute(f"PRAGMA {p}").fetchone() for p in ("page_count", "page_size"))
    span = high - low + 1
    if span <= pages * page_bytes // LEAST_ROW_BYTES:
        count = -(-span // rows)
        return [low - 1 + span * i // count for i in range(1, count)]
    rowids: list[int] = []
    query = f'SELECT rowid FROM "{table}" WHERE rowid >= ? ORDER BY rowid LIMIT 1 OFFSET {rows}'
    while row := connection.execute(query, (rowids[-1] if rowids else low,)).fetchone():
        rowids.append(row[0])
    return rowids


def pieces_of(connection: sqlite3.Connection, source: Source, present: set[str], where: str) -> list[Piece]:
    """Return the pieces of a table that has the columns ``present``, of the rows for which the SQL condition is true."""
    columns, types = selected(source, present)
    return [
        Piece(source.frame, f'SELECT {columns} FROM "{source.table}" WHERE {where} AND {part}', types)
        for part in parts_of(connection, source.table)
    ]


def parts_of(connection: sqlite3.Connection, table: str, rows: int | None = None) -> list[str]:
    """Return SQL conditions that divide a table into pieces of about ``rows`` rows."""
    # The first and the last piece have no outer limit, so that no row can fall outside.
    ends: list[int | None] = [None, *borders(connection, table, rows), None]
    parts = []
    for after, last in itertools.pairwise(ends):
        limits = [f"rowid > {after}"] if after is not None else []
        limits += [f"rowid <= {last}"] if last is not None else []
        parts.append(" AND ".join(limits) or "1 = 1")
    return parts
