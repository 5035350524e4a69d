"""Reads the Python stacks that ``--python-sampling`` samples over time.

nsys stores each sample as an NVTX mark in a separate domain, on the sampled thread; its JSON lists the frames, innermost first,
as string ids. A report can have a million samples, so they are read in pieces, and each distinct text is parsed only once.
"""

from __future__ import annotations

import hashlib
import html
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from nsysx.frames import frame_columns, lookup
from nsysx.reading import decoding, schema, selecting, table_rows
from nsysx.reading.reading_bounds import (
    LAST_TIME_NS,
    LONGEST_RANGE_NS,
    MOST_FILE_LINES,
    MOST_STACK_FRAMES,
    MOST_STRING_IDS,
    NO_FRAMES,
    NO_JSON,
    NO_TEXT,
    SAMPLE_ROWS_AT_ONCE,
)
from nsysx.reading.trace import LeftOut, Window

_TYPES = {"thread": pl.Int64(), "time_ns": pl.Int64(), "text": pl.Binary()}
#: The process is added later.
SAMPLES = frame_columns.schema(frame_columns.SAMPLES, "thread", "time_ns", "stack")
STACKS = frame_columns.schema(frame_columns.STACKS)

#: (function, file, line): two string ids and a line number, each -1 if it is not known.
_Frame = tuple[int, int, int]
_REASONS = {
    NO_TEXT: "no stack: export the report with --include-json true",
    NO_JSON: "a stack that is not JSON as nsys writes it",
    NO_FRAMES: "a stack without frames",
}


@dataclass(frozen=True)
class StackSamples:
    """``samples`` has the columns of SAMPLES, ``stacks`` those of STACKS (depth 0 is innermost); both are sorted."""

    samples: pl.DataFrame
    stacks: pl.DataFrame
    left_out: tuple[LeftOut, ...] = ()


def nothing() -> StackSamples:
    """Return no samples."""
    return StackSamples(pl.DataFrame(schema=SAMPLES), pl.DataFrame(schema=STACKS))


class _Stacks:
    """The distinct stacks so far, by number, and the numbers of those that were cut."""

    def __init__(self) -> None:
        self.of_text: dict[bytes, int] = {}
        self.number: dict[tuple[_Frame, ...], int] = {}
        self.cut: set[int] = set()

    def codes(self, texts: pl.Series) -> pl.Series:
        """Return the number of each text's stack; a text without a stack gets a negative code of _REASONS."""
        distinct = texts.unique(maintain_order=True)
        coded = pl.DataFrame(
            {"text": distinct, "stack": pl.Series([self._number_of_text(t) for t in distinct], dtype=pl.Int64)}
        )
        return texts.to_frame("text").join(coded, on="text", how="left", maintain_order="left")["stack"]

    def _number_of_text(self, text: bytes) -> int:
        # Keeping the texts themselves would take about as much memory as the report.
        key = hashlib.blake2b(text, digest_size=16).digest()
        if key not in self.of_text:
            self.of_text[key] = self._read(text)
        return self.of_text[key]

    def _read(self, text: bytes) -> int:
        if not text:
            return NO_TEXT
        listed = _frames_of(text)
        if listed is None:
            return NO_JSON
        if not listed:
            return NO_FRAMES
        stack = tuple(map(_frame, listed[:MOST_STACK_FRAMES]))
        number = self.number.setdefault(stack, len(self.number))
        if len(listed) > MOST_STACK_FRAMES:
            self.cut.add(number)
        return number


def _frames_of(text: bytes) -> list[Any] | None:
    """Return the frames in a sample's JSON, None if the text is not what nsys writes."""
    try:
        sample = json.loads(text)
    except (ValueError, RecursionError):
        return None
    bodies = sample.values() if isinstance(sample, dict) else ()
    return next((b["Frames"] for b in bodies if isinstance(b, dict) and isinstance(b.get("Frames"), list)), None)


def _frame(listed: Any) -> _Frame:
    values = listed if isinstance(listed, dict) else {}
    function, file, line = (values.get(k) for k in ("Function", "File", "Line"))
    return _within(function, MOST_STRING_IDS), _within(file, MOST_STRING_IDS), _within(line, MOST_FILE_LINES)


def _within(value: Any, most: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < most else -1


def python_samples(
    database: Path,
    connection: sqlite3.Connection,
    tables: dict[str, set[str]],
    domains: pl.DataFrame,
    window: Window | None,
    around: int | None,
) -> StackSamples | None:
    """Return the Python samples of a report, None if sampling was off. ``window`` and ``around``: ns in the report's own time."""
    named = domains.filter(pl.col("domain_name").cast(pl.String).is_in(schema.PYTHON_SAMPLING_DOMAINS))
    places = [(p, d) for p, d in named["process", "domain"].unique().iter_rows() if None not in (p, d)]
    if not places:
        return None
    stacks = _Stacks()
    blocks = [pl.DataFrame(schema=SAMPLES)]
    with table_rows.Reader(database) as reader:
        for piece in _pieces(connection, tables, sorted(places), window):
            block = table_rows.piece(reader, piece)
            stack = stacks.codes(block["text"]).alias("stack")
            blocks.append(block.select("thread", "time_ns", stack))
    samples = pl.concat(blocks)
    notes: list[LeftOut] = []
    low, high = (
        (-LAST_TIME_NS, LAST_TIME_NS) if around is None else (around - LONGEST_RANGE_NS, around + LONGEST_RANGE_NS)
    )
    samples = _kept_samples(samples, pl.col("thread").is_not_null(), "no thread", notes)
    samples = _kept_samples(
        samples, pl.col("time_ns").is_between(low, high).fill_null(False), "an impossible time", notes
    )
    for code, reason in _REASONS.items():
        samples = _kept_samples(samples, pl.col("stack") != code, reason, notes)
    frames, unnamed = _named_frames(list(stacks.number), database, tables)
    for chosen, reason in (
        (unnamed, "the id of a name that is not in the report"),
        (stacks.cut, f"a stack of more than {MOST_STACK_FRAMES:,} frames"),
    ):
        if chosen and (count := samples["stack"].is_in(list(chosen)).sum()):
            notes.append(LeftOut(_TABLE, reason, int(count), "kept"))
    return StackSamples(samples.sort("thread", "time_ns", "stack"), frames, tuple(notes))


_TABLE = "Python samples"


def _kept_samples(samples: pl.DataFrame, condition: pl.Expr, reason: str, notes: list[LeftOut]) -> pl.DataFrame:
    kept = samples.filter(condition)
    if kept.height < samples.height:
        notes.append(LeftOut(_TABLE, reason, samples.height - kept.height))
    return kept


def _pieces(
    connection: sqlite3.Connection,
    tables: dict[str, set[str]],
    places: list[tuple[int, int]],
    window: Window | None,
) -> list[selecting.Piece]:
    """Return the pieces that together read the samples of these (process, domain) pairs."""
    present = tables["NVTX_EVENTS"]
    text = '"jsonText"' if "jsonText" in present else "NULL"
    if "jsonTextId" in present and {"id", "value"} <= tables.get("StringIds", set()):
        text = f'COALESCE({text}, (SELECT value FROM StringIds WHERE id = "jsonTextId"))'
    # A domain's number is valid only within its process.
    of_probe = " OR ".join(f'("domainId" = {domain} AND ("globalTid" >> 24) = {process})' for process, domain in places)
    where = [f'"eventType" = {schema.NVTX_MARK}', f"({of_probe})"]
    if window is not None:
        where.append(f'"start" >= {window[0]} AND "start" < {window[1]}')
    query = (
        f'SELECT "globalTid" AS thread, "start" AS time_ns, CAST(COALESCE({text}, \'\') AS BLOB) AS text FROM "NVTX_EVENTS" WHERE '
        + " AND ".join(where)
    )
    parts = selecting.parts_of(connection, "NVTX_EVENTS", SAMPLE_ROWS_AT_ONCE)
    return [selecting.Piece("nvtx", f"{query} AND {part}", dict(_TYPES)) for part in parts]


def _named_frames(
    stacks: list[tuple[_Frame, ...]], database: Path, tables: dict[str, set[str]]
) -> tuple[pl.DataFrame, set[int]]:
    """Return the frames of all stacks with the columns of STACKS, and the stacks with a function or file that has no name."""
    lengths = np.array([len(s) for s in stacks], np.int64)
    values = np.array([frame for stack in stacks for frame in stack], np.int64).reshape(-1, 3)
    wanted, name_row = np.unique(values[:, :2], return_inverse=True)
    name_row = name_row.reshape(-1, 2)
    strings: dict[int, str | None] = {}
    if {"id", "value"} <= tables.get("StringIds", set()):
        strings, _ = decoding.strings_of(database, wanted[wanted >= 0])
    texts = [strings.get(key) for key in wanted.tolist()]
    names = [None if name is None else html.unescape(name) for name in texts]
    number = np.repeat(np.arange(len(stacks)), lengths)
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    missing = np.array([name is None for name in names], np.bool_)[name_row].any(axis=1)
    line = pl.Series(values[:, 2])
    frames = pl.DataFrame(
        {
            "stack": number,
            "depth": np.arange(len(number)) - first,
            "function": lookup.named(names, name_row[:, 0]),
            "file": lookup.named(names, name_row[:, 1]),
            "line": line.set(line < 0, None) if len(line) else line,
        },
        schema=STACKS,
    )
    return frames, set(np.unique(number[missing]).tolist())
