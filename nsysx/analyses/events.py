"""cuda.Event audit: what the program's event pairs read, and the kernel time inside them."""

from __future__ import annotations

import polars as pl

from nsysx.analyses.helpers import event_pairs, event_rounds
from nsysx.analyses.helpers.event_pairs import PARTS
from nsysx.events.profile import NotRecorded, Profile
from nsysx.model import Column, TableSpec

KEY = "events"
TITLE = "CUDA event windows"
COLUMNS = (
    Column("site", "Int64", "", "number of the place, from 0"),
    Column("loop", "Int64", "", "number of the loop that times several places in turn; null if it times one"),
    Column("turn", "Int64", "", "turn of this place in its loop, from 1; null if the loop times one"),
    Column("turns", "Int64", "", "how many places the loop times in turn; null if it times one"),
    Column("module", "String", "", "module at the first record"),
    Column("phase", "String", "", "phase at the first record"),
    Column("windows", "Int64", "", "pairs of events"),
    Column("kernels_each", "Float64", "", "kernels inside, median", label="kernels in each"),
    Column("first_ns", "Int64", "ns", "reading of the first window", label="first call"),
    Column("median_ns", "Float64", "ns", "median reading"),
    Column("min_ns", "Int64", "ns", "smallest reading"),
    Column("max_ns", "Int64", "ns", "largest reading"),
    Column("kernel_median_ns", "Float64", "ns", "median time in which a kernel of the stream ran"),
    Column("total_ns", "Int64", "ns", "all readings: the sum of the six parts"),
    Column("kernel_ns", "Int64", "ns", "a kernel of the stream ran"),
    Column("copy_ns", "Int64", "ns", "only a copy of the stream ran"),
    Column("memset_ns", "Int64", "ns", "only a memset of the stream ran"),
    Column("launch_wait_ns", "Int64", "ns", "the stream was empty: the CPU had not launched the next work yet"),
    Column("other_streams_ns", "Int64", "ns", "the stream was idle, another stream of the device was not"),
    Column("idle_ns", "Int64", "ns", "launched but not started: start latency and dependencies"),
    Column("paired_by", "String", "", "read (as elapsed_time asked for them), or order (by the order of the records)"),
    Column("device_stamps", "Boolean", "", "timed on the device; false: inferred from stream order"),
    Column("verdict", "String", "", "kernel (at least 90 % of the reading), or the largest of the other parts"),
)
SHOWN = TableSpec(
    covers="whole",
    place=220,
    matters=("NSX107", "NSX115"),
    intro=("Windows between pairs of torch.cuda.Event records, and what was in them: only the kernel part is work."),
    first=(
        "site",
        "turn",
        "module",
        "verdict",
        "median_ns",
        "kernel_median_ns",
        "first_ns",
        "min_ns",
        "max_ns",
        "windows",
        "kernels_each",
        "launch_wait_ns",
        "idle_ns",
        "copy_ns",
    ),
    hide=("loop",),
    depth=1,
)
#: A reading counts as kernel time if this share of it is.
_TRUE_SHARE = 0.9


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
    pairs = event_rounds.placed(pairs, profile.attributed.gpu_ops)
    key = ["process", "thread", "stream", "module", "phase", "paired_by", "device_stamps", "like_kernels", "like_ops"]
    key += ["loop", "turn", "turns"]
    share = pl.col("kernel_ns").sum() / pl.col("reading_ns").sum()
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
        pl.when(pl.col("_share") >= _TRUE_SHARE)
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
