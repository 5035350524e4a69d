"""Time by stack: the lines that called each other down to where time went, from the X-ray."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses import lines as lines_table
from nsysx.analyses.helpers.analysis_bounds import MOST_STACKS
from nsysx.events import sampled_stacks as stacks_room
from nsysx.events.code_lines import CodeLines
from nsysx.events.profile import Profile
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "stacks"
TITLE = "Time by stack"


class StackRow(TypedDict):
    """One stack of lines, of the program and of packages."""

    stack: Annotated[str, Of("its lines, outermost first, separated by semicolons: file:line function", label="calls")]
    gpu_ns: Annotated[
        int,
        Of(
            "time of the GPU ops that its last line launches; sums to all GPU work",
            "ns",
            sums="scope",
            label="GPU time",
        ),
    ]
    host_ns: Annotated[
        int,
        Of(
            "time of the thread that drives the steps, at its last line; sums to the step on the CPU",
            "ns",
            sums="scope",
        ),
    ]
    idle_caused_ns: Annotated[
        int, Of("idle time of the shown device that its last line caused", "ns", sums="scope", label="GPU idle caused")
    ]
    launches: Annotated[int, Of("launches of kernels and CUDA graphs", sums="scope")]


COLUMNS = columns_of(StackRow)
ROWS: TableOf[StackRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="steady",
    place=36,
    group="where",
    intro="Which lines called which, packages included. Of a call in a package the table by line shows the program's own line.",
    first=names("stack gpu_ns host_ns idle_caused_ns launches"),
    bar="gpu_ns",
    depth=2,
    rows=40,
    keep="gpu_ns",
)


def last_of(file: str) -> str:
    """Return a file without its folder; of a package from the package on."""
    return stacks_room.short(file) if stacks_room.is_library(file) else file.replace("\\", "/").rsplit("/", 1)[-1]


def frames(lines: CodeLines) -> list[str]:
    """Return each place as a frame of a stack."""
    return [
        f"{last_of(file)}{'' if line is None else f':{line}'} {function}".replace(";", ",")
        for file, line, function in lines.places.iter_rows()
    ]


def table(profile: Profile) -> pl.DataFrame:
    """Return a row per stack, that which costs the GPU's timeline most first, and the rest."""
    lines = lines_table.lines_of_calls(profile)
    rows, of_place = lines_table.by_stack(profile, lines), frames(lines)
    rows = rows.sort(
        pl.col("gpu_self_ns") + pl.col("idle_caused_ns"), "host_self_ns", "stack", descending=[True, True, False]
    )
    rows = rows.select(
        "stack", gpu_ns="gpu_self_ns", host_ns="host_self_ns", idle_caused_ns="idle_caused_ns", launches="launches"
    )
    rest, rows = rows.slice(MOST_STACKS), rows.head(MOST_STACKS)
    text = [";".join(of_place[p] for p in lines.chain(s)) or lines_table.NOT_KNOWN for s in rows["stack"].to_list()]
    rows = rows.with_columns(pl.Series("stack", text, dtype=pl.String))
    if rest.height:
        others = rest.select(
            pl.lit(f"({rest.height} more)").alias("stack"),
            pl.col("gpu_ns", "host_ns", "idle_caused_ns", "launches").sum(),
        )
        rows = pl.concat([rows, others])
    return rows.select(c.name for c in COLUMNS)
