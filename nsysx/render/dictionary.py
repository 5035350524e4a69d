"""The data dictionary: every table of the JSON and every column, from the declarations that make the tables themselves."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from importlib.resources import files

from nsysx import analyses
from nsysx.model import Column, TableSpec
from nsysx.ranks import rank_tables

_COVERS = {
    "steady": "sums over the steady steps of the shown process",
    "shown device": "sums over the steady steps of the shown process, on its busiest device",
    "replayed": "per step, over the steps that were replayed",
    "whole": "the whole capture, all processes",
    "rows": "each row by itself: see its columns",
}


def declarations() -> dict[str, tuple[str, tuple[Column, ...], TableSpec]]:
    """Return the title, the columns and the way to show of every table, by its key."""
    by_key = {a.KEY: (a.TITLE, a.COLUMNS, a.SHOWN) for a in analyses.load()}
    return by_key | {room.KEY: (room.TITLE, room.COLUMNS, room.SHOWN) for room in rank_tables.ROOMS}


def keys() -> list[str]:
    """Return the keys of all tables, in the order of the page."""
    tables = declarations()
    return sorted(tables, key=lambda key: (tables[key][2].place, key))


def table(key: str) -> str | None:
    """Return one table as text: what it answers, what it covers, each column with type and unit; None where there is none."""
    title_and_columns = declarations().get(key.strip())
    if title_and_columns is None:
        return None
    title, columns, shown = title_and_columns
    lines = [f"{key.strip()}: {title}"]
    lines += textwrap.wrap(shown.intro, 100, initial_indent="  ", subsequent_indent="  ")
    lines.append(f"  Covers: {_COVERS[shown.covers]}")
    wide = max(len(c.name) for c in columns)
    for c in columns:
        kind = f"{c.dtype}, {c.unit}" if c.unit else c.dtype
        head = f"  {c.name:<{wide}}  {kind}: "
        lines += textwrap.wrap(c.meaning, 110, initial_indent=head, subsequent_indent=" " * (wide + 6))
    return "\n".join(lines)


def columns() -> str:
    """Return the whole dictionary."""
    return "\n\n".join(text for key in keys() if (text := table(key)))


def _file(name: str) -> Callable[[], str]:
    """Return a function that reads a document of the package."""
    return lambda: (files("nsysx") / "docs" / name).read_text(encoding="utf-8").rstrip()


#: Texts that ``nsysx explain`` prints by name: every document in ``nsysx/docs``, and the dictionary.
TEXTS = {
    path.name.removesuffix(".md"): _file(path.name)
    for path in sorted((files("nsysx") / "docs").iterdir(), key=lambda path: path.name)
    if path.name.endswith(".md")
} | {"columns": columns}


def lookup(name: str) -> str | None:
    """Return what ``nsysx explain NAME`` prints for a table or a name of TEXTS; None for anything else."""
    asked = name.strip().lower()
    return TEXTS[asked]() if asked in TEXTS else table(asked)
