"""How a table of a report and its columns are declared, and the two columns that most have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of a report's table: our name, nsys's name, and how it is read.

    ``kind`` is ``int``, ``flag``, ``name`` (an id into StringIds) or ``text`` (an inline string). ``sql`` is a column, or an
    integer expression over the columns ``parts``, which must all exist; both SQLite and polars can evaluate it. If two columns
    have the same ``name``, the second counts where the first is null. A column with ``bits`` needs no more than those and travels
    with others in one integer.
    """

    name: str
    sql: str
    kind: str = "int"
    unit: str = ""
    required: bool = True
    meaning: str = ""
    parts: tuple[str, ...] = ()
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """A table of a report. ``record``: the option that must be on at capture time to have it.

    ``optional``: a report in which it lacks a column is still worth reading, without this table.
    """

    frame: str
    table: str
    columns: tuple[SourceColumn, ...]
    record: str
    optional: bool = False


def source_column(
    name: str, sql: str, kind: str = "int", unit: str = "", required: bool = True, meaning: str = "", bits: int = 0
) -> SourceColumn:
    """Return the declaration of a column; a name has 32 bits where nothing else is said."""
    return SourceColumn(
        name, sql, kind=kind, unit=unit, required=required, meaning=meaning, bits=bits or (32 if kind == "name" else 0)
    )


START = source_column("start_ns", "start", unit="ns", meaning="begin")
END = source_column("end_ns", "end", unit="ns", meaning="end")
