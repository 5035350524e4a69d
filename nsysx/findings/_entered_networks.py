"""The line by which a network is entered between steps, where an X-ray of the step before it was still open when it was called.

The network's own lines are those of training, too: the line that calls it for something else is the innermost that no forward of a step
has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl

from nsysx.analyses.lines import text_of, texts
from nsysx.events.code_lines import CodeLines
from nsysx.findings._case import Case
from nsysx.model import Row


def line_between_steps(case: Case) -> Row:
    """Return file and line that call a network between steps, of any rank; empty where no X-ray saw that."""
    code, profile = case.profile.code(), case.profile
    if code is None:
        return {}
    forwards = profile.attributed.gpu_ops.filter(pl.col("phase").cast(pl.String) == "forward")
    of_forwards = {row for stack in np.unique(code.op[forwards["op"].to_numpy()]) for row in _places(code, int(stack))}
    if not of_forwards:
        return {}
    steps = profile.steps.cpu.select("process", "index", "thread", step_ns="start_ns")
    entered = profile.steps.between.filter("evaluation").join(steps, ("process", "index"))
    entering = (_first(_places(code, stack), of_forwards) for stack in _open_at_the_end(code, entered))
    lines = (line for row in entering if (line := code.where(row)))
    # A loop that has come to its end closes the step as well, and calls nothing.
    return next((line for line in lines if not _loops(case, line)), {})


def _loops(case: Case, line: Row) -> bool:
    return (text_of(texts(case.profile), line["file"], line["line"]) or "").startswith(("for ", "while "))


def _open_at_the_end(code: CodeLines, entered: pl.DataFrame) -> Iterator[int]:
    """Yield the stack that was open on the thread of the steps when a network was entered, where the step before it was looked at."""
    for thread, since, entered_ns in entered["thread", "step_ns", "cpu_start_ns"].unique().sort(pl.all()).rows():
        lines = code.open.get(thread)
        if lines is None:
            continue
        last = int(np.searchsorted(lines.times, entered_ns, side="right")) - 1
        if 0 <= last < len(lines.labels) and since < lines.times[last]:
            yield int(lines.labels[last])


def _places(code: CodeLines, stack: int) -> Iterator[int]:
    """Yield the lines of a stack, innermost first, as rows of ``places``."""
    while stack >= 0:
        yield int(code.place[stack])
        stack = int(code.parent[stack])


def _first(rows: Iterable[int], of_forwards: set[int]) -> int:
    return next((row for row in rows if row not in of_forwards), -1)
