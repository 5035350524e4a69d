"""Columns and the rows made of them. A table whose rows cross a room's border declares them as a TypedDict.

Each key of it is a column: its type for mypy, which then sees a column that is renamed or may be null, and an ``Of`` with the rest.
The columns for schemas, the JSON Schema, Parquet and the dictionary are made from it, so that nothing is declared twice.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table or frame, declared once; schemas, the dictionary and Parquet's descriptions are made from it.

    ``dtype`` is a polars type name, ``unit`` is "ns", "bytes", "" ... ``sums`` says whether its values are sums that are shown
    per step: over the "scope" of the table, over the steps of its "row" (column ``steps``), or "" for neither, such as a
    maximum, a mean, or the number of a thread. ``label`` is its head for people where its name without the unit will not do.
    ``codes``: its values are words of nsysx such as "queue_full", shown as "queue full"; names from the program stay as they are.
    """

    name: str
    dtype: str
    unit: str
    meaning: str
    sums: Literal["", "scope", "row"] = ""
    label: str = ""
    codes: bool = False


class Of(NamedTuple):
    """What a column has besides its name and type; fields as in `Column`."""

    meaning: str
    unit: str = ""
    sums: Literal["", "scope", "row"] = ""
    label: str = ""
    codes: bool = False


@dataclass(frozen=True, slots=True)
class TableOf(Generic[R]):
    """The key of a table whose rows are of the type R; or the code of a rule whose evidence they are."""

    key: str


def names(text: str) -> tuple[str, ...]:
    """Return the names in a text: a list of columns as one reads it."""
    return tuple(text.split())


_DTYPES: Mapping[Any, str] = {int: "Int64", float: "Float64", str: "String", bool: "Boolean", list[int]: "List(Int64)"}


def columns_of(row: Any) -> tuple[Column, ...]:
    """Return the columns of a TypedDict, in order. Raises KeyError for a type that no column has, TypeError without an ``Of``."""
    made = []
    for name, hint in get_type_hints(row, include_extras=True).items():
        kind, *declared = get_args(hint) or (hint,)
        if not declared or not isinstance(declared[0], Of):
            raise TypeError(f"{name}: a column without its meaning")
        column = declared[0]
        if get_origin(kind) in (Union, types.UnionType):
            kind = next(t for t in get_args(kind) if t is not type(None))
        made.append(
            Column(
                name,
                "Object" if get_origin(kind) in (Mapping, Sequence) else _DTYPES[kind],
                unit=column.unit,
                meaning=column.meaning,
                sums=column.sums,
                label=column.label,
                codes=column.codes,
            )
        )
    return tuple(made)
