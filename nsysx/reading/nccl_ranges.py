"""Reads NCCL's own NVTX ranges and their payloads."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import polars as pl

from nsysx import ids
from nsysx.frames import derived, frame_columns
from nsysx.reading import schema
from nsysx.reading.reading_bounds import LAST_TIME_NS, MOST_SIZE_BYTES
from nsysx.records import whole_number


def nccl(connection: sqlite3.Connection, tables: dict[str, set[str]], domains: pl.DataFrame) -> pl.DataFrame | None:
    """Return NCCL's own ranges, sorted by thread and start_ns; None if the capture has none of NCCL's domain.

    Columns: thread, start_ns, end_ns, operation, and the payload: communicator (NCCL's id, the same on all its ranks), bytes of
    the message, peer (the rank sent to or received from), root (of a broadcast or a reduction), and, when a communicator is made or
    destroyed, size (its number of ranks) and rank (that of this process). The payload is null in an export without it
    (--include-json=true writes it).
    """
    named = domains.filter(pl.col("domain_name").cast(pl.String) == schema.NCCL_DOMAIN)
    places = set(named["process", "domain"].iter_rows())
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
    groups: dict[Any, tuple[Any, ...]] = {}
    out = []
    for thread, start, end, domain, operation, text_of_payload in rows:
        if not all(isinstance(v, int) and abs(v) < LAST_TIME_NS for v in (start, end)) or not isinstance(thread, int):
            continue
        if (ids.process_of(thread), domain) not in places:
            continue
        if text_of_payload not in groups:
            groups[text_of_payload] = _payload(text_of_payload, names)
        out.append((thread, start, end, str(operation), *groups[text_of_payload]))
    types = frame_columns.schema(
        derived.NCCL_RANGES, "thread", "start_ns", "end_ns", "operation", *(name for name, _ in names)
    )
    return pl.DataFrame(out, schema=types, orient="row").sort("thread", "start_ns", maintain_order=True)


def _payload(text: Any, names: tuple[tuple[str, str], ...]) -> tuple[Any, ...]:
    """Return the fields of a payload in the order of ``names``, None for each that it lacks."""
    try:
        values = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        values = {}
    values_of = [values.get(key) if isinstance(values, dict) else None for _, key in names]
    whole = [whole_number(v) for v in values_of]
    # A communicator's id may need all 64 bits unsigned, so it is kept as text.
    return tuple(
        (None if v is None else str(v))
        if name == "communicator"
        else v
        if v is not None and 0 <= v < MOST_SIZE_BYTES
        else None
        for v, (name, _) in zip(whole, names, strict=True)
    )
