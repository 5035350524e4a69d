"""Kernels of the steady steps by launch shape, and what the shape implies: blocks, waves, occupancy, number format."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.analyses.helpers import gpu_counters
from nsysx.analyses.helpers.analysis_bounds import EMPTY_LAST_WAVE_SHARE, SMALL_GRID_BLOCKS_PER_SM
from nsysx.events import kernel_math, occupancy
from nsysx.events.event_bounds import MEMORY_BOUND_SHARE
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64
from nsysx.reading import schema
from nsysx.reading.trace import DeviceLimits

#: The columns that identify a row of ``shapes``: one kernel, launched in one way, on one kind of device.
SHAPE = ("name", "grid", "block", "card")
SMALL_GRID, LAST_WAVE, FP32 = "fewer blocks than SMs", "last wave", "FP32 beside tensor cores"
DRAM = "DRAM bandwidth"


def cards(profile: Profile) -> dict[tuple[int, int], int]:
    """Return (process, device) -> the number of its kind; devices with equal limits are of one kind."""
    kinds: dict[DeviceLimits, int] = {}
    card_of = {}
    for device in sorted(profile.ledgers.activity):
        limits = profile.trace.limits.get(device, DeviceLimits())
        # Equal devices are interchangeable.
        same = DeviceLimits(**{n: getattr(limits, n) for n in DeviceLimits.__dataclass_fields__ if n != "gpu"})
        card_of[device] = kinds.setdefault(same, len(kinds))
    return card_of


def with_card(profile: Profile, ops: pl.DataFrame) -> pl.DataFrame:
    """Add ``card``, see ``cards``, to GPU ops."""
    cards_of = [
        pl.when((pl.col("process") == p) & (pl.col("device") == d)).then(pl.lit(card, pl.Int64))
        for (p, d), card in cards(profile).items()
    ]
    return ops.with_columns(pl.coalesce(*cards_of, pl.lit(None, pl.Int64)).alias("card"))


def _limits(profile: Profile, card: int) -> tuple[DeviceLimits, str]:
    """Return the limits of a kind of device, and its name."""
    device = next(p for p, c in cards(profile).items() if c == card)
    names = {(g.process, g.device): g.name for g in profile.trace.capture.gpus}
    return profile.trace.limits.get(device, DeviceLimits()), names.get(device, "")


def unpacked(packed: pl.Series, fields: tuple[tuple[str, int], ...]) -> list[I64]:
    """Return the values of each field of packed integers, as ``schema.unpack`` does for one."""
    # A copy: it is shifted in place.
    return list(schema.unpack(packed.to_numpy().astype(np.int64), fields))  # type: ignore[arg-type]


def threads(ops: pl.DataFrame) -> F64:
    """Return how many threads kernels (grid, block) are launched with."""
    product = np.ones(ops.height)
    for column, fields in (("grid", schema.GRID), ("block", schema.BLOCK)):
        for side in unpacked(ops[column], fields)[:3]:
            product *= np.maximum(side, 1)
    return product


def _described(profile: Profile, rows: pl.DataFrame, card: int) -> pl.DataFrame:
    """Add what the launch implies to the shapes of one kind of device; null if the report lacks the limits for it."""
    limits, name = _limits(profile, card)
    tensor = kernel_math.has_tensor_cores(name, limits.compute)
    shaped = rows["grid", "block"].with_row_index("row").drop_nulls()
    row = shaped["row"].cast(pl.Int64).to_numpy()
    columns: dict[str, pl.Series] = {}

    def put(column: str, values: np.ndarray, kind: pl.DataType) -> None:
        whole = np.full(rows.height, None, object)
        whole[row] = values
        columns[column] = pl.Series(column, whole.tolist(), dtype=kind)

    gx, gy, gz = unpacked(shaped["grid"], schema.GRID)
    bx, by, bz, registers, shared = unpacked(shaped["block"], schema.BLOCK)
    blocks, threads = gx * gy * gz, bx * by * bz
    put("blocks", blocks, pl.Int64())
    put("threads", threads, pl.Int64())
    put("registers", registers, pl.Int64())
    put("shared_bytes", shared, pl.Int64())
    put("grid_text", np.array([f"{x}x{y}x{z}" for x, y, z in zip(gx, gy, gz, strict=True)], object), pl.String())
    put("block_text", np.array([f"{x}x{y}x{z}" for x, y, z in zip(bx, by, bz, strict=True)], object), pl.String())
    frame = rows.with_columns(columns.values())
    measured = not limits.missing and bool(len(row))
    nothing = np.full(len(row), None, object)
    figures = dict.fromkeys(("waves", "tail_share", "occupancy", "occupancy_limit"), nothing)
    if measured:
        assert limits.sm_count and limits.warps_per_sm
        resident = occupancy.resident(limits, threads, registers, shared)
        fits = resident.blocks > 0
        waves = np.where(fits, blocks / np.maximum(limits.sm_count * resident.blocks, 1), np.nan)
        figures["waves"] = _or_none(waves, fits)
        figures["tail_share"] = _or_none(1 - waves / np.ceil(np.maximum(waves, 1e-9)), fits & (waves > 1))
        figures["occupancy"] = _or_none(resident.blocks * resident.warps / limits.warps_per_sm, fits)
        figures["occupancy_limit"] = _or_none(np.array(occupancy.LIMITS, object)[resident.limit], fits)
    for column in ("waves", "tail_share", "occupancy"):
        put(column, figures[column], pl.Float64())
    put("occupancy_limit", figures["occupancy_limit"], pl.String())
    frame = frame.with_columns(columns.values())
    small = (
        pl.col("blocks") <= SMALL_GRID_BLOCKS_PER_SM * limits.sm_count
        if limits.sm_count
        else pl.lit(None, dtype=pl.Boolean)
    )
    return frame.with_columns(
        pl.lit(limits.sm_count, dtype=pl.Int64).alias("sm_count"),
        pl.when(small)
        .then(pl.lit(SMALL_GRID))
        .when((pl.col("number_format") == "fp32") & ~pl.Series(kernel_math.by_vector(frame["name"])) & tensor)
        .then(pl.lit(FP32))
        .when(pl.col("tail_share") >= EMPTY_LAST_WAVE_SHARE)
        .then(pl.lit(LAST_WAVE))
        .alias("limit"),
    )


def _or_none(values: np.ndarray, valid: np.ndarray) -> np.ndarray:
    result = np.full(len(values), None, object)
    result[valid] = values[valid]
    return result


_COUNTED = {"samples": pl.Int64, **dict.fromkeys(("dram", "tensor_active", "sm_active"), pl.Float64)}


def _with_counters(profile: Profile, rows: pl.DataFrame) -> pl.DataFrame:
    """Add samples, dram, tensor_active and sm_active, null if the GPU's counters were not sampled, and the limit they show."""
    try:
        counters = gpu_counters.of_kernels(profile)
    except NotRecorded:
        return rows.with_columns(pl.lit(None, dtype=kind).alias(c) for c, kind in _COUNTED.items())
    on = ["name", "grid", "block"]
    rows = rows.join(counters.select(*on, *_COUNTED), on=on, how="left", nulls_equal=True).with_columns(
        pl.col("samples").fill_null(0)
    )
    bound = pl.when(pl.col("dram") >= MEMORY_BOUND_SHARE).then(pl.lit(DRAM))
    return rows.with_columns(pl.coalesce(bound, "limit").alias("limit"))


def shapes(profile: Profile) -> pl.DataFrame:
    """Return one row per shape (SHAPE) of the kernels of the steady steps, longest total first. Raises NotRecorded.

    Columns: `derived.KERNEL_SHAPES`.
    """
    if not profile.recorded("kernel"):
        raise NotRecorded("no kernel was recorded", "-t cuda")
    ns = pl.col("ns")
    ops = profile.steady_ops.select(
        "process", "device", "name", "grid", "block", "family", "cls", ns=pl.col("end_ns") - pl.col("start_ns")
    )
    ops = with_card(profile, ops).drop("process", "device").filter(profile.steady_ops["op_kind"] == "kernel")
    grouped = ops.group_by(SHAPE).agg(
        pl.col("family", "cls").first(),
        pl.len().cast(pl.Int64).alias("count"),
        ns.sum().alias("total_ns"),
        ns.median().alias("median_ns"),
    )  # fmt: skip
    grouped = grouped.with_columns(kernel_math.number_format(grouped["name"], grouped["family"]).alias("number_format"))
    parts = [_described(profile, part, card) for (card,), part in lookup.parted(grouped, "card").items()]
    if not parts:
        raise NotRecorded("no kernel runs in the steady steps")
    rows = _with_counters(profile, pl.concat(parts)).with_columns(pl.col("name").cast(pl.String).alias("_name"))
    return rows.sort("total_ns", "_name", "grid", "block", "card", descending=[True, *[False] * 4]).drop("_name")
