"""Reads the samples of the GPU's hardware counters (``nsys profile --gpu-metrics-devices``) and condenses them.

GPU_METRICS has a row per counter and sample, 5 million in 12 s. Only the few counters that an analysis uses are read, and each
sample becomes one row. The table's pitfalls:

- the device is the lowest byte of ``typeId``, numbered as in TARGET_INFO_GPU, and not a CUDA ordinal;
- ``metricId`` can be understood only with TARGET_INFO_GPU_METRICS, whose names differ between versions and devices;
- counters cover the whole device, whichever process uses it;
- the clock is in Hz although its name says MHz, and times before the start of the session are negative.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl

from nsysx.frames import derived, frame_columns
from nsysx.reading import capture_facts, decoding, placing, selecting, table_rows
from nsysx.reading.reading_bounds import COUNTER_THREADS, LAST_TIME_NS, LEAST_CLOCK_HZ, MOST_PERCENT
from nsysx.reading.trace import Window
from nsysx.recording.default_counters import COUNTERS, LINKS

TABLE, NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"

_LINKS = tuple(name for name, _ in LINKS)
COLUMNS = tuple(name for name, _ in (*COUNTERS, *LINKS))
#: Those that kernels have a share of: shares of a maximum, 0 to 1, as all are but the clock.
SHARES = tuple(name for name, _ in COUNTERS if name != "clock_hz")
SCHEMA = frame_columns.schema(derived.COUNTERS)


def _metric_columns(connection: sqlite3.Connection, tables: dict[str, set[str]]) -> dict[tuple[int, int], str]:
    """Return (metric, gpu) -> its column."""
    columns: dict[tuple[int, int], str] = {}
    for kind, metric, name in capture_facts.query(connection, tables, NAMES, "typeId", "metricId", "metricName"):
        if isinstance(kind, int) and isinstance(metric, int) and 0 <= metric < 1 << 40:
            text = decoding.text_of(name) or ""
            column = next((c for c, pattern in (*COUNTERS, *LINKS) if pattern.search(text)), None)
            if column is None:
                continue
            # A second counter of the same name counts nothing else; requests and responses of a link are summed.
            if column in _LINKS or column not in [c for (_, g), c in columns.items() if g == kind & 0xFF]:
                columns[metric, kind & 0xFF] = column
    return columns


def _pieces(connection: sqlite3.Connection, metrics: list[int], window: Window | None) -> list[selecting.Piece]:
    types: dict[str, pl.DataType] = {"time_ns": pl.Int64(), "key": pl.Int64(), "value": pl.Int64()}
    chosen = f'"metricId" IN ({", ".join(map(str, metrics))})'
    if window is not None:
        # A sample has the time at which its interval ends, so the one at the end of the window lies inside.
        chosen += f' AND "timestamp" BETWEEN {window[0]} AND {window[1]}'
    ends: list[int | None] = [None, *selecting.borders(connection, TABLE), None]
    pieces = []
    for after, last in itertools.pairwise(ends):
        where = [
            chosen,
            *([f"rowid > {after}"] if after is not None else []),
            *([f"rowid <= {last}"] if last is not None else []),
        ]
        query = (
            f'SELECT "timestamp" AS time_ns, "metricId" * 256 + ("typeId" & 255) AS key, "value" AS value FROM "{TABLE}" '
            f"WHERE {' AND '.join(where)}"
        )
        pieces.append(selecting.Piece("gpu_metrics", query, types))
    return pieces


def read(
    database: Path, connection: sqlite3.Connection, tables: dict[str, set[str]], window: Window | None, zero: int
) -> pl.DataFrame | None:
    """Return one row per sample with the columns of SCHEMA, sorted by gpu and time_ns; None if none were recorded.

    Shares are from 0 to 1. A counter that the device does not have is null. Only samples in ``window`` are read (ns in the
    report's own time). ``zero`` is the start of the session in that time; ``time_ns`` counts from it. Samples at an impossible
    time are left out.
    """
    if not {"timestamp", "typeId", "metricId", "value"} <= tables.get(TABLE, set()):
        return None
    wanted = _metric_columns(connection, tables)
    if not wanted:
        return None
    column_of = {metric * 256 + gpu: column for (metric, gpu), column in wanted.items()}
    metrics = sorted({metric for metric, _ in wanted})
    with table_rows.Reader(database) as reader, ThreadPoolExecutor(min(os.cpu_count() or 1, COUNTER_THREADS)) as pool:
        pieces = _pieces(connection, metrics, window)
        parts = list(pool.map(lambda piece: _sampled(table_rows.piece(reader, piece), column_of), pieces))
    samples = pl.concat([pl.DataFrame(schema=SCHEMA), *parts])
    possible = pl.col("time_ns").is_between(zero - LAST_TIME_NS, zero + LAST_TIME_NS)
    samples = placing.since(samples.filter(possible), zero)
    # The rows of one sample may be in two pieces.
    whole = [_summed(pl.col(c)) if c in _LINKS else pl.col(c).max() for c in COLUMNS]
    return samples.group_by("gpu", "time_ns").agg(whole).sort("gpu", "time_ns")


def _summed(values: pl.Expr) -> pl.Expr:
    """Return the sum of shares of a link, at most all of it; null where none was counted."""
    return pl.when(values.count() > 0).then(values.sum().clip(0, 1)).alias(values.meta.output_name())


def _sampled(values: pl.DataFrame, column_of: dict[int, str]) -> pl.DataFrame:
    """Return one row per sample of some rows (time_ns, key, value)."""
    keys = {column: [k for k, c in column_of.items() if c == column] for column in COLUMNS}
    value = pl.col("value").cast(pl.Float64)
    share = pl.when(pl.col("value").is_between(0, MOST_PERCENT)).then((value / 100).clip(0, 1))
    hz = pl.when(pl.col("value") >= LEAST_CLOCK_HZ).then(value).when(pl.col("value") > 0).then(value * 1e6)
    of_column = {c: (hz if c == "clock_hz" else share).filter(pl.col("key").is_in(keys[c])) for c in COLUMNS}
    return (
        values.drop_nulls()
        .group_by((pl.col("key") & 0xFF).alias("gpu"), "time_ns")
        .agg(
            (_summed(counted) if c in _LINKS else counted.max()).cast(SCHEMA[c]).alias(c)
            for c, counted in of_column.items()
        )
        .select(*SCHEMA)
    )  # fmt: skip
