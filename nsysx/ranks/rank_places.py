"""Where in the program a rank's host is, its GPU work comes from, or its collectives are launched: keys of what a rank notes."""

from __future__ import annotations

from typing import NamedTuple


class HostLine(NamedTuple):
    """A line of Python: its file, its number, what stands there ("" where that was not recorded), and its function."""

    file: str
    line: int
    text: str
    function: str = ""


class WorkPlace(NamedTuple):
    """A kind of GPU work (family) at a line of Python: None, and "" for its text, where the line is not known."""

    family: str
    file: str | None
    line: int | None
    text: str


class Place(NamedTuple):
    """Where a collective is launched: phase, module, file and line of Python; None where that is not known."""

    phase: str | None = None
    module: str | None = None
    file: str | None = None
    line: int | None = None
