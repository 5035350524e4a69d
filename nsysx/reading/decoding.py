"""Decodes packed integers, string ids and inline text into the columns that ``schema`` declares."""

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
from nsysx.reading.reading_bounds import DENSE_LOOKUP_TIMES, ID_IMPOSSIBLE, ID_NOT_RECORDED, STRINGS_PER_QUERY
from nsysx.reading.selecting import PACKED, PackedColumn
from nsysx.reading.source_table import Source
from nsysx.reading.trace import LeftOut


def _ids(frame: pl.DataFrame, packed: PackedColumn) -> I64:
    """Return the string ids that the packed column holds at ``packed``, ID_NOT_RECORDED or ID_IMPOSSIBLE for no usable one."""
    ids: I64 = (frame[PACKED].to_numpy() >> packed.shift) & ((1 << packed.column.bits) - 1)
    special = ids >= packed.unfit
    if special.any():
        ids[special] = np.where(ids[special] == packed.null, ID_NOT_RECORDED, ID_IMPOSSIBLE)
    return ids


def _distinct(ids: I64) -> I64:
    """Return the distinct ids, sorted. Ids are row numbers of StringIds, so a lookup table over them is usually short."""
    top = int(ids.max(initial=0))
    if top > DENSE_LOOKUP_TIMES * (len(ids) + 1):
        return merged([ids[ids >= 0]])
    present = np.zeros(top + 3, np.bool_)
    present[ids] = True  # ID_NOT_RECORDED and ID_IMPOSSIBLE are negative and fall into the two extra places at the end
    return np.flatnonzero(present[:-2])


def _names(ids: I64, strings: Mapping[int, str | None]) -> pl.Series:
    distinct_ids = _distinct(ids)
    words = [strings.get(i) for i in distinct_ids.tolist()]
    if len(distinct_ids) and distinct_ids[-1] > DENSE_LOOKUP_TIMES * (len(ids) + 1):
        return lookup.named(words, np.where(ids >= 0, np.searchsorted(distinct_ids, ids), -1))
    code = np.full(int(distinct_ids[-1]) + 3 if len(distinct_ids) else 2, -1)
    code[distinct_ids] = np.arange(len(distinct_ids))
    return lookup.named(words, code[ids])


def names_wanted(frames: Mapping[str, pl.DataFrame]) -> I64:
    """Return the distinct string ids that the tables use, sorted."""
    return merged(
        [
            _distinct(_ids(frame, packed))
            for name, frame in frames.items()
            for packed in selecting.packing(schema.SOURCES[name])
            if packed.column.kind == "name"
        ]
    )


def strings_of(path: Path, wanted: I64) -> tuple[dict[int, str | None], list[LeftOut]]:
    """Return id -> string for the wanted ids only, since StringIds can hold millions that are not used; and what was left out."""
    texts: dict[int, str | None] = {}
    twice = 0
    with closing(opening.connect(path)) as connection:
        for i in range(0, len(wanted), STRINGS_PER_QUERY):
            listed = ",".join(map(str, wanted[i : i + STRINGS_PER_QUERY].tolist()))
            for key, value in connection.execute(f"SELECT id, value FROM StringIds WHERE id IN ({listed})"):
                twice += key in texts
                # A table without its primary key could hold an id twice; the first one counts.
                texts.setdefault(key, text_of(value))
    return texts, [LeftOut("StringIds", "an id that occurs twice", twice)] if twice else []


def text_of(value: Any) -> str | None:
    """Return a cell of any type as text, None for NULL."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None if value is None else str(value)


def _words(values: pl.Series) -> pl.Series:
    """Return inline text as a Categorical column, in which "" becomes null."""
    try:
        text = values.cast(pl.String)
    except pl.exceptions.ComputeError:  # it is not all UTF-8
        return _repaired(values)
    words: pl.Series = text.set(text == "", None).cast(pl.Categorical)
    return words


def _repaired(values: pl.Series) -> pl.Series:
    """Return `_words` of inline text with invalid bytes, each of which is replaced. Each distinct value is decoded once."""
    distinct = values.unique()
    texts = [b.decode("utf-8", "replace") or None for b in distinct.to_list()]
    words = pl.DataFrame({"key": distinct, "value": pl.Series(texts, dtype=pl.String).cast(pl.Categorical)})
    # The join gets only the key column, so the rest of a long table is not copied.
    return values.to_frame("key").join(words, on="key", how="left", maintain_order="left").to_series(1)


def unpacked(
    frame: pl.DataFrame, source: Source, strings: Mapping[int, str | None]
) -> tuple[pl.DataFrame, list[LeftOut]]:
    """Return the columns as ``schema`` declares them, and a count of the rows whose name is not in the report."""
    result: dict[str, pl.Series] = {}
    places = {packed.column: packed for packed in selecting.packing(source)}
    named: dict[str, list[PackedColumn]] = {}
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
    return pl.DataFrame(result), [
        n for name, places_of in named.items() for n in _unnamed(frame, source, result[name], places_of)
    ]


def _unnamed(frame: pl.DataFrame, source: Source, names: pl.Series, places: list[PackedColumn]) -> list[LeftOut]:
    """Count the rows that have the id of a name but no name."""
    if not names.null_count():
        return []
    has_id = np.any([_ids(frame, packed) != ID_NOT_RECORDED for packed in places], axis=0)
    rows = int(np.count_nonzero(names.is_null().to_numpy() & has_id))
    return [LeftOut(source.table, "the id of a name that is not in the report", rows, "kept")] if rows else []
