"""Tables ready to print: the rows and columns to show, their order, and each cell as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nsysx.model import Column, Row, Scope, Table, TableSpec
from nsysx.render import glossary, module_rows
from nsysx.render.labels import is_numeric, label, label_of, number, plain, worded
from nsysx.render.safe_text import clean, file_name, is_whole_place, scrub, shorten_cell, shorten_column

#: The name of a row that is the sum of all that is not listed.
_REST = re.compile(r"\(\d[\d,]* other ")


@dataclass(frozen=True, slots=True)
class Head:
    """The head of one column of a grid."""

    name: str
    label: str
    meaning: str
    numeric: bool


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its text, what it sorts by, the whole name where it was shortened, its glossary key, and its share of a bar."""

    text: str
    sort: float | str | None = None
    full: str = ""
    term: str = ""
    part: float | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """One table ready to print. ``rows`` is None where the capture lacks the data; ``reason`` then says why."""

    key: str
    title: str
    intro: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...] | None
    reason: str = ""
    folded: int = 0
    scope: str = ""
    depth: int = 0
    group: str = ""


class CellTexts:
    """Cleans, scrubs and shortens the strings of one output; ``width`` is the room of a cell, as the page has it."""

    def __init__(self, redact: bool, width: int = 84) -> None:
        self.redact = redact
        self.width = width

    def __call__(self, value: object, limit: int = 400) -> str:
        """Return ``value`` as harmless text of at most ``limit`` characters."""
        text = str(value)[: 4 * limit]
        return clean(scrub(text) if self.redact else text, limit)

    def cell(self, value: object, column: str) -> tuple[str, str]:
        """Return the text of a cell, and the whole text if that is longer."""
        if self.redact and (column == "file" or is_whole_place(str(value)[:2000])):
            value = file_name(str(value)[:2000], True)
        full = self(value, 600)
        text = shorten_cell(full, column, self.width)
        return text, "" if text == full else full


def _describe(value: Any, column: Column, texts: CellTexts, scope: Scope | None = None, *, term: bool = False) -> Cell:
    """Return the cell of one value; integers are sums over ``scope``, and are shown per step. ``term``: the glossary has it."""
    if value is None or value == "":
        return Cell("-", None)
    if isinstance(value, bool):
        return Cell("yes" if value else "no", float(value))
    if isinstance(value, Mapping):
        inner = (
            f"{label(str(k))} {number(v, str(k), column.unit) if isinstance(v, int | float) else texts(v, 80)}"
            for k, v in value.items()
        )
        text, full = texts.cell(", ".join(inner), column.name)
        return Cell(text, text, full)
    if isinstance(value, list | tuple | set | frozenset):
        text, full = texts.cell(", ".join(texts(v, 80) for v in value), column.name)
        return Cell(text, text, full)
    if (is_numeric(column) and isinstance(value, int | float)) or hasattr(value, "item"):
        if scope is not None and scope.steps and column.dtype.startswith(("Int", "UInt")):
            value = scope.per_step(value)
        return Cell(number(value, column.name, column.unit), float(value))
    text, full = texts.cell(worded(value, column) if isinstance(value, str) else value, column.name)
    return Cell(text, (full or text).lower(), full, (glossary.key(str(value)[:100]) or "") if term else "")


def _tree(rows: Sequence[Row], top: int) -> list[Row]:
    """Return the ``top`` module rows by GPU time, with the modules that call them, each followed by those that it calls.

    Siblings are in order of GPU time, so the first line of every level is the one to look at.
    """
    by_path: dict[Any, Row] = {}
    for row in rows:
        by_path.setdefault(row.get("path"), row)

    def order(path: Any) -> tuple[float, str]:
        row = by_path[path]
        return -float((row.get("forward_gpu_ns") or 0) + (row.get("backward_gpu_ns") or 0)), str(path)

    def chain(path: Any) -> list[Any]:
        above = {path: None}  # ordered, with quick look-ups
        while (up := by_path[path].get("parent")) is not None and up in by_path and up not in above:
            above[up] = None
            path = up
        return list(above)[::-1]

    keep: dict[Any, None] = {}
    for path in sorted(by_path, key=order):
        if len(keep) == top:
            break
        wanted = [p for p in chain(path) if p not in keep]
        if len(keep) + len(wanted) <= top:
            keep.update(dict.fromkeys(wanted))
    return [by_path[path] for path in sorted(keep, key=lambda path: [order(p) for p in chain(path)])]


def scope_of_value(row: Row, column: Column, table: Table) -> Scope | None:
    """Return what a value of a table is a sum over, None where it is no sum."""
    if column.sums == "row":
        return Scope("steady", (), steps=row.get("steps") or 0)
    return table.scope if column.sums else None


def weight(row: Row, spec: TableSpec) -> float:
    """Return what a row stands by among the others of its table, the heaviest first."""
    return sum(row.get(name) or 0 for name in spec.order or (spec.bar,))


def _sorted(table: Table, spec: TableSpec) -> list[Row]:
    """Return the rows that weigh most first; as given where no column says which do."""
    rows = list(table.rows or ())
    if spec.order or (spec.bar and any(c.name == spec.bar for c in table.columns)):
        rows.sort(key=lambda r: (r.get("what") == "rest", -weight(r, spec)))
    return rows


def head(column: Column, spec: TableSpec, *, first: bool = False) -> Head:
    """Return the head of a column, in the words that it declares or else its name's; a null ``first`` cell has words."""
    null = spec.unknown if first and spec.unknown else "a dash"
    return Head(column.name, label_of(column), clean(plain(column.meaning, null), 300), is_numeric(column))


def _shown_rows(table: Table, spec: TableSpec, top: int) -> tuple[list[Row], int]:
    """Return the rows to show, in order, and how many there were to choose from."""
    rows = module_rows.folded(table.rows or (), table.columns) if spec.tree else _sorted(table, spec)
    count = len(rows)
    if spec.tree:
        rows = _tree(rows, top)
    if spec.keep and len(rows) > top:
        kept = sorted(range(len(rows)), key=lambda i: (-(rows[i].get(spec.keep) or 0), i))[:top]
        rows = [rows[i] for i in sorted(kept)]
    # What is not listed one by one is no row to begin with, however much it is together.
    rest = [row for row in rows if _REST.match(str(row.get("name")))]
    if rest and len(rest) < top:
        rows = [*[row for row in rows if row not in rest][: top - len(rest)], *rest]
    return rows[:top], count


def grid(table: Table, *, top: int, redact: bool, width: int) -> Grid:
    """Return ``table`` ready to print: at most ``top`` rows, without empty columns.

    Sums over steps are shown per step.
    """
    spec = table.shown
    top = min(top, spec.rows)
    title = clean(table.title or label(table.key).capitalize(), 100)
    texts = CellTexts(redact, width)
    if table.rows is None:
        reason = texts(table.reason or "not recorded in this capture", 600)
        return Grid(table.key, title, intro=spec.intro, heads=(), rows=None, reason=reason, group=spec.group)
    columns = [c for c in table.columns if c.name not in spec.hide]
    if {"file", "line"} <= {c.name for c in columns}:
        columns = [c for c in columns if c.name not in ("line", "function")]
    position = {name: i for i, name in enumerate(spec.first)}
    columns.sort(key=lambda c: position.get(c.name, len(position)))
    rows, count = _shown_rows(table, spec, top)
    empty = [c for c in columns if all(r.get(c.name) in (None, "") for r in table.rows)] if table.rows else []
    columns = [c for c in columns if c not in empty or c is columns[0]]
    largest = max((abs(r.get(spec.bar) or 0) for r in table.rows), default=0) if spec.bar else 0
    scope = table.scope.label if table.scope else ""
    if any(c.sums == "row" for c in table.columns):
        with_steps = any(r.get("steps") for r in table.rows or ())
        scope = "per step, mean of each row's own steps" if with_steps else Scope("capture", ()).label

    def cell(row: Row, column: Column) -> Cell:
        value = row.get(column.name)
        if value in (None, "") and column is columns[0]:
            return Cell(spec.unknown)
        made = _describe(value, column, texts, scope_of_value(row, column, table), term=column.name in spec.terms)
        if value is not None and row.get(f"{column.name.removesuffix('_ns')}_from") == "composed":
            made = replace(made, text=f"≈ {made.text}")
        if column.name == "file" and value and row.get("line"):
            function = f" {texts(row['function'], 60)}" if row.get("function") else ""
            line_text = f":{int(row['line'])}{function}"
            return replace(made, text=made.text + line_text, full=made.full and made.full + line_text)
        if column.name == spec.bar and largest and value:
            return replace(made, part=abs(value) / largest)
        return made

    cells = [[cell(r, c) for c in columns] for r in rows]
    if columns and not is_numeric(columns[0]):
        names = [line[0].full or line[0].text for line in cells]
        for line, name, text in zip(cells, names, shorten_column(names, columns[0].name, width), strict=True):
            line[0] = replace(line[0], text=text, full="" if text == name else name)
    return Grid(
        key=table.key,
        title=title,
        intro=spec.intro,
        heads=tuple(head(c, spec, first=c is columns[0]) for c in columns),
        rows=tuple(tuple(line) for line in cells),
        reason="" if table.rows else "nothing of this kind in the capture",
        folded=max(0, count - len(rows)),
        scope=scope,
        depth=spec.depth,
        group=spec.group,
    )
