"""Rows against the types that their tables declare."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, get_args, get_type_hints, is_typeddict

from nsysx import analyses
from nsysx.analyses.helpers.step_record import StepRow
from nsysx.model import Summary, Table
from nsysx.ranks import rank_table
from nsysx.rows import columns_of


@cache
def row_types() -> dict[str, Any]:
    """Return the type of the rows of each table, by its key."""

    def of(table: ModuleType) -> Any:
        (row,) = [c for _, c in inspect.getmembers(table, is_typeddict) if c.__module__ == table.__name__]
        assert columns_of(row) == table.COLUMNS and table.ROWS.key == table.KEY
        return row

    tables: Any = (*analyses.load(), rank_table)
    return {table.KEY: of(table) for table in tables}


@cache
def _never_null(row: Any) -> tuple[frozenset[str], frozenset[str]]:
    hints = get_type_hints(row)
    return frozenset(hints), frozenset(c for c, hint in hints.items() if type(None) not in get_args(hint))


def untyped(summary: Summary) -> set[str]:
    """Return the columns of a Summary that are null although their type does not say so, or that are not those declared."""
    return untyped_rows(StepRow, "steps", summary.steps.rows) | untyped_tables(summary.tables)


def untyped_tables(tables: Mapping[str, Table]) -> set[str]:
    """Return those of the tables that are there."""
    wrong = set[str]()
    for key, row in row_types().items():
        if key in tables:
            wrong |= untyped_rows(row, key, tables[key].rows or ())
    return wrong


def untyped_rows(row: Any, key: str, values: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the columns of the rows of a table that are null although their type does not say so, or that are not those declared."""
    wrong = set()
    columns, never_null = _never_null(row)
    for value in values:
        wrong |= {f"{key}.{c}" for c in value.keys() ^ columns}
        wrong |= {f"{key}.{c}" for c in never_null if value.get(c) is None}
    return wrong
