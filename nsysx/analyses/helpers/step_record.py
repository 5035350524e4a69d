"""The steps of the shown process for the Summary: a row per step, the stretches between steps, mean and median."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypedDict, cast

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events import ledger
from nsysx.events.coverage import STEADY
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.model import Row, Steps
from nsysx.rows import Of, columns_of


class StepRow(TypedDict):
    """One step of the shown process, on its shown device; the parts of ``gpu_ns`` sum to it."""

    index: Annotated[int, Of("index of the step in its process, from 0")]
    number: Annotated[int, Of("number that the program gave it, -1 for none")]
    start_ns: Annotated[int, Of("start on the CPU", "ns")]
    end_ns: Annotated[int, Of("end on the CPU", "ns")]
    warmup: Annotated[bool, Of("comes before the steady steps")]
    steady: Annotated[bool, Of("averages are taken over it")]
    cut: Annotated[bool, Of("the last step, whose end was not recorded")]
    cpu_ns: Annotated[int, Of("length on the CPU", "ns")]
    device: Annotated[int | None, Of("the shown device, null without GPU work")]
    gpu_start_ns: Annotated[int | None, Of("start on the device, null likewise", "ns")]
    gpu_end_ns: Annotated[int | None, Of("end on the device, null likewise", "ns")]
    gpu_ns: Annotated[int | None, Of("length on the device: compute + comm + copy + memset + idle", "ns")]
    gpu_compute_ns: Annotated[int | None, Of("device computes", "ns")]
    gpu_comm_ns: Annotated[int | None, Of("device communicates and computes nothing", "ns")]
    gpu_copy_ns: Annotated[int | None, Of("device copies and does none of the above", "ns")]
    gpu_memset_ns: Annotated[int | None, Of("device sets memory and does none of the above", "ns")]
    gpu_idle_ns: Annotated[int | None, Of("device idles", "ns")]
    phases: Annotated[Mapping[str, int], Of("time of each innermost phase on the CPU", "ns")]


#: The columns of ``Steps.rows``.
STEPS = columns_of(StepRow)


def rows_of(steps: Steps) -> Sequence[StepRow]:
    """Return the rows of the steps with the columns that mypy knows."""
    return cast(Sequence[StepRow], steps.rows)


def gpu_parts(row: StepRow) -> dict[str, int | None]:
    """Return what the device does in a step, ns, by the names of the GPU ledger; null without GPU work."""
    return {
        DeviceActivity.COMPUTE.column: row.get("gpu_compute_ns"),
        DeviceActivity.COMM.column: row.get("gpu_comm_ns"),
        DeviceActivity.COPY.column: row.get("gpu_copy_ns"),
        DeviceActivity.MEMSET.column: row.get("gpu_memset_ns"),
        DeviceActivity.IDLE.column: row.get("gpu_idle_ns"),
    }


def _step_rows(profile: Profile) -> tuple[Row, ...]:
    """Return one row per step of the shown process, on its busiest device, parts summing to its lengths."""
    table = profile.steps
    cpu, gpu = (lookup.having(frame, process=table.process) for frame in (table.cpu, table.gpu))
    device = profile.device
    tiles: dict[int, tuple[int, int]] = {}
    parts: dict[str, Any] = {}
    if gpu.height and device is not None:
        on_device = lookup.having(gpu, device=device).sort("index")
        tiles = {i: (a, b) for i, a, b in on_device["index", "start_ns", "end_ns"].iter_rows()}
        parts = ledger.gpu_parts(
            profile.ledgers.activity[table.process, device],
            on_device["start_ns"].to_numpy(),
            on_device["end_ns"].to_numpy(),
        )
        order = {i: n for n, i in enumerate(on_device["index"].to_list())}
    rows = []
    # Phase spans of a thread are disjoint, so those of a step are one slice.
    spans = {
        t: (s["start_ns"].to_numpy(), s["end_ns"].to_numpy(), s["phase"].to_list())
        for (t,), s in lookup.parted(profile.attributed.phase_spans.sort("start_ns"), "thread").items()
    }
    no_spans = (np.empty(0, np.int64), np.empty(0, np.int64), list[str]())
    for index, number, thread, start, end, warmup, steady, cut in cpu[
        "index", "number", "thread", "start_ns", "end_ns", "warmup", "steady", "cut"
    ].iter_rows():
        phases: dict[str, int] = {}
        begins, ends, names = spans.get(thread, no_spans)
        inside = slice(int(np.searchsorted(ends, start, side="right")), int(np.searchsorted(begins, end)))
        for a, b, name in zip(begins[inside].tolist(), ends[inside].tolist(), names[inside], strict=True):
            phases[name] = phases.get(name, 0) + min(b, end) - max(a, start)
        row: dict[str, Any] = {
            "index": profile.step_of_capture(index),
            "number": number,
            "start_ns": start,
            "end_ns": end,
            "warmup": warmup,
            "steady": steady,
            "cut": cut,
            "cpu_ns": end - start,
            "device": device,
            "gpu_start_ns": tiles[index][0] if index in tiles else None,
            "gpu_end_ns": tiles[index][1] if index in tiles else None,
            "phases": phases,
        }
        for name in ("window_ns", *(activity.column for activity in DeviceActivity)):
            key = "gpu_ns" if name == "window_ns" else f"gpu_{name}"
            row[key] = int(parts[name][order[index]]) if index in tiles else None
        rows.append(row)
    return tuple(rows)


def _stretches_between_steps(profile: Profile) -> tuple[Row, ...]:
    """Return one row for each stretch between two steps of the shown process that is itself no step, on its busiest device."""
    table = profile.steps
    between = table.between.filter(table.between["process"] == table.process)
    device = profile.device
    if not between.height or device is None:
        return ()
    between = between.filter(between["device"] == device)
    activity = profile.ledgers.activity[table.process, device]
    busy = activity.within(activity.labels > 0, between["start_ns"].to_numpy(), between["end_ns"].to_numpy())
    rows = between.select(
        profile.steps_of_capture().alias("index"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("gpu_ns"),
        pl.Series("gpu_busy_ns", busy),
        (pl.col("cpu_end_ns") - pl.col("cpu_start_ns")).alias("cpu_ns"),
        "evaluation",
    )
    return tuple(rows.iter_rows(named=True))


def _coverage(profile: Profile) -> Row | None:
    """Return how the recorded time of the shown process divides, None without steps; see ``model.Steps``."""
    covered = profile.steps.coverage
    if covered is None:
        return None
    # Steps of a long capture that were not read are steady: `sampling` would not have chosen else.
    unread = profile.trace.sampled.unread_ns if profile.trace.sampled else 0
    wall, steady, loop = (ns + unread for ns in (covered.wall_ns, covered.steady_ns, covered.loop_ns))
    return {
        "wall_ns": wall,
        "steady_ns": steady,
        "share": steady / wall if wall else 0.0,
        "loop_ns": loop,
        "loop_share": steady / loop if loop else 0.0,
        "rest": [{"what": name, "ns": ns} for name, ns in covered.parts.items() if name != STEADY],
    }


def _all_steady(profile: Profile, rows: Sequence[Row]) -> Row | None:
    """Return what all steady steps take, wherever they lie; None where they follow one another. See ``model.Steps``."""
    if profile.trace.sampled is not None:
        ns = profile.trace.sampled.lengths_ns[sum(r["warmup"] for r in rows) : -1].tolist()
    elif len(profile.steps.runs) > 1:
        steady = [r for r in rows if any(first <= r["index"] <= last for first, last in profile.steps.runs)]
        ns = [r["gpu_ns"] if r["gpu_ns"] is not None else r["cpu_ns"] for r in steady]
    else:
        return None
    return {
        "steps": len(ns),
        "mean_ns": round(sum(ns) / len(ns)),
        "median_ns": int(np.median(ns)),
        "low_ns": min(ns),
        "high_ns": max(ns),
    }


def _sampled(profile: Profile) -> Row | None:
    """Return which steps of a long capture were read, None where all were; see ``model.Steps``."""
    sampled = profile.trace.sampled
    if sampled is None:
        return None
    first, last = (profile.step_of_capture(index) for index in profile.steps.steady or (0, 0))
    return {
        "read": sum(b - a for a, b in sampled.parts),
        "usual_ns": round(sampled.usual_ns),
        "error": float(sampled.lengths_ns[first : last + 1].mean()) / sampled.usual_ns - 1,
        "long": len(sampled.long),
        "long_ns": sum(ns for _, ns in sampled.long),
    }


def _steady(profile: Profile) -> tuple[int, int] | None:
    """Return the first and last steady step, as counted in the capture."""
    if profile.steps.steady is None:
        return None
    first, last = profile.steps.steady
    return profile.step_of_capture(first), profile.step_of_capture(last)


def steps(profile: Profile) -> Steps:
    """Return the steps of the shown process, times in ns; mean and median are of the steady ones."""
    rows = _step_rows(profile)
    steady = [r for r in rows if r["steady"]]
    gpu = [r["gpu_ns"] for r in steady if r["gpu_ns"] is not None]
    cpu = [r["cpu_ns"] for r in steady]
    return Steps(
        source=profile.steps.source,
        rule=profile.steps.rule,
        count=len(rows) if profile.trace.sampled is None else len(profile.trace.sampled.lengths_ns),
        steady=_steady(profile),
        cpu_median_ns=int(np.median(cpu)) if cpu else None,
        gpu_median_ns=int(np.median(gpu)) if gpu else None,
        rows=rows,
        whole=profile.steps.whole,
        trend=asdict(profile.steps.trend),
        between=_stretches_between_steps(profile),
        cpu_mean_ns=round(sum(cpu) / len(cpu)) if cpu else None,
        gpu_mean_ns=round(sum(gpu) / len(gpu)) if gpu else None,
        scope=profile.scope,
        levels=tuple(asdict(level) for level in profile.steps.levels),
        coverage=_coverage(profile),
        parts=profile.steps.parts,
        all_steady=_all_steady(profile, rows),
        sampled=_sampled(profile),
    )
