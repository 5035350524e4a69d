"""Reads nsys's Parquet and Arrow exports: several times faster than a SQLite export beside them, and a report by themselves."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl

from nsysx.reading import opening, schema, selecting
from nsysx.reading.reading_bounds import COLUMN_BLOCK_ROWS
from nsysx.reading.source_table import Source
from nsysx.reading.trace import Window

#: What reading a damaged Parquet or Arrow file raises.
_BROKEN = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)
_ARROW_MAGIC = b"ARROW1"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")
_PLAIN = (pl.String, pl.Binary, pl.Boolean)
_ENDINGS = (".parquet", ".arrow", ".arrows")


def parquet(
    folder: Path, connection: sqlite3.Connection, source: Source, present: set[str], window: Window | None
) -> pl.DataFrame | None:
    """Return a table from nsys's Parquet export (``--type parquetdir``) beside the report; None without a usable one.

    An export of another capture, or an unfinished one, differs in its rows or columns and is not used.
    """
    file = folder / f"{source.table}.parquet"
    try:
        if not file.is_file():
            return None
        table = pl.scan_parquet(file)
        needed = {n for c in source.columns for n in (c.parts or (c.sql,))} & present
        text = {c.sql for c in source.columns if c.kind == "text"}
        plain = table.select(pl.col(n).cast(pl.Binary if n in text else pl.Int64) for n in sorted(needed))
        # The last rowid of a table is its number of rows, as nsys writes it.
        if (
            table.select(pl.len()).collect().item()
            != connection.execute(f'SELECT max(rowid) FROM "{source.table}"').fetchone()[0]
        ):
            return None
        chosen = []
        for column in source.columns:
            if column.kind == "text":
                text_value = pl.col(column.sql).fill_null(b"") if column.sql in present else pl.lit(b"")
                chosen.append(text_value.alias(column.name))
            elif not column.bits:
                chosen.append(pl.sql_expr(selecting.value_of(column, present)).cast(pl.Int64).alias(column.name))
        if packed := selecting.packed(source, present):
            chosen.append(pl.sql_expr(packed).cast(pl.Int64).alias(selecting.PACKED))
        if not _same_ends(connection, source, plain):
            return None
        return plain.filter(pl.sql_expr(selecting.inside(source, window))).select(chosen).collect()
    except _BROKEN:
        return None


def _same_ends(connection: sqlite3.Connection, source: Source, table: pl.LazyFrame) -> bool:
    """Return whether the first and last rows have the same times in the SQLite table as in the Parquet export."""
    times = [c.sql for c in source.columns if c.unit == "ns" and not c.parts]
    if not times:
        return False
    query = f'SELECT "{times[0]}" FROM "{source.table}" ORDER BY rowid'
    ends = [connection.execute(f"{query}{way} LIMIT 1").fetchone() for way in ("", " DESC")]
    first_and_last = table.select(pl.first(times[0]).alias("first"), pl.last(times[0]).alias("last")).collect().row(0)
    return first_and_last == tuple(e[0] if e else None for e in ends)


def tables_of(folder: Path) -> list[Path]:
    """Return the files, one per table, of a folder that nsys wrote with ``--type parquetdir`` or ``arrowdir``; [] for others."""
    try:
        files = sorted(f for f in folder.iterdir() if f.suffix in _ENDINGS and _NAME.fullmatch(f.stem))
    except OSError:
        return []
    tables = {s.table for s in schema.SOURCES.values()} | {"StringIds"}
    return files if any(f.stem in tables for f in files) else []


def as_sqlite(folder: Path, target: Path) -> Path:
    """Write the tables of such a folder into a SQLite file, so that every report is read in one way. Raises NsysxError."""
    files = tables_of(folder)
    if not files:
        hint = "Give .sqlite files, a folder of them, or one that nsys export --type parquetdir wrote"
        raise opening.fail(folder, "is a folder without a report in it", hint, "input-folder")
    with opening.sqlite_errors(folder), closing(sqlite3.connect(target)) as base:
        base.execute("PRAGMA synchronous = OFF")
        base.execute("PRAGMA journal_mode = OFF")
        for file in files:
            try:
                _copy(file, base)
            except _BROKEN as error:
                what = f"its table {file.name} cannot be read ({str(error).splitlines()[0][:100]})"
                raise opening.damaged(folder, what) from None
        base.commit()
    return target


def _read(file: Path) -> pl.DataFrame:
    """Return a table. nsys also writes Arrow's stream format under the file format's ending."""
    if file.suffix == ".parquet":
        return pl.read_parquet(file)
    with file.open("rb") as opened:
        is_file = opened.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
    return pl.read_ipc(file) if is_file else pl.read_ipc_stream(file)


def _copy(file: Path, base: sqlite3.Connection) -> None:
    """Copy one table into SQLite, which has only signed integers: unsigned ones are reinterpreted."""
    frame = _read(file)
    frame = frame.select(c for c in frame.columns if _NAME.fullmatch(c))
    signed = [pl.col(c).reinterpret(signed=True) for c, kind in frame.schema.items() if kind == pl.UInt64]
    plain = [
        pl.col(c).cast(pl.String) for c, kind in frame.schema.items() if isinstance(kind, (pl.Categorical, pl.Enum))
    ]
    frame = frame.with_columns(*signed, *plain)
    frame = frame.select(c for c, kind in frame.schema.items() if kind in _PLAIN or kind.is_numeric())
    if not frame.width:
        return
    listed = ", ".join(f'"{c}"' for c in frame.columns)
    base.execute(f'CREATE TABLE "{file.stem}" ({listed})')
    insert = f'INSERT INTO "{file.stem}" VALUES ({", ".join("?" * frame.width)})'
    for block in frame.iter_slices(COLUMN_BLOCK_ROWS):
        base.executemany(insert, block.iter_rows())
