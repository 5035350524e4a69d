"""The program's own NVTX ranges, beside the modules that the probe marked: time inside, and the work launched there."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np
import polars as pl

from nsysx.events import layers
from nsysx.events.layers import Layer
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns, lookup
from nsysx.frames.intervals import I64
from nsysx.frames.lookup import totals
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "own_ranges"
TITLE = "Ranges of your own"


class RangeRow(TypedDict):
    """One path of ranges, or everything outside of them."""

    path: Annotated[
        str | None, Of("text of the range, after those of the ranges around it; null outside of all", label="range")
    ]
    steps: Annotated[int, Of("steady steps in which it occurs; 0 without steps")]
    calls: Annotated[int | None, Of("how often it was entered; null outside of all", sums="row")]
    cpu_ns: Annotated[
        int | None, Of("time inside it on its thread, nested ranges included; null outside of all", "ns", sums="row")
    ]
    gpu_ns: Annotated[int, Of("GPU op time of the work launched inside it, nested ranges included", "ns", sums="row")]
    self_gpu_ns: Annotated[
        int, Of("part of it launched in no nested range; sums to all GPU op time of the steady steps", "ns", sums="row")
    ]
    kernels: Annotated[int, Of("kernels launched in no nested range", sums="row")]
    wait_ns: Annotated[
        int, Of("backlog that blocking calls in no nested range waited for", "ns", sums="row", label="backlog waited")
    ]
    idle_blamed_ns: Annotated[
        int,
        Of(
            "idle time of the shown device that ended with GPU work launched in no nested range",
            "ns",
            sums="row",
            label="GPU idle blamed",
        ),
    ]


COLUMNS = columns_of(RangeRow)
ROWS: TableOf[RangeRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="rows",
    place=61,
    group="module-tables",
    intro=(
        "NVTX ranges in the program's own code, beside the modules that the probe marked. Work launched by backward counts for "
        "the range around backward()."
    ),
    first=("path", "gpu_ns", "self_gpu_ns", "cpu_ns", "wait_ns", "idle_blamed_ns", "calls", "kernels", "steps"),
    bar="self_gpu_ns",
    unknown="(outside of them)",
)
#: What torch's profiler appends to a label: phases with it are torch's own ("Optimizer.step#AdamW.step, op_id = 7").
_BY_TORCH = r", (seq|op_id) = \d+"
#: The other kinds are steps, which are no part of a step, and torch's operators and record_function labels, which have a table.
_KINDS = ("range", "phase", "module")


def _written(profile: Profile) -> tuple[Layer, I64, int]:
    """Return the program's ranges that lie within a steady step of the shown process, the step of each, and how many steps.

    A range around several steps (an epoch) is no part of a step.
    """
    ranges = profile.ranges.ranges
    of_process = pl.col("process") == profile.process
    steps = profile.steps.cpu.filter(of_process & (pl.col("steady") | pl.lit(profile.steps.whole))).sort("start_ns")
    written = of_process & ~pl.col("own") & ~pl.col("crossing") & pl.col("kind").is_in(_KINDS)
    rows = ranges.filter(written)
    by_torch = (rows["kind"] == "phase").to_numpy() & lookup.matching(rows["label"], _BY_TORCH)
    rows = rows.filter(~by_torch)
    begin, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    start, finish = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    step = np.searchsorted(begin, start, side="right") - 1
    inside = (step >= 0) & (finish <= np.append(end, 0)[step])
    # Each is named by where it lies; so is a module that somebody other than the probe marked.
    named = pl.when(pl.col("name").cast(pl.String) == "").then("cls").otherwise("name")
    layer = layers.layer_of(rows.filter(inside).with_columns(named.alias("name"), pl.lit("range").alias("kind")))
    step = np.searchsorted(begin, layer.rows["start_ns"].to_numpy(), side="right") - 1
    return layer, step, steps.height if profile.scope.steps else 0


def _innermost(profile: Profile, layer: Layer) -> I64:
    """Return the row of the layer that each API call of the report lies in, -1 for none; with one extra -1 for no call.

    Backward runs on its own threads: its calls belong to the range open on the thread that drives the steps.
    """
    calls = profile.steady_calls["call", "thread", "start_ns", "phase"].sort("thread")
    row = np.full(profile.attributed.api_calls.height + 1, -1, np.int64)
    drivers = profile.steps.cpu.filter(profile.steps.cpu["process"] == profile.process)["thread"].drop_nulls().unique()
    for (thread,), part in calls.group_by("thread"):
        t = part["start_ns"].to_numpy()
        inner = layer.at(int(thread), t).astype(np.int64)
        if len(drivers) == 1:
            backward = (part["phase"].cast(pl.String) == "backward").fill_null(False).to_numpy()
            inner = np.where((inner < 0) & backward, layer.at(int(drivers.item()), t), inner)
        row[part["call"].to_numpy()] = inner
    return row


def _with_nested(layer: Layer, values: I64) -> I64:
    """Return the values of ranges with those of all ranges nested in them."""
    parents, depths = layer.parents(), layer.depths()
    sums: I64 = values.copy()
    deepest_first = np.argsort(-depths, kind="stable")
    borders = np.flatnonzero(np.diff(depths[deepest_first])) + 1
    for level in np.split(deepest_first, borders):
        nested = level[parents[level] >= 0]
        np.add.at(sums, parents[nested], sums[nested])
    return sums


def _of_itself(profile: Profile, layer: Layer) -> dict[str, I64]:
    """Return what each range launched and waited for outside of nested ranges; the last place is for outside of all."""
    size, row_of_call = layer.rows.height + 1, _innermost(profile, layer)
    ops, idle = profile.steady_ops, profile.shown_idle()
    of_op = row_of_call[ops["call"].fill_null(-1).to_numpy()]
    # Idle time that no op ended lies outside too.
    of_any_op = np.append(row_of_call[profile.attributed.gpu_ops["call"].fill_null(-1).to_numpy()], -1)
    waited = profile.steady_calls.select("call").join(profile.waits["call", "backlog_ns"], on="call", how="inner")
    return {
        "self_gpu_ns": totals(of_op, (ops["end_ns"] - ops["start_ns"]).to_numpy(), size),
        "kernels": totals(of_op, (ops["op_kind"] == "kernel").to_numpy().astype(np.int64), size),
        "wait_ns": totals(row_of_call[waited["call"].to_numpy()], waited["backlog_ns"].to_numpy(), size),
        "idle_blamed_ns": totals(of_any_op[idle["op"].to_numpy()], idle["ns"].to_numpy(), size),
    }


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per path of ranges, in order of time, then one for everything outside of them.

    Raises NotRecorded if there are none, or if they already are the rows of the table of modules.
    """
    layer, step, steps = _written(profile)
    if not layer.rows.height:
        reason = "the program has no NVTX range of its own within a step"
        raise NotRecorded(reason, 'put what you want to see in `with torch.cuda.nvtx.range("name"):`')
    if not profile.ranges.ranges.select(layers.BY_PROBE.any()).item():
        reason = "no module was marked, so the program's own ranges are the rows of the table of modules"
        raise NotRecorded(reason, "nsysx run -- CMD")
    figures = _of_itself(profile, layer)
    names, key = layers.paths(layer)
    # Beyond a certain depth all ranges share a path: only the outermost of those counts, so that nothing counts twice.
    outer = np.append(key, -1)[layer.parents()] != key
    rows = pl.DataFrame(
        {
            "path": names.gather(key),
            "step": step,
            "first_ns": layer.rows["start_ns"],
            "cpu_ns": np.where(outer, (layer.rows["end_ns"] - layer.rows["start_ns"]).to_numpy(), 0),
            "gpu_ns": np.where(outer, _with_nested(layer, figures["self_gpu_ns"][:-1]), 0),
            **{name: values[:-1] for name, values in figures.items()},
        }
    )
    by_path = rows.group_by("path").agg(
        (pl.col("step").n_unique() * (1 if steps else 0)).cast(pl.Int64).alias("steps"),
        pl.len().cast(pl.Int64).alias("calls"),
        pl.col("cpu_ns", "gpu_ns", *figures).sum(),
        pl.col("first_ns").min(),
    )
    outside = {name: int(values[-1]) for name, values in figures.items()}
    unranged = {
        "path": None,
        "steps": steps,
        "calls": None,
        "cpu_ns": None,
        "gpu_ns": outside["self_gpu_ns"],
        **outside,
    }
    schema = frame_columns.schema(COLUMNS)
    return pl.concat([by_path.sort("first_ns", "path").select(list(schema)), pl.DataFrame([unranged], schema=schema)])
