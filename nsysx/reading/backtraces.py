"""Reads the Python backtraces of API calls, which ``--python-backtrace=cuda`` records."""

from __future__ import annotations

import html
import json
import sqlite3

import polars as pl

from nsysx.frames import derived, frame_columns
from nsysx.reading import schema


def python_lines(
    connection: sqlite3.Connection, tables: dict[str, set[str]], domains: pl.DataFrame
) -> pl.DataFrame | None:
    """Return the Python backtraces of API calls, sorted: thread, time_ns, frames; None if they were not recorded.

    ``frames`` is a list of "file:line function" strings, innermost first. nsys stores a backtrace as a JSON mark in a separate
    NVTX domain, with the outermost frame last and names HTML-escaped.
    """
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
        f" AND domainId IN ({listed}) AND typeof(jsonText) = 'text'"
        " AND typeof(globalTid) = 'integer' AND typeof(start) = 'integer'"  # other rows are counted when the table is read
    ).fetchall()
    names: dict[int, str] = {}

    def name(key: int) -> str:
        if key not in names:
            row = connection.execute("SELECT value FROM StringIds WHERE id = ?", (key,)).fetchone()
            names[key] = html.unescape(str(row[0])) if row else "?"
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
    return pl.DataFrame(out, schema=frame_columns.schema(derived.BACKTRACES), orient="row").sort("thread", "time_ns")
