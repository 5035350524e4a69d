"""What grows where the steps keep growing: the kernels that take longer, the dimension of their grids, and the allocator beside them."""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.catalogue import Call
from nsysx.events.kernel_names import function_of
from nsysx.events.profile import Profile
from nsysx.judging.judging_bounds import GROWING_KERNEL_LETTERS, GROWING_KERNEL_SHARE, GROWTH_PART_OF_STEPS
from nsysx.reading import schema

_AXES = ("x", "y", "z")


def words(profile: Profile) -> str:
    """Return which kernels grow with the steps and what else changes with them, as a sentence; "" where nothing stands out."""
    shown = pl.col("process") == profile.steps.process
    steps = profile.steps.cpu.filter(shown & pl.col("steady")).sort("start_ns")
    if steps.height < 2 * GROWTH_PART_OF_STEPS:
        return ""
    of_step = profile.steady_ops.filter(shown & (pl.col("op_kind") == "kernel")).drop_nulls("call_start_ns")
    of_step = of_step.select("name", "grid", "call_start_ns", ns=pl.col("end_ns") - pl.col("start_ns"))
    of_step = of_step.sort("call_start_ns").join_asof(
        steps.select(pl.col("start_ns").alias("begin"), pl.int_range(pl.len()).alias("step")),
        left_on="call_start_ns",
        right_on="begin",
    )
    few = steps.height // GROWTH_PART_OF_STEPS
    early, late = (of_step.filter(c) for c in (pl.col("step") < few, pl.col("step") >= steps.height - few))
    sums = [part.group_by("name").agg(pl.col("ns").sum() / few) for part in (early, late)]
    grown = sums[1].join(sums[0], on="name", how="left", suffix="_early").fill_null(0)
    grown = grown.with_columns(pl.col("name").cast(pl.String), more=pl.col("ns") - pl.col("ns_early"))
    whole = float(grown["more"].sum())
    top = grown.sort("more", "name", descending=[True, False]).head(1).to_dicts()
    named = ""
    if top and whole > 0 and top[0]["more"] >= GROWING_KERNEL_SHARE * whole:
        row = top[0]
        took = f"{units.duration(row['ns_early'])} to {units.duration(row['ns'])} a step"
        name = function_of(row["name"])[:GROWING_KERNEL_LETTERS]
        part = units.share(min(row["more"], whole), whole)
        named = f" {part} of the growth is the kernel {name}, {took}{_grid(early, late, row['name'])}."
    return named + _allocator(profile)


def _grid(early: pl.DataFrame, late: pl.DataFrame, name: str) -> str:
    """Return which dimension of a kernel's grid grows most, from and to the median of its launches; "" if none does."""
    sizes = []
    for part in (early, late):
        grids = part.filter(pl.col("name").cast(pl.String) == name)["grid"].drop_nulls().to_list()
        if not grids:
            return ""
        sides = zip(*(schema.unpack(grid, schema.GRID) for grid in grids), strict=True)
        sizes.append([float(pl.Series(side).median() or 0) for side in sides])  # type: ignore[arg-type]
    ratio, axis, a, b = max((b / max(a, 1), axis, a, b) for axis, a, b in zip(_AXES, *sizes, strict=True))
    return f", with {a:.0f} to {b:.0f} blocks along {axis}" if ratio > 1 and round(a) != round(b) else ""


def _allocator(profile: Profile) -> str:
    """Return how often the allocator frees device memory in these steps, "" if it does not."""
    frees = int((profile.steady_calls["kind"] == Call.FREE).sum())
    return f" The allocator frees device memory {units.several(frees, 'time')} meanwhile." if frees else ""
