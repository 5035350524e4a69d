"""Host time by line: the GPU's idle time due to host code, split over the Python lines that ran meanwhile."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.events.host_pieces import CAUSES
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.sampled_lines import SampledLines, host_lines
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "host_lines"
TITLE = "Host time by line"
#: The command that records it.
RECORD = "nsys profile --python-sampling=true"
#: The name for time that no sample covers.
NOT_SAMPLED = "(not sampled)"


class HostLineRow(TypedDict):
    """One line, framework function, module and phase."""

    file: Annotated[
        str | None,
        Of(
            "file of the innermost frame of the user's own code, else of the innermost frame; null if not sampled",
            label="Python line",
        ),
    ]
    line: Annotated[int | None, Of("its line")]
    function: Annotated[str, Of(f"its function; {NOT_SAMPLED} for time that no sample covers")]
    framework: Annotated[
        str | None,
        Of("framework function that ran below it, as file:function; null in the line's own code", label="inside"),
    ]
    module: Annotated[
        str | None,
        Of(
            "module whose work came next, in parentheses what lies outside modules; null if not sampled", label="before"
        ),
    ]
    phase: Annotated[str | None, Of("phase of the work that came next")]
    idle_ns: Annotated[
        int,
        Of(
            "idle time of the shown device that the breakdown calls host code, while this ran; over all rows it sums to that",
            "ns",
            sums="scope",
            label="GPU idle",
        ),
    ]
    low_ns: Annotated[
        int | None,
        Of(
            "lower end of the 95 % interval of idle_ns (Wilson), from the number of samples; null where there is none",
            "ns",
            sums="scope",
            label="at least",
        ),
    ]
    high_ns: Annotated[int | None, Of("upper end of it", "ns", sums="scope", label="at most")]
    self_ns: Annotated[
        int, Of("part of idle_ns in the line's own code, with no framework function below", "ns", sums="scope")
    ]
    total_ns: Annotated[
        int | None,
        Of(
            "idle time in host code with this line anywhere in the stack, in all modules and phases",
            "ns",
            sums="scope",
            label="GPU idle below it",
        ),
    ]
    loader_idle_ns: Annotated[
        int,
        Of(
            "the same as idle_ns for what the breakdown calls data loader",
            "ns",
            sums="scope",
            label="GPU idle for data",
        ),
    ]
    host_ns: Annotated[
        int,
        Of(
            "time outside CUDA calls of the thread that drives the steps, while this ran; sums to that of the CPU breakdown",
            "ns",
            sums="scope",
            label="host time",
        ),
    ]
    samples: Annotated[int, Of("samples behind idle_ns and loader_idle_ns, over all steps")]
    thread: Annotated[
        int | None,
        Of("thread that was sampled; for autograd's thread, which runs no Python, the one that waits for it"),
    ]


COLUMNS = columns_of(HostLineRow)
ROWS: TableOf[HostLineRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="shown device",
    place=45,
    group="where",
    intro=(
        "What Python ran while the GPU idled for host code. The breakdown knows the total exactly; samples of the stack split it, and "
        "the interval says how well."
    ),
    first=("file", "framework", "module", "idle_ns", "low_ns", "high_ns", "samples", "total_ns", "host_ns", "phase"),
    bar="idle_ns",
    unknown="not sampled",
    hide=("thread", "self_ns"),
)


def _totals(lines: SampledLines, profile: Profile) -> pl.DataFrame:
    """Return function, file, line, total_ns: idle time with that line anywhere in the stack."""
    host = lines.seen.filter(lines.seen["cause"] == CAUSES["idle_ns"])
    stacks = host.group_by("stack").agg(pl.col("ns").sum().alias("idle_ns"))
    frames = profile.trace.stacks.join(stacks, on="stack", how="inner")
    frames = frames.select(
        "stack", pl.col("function").cast(pl.String), pl.col("file").cast(pl.String), "line", "idle_ns"
    ).unique(["stack", "function", "file", "line"])
    totals = frames.group_by("function", "file", "line").agg(pl.col("idle_ns").sum().round().cast(pl.Int64))
    return totals.rename({"idle_ns": "total_ns"})


def table(profile: Profile) -> pl.DataFrame:
    """Return a row per line, framework function, module and phase, and a row per phase for time that was not sampled."""
    if not profile.recorded("python_sample"):
        raise NotRecorded("Python's stacks were not sampled", RECORD)
    if not profile.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")
    if not profile.trace.samples.height:
        raise NotRecorded("the samples of Python's stacks hold no frames", f"{RECORD}, with nsys 2025 or newer")
    lines = profile.once(host_lines)
    places = lines.places.places.with_row_index("place").with_columns(pl.col("place").cast(pl.Int64))
    rows = lines.rows.join(places, on="place", how="left", maintain_order="left")
    rows = rows.join(
        _totals(lines, profile), on=["function", "file", "line"], how="left", nulls_equal=True, maintain_order="left"
    )
    sampled = pl.col("place").is_not_null()
    own_line = pl.col("framework").is_null() & sampled
    rows = rows.with_columns(
        pl.when(sampled).then("function").otherwise(pl.lit(NOT_SAMPLED)).alias("function"),
        pl.when(own_line).then("idle_ns").otherwise(0).alias("self_ns"),
        pl.when(sampled).then(pl.col("total_ns").fill_null(0)).alias("total_ns"),
        *(pl.when(sampled & (pl.col("idle_ns") > 0)).then(c).alias(c) for c in ("low_ns", "high_ns")),
    )
    order = ["idle_ns", "loader_idle_ns", "host_ns"]
    names = ["file", "line", "framework", "module", "phase", "thread"]
    rows = rows.sort(*order, *names, descending=[True] * 3 + [False] * 6, nulls_last=True)
    return rows.select(c.name for c in COLUMNS)
