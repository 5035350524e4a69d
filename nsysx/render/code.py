"""Lines of code to paste, in the room that an output has."""

from __future__ import annotations

import itertools
import re
import textwrap
from typing import NamedTuple

from nsysx import units
from nsysx.render.render_bounds import PAGE_CODE


def lines(paste: str, width: int, most: int) -> list[str]:
    """Return the first ``most`` rows of code; where one has no room its comment is dropped, then it goes on inside its brackets."""
    return [line for row in _rows(paste, width)[:most] for line in row]


def whole_lines(paste: str, width: int) -> list[str]:
    """Return code as lines, all of it: where a row has no room for its comment, that follows in lines of its own."""
    return [line for row in paste.splitlines() if row.strip() for line in _commented(row, width)]


def first_lines(paste: str, width: int, most: int, elsewhere: str = "--full") -> list[str]:
    """Return the first lines of code in so many lines; where it has more, the last one says how many are ``elsewhere``.

    A comment may hold what the code depends on: where its row has no room for it, it follows in lines of its own if all of them fit.
    What is shown in part is at least two rows, and does not end with the head of a block: such a piece says nothing.
    """
    whole = whole_lines(paste, width)
    if len(whole) <= most:
        return whole
    rows = _rows(paste, width)
    if not most or sum(map(len, rows)) <= most:
        return lines(paste, width, len(rows) if most else 0)
    fitting = sum(total < most for total in itertools.accumulate(map(len, rows)))
    while fitting and rows[fitting - 1][-1].endswith(":"):
        fitting -= 1
    if fitting < 2:
        return [f"# {units.several(len(rows), 'line')} of code: {elsewhere}"]
    shown = [line for row in rows[:fitting] for line in row]
    return [*shown, f"# {units.several(len(rows) - fitting, 'more line')}: {elsewhere}"]


class PageRow(NamedTuple):
    """One row of code on a page that may be narrower: how far what follows in its next line is indented, and where it may break."""

    indent: int
    pieces: tuple[str, ...]


def page_rows(paste: str) -> tuple[PageRow, ...]:
    """Return the rows of code for a page, broken for a wide one, with comments in rows of their own where there is no room for them.

    A narrower page breaks them at spaces, then behind what opens or ends a name in a long word.
    """
    return tuple(
        PageRow(len(row) - len(row.lstrip()) + 4, tuple(_JOINTS.split(row)) if _LONG_WORD.search(row) else (row,))
        for row in whole_lines(paste, PAGE_CODE)
    )


def _rows(paste: str, width: int) -> list[list[str]]:
    """Return each row of code as the lines that it takes."""
    return [_broken(row, width) for row in paste.splitlines() if row.strip()]


#: What stands before the only statement of a condition or loop in its line.
_INLINE = re.compile(r"\s*(?:if|for|while|with)\b[^#]*?: (?=\w)")
#: A word of code that a narrow page has no line for, and the places where it can be broken: not before the end of a word, which would
#: stand alone in its line.
_LONG_WORD, _JOINTS = re.compile(r"\S{25}"), re.compile(r"(?<=[(\[.,=])(?=[\w'\"]\S{6})")
#: The comment behind a piece of code.
_COMMENT = re.compile(r"(?<=\S)(?:\s{2,}#.*|\s+#[^'\"]*)$")


def _commented(row: str, width: int) -> list[str]:
    """Return one line of code as the lines that it takes, and behind them those of its comment where that has no room."""
    comment = _COMMENT.search(row) if len(row) > width else None
    if comment is None:
        return _broken(row, width)
    head = " " * (len(row) - len(row.lstrip())) + "# "
    words = comment[0].lstrip(" #")
    return [
        *_broken(row, width),
        *textwrap.wrap(words, width, initial_indent=head, subsequent_indent=head, break_long_words=False),
    ]


def _broken(row: str, width: int) -> list[str]:
    """Return one line of code as lines of at most ``width`` where brackets let Python go on: pasted, it is the same."""
    if len(row) > width:
        row = _COMMENT.sub("", row)
    if len(row) > width and (colon := _INLINE.match(row)) and _depth(colon[0]) == 0:
        body = " " * (len(row) - len(row.lstrip()) + 4) + row[colon.end() :]
        return [*_broken(colon[0].rstrip(), width), *_broken(body, width)]
    places = [m.end() for m in re.finditer(r", |\((?!\))", row[:width]) if _depth(row[: m.end()]) > 0]
    if len(row) <= width or not places:
        return [row]
    # Behind a comma a row is read better than behind what opens a bracket, unless half of the line stays empty.
    end = next((p for p in reversed(places) if row[p - 1] == " " and 2 * p > width), places[-1])
    rest = row[end:].lstrip()
    indent = " " * (len(row) - len(row.lstrip()) + 4)
    return [
        row[:end].rstrip(),
        *(_broken(indent + rest, width) if len(rest) < len(row) - 8 else [indent + rest]),
    ]


def _depth(code: str) -> int:
    """Return how many brackets are open at the end of a piece of code, with what is quoted left out."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", code)
    return sum(bare.count(c) for c in "([{") - sum(bare.count(c) for c in ")]}")
