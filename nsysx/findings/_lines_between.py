"""Between which lines of the program something runs that no X-ray saw: behind the last line of the step before, and before the next one.

An X-ray notes the lines of a step until a network is called outside of all steps, and those of the next step from its begin on.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.code_lines import CodeLines
from nsysx.findings._case import Case
from nsysx.findings._long_step_lines import called
from nsysx.frames.intervals import I64
from nsysx.model import Row


class LinesBetween(NamedTuple):
    """A function's last line that was seen before something, and the next one behind that which was seen at all, None for none."""

    file: str
    function: str
    line: int
    until: int | None

    @property
    def where(self) -> Row:
        """The line from which on it runs."""
        return {"file": self.file, "line": self.line}

    @property
    def in_function(self) -> str:
        """Its function behind a preposition, "" where it stands in none."""
        return "" if called(self.function, 0) != self.function else f" in {self.function}"

    @property
    def loop(self) -> str:
        """What a loop there is called where it is told what to do about it."""
        span = f"behind line {self.line}" if self.until is None else f"between lines {self.line} and {self.until}"
        return f"what runs {span}{self.in_function}"

    @property
    def in_words(self) -> str:
        """What is known of its place."""
        name = PurePath(self.file).name
        end = "" if self.until is None else f", before {name}:{self.until}"
        return f"{called(self.function, self.line)} from {name}:{self.line} on{end}: no X-ray saw these lines"


def lines_between(case: Case, start_ns: I64) -> LinesBetween | None:
    """Return between which lines the program makes what begins at some instants behind steps, on the thread that drives these.

    None where no X-ray looked at the step before one of them, and at the one behind it.
    """
    code, steps = case.profile.code(), case.profile.steps.cpu.filter(pl.col("process") == case.process)
    if code is None or not steps.height or (lines := code.open.get(int(steps["thread"][0]))) is None:
        return None
    seen = np.flatnonzero(lines.labels >= 0)
    begun = steps["start_ns"].sort().to_numpy()
    before = np.searchsorted(lines.times[seen], start_ns, side="right") - 1
    step = np.searchsorted(begun, start_ns, side="right") - 1
    looked_at = (before >= 0) & (step >= 0) & (step + 1 < len(begun))
    for row, of_step in zip(before[looked_at].tolist(), step[looked_at].tolist(), strict=True):
        behind = int(lines.at(begun[[of_step + 1]])[0])
        if lines.times[seen[row]] < begun[of_step] or behind < 0:
            continue
        stacks = lines.labels[seen[: row + 1]].astype(np.int64).tolist()
        while (
            len(stacks) > 1 and stacks[-1] in code.around(stacks[-2])[1:]
        ):  # the X-ray ends: the inner lines close first
            stacks.pop()
        between = _between(code, code.chain(stacks[-1]), code.chain(behind))
        if between is not None:
            return between
    return None


def _between(code: CodeLines, before: list[int], behind: list[int]) -> LinesBetween | None:
    """Return the function in which two stacks of lines part, and its lines there."""
    parted = next(((a, b) for a, b in zip(before, behind, strict=False) if a != b), None)
    if parted is None:
        return None
    (file, line, function), (other, then, there) = (code.places.row(row) for row in parted)
    if (file, function) != (other, there) or file is None or line is None or then is None:
        return None
    inside = pl.col("file").cast(pl.String).eq(file) & pl.col("function").cast(pl.String).eq(function)
    further = code.places.filter(inside & (pl.col("line") > line) & (pl.col("line") <= then))["line"]
    return LinesBetween(file, function, int(line), min(further.to_list(), default=None))
