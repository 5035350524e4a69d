"""Long columns handled by their few distinct values, and rows looked up by number instead of joined.

A report has millions of rows and a few hundred names: whatever is done to a name is done once per name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.intervals import I64


def _distinct(column: pl.Series) -> tuple[list[str | None], I64]:
    """Return the distinct names of a categorical column (None first) and each row's index into them."""
    physical = column.to_physical()
    known = column.drop_nulls().unique(maintain_order=True)
    code = np.zeros(int(known.to_physical().to_numpy().max(initial=0)) + 1, np.int64)
    code[known.to_physical().to_numpy()] = np.arange(1, len(known) + 1)
    index = code[physical.fill_null(0).to_numpy()]
    if column.null_count():
        index = np.where(column.is_null().to_numpy(), 0, index)
    return [None, *known.cast(pl.String).to_list()], index


def changed(column: pl.Series, change: Callable[[str], str | None]) -> pl.Series:
    """Return a categorical column with ``change`` of each name; null stays null."""
    names, index = _distinct(column)
    return named([None if n is None else change(n) for n in names], index)


def coded(column: pl.Series, values: Mapping[str, int], default: int = -1) -> I64:
    """Return the number that ``values`` gives each name of a categorical column; ``default`` for others and for null."""
    names, index = _distinct(column)
    numbers: I64 = np.array([default if n is None else values.get(n, default) for n in names], np.int64)[index]
    return numbers


def matching(column: pl.Series, pattern: str) -> npt.NDArray[np.bool_]:
    """Return where a categorical column matches the pattern; it is tried once per distinct name, null never matches."""
    names, index = _distinct(column)
    found = re.compile(pattern)
    hits: npt.NDArray[np.bool_] = np.array([n is not None and bool(found.search(n)) for n in names], np.bool_)[index]
    return hits


def named(names: Sequence[str | None], index: I64) -> pl.Series:
    """Return a categorical column of ``names[index]``; -1 is null."""
    words = pl.Series([*names, None], dtype=pl.String).cast(pl.Categorical)
    chosen: pl.Series = words.gather(np.where(index >= 0, index, len(names)).astype(np.uint32))
    return chosen


def at(column: pl.Series, row: I64) -> pl.Series:
    """Return the values at the given rows; row -1 gives null."""
    missing = row < 0
    if not missing.any():
        return column.gather(row)
    if not len(column):
        return pl.Series(column.name, [None], dtype=column.dtype).gather(np.zeros(len(row), np.int64))
    rows = pl.Series(np.maximum(row, 0)).set(pl.Series(missing), None)
    return column.gather(rows)


def order(
    frame: pl.DataFrame, time: str, then: Sequence[str], *, group: str | None = None, descending: Sequence[bool] = ()
) -> I64:
    """Return the row order by (``group``, ``time``, ``then``), nulls last.

    Reports come nearly sorted by time: a stable sort only merges runs, and just the rows of equal time are compared further.
    """
    rows: I64 = np.argsort(frame[time].to_numpy(), kind="stable")
    if group is not None:
        keys = frame[group].unique().sort()
        # A radix sort: there are a handful of groups.
        code = np.searchsorted(keys.to_numpy(), frame[group].to_numpy())
        code = code.astype(np.uint16) if len(keys) < 1 << 16 else code
        rows = rows[np.argsort(code[rows], kind="stable")]
    same = _same_as_before(frame[time].to_numpy()[rows])
    if group is not None:
        same[1:] &= _same_as_before(frame[group].to_numpy()[rows])[1:]
    tied = np.flatnonzero(same | np.concatenate((same[1:], [False])))
    if len(tied):
        keys_ = [*([group] if group else []), time, *then]
        part = frame.select(keys_)[rows[tied]].with_row_index("_row")
        down = [False] * (len(keys_) - len(then)) + list(descending or [False] * len(then))
        rows[tied] = rows[tied][part.sort(keys_, descending=down, nulls_last=True)["_row"].to_numpy()]
    return rows


def _same_as_before(values: I64) -> npt.NDArray[np.bool_]:
    return np.concatenate((np.zeros(min(len(values), 1), np.bool_), values[1:] == values[:-1]))


def distinct(column: pl.Series) -> tuple[list[str | None], I64]:
    """Return the distinct names of a categorical column (None first) and each row's index into them."""
    return _distinct(column)


def numbered(keys: I64) -> tuple[I64, I64]:
    """Return the distinct values of non-negative numbers, sorted, and each row's place among them."""
    size = int(keys.max(initial=0)) + 1
    if size > _TABLE + len(keys):
        values, place = np.unique(keys, return_inverse=True)
        return values, place
    seen = np.zeros(size, np.bool_)
    seen[keys] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[keys]


#: A table of this many places costs less than sorting a million numbers.
_TABLE = 1 << 24


def totals(index: I64, values: I64, size: int) -> I64:
    """Return the sum of ``values`` per ``index``: exact, where weights of ``bincount`` are floats."""
    found = np.zeros(size, np.int64)
    np.add.at(found, index, values)
    return found
