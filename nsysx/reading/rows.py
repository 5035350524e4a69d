"""Pieces of tables as frames of integers and blobs, by a few threads.

Integers come through ADBC's SQLite driver (measured: 20 times faster than rows through the standard library), text as blobs
that are decoded later, because one invalid UTF-8 byte makes Arrow readers panic. Where the driver is missing, stumbles, or
meets a column that holds anything but integers, the standard library reads the same rows, more slowly.
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
from nsysx.reading.selecting import PACKED, Piece

_MOST_THREADS = 8
_BATCH_ROWS = 65_536


class Reader:
    """One connection of the fast reader per thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own = threading.local()
        self._open = ExitStack()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _connection(self) -> Any:
        import adbc_driver_manager
        import adbc_driver_sqlite

        if not hasattr(self._own, "connection"):
            database = self._open.enter_context(closing(adbc_driver_sqlite.connect(opening.uri(self.path))))
            self._own.connection = self._open.enter_context(closing(adbc_driver_manager.AdbcConnection(database)))
        return self._own.connection

    def series(self, query: str) -> pl.Series:
        """Run ``query``; the Arrow stream arrives as one struct column."""
        import adbc_driver_manager

        with closing(adbc_driver_manager.AdbcStatement(self._connection())) as statement:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
            statement.set_sql_query(query)
            stream, _ = statement.execute_query()
            series = pl.from_arrow(stream)
            assert isinstance(series, pl.Series)
            return series

    def frame(self, wanted: Piece) -> pl.DataFrame | None:
        """Return the rows of a piece, None where a column holds anything but what was asked for.

        The driver takes the type of a column from its values. What is not an integer is text then, with any bytes in it: nothing
        may look at those, neither to convert nor to print them.
        """
        series = self.series(wanted.query)
        if series.dtype != pl.Struct(wanted.types):
            return None
        return series.struct.unnest()


def rows(path: Path, wanted: Piece) -> pl.DataFrame:
    """Read a piece through the standard library, in blocks so that no second copy of a large table exists.

    A value that is not an integer is null, in a packed column what does not fit.
    """
    unfit = selecting.nothing_fits(schema.SOURCES[wanted.frame]) if wanted.frame in schema.SOURCES else 0
    blocks = []
    with closing(opening.connect(path)) as connection:
        cursor = connection.execute(wanted.query)
        while block := cursor.fetchmany(_BATCH_ROWS):
            columns = []
            for (name, kind), values in zip(wanted.types.items(), zip(*block, strict=True), strict=True):
                expected = int if kind == pl.Int64() else bytes
                otherwise = unfit if name == PACKED else None
                kept = [v if isinstance(v, expected) else otherwise for v in values]
                columns.append(pl.Series(name, kept, dtype=kind))
            blocks.append(pl.DataFrame(columns))
    return pl.concat(blocks) if blocks else pl.DataFrame(schema=wanted.types)


def give_back() -> None:
    """Return to the system what the reader's threads have freed: glibc keeps it for those threads, which are gone."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def piece(reader: Reader, wanted: Piece) -> pl.DataFrame:
    """Read a piece through the fast reader, or else through the one that always works."""
    try:
        frame = reader.frame(wanted)
    except sqlite3.Error:
        raise
    except (Exception, pl.exceptions.PanicException):  # noqa: BLE001 - what the driver dislikes, the standard library reads
        frame = None
    return rows(reader.path, wanted) if frame is None else frame


def read(path: Path, pieces: list[Piece], progress: Callable[[str], None] | None) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield each table as integers and blobs, through the fast reader or else the one that always works."""
    with Reader(path) as reader, ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS)) as pool:
        frames = pool.map(partial(piece, reader), pieces)
        try:
            for name, of_frame in itertools.groupby(pieces, key=lambda p: p.frame):
                if progress:
                    progress(f"reading {schema.SOURCES[name].table}")
                # In one block: numpy looks at a column without a copy then.
                yield name, pl.concat([next(frames) for _ in of_frame], rechunk=True)
        except BaseException:  # someone who interrupts does not wait for what was not begun
            pool.shutdown(cancel_futures=True)
            raise
