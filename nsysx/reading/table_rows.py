"""Reads pieces of tables as frames of integers and blobs, in several threads.

Integers come through ADBC's SQLite driver (measured: 20 times faster than rows through the standard library). Text comes as blobs
that are decoded later, because one invalid UTF-8 byte makes Arrow readers panic. If the driver is missing or fails, or a column
contains anything but integers, the standard library reads the same rows more slowly.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from nsysx.reading import opening, schema, selecting
from nsysx.reading.reading_bounds import TABLE_BATCH_ROWS, TABLE_THREAD_BYTES, TABLE_THREADS
from nsysx.reading.selecting import PACKED, Piece


class Reader:
    """One connection of the fast reader per thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._of_thread = threading.local()
        self._open = ExitStack()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _connection(self) -> Any:
        import adbc_driver_manager
        import adbc_driver_sqlite

        if not hasattr(self._of_thread, "connection"):
            database = self._open.enter_context(closing(adbc_driver_sqlite.connect(opening.uri(self.path))))
            connection = self._open.enter_context(closing(adbc_driver_manager.AdbcConnection(database)))
            self._of_thread.connection = connection
        return self._of_thread.connection

    def series(self, query: str) -> pl.Series:
        """Run ``query``; the Arrow stream arrives as one struct column."""
        import adbc_driver_manager

        with closing(adbc_driver_manager.AdbcStatement(self._connection())) as statement:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(TABLE_BATCH_ROWS)})
            statement.set_sql_query(query)
            stream, _ = statement.execute_query()
            series = pl.from_arrow(stream)
            assert isinstance(series, pl.Series)
            return series

    def frame(self, wanted: Piece) -> pl.DataFrame | None:
        """Return the rows of a piece, None if a column has another type than was asked for.

        The driver derives a column's type from its values. A column with anything but integers becomes text that may hold any
        bytes, and nothing may look at that text, neither to convert nor to print it.
        """
        series = self.series(wanted.query)
        if series.dtype != pl.Struct(wanted.types):
            return None
        return series.struct.unnest()


def rows(path: Path, wanted: Piece) -> pl.DataFrame:
    """Read a piece through the standard library, in blocks, so that a large table is never copied as a whole.

    A value of another type than was asked for becomes null, or in the packed column "does not fit".
    """
    unfit = selecting.nothing_fits(schema.SOURCES[wanted.frame]) if wanted.frame in schema.SOURCES else 0
    blocks = []
    with closing(opening.connect(path)) as connection:
        cursor = connection.execute(wanted.query)
        while block := cursor.fetchmany(TABLE_BATCH_ROWS):
            columns = []
            for (name, kind), values in zip(wanted.types.items(), zip(*block, strict=True), strict=True):
                expected = int if kind == pl.Int64() else bytes
                otherwise = unfit if name == PACKED else None
                kept = [v if isinstance(v, expected) else otherwise for v in values]
                columns.append(pl.Series(name, kept, dtype=kind))
            blocks.append(pl.DataFrame(columns))
    return pl.concat(blocks) if blocks else pl.DataFrame(schema=wanted.types)


def give_back() -> None:
    """Return freed memory to the system: glibc keeps what lies between blocks that are in use, and what threads freed that have ended."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def piece(reader: Reader, wanted: Piece) -> pl.DataFrame:
    """Read a piece through the fast reader, or else through the standard library."""
    try:
        frame = reader.frame(wanted)
    except sqlite3.Error:
        raise
    except (Exception, pl.exceptions.PanicException):  # noqa: BLE001 - the standard library reads what the driver cannot
        frame = None
    return rows(reader.path, wanted) if frame is None else frame


def read(path: Path, pieces: list[Piece], progress: Callable[[str], None] | None) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield (frame name, table of integers and blobs) for the frames that ``pieces`` belong to, in their order."""
    # A small report is read before a second thread has begun.
    threads = min(os.cpu_count() or 1, TABLE_THREADS, 1 + path.stat().st_size // TABLE_THREAD_BYTES)
    with Reader(path) as reader, ThreadPoolExecutor(threads) as pool:
        frames = pool.map(partial(piece, reader), pieces)
        try:
            for name, of_frame in itertools.groupby(pieces, key=lambda p: p.frame):
                if progress:
                    progress(f"reading {schema.SOURCES[name].table}")
                # One chunk, so that numpy can use a column without a copy.
                yield name, pl.concat([next(frames) for _ in of_frame], rechunk=True)
        except BaseException:  # an interrupt must not wait for pieces that have not started
            pool.shutdown(cancel_futures=True)
            raise
