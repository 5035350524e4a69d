"""Lines of code to paste, in the room that an output has."""

from __future__ import annotations

import re


def lines(paste: str, width: int, most: int) -> list[str]:
    """Return the first lines of code; where one has no room its comment is dropped, then it goes on inside its brackets."""
    rows = [row for row in paste.splitlines() if row.strip()][:most]
    return [part for row in rows for part in _broken(row, width)]


def _broken(row: str, width: int) -> list[str]:
    """Return one line of code as lines of at most ``width`` where brackets let Python go on: pasted, it is the same."""
    if len(row) > width:
        row = re.sub(r"(?<=\S)(?:\s{2,}#.*|\s+#[^'\"]*)$", "", row)
    places = [m.end() for m in re.finditer(r", |\(", row[:width]) if _depth(row[: m.end()]) > 0]
    if len(row) <= width or not places:
        return [row]
    rest = row[places[-1] :].lstrip()
    indent = " " * (len(row) - len(row.lstrip()) + 4)
    return [
        row[: places[-1]].rstrip(),
        *(_broken(indent + rest, width) if len(rest) < len(row) - 8 else [indent + rest]),
    ]


def _depth(code: str) -> int:
    """Return how many brackets are open at the end of a piece of code, with what is quoted left out."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", code)
    return sum(bare.count(c) for c in "([{") - sum(bare.count(c) for c in ")]}")
