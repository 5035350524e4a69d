"""The lines at which other threads of the program make calls: an X-ray notes them, but no stack of ``CodeLines`` has them."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.events.profile import Profile
from nsysx.events.python_lines import place
from nsysx.events.sampled_stacks import is_library
from nsysx.frames.intervals import I64, StepFunction, nesting
from nsysx.model import Row


def places_in_threads(profile: Profile, calls: I64) -> list[tuple[Row, Row]]:
    """Return for each call of a thread of the program the outermost line at work there, and the innermost; empty where none was noted."""
    repeats, made = profile.ranges.repeats, profile.attributed.api_calls
    noted = calls if repeats is None else np.asarray(repeats.like)[calls]
    thread, when = (made[column].to_numpy()[noted] for column in ("thread", "start_ns"))
    places: list[tuple[Row, Row]] = [({}, {})] * len(calls)
    for key in np.unique(thread).tolist():
        lines = profile.ranges.other_lines.filter(pl.col("thread") == key)
        of_program = [not is_library(place(label or "")[0]) for label in lines["label"].cast(pl.String).to_list()]
        lines = lines.filter(pl.Series(of_program, dtype=pl.Boolean))
        nest = nesting(lines["start_ns"].to_numpy(), lines["end_ns"].to_numpy(), 0)
        labels = lines["label"].cast(pl.String).to_list()
        theirs = np.flatnonzero((thread == key) & (noted >= 0))
        inner = StepFunction(nest.top.times, nest.top.labels).at(when[theirs])
        for which, row in zip(theirs.tolist(), inner.tolist(), strict=True):
            if row >= 0:
                outer = row
                while nest.parent[outer] >= 0:
                    outer = int(nest.parent[outer])
                places[which] = _where(labels[outer]), _where(labels[row])
    return places


def _where(label: str | None) -> Row:
    file, line, _ = place(label or "")
    return {"file": file, "line": line} if file is not None and line is not None else {}
