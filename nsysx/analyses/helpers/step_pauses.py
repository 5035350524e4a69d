"""Pauses of Python (``Ranges.pauses``) with their step and phase, and the idle time of the GPU during them."""

from __future__ import annotations

import polars as pl

from nsysx.events import attribute
from nsysx.events import python_pauses as noted
from nsysx.events.profile import NotRecorded, Profile


def _idle(profile: Profile, process: int, start: pl.Series, end: pl.Series) -> pl.Series:
    """Return how long in each [start, end) a device of the process (the shown one, else its first) idled; null without one."""
    devices = sorted(d for p, d in profile.ledgers.activity if p == process)
    device = profile.device if process == profile.process else next(iter(devices), None)
    if device is None or device not in devices:
        return pl.Series([None] * len(start), dtype=pl.Int64)
    activity = profile.ledgers.activity[process, device]
    begin, stop = start.to_numpy(), end.to_numpy()
    busy = activity.within(activity.labels > 0, begin, stop)
    return pl.Series(stop - begin - busy, dtype=pl.Int64)


def _phases(profile: Profile, rows: pl.DataFrame) -> pl.Series:
    """Return the phase in which each pause begins on its thread, null outside of phases."""
    spans = profile.attributed.phase_spans.select(
        "thread", pl.col("start_ns").alias("_a"), pl.col("end_ns").alias("_b"), "phase"
    ).sort("_a")
    placed = rows["thread", "start_ns"].with_row_index("_row").sort("start_ns")
    placed = placed.join_asof(spans, left_on="start_ns", right_on="_a", by="thread", check_sortedness=False)
    inside = pl.when(pl.col("start_ns") < pl.col("_b")).then("phase")
    return placed.with_columns(inside.alias("phase")).sort("_row")["phase"]


def _modules(profile: Profile, rows: pl.DataFrame) -> pl.Series:
    """Return the module in which each pause begins, null outside of modules or if unknown."""
    thread = rows["thread"].fill_null(-1).to_numpy()
    modules = attribute.between_calls(profile.ranges, profile.attributed, thread, rows["start_ns"].to_numpy())
    return modules.set(modules.is_in(list(profile.attributed.without_path)).fill_null(False), None)


def in_steps(profile: Profile, rows: pl.DataFrame) -> pl.DataFrame:
    """Return stretches of time (process, start_ns, end_ns, in order of time) with duration_ns, and the step in which each begins.

    ``step`` and ``steady`` are null outside of steps, and where steps are not known.
    """
    steps = profile.steps.cpu if profile.steps.source != "capture" else profile.steps.cpu.clear()
    bounds = steps.select("process", "index", "steady", pl.col("start_ns").alias("_a"), pl.col("end_ns").alias("_b"))
    rows = rows.join_asof(bounds.sort("_a"), left_on="start_ns", right_on="_a", by="process", check_sortedness=False)
    inside = pl.col("start_ns") < pl.col("_b")
    return rows.with_columns(
        pl.when(inside).then(profile.steps_of_capture()).alias("step"),
        pl.when(inside).then("steady").alias("steady"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
    ).drop("index", "_a", "_b")


def placed(profile: Profile, kind: str) -> pl.DataFrame:
    """Return the pauses of one kind of the whole capture in order of time, with duration_ns, step, steady, phase, module,
    gpu_idle_ns.

    Raises NotRecorded unless a probe said that it notes them.
    """
    rows = profile.ranges.pauses.filter(pl.col("kind") == kind)
    told = {p for p in profile.ranges.notes["process"].unique().to_list() if noted.listened(profile.ranges.notes, p)}
    if not told and not rows.height:
        raise NotRecorded("this report was not made by a probe that notes them", "nsysx run -- CMD")
    rows = in_steps(profile, rows.sort("start_ns")).with_columns(gpu_idle_ns=pl.lit(None, dtype=pl.Int64))
    parts = [
        part.with_columns(_idle(profile, int(process), part["start_ns"], part["end_ns"]).alias("gpu_idle_ns"))
        for (process,), part in rows.drop_nulls("process").group_by("process", maintain_order=True)
    ]
    rows = pl.concat([rows.clear(), *parts]).sort("start_ns", "end_ns")
    module = _modules(profile, rows) if rows.height else pl.Series([], dtype=pl.String)
    return rows.with_columns(_phases(profile, rows).alias("phase"), module.alias("module"))
