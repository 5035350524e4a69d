"""Columns, and expressions for them, that several tables share."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from nsysx.reading import schema
from nsysx.rows import Of

#: Where a call was made.
ThreadRole = Annotated[
    str | None, Of("what the calling thread is for; null if it is the main thread or one of autograd's")
]
File = Annotated[
    str | None, Of("Python file of the first frame of the user's own code, null when not recorded", label="Python line")
]
Line = Annotated[int | None, Of("its line, null when not recorded")]
#: The idle time of a device that its host explains.
HostIdleNs = Annotated[
    int,
    Of(
        "idle time of the shown device that the breakdown calls host code; over all rows it sums to that",
        "ns",
        sums="scope",
        label="GPU idle",
    ),
]
LoaderIdleNs = Annotated[
    int, Of("the same for what the breakdown calls data loader", "ns", sums="scope", label="GPU idle for data")
]
#: A copy.
Direction = Annotated[str, Of("HtoD, DtoH, DtoD, ...")]
FromMemory = Annotated[str, Of("memory of the source: pageable, pinned, device, ...", label="from memory")]
ToMemory = Annotated[str, Of("memory of the destination", label="to memory")]
BytesPerS = Annotated[float | None, Of("bytes over time on the device; null without time", "bytes/s")]


def memory(column: str) -> pl.Expr:
    """Return the kind of memory in words, from Nsight's code."""
    kind = pl.col(column).replace_strict(schema.MEMORY_KINDS, default="unknown", return_dtype=pl.String)
    return kind.fill_null("unknown").alias(column)


def share(values: pl.Series) -> pl.Expr:
    """Return each value of a column as a part of its sum, 0 to 1; null if that is 0."""
    whole = values.sum()
    return pl.col(values.name) / whole if whole else pl.lit(None, dtype=pl.Float64)


def with_rest(rows: pl.DataFrame, most: int, what: str, *sums: str) -> pl.DataFrame:
    """Return the first rows as they are and one row for all beyond ``most``, named after ``what``, so that these sums hold."""
    unlisted = rows.slice(most)
    if not unlisted.height:
        return rows
    rest = {"name": f"({unlisted.height} {what})", **{c: unlisted[c].sum() for c in sums}}
    return pl.concat([rows.head(most), pl.DataFrame([rest], schema=rows.schema)])
