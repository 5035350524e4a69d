"""What a picture of one window says of the program's code: the line that the host is at, and the module that the device works for."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.analyses.helpers.analysis_bounds import MOST_DRAWN_GAPS
from nsysx.events.attribute import IN_STEP
from nsysx.events.code_lines import CodeLines
from nsysx.events.line_shares import divided
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, StepFunction
from nsysx.pictures import Span


def of_ops(profile: Profile, ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``ops``, rows of ``attributed.gpu_ops``, with module as text and ``line``: "path:line" that launched it, null if unknown."""
    code = profile.code()
    module = pl.col("module").cast(pl.String)
    if code is None:
        return ops.with_columns(module, pl.lit(None, pl.String).alias("line"))
    return ops.with_columns(
        module, lookup.at(_words(code), code.places_of(code.op[ops["op"].to_numpy()])).alias("line")
    )


def _words(code: CodeLines) -> pl.Series:
    """Return "path:line" of each place, null where the line is not known."""
    return code.places.select(pl.format("{}:{}", "file", "line").alias("line"))["line"]


def host_lines(profile: Profile, thread: int, start: int, end: int) -> list[Span]:
    """Return the line of the program's own code that a thread is at in [start, end), as boxes without gaps; empty without an X-ray.

    A call has its line. The time to the next call is drawn as the line that has most of it (``line_shares.divided``).
    """
    code = profile.code()
    if code is None:
        return []
    borders, call = _calls(profile.ledgers.threads.get(thread), start, end)
    gap = np.flatnonzero(call < 0)
    line_row = code.places_of(np.append(code.call, -1)[call])
    if len(gap) and len(call) <= MOST_DRAWN_GAPS:
        pieces = pl.DataFrame(
            {"thread": thread, "start_ns": borders[:-1][gap], "end_ns": borders[1:][gap], "group": gap}
        )
        shares = divided(profile, code, pieces.with_columns(pl.col("thread").cast(pl.Int64)))
        shares = shares.with_columns(pl.Series("place", code.places_of(shares["stack"].to_numpy())))
        sums = shares.group_by("group", "place").agg(pl.col("ns").sum()).sort("ns", "place", descending=True)
        most = sums.unique("group", keep="first", maintain_order=True)
        line_row[most["group"].to_numpy()] = most["place"].to_numpy()
    return _runs(borders[:-1], borders[1:], lookup.at(_words(code), line_row), start)


def _calls(calls: StepFunction | None, start: int, end: int) -> tuple[I64, I64]:
    """Return the borders of a thread's calls in [start, end), both ends among them, and the call between each two, -1 for none."""
    if calls is None:
        return np.array([start, end]), np.array([-1])
    inside = calls.times[(calls.times > start) & (calls.times < end)]
    borders = np.concatenate(([start], inside, [end])).astype(np.int64)
    return borders, calls.at(borders[:-1]).astype(np.int64)


def modules(ops: pl.DataFrame, start: int) -> list[Span]:
    """Return the modules for which a device works, as boxes; ``ops``: start_ns, end_ns, module of its work in order of time.

    A box lasts from the start of the first to the end of the last of the ops of one module that follow each other.
    """
    begin, finish = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    # Streams overlap: what runs is shown until the next one begins.
    finish = np.minimum(finish, np.append(begin[1:], np.iinfo(np.int64).max))
    return _runs(begin, np.maximum(finish, begin), ops["module"].replace(IN_STEP, None), start)


def _runs(begin: I64, finish: I64, name: pl.Series, start: int) -> list[Span]:
    """Return neighbors of one name as one box, times from ``start``; what has no name is in none."""
    rows = pl.DataFrame({"name": name, "start_ns": begin - start, "end_ns": finish - start})
    rows = rows.group_by(pl.col("name").rle_id().alias("run"), maintain_order=True).agg(
        pl.col("name").first(), pl.col("start_ns").first(), pl.col("end_ns").max()
    )
    rows = rows.filter(pl.col("name").is_not_null() & (pl.col("end_ns") > pl.col("start_ns")))
    return [Span(a, b, "", text) for text, a, b in rows["name", "start_ns", "end_ns"].iter_rows()]
