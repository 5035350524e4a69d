"""SQLite report -> frames. The only room that touches the file.

Integers come through ADBC's SQLite driver, all tables in pieces of rowids that a few threads share (measured: 20 times faster
than rows through the standard library), text as blobs that are decoded here, because one invalid UTF-8 byte makes Arrow
readers panic. Where the driver is missing or stumbles over a column, the standard library reads the same rows, more slowly.
A value costs more than a row: columns that are small, or nearly always the same, travel packed into one integer.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from nsysx.errors import EXIT_INPUT, NsysxError
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, merged
from nsysx.model import Capture, Gpu
from nsysx.reading import schema

_SQLITE_MAGIC = b"SQLite format 3\x00"
_LFS_MAGIC = b"version https://git-lfs"
#: Beyond this is no time of a session, not even counted from 1970, but a damaged row; nor does anything last a year.
_LAST_NS = 1 << 61
_LONGEST_NS = 1 << 55
_MOST_BYTES = 1 << 53
#: Without these a row belongs nowhere.
_PLACE = {"start_ns", "end_ns", "time_ns", "thread", "device", "stream", "event", "event_type", "node"}
#: A report is worth reading without these.
_OPTIONAL = {"graph_node", "thread_name", "overhead", "cupti_overhead", "event", "sync", "memory_usage"}
#: Tables are read in pieces of this many rows: enough pieces to keep every thread busy until the end.
_PIECE_ROWS = 400_000
_MOST_THREADS = 8

#: A table of ids may be this many times as long as there are rows.
_DENSE = 64

#: Diagnostics that change what can be concluded; the rest is chatter about features that were not asked for.
_DIAGNOSTIC = re.compile(
    r"might (not )?have been|Some CUPTI events|incomplete CUPTI|No (CUDA|NVTX) events|not supported by this build"
    r"|legacy \(software|dropped|lost|overflow",
    re.IGNORECASE,
)
#: Capture options that may be shown: none of them can hold a path, a name or a secret.
_OPTIONS = re.compile(
    r"(?:PROCESS_\d+:)?(COLLECT_\w+|CUDA_\w+(?:OPTIONS:MODE)?|RUN_DURATION_MS|RATE_HZ|START_TRIGGER|STOP_TRIGGER)$"
)


#: [start, end) in ns.
Window = tuple[int, int]


@dataclass(frozen=True)
class Trace:
    """A report as frames, columns as ``schema.SOURCES`` declares them.

    ``recorded`` names the frames whose table is in the report at all: an empty frame that was not recorded is no zero.
    ``python_lines`` has (process, thread, time_ns, frames) rows where ``--python-backtrace=cuda`` was on, else None.
    ``nccl`` has what NCCL says of its own calls, see ``_nccl``, None where it said nothing. ``host`` stands for the machine:
    equal for reports from the same one, None where the report does not name it.
    ``unplaced_rows`` were left out: they have no time, thread, device or stream, or an impossible time. ``reversed_rows`` end
    before they begin. ``window`` is set where only a part of the capture was read.
    """

    path: Path
    frames: dict[str, pl.DataFrame]
    recorded: frozenset[str]
    domains: pl.DataFrame
    capture: Capture
    run: dict[str, Any] = field(default_factory=dict)
    python_lines: pl.DataFrame | None = None
    unplaced_rows: int = 0
    reversed_rows: int = 0
    nccl: pl.DataFrame | None = None
    host: str | None = None
    window: Window | None = None

    def without(self, *frames: str) -> Trace:
        """Return the trace without the rows of these frames, for those who have made something better of them."""
        kept = {name: frame.clear() if name in frames else frame for name, frame in self.frames.items()}
        return replace(self, frames=kept)

    def __getattr__(self, name: str) -> pl.DataFrame:
        """Return a frame by its name, e.g. ``trace.kernel``."""
        try:
            return self.__dict__["frames"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None


def _fail(path: Path, what: str, hint: str, slug: str) -> NsysxError:
    return NsysxError(f"{path.name}: {what}", slug=slug, hint=hint, exit_code=EXIT_INPUT)


def _check_readable(path: Path) -> None:
    """Raise one clear error for everything that is no finished SQLite export."""
    if path.is_dir():
        raise _fail(path, "is a folder", "Give the .sqlite file", "input-folder")
    if not path.exists():
        raise _fail(path, "no such file", "Check the path; `nsysx run` writes NAME.sqlite", "input-missing")
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE_MAGIC) + 16)
    except OSError as error:
        raise _fail(path, f"cannot be read ({error.strerror})", "Check its permissions", "input-unreadable") from None
    if not head:
        raise _fail(path, "is empty: the export did not finish", "Export the report again", "input-empty")
    if head.startswith(_SQLITE_MAGIC):
        return
    if path.suffix in {".nsys-rep", ".qdrep"}:
        hint = f"Run: nsys export --type sqlite --output {path.stem}.sqlite {path.name}"
        raise _fail(path, "is a report of nsys, not its SQLite export", hint, "input-nsys-rep")
    if head.startswith((b"\xfd7zXZ", b"\x1f\x8b", b"(\xb5/\xfd")):
        raise _fail(path, "is compressed", "Unpack it first", "input-compressed")
    if head.startswith(_LFS_MAGIC):
        raise _fail(path, "is a Git LFS pointer, not the file", "Run: git lfs pull", "input-lfs")
    raise _fail(path, "is not a SQLite database", "Give the .sqlite file that nsys export wrote", "input-not-sqlite")


def _uri(path: Path) -> str:
    """Return a read-only URI. ``immutable`` leaves no -shm or -wal file beside somebody else's report.

    With a -wal file beside it the newest rows may be only there, so then SQLite has to look at it.
    """
    wal = path.with_name(path.name + "-wal")
    pending = wal.exists() and wal.stat().st_size > 0
    return f"{path.resolve().as_uri()}?mode=ro{'' if pending else '&immutable=1'}"


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(_uri(path), uri=True, check_same_thread=False)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return connection


#: The column that carries those with ``bits``, see ``_packing``.
_PACKED = "_packed"


def _packing(source: schema.Source) -> list[tuple[schema.SourceColumn, int, int]]:
    """Return the columns that travel in one integer, each with its shift and with the value that stands for null."""
    shift, result = 0, []
    for column in source.columns:
        if column.bits:
            result.append((column, shift, (1 << column.bits) - 1 if column.kind == "name" else 0))
            shift += column.bits
    assert shift <= 63, source.frame
    return result


def _value(column: schema.SourceColumn, present: set[str]) -> str:
    if column.parts:
        return column.sql if present.issuperset(column.parts) else "NULL"
    return f'"{column.sql}"' if column.sql in present else "NULL"


def _selected(source: schema.Source, present: set[str]) -> tuple[str, dict[str, pl.DataType]]:
    """Return what to select from a table that has the columns ``present``, and the types that it arrives with."""
    values, types = [], dict[str, pl.DataType]()
    for column in source.columns:
        if column.bits:
            continue
        value = _value(column, present)
        types[column.name] = pl.Int64()
        if column.kind == "text":
            value, types[column.name] = f"CAST(COALESCE({value}, '') AS BLOB)", pl.Binary()
        values.append(f"{value} AS {column.name}")
    if packed := _packed(source, present):
        values.append(f"{packed} AS {_PACKED}")
        types[_PACKED] = pl.Int64()
    return ", ".join(values), types


def _packed(source: schema.Source, present: set[str]) -> str:
    """Return the expression of the column that carries those with ``bits``, "" when there are none."""
    terms = [
        f"(CAST(COALESCE({_value(column, present)}, {null}) AS BIGINT) & {(1 << column.bits) - 1}) * {1 << shift}"
        for column, shift, null in _packing(source)
    ]
    return " + ".join(terms)


class _Reader:
    """One connection of the fast reader per thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own = threading.local()
        self._open = ExitStack()

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _connection(self) -> Any:
        import adbc_driver_manager
        import adbc_driver_sqlite

        if not hasattr(self._own, "connection"):
            database = self._open.enter_context(closing(adbc_driver_sqlite.connect(_uri(self.path))))
            self._own.connection = self._open.enter_context(closing(adbc_driver_manager.AdbcConnection(database)))
        return self._own.connection

    def frame(self, query: str) -> pl.DataFrame:
        """Run ``query``; the Arrow stream arrives as one struct column."""
        import adbc_driver_manager

        with closing(adbc_driver_manager.AdbcStatement(self._connection())) as statement:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": "65536"})
            statement.set_sql_query(query)
            stream, _ = statement.execute_query()
            series = pl.from_arrow(stream)
            assert isinstance(series, pl.Series)
            return series.struct.unnest()


def _rows(path: Path, query: str, types: dict[str, pl.DataType]) -> pl.DataFrame:
    """Run ``query`` through the standard library, in blocks so that no second copy of a large table exists."""
    with closing(_connect(path)) as connection:
        cursor = connection.execute(query)
        blocks = []
        while block := cursor.fetchmany(65536):
            columns = [
                pl.Series(
                    name, [v if isinstance(v, int if t == pl.Int64() else bytes) else None for v in values], dtype=t
                )
                for (name, t), values in zip(types.items(), zip(*block, strict=True), strict=True)
            ]
            blocks.append(pl.DataFrame(columns))
    return pl.concat(blocks) if blocks else pl.DataFrame(schema=types)


@dataclass(frozen=True)
class _Piece:
    """Some rows of one table: the query, the types of its columns."""

    frame: str
    query: str
    types: dict[str, pl.DataType]


def _inside(source: schema.Source, window: Window | None) -> str:
    """Return the condition that a row overlaps the window; what has no end, or no time at all, is not cut.

    GPU work may run long after its launch, so of it everything from the begin of the window on is read.
    """
    if window is None or not {"start_ns", "end_ns"} <= {c.name for c in source.columns}:
        return "1 = 1"
    begun = "1 = 1" if source.frame in ("kernel", "memcpy", "memset", "graph") else f'"start" < {window[1]}'
    return f'({begun} AND ("end" > {window[0]} OR "end" IS NULL))'


def _top(connection: sqlite3.Connection, source: schema.Source) -> int:
    """Return the last rowid of a table: the number of its rows, as nsys writes them."""
    return connection.execute(f'SELECT max(rowid) FROM "{source.table}"').fetchone()[0] or 0


def _pieces(
    connection: sqlite3.Connection, source: schema.Source, present: set[str], window: Window | None
) -> list[_Piece]:
    selected, types = _selected(source, present)
    top = _top(connection, source)
    count = max(1, -(-top // _PIECE_ROWS))
    borders = [top * i // count for i in range(count + 1)]
    inside = _inside(source, window)
    # The first and the last piece are open: a rowid may be negative, and rows may come while it is read.
    where = [
        " AND ".join([inside, *([f"rowid > {a}"] if a != borders[0] else []), *([f"rowid <= {b}"] if b != top else [])])
        for a, b in itertools.pairwise(borders)
    ]
    return [_Piece(source.frame, f'SELECT {selected} FROM "{source.table}" WHERE {w}', types) for w in where]


def _give_back() -> None:
    """Return to the system what the reader's threads have freed: glibc keeps it for those threads, which are gone."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _read(
    path: Path, pieces: list[_Piece], progress: Callable[[str], None] | None
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield each table as integers and blobs, through the fast reader or else the one that always works."""

    def piece(reader: _Reader, wanted: _Piece) -> pl.DataFrame:
        try:
            frame = reader.frame(wanted.query)
            wrong = {n: t for n, t in wanted.types.items() if frame.schema[n] != t}
            return frame.cast(wrong, strict=True) if wrong else frame  # type: ignore[arg-type]
        except sqlite3.Error:
            raise
        except Exception:  # noqa: BLE001 - whatever the driver dislikes, the standard library reads
            return _rows(path, wanted.query, wanted.types)

    with _Reader(path) as reader, ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS)) as pool:
        found = pool.map(partial(piece, reader), pieces)
        for name, mine in itertools.groupby(pieces, key=lambda p: p.frame):
            if progress:
                progress(f"reading {schema.SOURCES[name].table}")
            # In one block: numpy looks at a column without a copy then.
            yield name, pl.concat([next(found) for _ in mine], rechunk=True)


def _parquet(
    folder: Path, connection: sqlite3.Connection, source: schema.Source, present: set[str], window: Window | None
) -> pl.DataFrame | None:
    """Return a table from nsys's Parquet export (``--type parquetdir``), which reads several times as fast; None without one.

    One of another capture, or an unfinished one, has other rows or columns: then it is not used.
    """
    file = folder / f"{source.table}.parquet"
    try:
        table = pl.scan_parquet(file)
        needed = {n for c in source.columns for n in (c.parts or (c.sql,))} & present
        text = {c.sql for c in source.columns if c.kind == "text"}
        plain = table.select(pl.col(n).cast(pl.Binary if n in text else pl.Int64) for n in sorted(needed))
        if table.select(pl.len()).collect().item() != _top(connection, source):
            return None
        chosen = []
        for column in source.columns:
            if column.kind == "text":
                found = pl.col(column.sql).fill_null(b"") if column.sql in present else pl.lit(b"")
                chosen.append(found.alias(column.name))
            elif not column.bits:
                chosen.append(pl.sql_expr(_value(column, present)).cast(pl.Int64).alias(column.name))
        if packed := _packed(source, present):
            chosen.append(pl.sql_expr(packed).cast(pl.Int64).alias(_PACKED))
        if not _same_ends(connection, source, plain):
            return None
        return plain.filter(pl.sql_expr(_inside(source, window))).select(chosen).collect()
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None


def _same_ends(connection: sqlite3.Connection, source: schema.Source, table: pl.LazyFrame) -> bool:
    """Return whether a table's first and last rows have the times that they have in the Parquet export."""
    times = [c.sql for c in source.columns if c.unit == "ns" and not c.parts]
    if not times:
        return False
    query = f'SELECT "{times[0]}" FROM "{source.table}" ORDER BY rowid'
    ends = [connection.execute(f"{query}{way} LIMIT 1").fetchone() for way in ("", " DESC")]
    found = table.select(pl.first(times[0]).alias("first"), pl.last(times[0]).alias("last")).collect().row(0)
    return found == tuple(e[0] if e else None for e in ends)


def _sane(frame: pl.DataFrame, source: schema.Source) -> pl.DataFrame:
    """Drop rows that cannot be placed: without a time, thread, device or stream, or at a time that no clock shows.

    Whatever is left can be summed in 64 bits. A missing correlation id is 0, as nsys writes it; an impossible size is null.
    """
    for column in source.columns:
        if column.bits:
            continue
        values = frame[column.name]
        if column.name == "correlation_id" and values.null_count():
            frame = frame.with_columns(values.fill_null(0))
        if column.unit == "bytes" and _outside(values, -_MOST_BYTES, _MOST_BYTES):
            possible = pl.col(column.name).is_between(-_MOST_BYTES, _MOST_BYTES)
            frame = frame.with_columns(pl.when(possible).then(column.name).alias(column.name))
        if column.unit == "ns" and _outside(values, -_LAST_NS, _LAST_NS):
            inside = pl.col(column.name).is_between(-_LAST_NS, _LAST_NS)
            # Marks and open ranges have no end, and an event no time on the device: null is not outside.
            frame = frame.filter(inside | pl.col(column.name).is_null())
        placed = column.name in _PLACE and (column.required or source.frame == "nvtx")
        if placed and not (source.frame == "nvtx" and column.name == "end_ns") and frame[column.name].null_count():
            frame = frame.filter(pl.col(column.name).is_not_null())
    if {"start_ns", "end_ns"} <= set(frame.columns):
        lasted = frame["end_ns"] - frame["start_ns"]
        if _outside(lasted, -_LAST_NS * 2, _LONGEST_NS):
            frame = frame.filter((lasted <= _LONGEST_NS) | lasted.is_null())
    return frame


def _outside(values: pl.Series, low: int, high: int) -> bool:
    least, most = values.min(), values.max()
    return isinstance(least, int) and isinstance(most, int) and (least < low or most > high)


def _ids(frame: pl.DataFrame, shift: int, bits: int) -> I64:
    """Return the string ids that a packed column carries at ``shift``; -1 for none."""
    none = (1 << bits) - 1
    ids: I64 = (frame[_PACKED].to_numpy() >> shift) & none
    ids[ids == none] = -1
    return ids


def _distinct(ids: I64) -> I64:
    """Return the distinct ids, sorted; those of a report are row numbers of its StringIds, so a table of them is short."""
    top = int(ids.max(initial=0))
    if top > _DENSE * (len(ids) + 1):
        return merged([ids[ids >= 0]])
    there = np.zeros(top + 2, np.bool_)
    there[ids] = True  # -1 is the extra last place
    return np.flatnonzero(there[:-1])


def _names(ids: I64, strings: dict[int, str | None]) -> pl.Series:
    known = _distinct(ids)
    words = [strings.get(i) for i in known.tolist()]
    if len(known) and known[-1] > _DENSE * (len(ids) + 1):
        return lookup.named(words, np.where(ids >= 0, np.searchsorted(known, ids), -1))
    code = np.full(int(known[-1]) + 2 if len(known) else 1, -1)
    code[known] = np.arange(len(known))
    return lookup.named(words, code[ids])


def _strings(path: Path, wanted: I64) -> dict[int, str | None]:
    """Return id -> string of the wanted ids; a table can hold millions that nothing refers to."""
    found: dict[int, str | None] = {}
    with closing(_connect(path)) as connection:
        for i in range(0, len(wanted), 10_000):
            listed = ",".join(map(str, wanted[i : i + 10_000].tolist()))
            for key, value in connection.execute(f"SELECT id, value FROM StringIds WHERE id IN ({listed})"):
                # A table without its primary key could hold an id twice: the first counts.
                found.setdefault(key, _text(value))
    return found


def _text(value: Any) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None if value is None else str(value)


def _limit(value: Any) -> int | None:
    """Return a limit of a device, None where the report does not name it."""
    return value if isinstance(value, int) and value > 0 else None


def _words(values: pl.Series) -> pl.Series:
    """Return inline text as names; each distinct value is decoded once, an empty one is null."""
    distinct = values.unique()
    text = [b.decode("utf-8", "replace") or None for b in distinct.to_list()]
    if len(text) == 1:
        return lookup.named(text, np.zeros(len(values), np.int32))
    known = pl.DataFrame({"key": distinct, "value": pl.Series(text, dtype=pl.String).cast(pl.Categorical)})
    # Only the key takes part in the join: nothing else of a long table is copied.
    return values.to_frame("key").join(known, on="key", how="left", maintain_order="left").to_series(1)


def _unpacked(frame: pl.DataFrame, source: schema.Source, strings: dict[int, str | None]) -> pl.DataFrame:
    """Return the columns as ``schema`` declares them; an id that StringIds does not hold becomes null."""
    result: dict[str, pl.Series] = {}
    packed = {c.sql: (shift, null) for c, shift, null in _packing(source)}
    for column in source.columns:
        if not column.bits:
            values = _words(frame[column.name]) if column.kind == "text" else frame[column.name]
        elif column.kind == "name":
            before = result.get(column.name)
            if before is not None and not before.null_count():
                continue
            values = _names(_ids(frame, packed[column.sql][0], column.bits), strings)
        else:
            small = (frame[_PACKED].to_numpy() >> packed[column.sql][0]) & ((1 << column.bits) - 1)
            values = pl.Series(small > 0 if column.kind == "flag" else small)
        if column.name in result:
            values = result[column.name].zip_with(result[column.name].is_not_null(), values)
        result[column.name] = values
    return pl.DataFrame(result)


def _query(
    connection: sqlite3.Connection, tables: dict[str, set[str]], table: str, *columns: str
) -> list[tuple[Any, ...]]:
    """Return the rows of a small table, [] when it is absent; a column it does not have reads as None."""
    if table not in tables:
        return []
    selected = ", ".join(f'"{c}"' if c in tables[table] else "NULL" for c in columns)
    return connection.execute(f'SELECT {selected} FROM "{table}"').fetchall()


def _gpus(connection: sqlite3.Connection, tables: dict[str, set[str]], used: list[tuple[int, int]]) -> tuple[Gpu, ...]:
    """Return one Gpu per (process, device) that did work, named where the report says which card it is."""
    columns = ("id", "deviceId", "cuDevice", "name", "l2CacheSize", "totalMemory", "memoryBandwidth", "smCount")
    cards = _query(connection, tables, "TARGET_INFO_GPU", *columns)
    mapping = {
        (pid, cuda): gpu
        for gpu, cuda, pid in _query(connection, tables, "TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
    }
    result = []
    for process, device in used:
        pid = process & 0xFFFFFF
        gpu = mapping.get((pid, device))
        card = next((c for c in cards if gpu is not None and c[0] == gpu), None)
        if card is None and not mapping:
            card = next((c for c in cards if device in (c[2], c[1])), None)
        if card is None:
            result.append(Gpu(process, pid, device, "unknown GPU"))
        else:
            result.append(Gpu(process, pid, device, _text(card[3]) or "unknown GPU", *map(_limit, card[4:])))
    return tuple(result)


def _python_lines(
    connection: sqlite3.Connection, tables: dict[str, set[str]], domains: pl.DataFrame
) -> pl.DataFrame | None:
    """Return the Python backtraces of API calls: (thread, time_ns, frames), innermost frame first, None when not recorded.

    ``frames`` is a list of "file:line function" strings. Nsight stores them as JSON marks in a domain of their own; the
    outermost frame stands last and names are HTML-escaped.
    """
    import html

    ids = (
        domains.filter(pl.col("domain_name").cast(pl.String) == schema.PYTHON_BACKTRACE_DOMAIN)["domain"]
        .unique()
        .to_list()
    )
    if not ids or "jsonText" not in tables["NVTX_EVENTS"] or "StringIds" not in tables:
        return None
    listed = ",".join(str(i) for i in ids)
    rows = connection.execute(
        f"SELECT globalTid, start, jsonText FROM NVTX_EVENTS WHERE eventType = {schema.NVTX_MARK}"
        f" AND domainId IN ({listed}) AND jsonText IS NOT NULL"
    ).fetchall()
    names: dict[int, str] = {}

    def name(key: int) -> str:
        if key not in names:
            found = connection.execute("SELECT value FROM StringIds WHERE id = ?", (key,)).fetchone()
            names[key] = html.unescape(str(found[0])) if found else "?"
        return names[key]

    seen: dict[str, list[str]] = {}
    out: list[tuple[int, int, list[str]]] = []
    for thread, start, text in rows:
        if text not in seen:
            try:
                stack = json.loads(text)[schema.PYTHON_BACKTRACE_DOMAIN]["Frames"]
                seen[text] = [f"{name(int(f['File']))}:{int(f['Line'])} {name(int(f['Function']))}" for f in stack]
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                seen[text] = []
        out.append((thread, start, seen[text]))
    return pl.DataFrame(
        out, schema={"thread": pl.Int64(), "time_ns": pl.Int64(), "frames": pl.List(pl.String())}, orient="row"
    ).sort("thread", "time_ns")


def _nccl(connection: sqlite3.Connection, tables: dict[str, set[str]], domains: pl.DataFrame) -> pl.DataFrame | None:
    """Return NCCL's own ranges: thread, start_ns, end_ns, operation, and what its payload says, None when it has no domain.

    The payload is null where the export is without it (--include-json=true writes it): communicator (NCCL's id of it, the
    same on all its ranks), bytes of the message, peer (rank that is sent to or received from), and, at the creation and the
    end of a communicator, size (number of its ranks) and rank (this one's number in it). Sorted by thread and start.
    """
    named = domains.filter(pl.col("domain_name").cast(pl.String) == schema.NCCL_DOMAIN)
    places = set(named.select("process", "domain").iter_rows())
    if not places:
        return None
    present = tables["NVTX_EVENTS"]
    text = "text" if "text" in present else "NULL"
    if {"textId"} <= present and "StringIds" in tables:
        text = f"COALESCE({text}, (SELECT value FROM StringIds WHERE id = textId))"
    payload = "jsonText" if "jsonText" in present else "NULL"
    listed = ",".join(sorted({str(domain) for _, domain in places}))
    rows = connection.execute(
        f'SELECT globalTid, start, "end", domainId, {text}, {payload} FROM NVTX_EVENTS'
        f" WHERE eventType = {schema.NVTX_PUSH_POP} AND domainId IN ({listed})"
    )
    names = tuple(schema.NCCL_PAYLOAD.items())
    known: dict[Any, tuple[Any, ...]] = {}
    out = []
    for thread, start, end, domain, operation, said in rows:
        if not all(isinstance(v, int) and abs(v) < _LAST_NS for v in (start, end)) or not isinstance(thread, int):
            continue
        if (thread // (1 << 24), domain) not in places:
            continue
        if said not in known:
            known[said] = _payload(said, names)
        out.append((thread, start, end, str(operation), *known[said]))
    columns = ("thread", "start_ns", "end_ns", "operation", *(name for name, _ in names))
    types = {c: pl.String() if c in ("operation", "communicator") else pl.Int64() for c in columns}
    return pl.DataFrame(out, schema=types, orient="row").sort("thread", "start_ns", maintain_order=True)


def _payload(text: Any, names: tuple[tuple[str, str], ...]) -> tuple[Any, ...]:
    """Return the fields of a payload in order, None for those that it does not hold."""
    try:
        values = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        values = {}
    found = [values.get(key) if isinstance(values, dict) else None for _, key in names]
    whole = [v if isinstance(v, int) and not isinstance(v, bool) else None for v in found]
    # A communicator's id fills 64 bits without a sign: a name, not a number.
    return tuple(
        (None if v is None else str(v))
        if name == "communicator"
        else v
        if v is not None and 0 <= v < _MOST_BYTES
        else None
        for v, (name, _) in zip(whole, names, strict=True)
    )


def _host(connection: sqlite3.Connection, tables: dict[str, set[str]]) -> str | None:
    """Return what stands for the machine's name, which itself is nobody's business."""
    import hashlib

    named = [v for n, v in _query(connection, tables, "TARGET_INFO_SYSTEM_ENV", "name", "value") if n == "Hostname"]
    return hashlib.sha256(str(named[0]).encode("utf-8", "replace")).hexdigest()[:16] if named and named[0] else None


def _run_json(path: Path) -> dict[str, Any]:
    """Return what ``nsysx run`` noted beside the report, {} when there is nothing usable."""
    beside = path.with_suffix(".run.json")
    try:
        value = json.loads(beside.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _capture(
    path: Path,
    connection: sqlite3.Connection,
    tables: dict[str, set[str]],
    frames: dict[str, pl.DataFrame],
    run: dict[str, Any],
) -> Capture:
    meta = dict(
        _query(connection, tables, "META_DATA_EXPORT", "name", "value")
        or _query(connection, tables, "EXPORT_META_DATA", "name", "value")
    )
    options = {}
    for name, value in _query(connection, tables, "META_DATA_CAPTURE", "name", "value"):
        if match := _OPTIONS.match(str(name)):
            options[match[1]] = str(value)
    gpu = pl.concat([frames[f].select("process", "device") for f in ("kernel", "memcpy", "memset", "graph")])
    used = gpu.unique().sort("process", "device").rows()
    threads = pl.concat([frames["runtime"].select("process"), frames["nvtx"].select("process"), gpu.select("process")])
    names = dict(_query(connection, tables, "PROCESSES", "pid", "name"))
    processes = tuple(
        {"process": p, "pid": p & 0xFFFFFF, "name": Path(_text(names.get(p & 0xFFFFFF)) or "").name}
        for p in threads["process"].drop_nulls().unique().sort().to_list()
    )
    diagnostics = tuple(
        {"severity": {1: "info", 2: "warning", 3: "error"}.get(severity, "other"), "text": str(text).strip()}
        for severity, text in _query(connection, tables, "DIAGNOSTIC_EVENT", "severity", "text")
        if severity in (2, 3) and _DIAGNOSTIC.search(str(text))
    )
    duration = [d for (d,) in _query(connection, tables, "ANALYSIS_DETAILS", "duration") if isinstance(d, int)]
    epoch = [
        e for (e,) in _query(connection, tables, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs") if isinstance(e, int)
    ]
    probe = run.get("probe")
    exit_code = run.get("exit_code")
    return Capture(
        files=(path.name,),
        nsys_version=_text(meta.get("EXPORT_PRODUCT_VERSION")),
        schema_version=_text(meta.get("EXPORT_SCHEMA_VERSION")),
        gpus=_gpus(connection, tables, used),
        processes=processes,
        duration_ns=duration[0] if duration else None,
        diagnostics=diagnostics,
        utc_epoch_ns=epoch[0] if epoch else None,
        options=options,
        probe=tuple(p for p in probe if isinstance(p, dict)) if isinstance(probe, list) else (),
        exit_code=exit_code if isinstance(exit_code, int) else None,
    )


@contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise _fail(path, "is being written", "Wait for the export to finish", "input-busy") from None
        raise _fail(path, f"cannot be read ({error})", "Export the report again", "input-damaged") from None
    except sqlite3.DatabaseError as error:
        raise _fail(path, f"is damaged ({error})", "Export the report again", "input-damaged") from None
    except UnicodeDecodeError:  # SQLite's own message quotes the bytes that it stumbled over
        raise _fail(path, "is damaged", "Export the report again", "input-damaged") from None


def load(
    path: Path,
    progress: Callable[[str], None] | None = None,
    *,
    window: Window | None = None,
) -> Trace:
    """Read the report at ``path`` into frames.

    ``window``: of what has a begin and an end, only rows that overlap it (ns).
    Errors: NsysxError with exit code 3 for anything that cannot be read, naming the file and what to do.
    """
    _check_readable(path)
    before = path.stat()
    with _sqlite_errors(path), closing(_connect(path)) as connection:
        listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        tables = {t: {r[1] for r in connection.execute(f'PRAGMA table_info("{t}")')} for (t,) in listed if '"' not in t}
        if not tables:
            raise _fail(path, "holds no tables: the export did not finish", "Export the report again", "input-empty")
        if not tables.keys() & {s.table for s in schema.SOURCES.values()} and "StringIds" not in tables:
            raise _fail(
                path,
                "is a database, but not an export of nsys",
                "Give the file that nsys export wrote",
                "input-foreign",
            )
        pieces: list[_Piece] = []
        beside = path.with_name(f"{path.stem}_pqtdir")
        converted: dict[str, pl.DataFrame] = {}
        for frame, source in schema.SOURCES.items():
            if source.table not in tables:
                continue
            missing = [c.sql for c in source.columns if c.required and c.sql not in tables[source.table]]
            if not missing:
                given = (connection, source, tables[source.table], window)
                mine = _pieces(*given)
                # Of a short table a second export saves nothing.
                found = _parquet(beside, *given) if len(mine) > 1 else None
                if found is None:
                    pieces += mine
                else:
                    converted[frame] = found
            elif frame not in _OPTIONAL:
                what = f"its table {source.table} has no column {', '.join(missing)}"
                raise _fail(path, what, "Export it again with the nsys that captured it", "input-columns")
        raw: dict[str, pl.DataFrame] = {}
        unplaced = 0
        for frame, read in itertools.chain(converted.items(), _read(path, pieces, progress)):
            raw[frame] = _sane(read, schema.SOURCES[frame])
            unplaced += read.height - raw[frame].height
        wanted = [
            _distinct(_ids(raw[frame], shift, column.bits))
            for frame in raw
            for column, shift, _ in _packing(schema.SOURCES[frame])
            if column.kind == "name"
        ]
        strings = _strings(path, merged(wanted)) if "StringIds" in tables else {}
        recorded = frozenset(raw)
        frames = {
            frame: _with_process(_unpacked(raw.pop(frame), source, strings) if frame in raw else schema.empty(frame))
            for frame, source in schema.SOURCES.items()
        }
        # Old exports do not name the process of GPU work; where only one made calls, it was that one.
        own = frames["runtime"]["process"].unique()
        alone = pl.lit(own.item() if len(own) == 1 else 0, dtype=pl.Int64)
        for frame, source in schema.SOURCES.items():
            if any(c.name == "global_pid" for c in source.columns) and frames[frame]["process"].null_count():
                frames[frame] = frames[frame].with_columns(pl.col("process").fill_null(alone))
        domains = (
            frames["nvtx"]
            .filter(pl.col("event_type") == schema.NVTX_DOMAIN)
            .select("process", "domain", pl.col("text").alias("domain_name"))
            .unique(["process", "domain"], maintain_order=True)
        )
        lines = _python_lines(connection, tables, domains) if "NVTX_EVENTS" in tables else None
        nccl = _nccl(connection, tables, domains) if "NVTX_EVENTS" in tables else None
        host = _host(connection, tables)
        run = _run_json(path)
        capture = _capture(path, connection, tables, frames, run)
    if len(pieces) > len(recorded):  # some table was long
        _give_back()
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise _fail(path, "changed while it was read", "Wait for the export to finish", "input-busy")
    timed = ("runtime", "kernel", "memcpy", "memset", "nvtx")
    reversed_ = sum(int((frames[f]["end_ns"] < frames[f]["start_ns"]).sum()) for f in timed)
    return Trace(path, frames, recorded, domains, capture, run, lines, unplaced, reversed_, nccl, host, window)


def _with_process(frame: pl.DataFrame) -> pl.DataFrame:
    """Add ``process``: the upper 40 bits of the thread or process key, 0 where a report does not name it."""
    key = next((k for k in ("global_pid", "thread") if k in frame.columns), None)
    if key is None:
        return frame
    # Floor division is an arithmetic shift, also for keys whose top bit is set.
    shifted = (pl.col(key) // (1 << 24)).alias("process")
    frame = frame.with_columns(shifted)
    return frame.drop("global_pid") if key == "global_pid" else frame
