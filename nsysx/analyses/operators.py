"""PyTorch operators with their shapes, between modules and kernels: time, FLOPs, waits and allocations."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import operator_work, shared_columns
from nsysx.analyses.helpers.analysis_bounds import MOST_OPERATOR_ROWS
from nsysx.events.profile import Profile
from nsysx.frames import frame_columns
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "operators"
TITLE = "Operators"


class OperatorRow(TypedDict):
    """One operator with its shapes, module and phase."""

    name: Annotated[
        str | None, Of("operator whose FLOPs are known, else the innermost; null for GPU work outside of all")
    ]
    shapes: Annotated[str | None, Of("sizes of its tensors, such as 8x1024, 1024x512; null when not recorded")]
    module: Annotated[
        str | None,
        Of("module in which it was called; work outside of modules in parentheses; null where that is not known"),
    ]
    phase: Annotated[str | None, Of("phase of the step in which it was called")]
    caller: Annotated[str | None, Of("the outermost PyTorch operator around it; null for none")]
    calls: Annotated[int, Of("executions with GPU work in the steady steps", sums="scope")]
    kernels: Annotated[int, Of("kernels that they launched", sums="scope")]
    gpu_ns: Annotated[
        int,
        Of(
            "time of these kernels, copies and memsets; over all rows, all GPU work of the shown device",
            "ns",
            sums="scope",
        ),
    ]
    kernel: Annotated[str | None, Of("the kernel that takes most of it")]
    number_format: Annotated[
        str | None, Of("format that its kernels multiply, by their names: bf16, tf32 ...; else null")
    ]
    flops: Annotated[
        int | None, Of("floating point operations by the sizes; null where they are unknown", "FLOP", sums="scope")
    ]
    tflops: Annotated[float | None, Of("flops over gpu_ns", "TFLOP/s", label="rate")]
    peak_share: Annotated[
        float | None, Of("of the fastest GEMM measured in this format, 0 to 1; null where none was", "share")
    ]
    why_not: Annotated[str | None, Of("why flops is null; null if it multiplies nothing")]
    waits: Annotated[int, Of("synchronize calls that it made", sums="scope")]
    wait_ns: Annotated[int, Of("self time of these calls", "ns", sums="scope", label="waiting")]
    allocations: Annotated[int, Of("calls that reserve or free memory, such as cudaHostAlloc", sums="scope")]
    allocation_ns: Annotated[int, Of("self time of these calls", "ns", sums="scope", label="allocating")]


COLUMNS = columns_of(OperatorRow)
ROWS: TableOf[OperatorRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="shown device",
    place=65,
    intro=(
        "The level between modules and kernels. FLOPs follow from the sizes, as torch.utils.flop_counter counts them; the share is "
        "of the fastest GEMM measured on this GPU, not of a datasheet."
    ),
    first=("name", "gpu_ns", "shapes", "module", "phase", "calls", "tflops", "peak_share", "number_format", "kernel", "wait_ns",
           "allocation_ns"),
    unknown="(no operator)",
    bar="gpu_ns",
    hide=("flops", "caller", "why_not"),
    rows=40,
)  # fmt: skip
#: What one row is about.
_KEY = [c for c in operator_work.PLACE if c != "caller"]


def require(profile: Profile) -> None:
    """Raise NotRecorded where there is no such table."""
    profile.once(operator_work.operators_of_report)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per operator, shapes, module and phase, longest first. Raises NotRecorded."""
    done = operator_work.with_ideal(profile, profile.once(operator_work.executions))
    gpu = done.group_by(_KEY, maintain_order=True).agg(
        pl.col("caller").drop_nulls().first(),
        pl.col("counts").sum().cast(pl.Int64).alias("calls"),
        pl.col("kernels", "gpu_ns").sum(),
        pl.col("kernel").get(pl.col("gpu_ns").arg_max()),
        pl.col("number_format").drop_nulls().first(),
        # One unknown part makes the sum unknown.
        pl.when(pl.col("flops").null_count() == 0).then(pl.col("flops").sum()).alias("flops"),
        pl.when(pl.col("ideal_ns").null_count() == 0).then(pl.col("ideal_ns").sum()).alias("ideal_ns"),
        pl.col("why_not").drop_nulls().first(),
    )
    host = (
        profile.once(operator_work.host_side)
        .group_by(_KEY, maintain_order=True)
        .agg(pl.col("caller").drop_nulls().first(), pl.col("waits", "wait_ns", "allocations", "allocation_ns").sum())
    )
    rows = gpu.join(host, on=_KEY, how="full", coalesce=True, nulls_equal=True, maintain_order="left_right")
    time = pl.col("gpu_ns")
    rows = rows.with_columns(
        pl.col("calls", "kernels", "gpu_ns", "waits", "wait_ns", "allocations", "allocation_ns").fill_null(0),
        pl.coalesce("caller", "caller_right"),
    ).with_columns(
        tflops=pl.when(time > 0).then(pl.col("flops") / time / 1e3),
        peak_share=pl.when(time > 0).then((pl.col("ideal_ns") / time).clip(upper_bound=1.0)),
    )
    largest = pl.max_horizontal("gpu_ns", pl.col("wait_ns") + pl.col("allocation_ns"))
    rows = rows.sort(largest, "name", "shapes", "module", "phase", descending=[True, *[False] * 4], nulls_last=True)
    # As people write them: "[[8, 4], [], [4]]" as "8x4, 4"; numbers and tensors without dimensions have none.
    each = rows["shapes"].str.extract_all(r"\d[\d, ]*").list
    rows = rows.with_columns(
        shapes=each.join("; ").str.replace_all(", ", "x", literal=True).str.replace_all("; ", ", ", literal=True)
    ).select(*frame_columns.schema(COLUMNS))
    sums = ("calls", "kernels", "gpu_ns", "waits", "wait_ns", "allocations", "allocation_ns")
    return shared_columns.with_rest(rows, MOST_OPERATOR_ROWS, "other operators and shapes", *sums)
