"""Packed integers, string ids and inline text as the columns that ``schema`` declares."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from nsysx.frames import lookup
from nsysx.frames.intervals import I64, merged
from nsysx.reading import opening, schema, selecting
from nsysx.reading.selecting import PACKED, Place
from nsysx.reading.trace import LeftOut

#: A table of ids may be this many times as long as there are rows.
_DENSE = 64
#: How many strings are asked for at once.
_ASKED = 10_000

#: What stands for a name that was not recorded, and for one whose id cannot be.
_NONE, _UNFIT = -1, -2


def _ids(frame: pl.DataFrame, place: Place) -> I64:
    """Return the string ids that a packed column carries at a place; _NONE and _UNFIT for none."""
    ids: I64 = (frame[PACKED].to_numpy() >> place.shift) & ((1 << place.column.bits) - 1)
    special = ids >= place.unfit
    if special.any():
        ids[special] = np.where(ids[special] == place.null, _NONE, _UNFIT)
    return ids


def _distinct(ids: I64) -> I64:
    """Return the distinct ids, sorted; those of a report are row numbers of its StringIds, so a table of them is short."""
    top = int(ids.max(initial=0))
    if top > _DENSE * (len(ids) + 1):
        return merged([ids[ids >= 0]])
    there = np.zeros(top + 3, np.bool_)
    there[ids] = True  # those that stand for no name are the extra last places
    return np.flatnonzero(there[:-2])


def _names(ids: I64, strings: Mapping[int, str | None]) -> pl.Series:
    known = _distinct(ids)
    words = [strings.get(i) for i in known.tolist()]
    if len(known) and known[-1] > _DENSE * (len(ids) + 1):
        return lookup.named(words, np.where(ids >= 0, np.searchsorted(known, ids), -1))
    code = np.full(int(known[-1]) + 3 if len(known) else 2, -1)
    code[known] = np.arange(len(known))
    return lookup.named(words, code[ids])


def names_wanted(frames: Mapping[str, pl.DataFrame]) -> I64:
    """Return the distinct string ids that the tables refer to, sorted."""
    return merged(
        [
            _distinct(_ids(frame, place))
            for name, frame in frames.items()
            for place in selecting.packing(schema.SOURCES[name])
            if place.column.kind == "name"
        ]
    )


def strings_of(path: Path, wanted: I64) -> tuple[dict[int, str | None], list[LeftOut]]:
    """Return id -> string of the wanted ids; a table can hold millions that nothing refers to."""
    texts: dict[int, str | None] = {}
    twice = 0
    with closing(opening.connect(path)) as connection:
        for i in range(0, len(wanted), _ASKED):
            listed = ",".join(map(str, wanted[i : i + _ASKED].tolist()))
            for key, value in connection.execute(f"SELECT id, value FROM StringIds WHERE id IN ({listed})"):
                twice += key in texts
                # A table without its primary key could hold an id twice: the first counts.
                texts.setdefault(key, text_of(value))
    return texts, [LeftOut("StringIds", "an id that stands there already", twice)] if twice else []


def text_of(value: Any) -> str | None:
    """Return a cell as text whatever it is, None for NULL."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None if value is None else str(value)


def _words(values: pl.Series) -> pl.Series:
    """Return inline text as names; each distinct value is decoded once, an empty one is null."""
    distinct = values.unique()
    text = [b.decode("utf-8", "replace") or None for b in distinct.to_list()]
    if len(text) == 1:
        return lookup.named(text, np.zeros(len(values), np.int32))
    known = pl.DataFrame({"key": distinct, "value": pl.Series(text, dtype=pl.String).cast(pl.Categorical)})
    # Only the key takes part in the join: nothing else of a long table is copied.
    return values.to_frame("key").join(known, on="key", how="left", maintain_order="left").to_series(1)


def unpacked(
    frame: pl.DataFrame, source: schema.Source, strings: Mapping[int, str | None]
) -> tuple[pl.DataFrame, list[LeftOut]]:
    """Return the columns as ``schema`` declares them, and how many rows have a name that is not in the report."""
    result: dict[str, pl.Series] = {}
    places = {place.column: place for place in selecting.packing(source)}
    named: dict[str, list[Place]] = {}
    for column in source.columns:
        if not column.bits:
            values = _words(frame[column.name]) if column.kind == "text" else frame[column.name]
        elif column.kind == "name":
            named.setdefault(column.name, []).append(places[column])
            before = result.get(column.name)
            if before is not None and not before.null_count():
                continue
            values = _names(_ids(frame, places[column]), strings)
        else:
            small = (frame[PACKED].to_numpy() >> places[column].shift) & ((1 << column.bits) - 1)
            values = pl.Series(small > 0 if column.kind == "flag" else small)
        if column.name in result:
            values = result[column.name].zip_with(result[column.name].is_not_null(), values)
        result[column.name] = values
    return pl.DataFrame(result), [n for name, at in named.items() for n in _unnamed(frame, source, result[name], at)]


def _unnamed(frame: pl.DataFrame, source: schema.Source, names: pl.Series, at: list[Place]) -> list[LeftOut]:
    """Count the rows that have the id of a name, but no name."""
    if not names.null_count():
        return []
    has_id = np.any([_ids(frame, place) != _NONE for place in at], axis=0)
    rows = int(np.count_nonzero(names.is_null().to_numpy() & has_id))
    return [LeftOut(source.table, "the id of a name that the report does not hold", rows, "kept")] if rows else []
