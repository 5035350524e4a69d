"""Repeated blocks of a model as one row of the modules table: "8 x blocks.*.attn" says more than fifty similar rows."""

from __future__ import annotations

from collections.abc import Sequence

from nsysx.answer.bars import folded_label, folded_path
from nsysx.events.attribute import GRADES
from nsysx.model import Column, Row


def _key(row: Row) -> tuple[str, str, str]:
    """Return what repeated modules have in common: the pattern of their paths, their class, the pattern of their callers."""
    return folded_path(str(row["path"] or "")), str(row.get("cls") or ""), folded_path(str(row.get("parent") or ""))


def folded(rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    """Return the rows with repeated modules as one row, in the order of each group's first; sums are added.

    ``parent`` names the row that now holds the caller, so the rows are still a tree.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(_key(row), []).append(row)
    names: dict[tuple[str, str, str], str] = {}
    taken: dict[str, int] = {}
    for key, members in groups.items():
        name = folded_label(key[0], members) if len(members) > 1 else str(members[0]["path"])
        # Different groups with one pattern are told apart by class, else by number.
        if name in taken and key[1]:
            name = f"{name} ({key[1]})"
        taken[name] = taken.get(name, 0) + 1
        names[key] = name if taken[name] == 1 else f"{name} #{taken[name]}"
    name_of = {row["path"]: names[_key(row)] for row in rows}
    sums = [c.name for c in columns if c.sums]
    out: list[Row] = []
    for key, members in groups.items():
        first = members[0]
        parent = name_of.get(first.get("parent"), first.get("parent"))
        row = {**first, "parent": parent}
        if len(members) > 1:
            row |= {name: _sum(members, name) for name in sums}
            row |= {"path": names[key], "grade": _weakest(members)}
        out.append(row)
    return out


def _sum(rows: Sequence[Row], name: str) -> int | None:
    """Return the sum of a column, None where no row has a value."""
    recorded = [row[name] for row in rows if row.get(name) is not None]
    return sum(recorded) if recorded else None


def _weakest(rows: Sequence[Row]) -> str | None:
    """Return the weakest grade of attribution among the rows."""
    grades = [str(row["grade"]) for row in rows if row.get("grade") is not None]
    return max(grades, key=lambda g: GRADES.index(g) if g in GRADES else len(GRADES), default=None)
