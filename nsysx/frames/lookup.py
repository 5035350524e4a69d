"""Works on long columns through their few distinct values, and looks rows up by number instead of joining.

A report has millions of rows and a few hundred names, so work on names is done once per name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.frames.frame_bounds import LOOKUP_BLOCK, LOOKUP_TABLE
from nsysx.frames.intervals import I64, Labels

_T = TypeVar("_T", bound=np.generic)
#: The codes of a categorical column, and those with one more for null; made once, because columns are short and asked for often.
_PHYSICAL = pl.first().to_physical()
_WITH_NULL = _PHYSICAL.fill_null(_PHYSICAL.max() + 1)


def _coding(column: pl.Series) -> tuple[list[str | None], I64, npt.NDArray[np.uint32]]:
    """Return the distinct names of a categorical column (None first), code -> index of its name, and the code of each row."""
    nulls = column.null_count()
    if nulls == len(column):
        return [None], np.zeros(1, np.int64), np.zeros(len(column), np.uint32)
    code = column.to_frame().select(_WITH_NULL if nulls else _PHYSICAL).to_series().to_numpy()
    most = int(code.max()) - bool(nulls)
    rows = np.full(most + 2, -1)
    length = max(LOOKUP_BLOCK, len(rows))
    for first in range(0, len(code), length):
        block = code[first : first + length]
        if ((np.bincount(block, minlength=len(rows)) > 0) & (rows < 0)).any():
            rows[block] = np.arange(first, first + len(block))  # any row of each name
    used = np.flatnonzero(rows[:-1] >= 0)
    dense = np.zeros(most + 2, np.int64)
    dense[used] = np.arange(1, len(used) + 1)
    return [None, *_rows(column, rows[used]).cast(pl.String).to_list()], dense, code


def _taken(values: npt.NDArray[_T], code: npt.NDArray[np.uint32]) -> npt.NDArray[_T]:
    """Return ``values[code]``, three times as fast: a block's codes become indices in the cache, not a column in memory."""
    result = np.empty(len(code), values.dtype)
    for first in range(0, len(code), LOOKUP_BLOCK):
        rows = slice(first, first + LOOKUP_BLOCK)
        np.take(values, code[rows], out=result[rows], mode="clip")
    return result


def _rows(column: pl.Series, row: npt.NDArray[np.integer[Any]]) -> pl.Series:
    """Return the values at the given rows. ``column.gather`` makes a query of it, which takes 0.1 ms."""
    values: pl.Series = column[pl.Series(row.astype(np.uint32))]
    return values


def distinct(column: pl.Series) -> tuple[list[str | None], I64]:
    """Return the distinct names of a categorical column (None first, then in alphabetical order) and each row's index into them.

    polars numbers names in the order in which threads meet them, which differs from run to run and must not show in results.
    """
    names, dense, code = _coding(column)
    order = sorted(range(1, len(names)), key=lambda i: names[i] or "")  # of a few names faster than a query
    place_of = np.zeros(len(names), np.int64)
    place_of[order] = np.arange(1, len(names))
    return [None, *(names[i] for i in order)], _taken(place_of[dense], code)


def text(column: pl.Series) -> pl.Series:
    """Return a categorical column as text. A cast copies the name of each row, and a kernel's may have 300 letters."""
    names, dense, code = _coding(column)
    return _rows(pl.Series(column.name, names, dtype=pl.String), _taken(dense.astype(np.uint32), code))


def changed(column: pl.Series, change: Callable[[str], str | None]) -> pl.Series:
    """Return a categorical column with ``change`` applied to each distinct name once; null stays null."""
    names, dense, code = _coding(column)
    words = pl.Series([None if n is None else change(n) for n in names], dtype=pl.String).cast(pl.Categorical)
    return _rows(words, _taken(dense.astype(np.uint32), code))


def coded(column: pl.Series, values: Mapping[str, int]) -> I64:
    """Return each row's number in ``values`` by its name in a categorical column; -1 for other names and for null."""
    names, dense, code = _coding(column)
    numbers: I64 = np.array([-1 if n is None else values.get(n, -1) for n in names], np.int64)
    return _taken(numbers[dense], code)


def matching(column: pl.Series, pattern: str) -> npt.NDArray[np.bool_]:
    """Return whether each row of a categorical column contains a match of the regular expression; null never matches."""
    names, dense, code = _coding(column)
    compiled = re.compile(pattern)
    hits: npt.NDArray[np.bool_] = np.array([n is not None and bool(compiled.search(n)) for n in names], np.bool_)
    return _taken(hits[dense], code)


def named(names: Sequence[str | None], index: Labels) -> pl.Series:
    """Return ``names[index]`` as a categorical column; index -1 gives null."""
    words = pl.Series([*names, None], dtype=pl.String).cast(pl.Categorical)
    rows = index.astype(np.uint32)  # a copy, in which -1 is the largest number
    np.minimum(rows, len(names), out=rows)
    return _rows(words, rows)


def at(column: pl.Series, row: I64) -> pl.Series:
    """Return the values at the given rows; row -1 gives null."""
    missing = row < 0
    if not missing.any():
        return _rows(column, row)
    if not len(column):
        nothing: pl.Series = pl.Series(column.name, [None], dtype=column.dtype).new_from_index(0, len(row))
        return nothing
    values: pl.Series = column[pl.Series(np.maximum(row, 0).astype(np.uint32)).set(pl.Series(missing), None)]
    return values


def _order(
    frame: pl.DataFrame, time: str, then: Sequence[str], *, group: str | None = None, descending: Sequence[bool] = ()
) -> I64 | None:
    """Return the row order by (``group``, ``time``, ``then``), nulls last; None if the rows already have this order.

    The rows of a report are nearly sorted by time, so a stable sort only merges runs, and only rows of equal time need ``then``.
    """
    rows: I64 | None = None
    if not frame[time].is_sorted():
        rows = np.argsort(frame[time].to_numpy(), kind="stable")
    if group is not None:
        key = frame[group].to_numpy()
        places = np.flatnonzero(key[1:] != key[:-1]) + 1
        keys = np.unique(key[np.concatenate(([0], places))] if len(key) else key)
        if len(keys) > 1:
            # There are few groups, so a narrow type makes this a radix sort.
            code = np.searchsorted(keys, key)
            code = code.astype(np.uint16) if len(keys) < 1 << 16 else code
            by_group = np.argsort(code if rows is None else code[rows], kind="stable")
            rows = by_group if rows is None else rows[by_group]
    times = frame[time].to_numpy() if rows is None else frame[time].to_numpy()[rows]
    same = _same_as_before(times)
    if group is not None and same.any():
        key = frame[group].to_numpy()
        same[1:] &= _same_as_before(key if rows is None else key[rows])[1:]
    tied = np.flatnonzero(same | np.concatenate((same[1:], [False])))
    if len(tied):
        rows = np.arange(frame.height) if rows is None else rows
        keys_ = [*([group] if group else []), time, *then]
        part = frame[keys_][rows[tied]].with_row_index("_row")
        down = [False] * (len(keys_) - len(then)) + list(descending or [False] * len(then))
        rows[tied] = rows[tied][part.sort(keys_, descending=down, nulls_last=True)["_row"].to_numpy()]
    return rows


def ordered(
    frame: pl.DataFrame, time: str, then: Sequence[str], *, group: str | None = None, descending: Sequence[bool] = ()
) -> pl.DataFrame:
    """Return the frame sorted by (``group``, ``time``, ``then``), nulls last; the same frame if it is already sorted.

    ``descending`` has one entry per column of ``then``.
    """
    rows = _order(frame, time, then, group=group, descending=descending)
    return frame if rows is None else frame[rows]


def _same_as_before(values: I64) -> npt.NDArray[np.bool_]:
    return np.concatenate((np.zeros(min(len(values), 1), np.bool_), values[1:] == values[:-1]))


def parted(frame: pl.DataFrame, *keys: str) -> dict[tuple[int, ...], pl.DataFrame]:
    """Return combination of integer keys -> its rows in their order, in one pass.

    If there is only one combination, its value is the frame itself, so that nothing is copied for the usual report of one process
    and one device. Rows with a null key are left out.
    """
    if not frame.height:
        return {}
    if all(not frame[k].null_count() and frame[k].min() == frame[k].max() for k in keys):
        return {tuple(int(frame[k].item(0)) for k in keys): frame}
    parts = frame.partition_by(*keys, maintain_order=True, as_dict=True)
    return {tuple(map(int, key)): part for key, part in parts.items() if None not in key}


def having(frame: pl.DataFrame, **values: int) -> pl.DataFrame:
    """Return the rows that have these values in these integer columns; the frame itself if all have them, so that nothing is copied."""
    other = [c for c, v in values.items() if frame[c].null_count() or frame[c].min() != v or frame[c].max() != v]
    return frame.filter(pl.col(c) == values[c] for c in other) if other else frame


def present(column: pl.Series) -> list[int]:
    """Return the distinct values of an integer column, sorted, without null; most reports have one process, which takes no query."""
    values: list[int] = column.drop_nulls().unique().sort().to_list() if column.min() != column.max() else []
    return values or [each for each in (column.min(),) if isinstance(each, int)]


def filled(column: pl.Series, missing: int) -> I64:
    """Return an integer column with ``missing`` for null; without a query where there is none."""
    values: I64 = (column.fill_null(missing) if column.null_count() else column).to_numpy()
    return values


def numbered(keys: I64) -> tuple[I64, I64]:
    """Return the sorted distinct values of non-negative numbers, and each row's index into them."""
    size = int(keys.max(initial=0)) + 1
    if size > LOOKUP_TABLE + len(keys):
        values, index = np.unique(keys, return_inverse=True)
        return values, index
    seen = np.zeros(size, np.bool_)
    seen[keys] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[keys]


def same_values(row: Mapping[str, Any], columns: Iterable[str]) -> pl.Expr:
    """Return the condition that a row of a frame equals ``row`` in these columns; null equals null."""
    return pl.all_horizontal(pl.col(c).is_null() if row[c] is None else pl.col(c) == row[c] for c in columns)


def totals(index: npt.NDArray[np.integer[Any]], values: I64, size: int) -> I64:
    """Return the sum of ``values`` per ``index``, shape (size,). It is exact, unlike ``bincount``, whose weights are floats."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, index, values)
    return sums


def among(numbers: pl.Series, asked: pl.Series) -> pl.Series:
    """Return which of ``asked`` are among the sorted ``numbers``; null is not."""
    present, wanted = numbers.to_numpy(), asked.fill_null(-1).to_numpy()
    nearest = np.searchsorted(present, wanted)
    return pl.Series(np.append(present, -2)[nearest] == wanted, dtype=pl.Boolean)
