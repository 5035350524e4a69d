"""What a picture of one window says of idle time: when the device idles and why, and where work of each module and phase is."""

from __future__ import annotations

import polars as pl

from nsysx.analyses.helpers.analysis_bounds import MOST_DRAWN_PLACES
from nsysx.catalogue import CAUSES, Cause
from nsysx.events.profile import Profile
from nsysx.pictures import LongestStretch, Span


def idle_pieces(profile: Profile, process: int, device: int, start: int, end: int) -> pl.DataFrame:
    """Return the idle pieces of a device in [start, end), cut to it.

    Columns: start_ns, end_ns, cause (number), op, and module and phase of the work that ends the gap.
    """
    pieces = profile.ledgers.idle_of(process, device)
    pieces = pieces.filter((pieces["end_ns"] > start) & (pieces["start_ns"] < end))
    ops = profile.attributed.gpu_ops.select("op", pl.col("module", "phase").cast(pl.String))
    pieces = pieces.select(
        pl.col("start_ns").clip(start, end),
        pl.col("end_ns").clip(start, end),
        "cause",
        pl.col("op").cast(ops["op"].dtype),
    )
    return pieces.join(ops, on="op", how="left", maintain_order="left")


def idle_spans(pieces: pl.DataFrame, start: int) -> list[Span]:
    """Return the pieces as boxes of a lane that begins at ``start``."""
    causes = [Cause.named(code) for code in CAUSES]
    drawn = [(cause.color, f"idle: {cause.label}") for cause in causes]
    rows = pieces["start_ns", "end_ns", "cause"].iter_rows()
    return [Span(a - start, b - start, *drawn[number]) for a, b, number in rows]


def places(profile: Profile, pieces: pl.DataFrame, process: int, start: int, end: int) -> tuple[LongestStretch, ...]:
    """Return the longest stretch of each kind of work and of each part of idle time, by module and phase, in [start, end)."""
    parts = pl.Series([Cause.named(code).part.value for code in CAUSES])
    idle = pieces.with_columns(parts.gather(pieces["cause"].cast(pl.Int64)).alias("part"))
    ops = profile.attributed.gpu_ops.filter(
        (pl.col("process") == process) & (pl.col("end_ns") > start) & (pl.col("start_ns") < end)
    )
    part = pl.col("cls").cast(pl.String).replace({"compute": "work", "memset": "copy"}).alias("part")
    work = ops.select(
        pl.col("start_ns").clip(start, end),
        pl.col("end_ns").clip(start, end),
        pl.col("module", "phase").cast(pl.String),
        part,
    )
    both = pl.concat([idle.select(work.columns), work])
    longest = both.sort(pl.col("end_ns") - pl.col("start_ns"), "start_ns", descending=[True, False])
    longest = longest.unique(["module", "phase", "part"], keep="first", maintain_order=True).head(MOST_DRAWN_PLACES)
    rows = longest["start_ns", "end_ns", "module", "phase", "part"].iter_rows()
    return tuple(
        LongestStretch(a - start, b - start, module or "", phase or "", part) for a, b, module, phase, part in rows
    )
