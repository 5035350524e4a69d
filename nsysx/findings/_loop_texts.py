"""The text of the innermost loop around a line, of the lines that ran."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_NUMBER = re.compile(r"for\s+([A-Za-z_]\w*)\s+in\b")


class LoopText(NamedTuple):
    """The head of a loop, and the lines of its body with their indents."""

    header: str
    body: tuple[str, ...]

    @property
    def number(self) -> str:
        """The name that a round has another value of, "" where there are several."""
        counted = _NUMBER.match(self.header.strip())
        return counted[1] if counted else ""


def loop_around(source: Mapping[str, object], line: int) -> LoopText | None:
    """Return the innermost loop ``for`` around a line, by the texts of lines that ran: number -> text; None where there is none."""
    rows = sorted(
        (int(number), text)
        for number, text in source.items()
        if isinstance(text, str) and number.isdigit() and text.strip()
    )
    here = next((depth_of(text) for number, text in rows if number == line), -1)
    heads = [
        (number, text)
        for number, text in rows
        if number < line and depth_of(text) < here and text.lstrip().startswith("for ")
    ]
    if here < 0 or not heads:
        return None
    head, header = heads[-1]
    behind = [(number, text) for number, text in rows if number > head]
    end = next((number for number, text in behind if depth_of(text) <= depth_of(header)), None)
    if end is not None and end <= line:
        return None
    return LoopText(header, tuple(text for number, text in behind if end is None or number < end))


def depth_of(text: str) -> int:
    """Return by how many letters a line is indented."""
    return len(text) - len(text.lstrip())
