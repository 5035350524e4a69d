"""cuda.Event audit: what the program's event pairs read, and the kernel time inside them."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import event_makers, event_pairs, event_rounds
from nsysx.analyses.helpers.analysis_bounds import TRUE_READING_SHARE
from nsysx.analyses.helpers.event_pairs import PARTS
from nsysx.events.profile import NotRecorded, Profile
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "events"
TITLE = "CUDA event windows"


class EventRow(TypedDict):
    """The windows between the CUDA events of one place."""

    site: Annotated[int, Of("number of the place, from 0")]
    loop: Annotated[int | None, Of("number of the loop that times several places in turn; null if it times one")]
    turn: Annotated[int | None, Of("turn of this place in its loop, from 1; null if the loop times one")]
    turns: Annotated[int | None, Of("how many places the loop times in turn; null if it times one")]
    module: Annotated[str | None, Of("module at the first record")]
    phase: Annotated[str | None, Of("phase at the first record")]
    windows: Annotated[int, Of("pairs of events")]
    kernels_each: Annotated[float, Of("kernels inside, median", label="kernels in each")]
    first_ns: Annotated[int, Of("reading of the first window", "ns", label="first call")]
    median_ns: Annotated[float, Of("median reading", "ns")]
    min_ns: Annotated[int, Of("smallest reading", "ns")]
    max_ns: Annotated[int, Of("largest reading", "ns")]
    kernel_median_ns: Annotated[float, Of("median time in which a kernel of the stream ran", "ns")]
    total_ns: Annotated[int, Of("all readings: the sum of the six parts", "ns")]
    kernel_ns: event_pairs.KernelNs
    copy_ns: event_pairs.CopyNs
    memset_ns: event_pairs.MemsetNs
    launch_wait_ns: event_pairs.LaunchWaitNs
    other_streams_ns: event_pairs.OtherStreamsNs
    idle_ns: event_pairs.IdleNs
    paired_by: Annotated[str, Of("read (as elapsed_time asked for them), or order (by the order of the records)")]
    device_stamps: Annotated[bool, Of("timed on the device; false: inferred from stream order")]
    made_by: Annotated[
        str,
        Of(
            "program, or torch: the wrapper of a rank times itself and orders its streams with events, and an operator, a library or a "
            "compiler times the kernels that it chooses from"
        ),
    ]
    verdict: Annotated[
        str,
        Of(
            "kernel (at least 90 % of the readings, of all and of the median one), or the largest of the other parts",
            codes=True,
        ),
    ]


COLUMNS = columns_of(EventRow)
ROWS: TableOf[EventRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="whole",
    place=220,
    matters=("NSX107", "NSX115"),
    intro=("Windows between pairs of torch.cuda.Event records, and what was in them: only the kernel part is work."),
    first=names(
        "site turn module verdict median_ns kernel_median_ns first_ns min_ns max_ns windows kernels_each "
        "launch_wait_ns idle_ns copy_ns"
    ),
    hide=("loop",),
    depth=1,
)


def grouped(profile: Profile) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the windows with the number of their place, and the places; see ``_grouped``."""
    return profile.once(_grouped)


def _grouped(profile: Profile) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the windows with the number of their place, and the places.

    Places differ by module, by what ran, and by their turn in a loop that times several places in turn.

    Raises NotRecorded without event records, or without pairs among them.
    """
    if not profile.recorded("event"):
        raise NotRecorded(
            "the report has no CUDA event record: the program records none, or the capture left them out", "-t cuda"
        )
    pairs = event_pairs.windows(profile).pairs
    if not pairs.height:
        raise NotRecorded("events are recorded, but no two are read as a pair: only streams and caches use them")
    pairs = event_rounds.placed(event_makers.with_makers(profile, pairs), profile.attributed.gpu_ops)
    key = ["process", "thread", "stream", "module", "phase", "paired_by", "device_stamps", "like_kernels", "like_ops"]
    key += ["loop", "turn", "turns", "made_by"]
    # Windows of one place may hold different kernels: a long one, read well, does not make the short ones right.
    read = pl.col("kernel_ns") / pl.col("reading_ns")
    share = pl.min_horizontal(pl.col("kernel_ns").sum() / pl.col("reading_ns").sum(), read.median())
    places = (
        pairs.sort("start_ns")
        .group_by(key, maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("windows"),
            pl.col("kernels").median().alias("kernels_each"),
            pl.col("reading_ns").first().alias("first_ns"),
            pl.col("reading_ns").median().alias("median_ns"),
            pl.col("reading_ns").min().alias("min_ns"),
            pl.col("reading_ns").max().alias("max_ns"),
            pl.col("kernel_ns").median().alias("kernel_median_ns"),
            pl.col("reading_ns").sum().alias("total_ns"),
            *(pl.col(p).sum() for p in PARTS),
            share.alias("_share"),
        )
        .with_row_index("site")
        .with_columns(pl.col("site").cast(pl.Int64))
    )
    largest = pl.concat_list(PARTS[1:]).list.arg_max()
    names = [p.removesuffix("_ns") for p in PARTS[1:]]
    verdict = (
        pl.when(pl.col("_share") >= TRUE_READING_SHARE)
        .then(pl.lit("kernel"))
        .otherwise(largest.replace_strict(dict(enumerate(names)), return_dtype=pl.String))
    )
    pairs = pairs.join(places.select(*key, "site"), on=key, how="left", nulls_equal=True, maintain_order="left")
    several = pl.when(pl.col("turns") > 1)
    told = (
        several.then(pl.col("turn") + 1).alias("turn"),
        *(several.then(pl.col(c)).alias(c) for c in ("turns", "loop")),
    )
    return pairs, places.with_columns(verdict.alias("verdict"), *told)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per place, longest total first."""
    _, places = grouped(profile)
    return places.sort("total_ns", "site", descending=[True, False])
