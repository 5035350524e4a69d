"""How much of the recorded time of a process its steady steps cover, and what the rest is, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events.nvtx_ranges import Flags

#: What a stretch of time may be. The order is that of the record.
STEADY = "steady steps"
ONCE = "steps with a one-time cost"
BETWEEN = "between steps"
EVALUATION = "evaluation between steps"
WARMUP, OTHER, LAST = "warm-up steps", "other steps", "last step"
BEFORE, BEHIND = "before the first step", "after the last step"
NAMES = (STEADY, WARMUP, ONCE, OTHER, LAST, EVALUATION, BETWEEN, BEFORE, BEHIND)


@dataclass(frozen=True)
class Coverage:
    """``wall_ns``: from the first to the last CUDA call or GPU work of the process; ``parts`` (name -> ns) sum to it exactly.

    ``loop_ns`` is the part of it from the beginning of the first step to the end of the last one. What lies between two windows
    of recording counts for none of them.
    """

    wall_ns: int
    loop_ns: int
    parts: dict[str, int]

    @property
    def steady_ns(self) -> int:
        """Time in steady steps."""
        return self.parts.get(STEADY, 0)


def coverage(
    steps: pl.DataFrame, between: pl.DataFrame, once: Flags, span: tuple[int, int], cut: Sequence[int] = ()
) -> Coverage | None:
    """Return how the time of one process divides; None without steps.

    ``steps``: in order, on the device or on the CPU: index, start_ns, end_ns, steady, warmup, cut. ``between``: index of the step
    that something else follows, evaluation. ``span``: the process's first and last event (ns). What lies between two steps and is
    nothing else belongs to the step before, like the fetch of the next batch, and so does everything between warm-up steps.
    ``cut`` are the last steps of all parts of the capture but the last: what lies between one and the next step is no time of the
    program.
    """
    if not steps.height:
        return None
    start, end = (steps[c].to_numpy() for c in ("start_ns", "end_ns"))
    first, last = min(int(start[0]), span[0]), max(int(end[-1]), span[1])
    parts = dict.fromkeys(NAMES, 0)
    parts[BEFORE], parts[BEHIND] = int(start[0]) - first, last - int(end[-1])
    named = np.select(
        [steps["steady"].to_numpy(), steps["cut"].to_numpy(), np.asarray(once), steps["warmup"].to_numpy()],
        [np.full(len(start), name) for name in (STEADY, LAST, ONCE, WARMUP)],
        OTHER,
    ).tolist()
    elsewhere: dict[int, bool] = {}
    for index, evaluation in between["index", "evaluation"].iter_rows():
        elsewhere[index] = elsewhere.get(index, False) or evaluation
    following = np.append(start[1:], end[-1])
    seams = 0
    for i, name in enumerate(named):
        rest = int(following[i] - end[i])
        parts[name] += int(end[i] - start[i])
        if i in cut:
            seams += rest
        elif i in elsewhere and name != WARMUP:  # the first evaluation has costs that the others have not
            parts[EVALUATION if elsewhere[i] else BETWEEN] += rest
        else:
            parts[name] += rest
    return Coverage(
        last - first - seams, int(end[-1]) - int(start[0]) - seams, {name: ns for name, ns in parts.items() if ns}
    )
