"""Steps of several parts: what marks them proposes borders, the sequence of the work decides.

In reinforcement learning a rollout comes before every so many optimizer steps. Where something else runs after every k-th proposed
step, always after as many, computes on the device and takes a good part of the time, the step is the whole of it:

    proposed   |u|u|u|u|          |u|u|u|u|          |u|u|u|u|        u: one optimizer step
    else               [rollout  ]        [rollout  ]
    step       |       |                  |                  |

An evaluation after an epoch is none of it: it takes little of the time, or follows many steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from nsysx.events.event_bounds import BETWEEN_OF_STEP_SHARE, BETWEEN_WORKS_SHARE, FEWEST_PERIODS, MOST_STEP_PARTS
from nsysx.frames import lookup
from nsysx.frames.intervals import I64


def _parts(start: I64, end: I64, behind: I64, launched: I64) -> int | None:
    """Return how many proposed steps make one step, None if they are steps themselves.

    ``behind``: after which steps something else runs, in order. ``launched``: when kernels and graphs were launched.
    """
    count = np.unique(np.diff(behind))
    if len(behind) <= FEWEST_PERIODS or len(count) != 1 or count[0] > MOST_STEP_PARTS:
        return None
    begins, ends = end[behind], start[behind + 1]
    works = np.searchsorted(launched, ends) > np.searchsorted(launched, begins)
    whole = int(end[behind[-1]] - end[behind[0]])
    if works.mean() < BETWEEN_WORKS_SHARE or (ends - begins)[:-1].sum() < BETWEEN_OF_STEP_SHARE * whole:
        return None
    return int(count[0])


def grouped(
    cpu: pl.DataFrame, between: pl.DataFrame, ops: pl.DataFrame, seams: Sequence[int] = ()
) -> tuple[pl.DataFrame, dict[int, int]]:
    """Return the steps of each process, with those of several parts as one, and process -> how many parts where that is so.

    ``cpu``: process, index, number, thread, start_ns, end_ns, cut, parts. A step of several parts begins with what lies before them, has
    the number of the first, and is cut if it has too few; there are none where another part of the capture shows none. Before the first
    step it is as much work as before the others; parts before which there is less are no step. ``seams``: where the later parts of the
    capture begin; no step lies across.
    """
    if not between.height:
        return cpu, {}
    made, parts = [], {}
    launches = ops.select(
        "process", "call_start_ns", works=pl.Series(lookup.matching(ops["op_kind"], "^(kernel|graph)$"))
    )
    for (process,), steps in cpu.group_by("process", maintain_order=True):
        behind = between.filter(pl.col("process") == process)["index"].unique()
        launching = launches.filter((pl.col("process") == process) & pl.col("call_start_ns").is_not_null()).sort(
            "call_start_ns"
        )
        of_part = zip(
            *(_by_part(f, c, seams) for f, c in ((steps, "start_ns"), (launching, "call_start_ns"))), strict=True
        )
        windows = [_ProposedWindow(within, behind, launched) for within, launched in of_part if within.height]
        sizes = {size for window in windows if (size := window.size()) is not None}
        if len(sizes) != 1 or any(window.shows_none(max(sizes)) for window in windows):
            made.append(steps)
            continue
        parts[int(str(process))] = size = sizes.pop()
        whole = pl.concat([window.in_parts(size) for window in windows])
        made.append(whole.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("index")))
    return pl.concat(made) if made else cpu, parts


def _by_part(frame: pl.DataFrame, time: str, seams: Sequence[int]) -> list[pl.DataFrame]:
    """Return the rows of each part of the capture, by their time."""
    part = np.searchsorted(np.asarray(seams, np.int64), frame[time].to_numpy(), side="right")
    return [frame.filter(part == number) for number in range(len(seams) + 1)] if seams else [frame]


class _ProposedWindow:
    """The proposed steps of one process in one window, with what runs between them and what is launched."""

    def __init__(self, steps: pl.DataFrame, behind: pl.Series, launching: pl.DataFrame) -> None:
        self.steps = steps
        self.start, self.end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
        first = int(steps["index"][0])
        rows = behind.sort().to_numpy() - first
        self.behind = rows[(rows >= 0) & (rows < steps.height - 1)]
        self.called = launching["call_start_ns"].to_numpy()
        self.works = self.called[launching["works"].to_numpy()]

    def size(self) -> int | None:
        """Return of how many proposed steps a step is made, None if they are steps themselves."""
        return _parts(self.start, self.end, self.behind, self.works) if len(self.behind) else None

    def shows_none(self, size: int) -> bool:
        """Return whether nothing runs between so many steps here that it would, had a step ``size`` parts."""
        return not len(self.behind) and self.steps.height > FEWEST_PERIODS * size

    def in_parts(self, size: int) -> pl.DataFrame:
        """Return the steps of ``size`` parts each; none if it is not seen where one begins."""
        start, end, behind, called = self.start, self.end, self.behind, self.called
        if not len(behind):
            return self.steps.clear()
        first = np.arange(0 if behind[0] + 1 == size else behind[0] + 1, len(start), size)
        last = np.minimum(first + size, len(start)) - 1
        begin = end[np.maximum(first - 1, 0)]
        before = np.searchsorted(called, start[behind + 1]) - np.searchsorted(called, end[behind])
        first_call = int(np.searchsorted(called, start[first[0]])) - int(np.median(before))
        alone = first[0] == 0 and first_call >= 0
        begin[0] = called[first_call] if alone else begin[0]
        return self.steps[first].with_columns(
            pl.Series("start_ns", begin),
            pl.Series("end_ns", end[last]),
            pl.Series("cut", (last - first + 1 < size) | self.steps["cut"].to_numpy()[last]),
            pl.Series("parts", last - first + 1, dtype=pl.Int64),
        )[slice(0 if alone or first[0] > 0 else 1, None)]
