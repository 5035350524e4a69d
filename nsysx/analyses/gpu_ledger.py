"""Where the steady time of each device went; the parts sum to the window exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict, cast

import numpy as np
import polars as pl

from nsysx.catalogue import CAUSES, DeviceActivity
from nsysx.events import ledger
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns
from nsysx.frames.lookup import totals
from nsysx.model import TableSpec
from nsysx.rows import Of, TableOf, columns_of

KEY = "gpu_ledger"
TITLE = "GPU breakdown"


class GpuRow(TypedDict):
    """One device over its steady steps; the parts sum to ``window_ns``."""

    process: Annotated[int, Of("process key")]
    device: Annotated[int, Of("CUDA ordinal inside the process")]
    steps: Annotated[int | None, Of("steps that the row covers; null where it covers the whole capture")]
    window_ns: Annotated[int, Of("the steady steps on the device timeline", "ns")]
    compute_ns: Annotated[int, Of("at least one compute kernel runs", "ns")]
    comm_ns: Annotated[int, Of("communication runs and no compute: exposed communication", "ns")]
    copy_ns: Annotated[int, Of("copies run and no kernel: exposed copies", "ns")]
    copy_HtoD_ns: Annotated[int, Of("of it host to device", "ns")]
    copy_DtoH_ns: Annotated[int, Of("of it device to host", "ns")]
    copy_DtoD_ns: Annotated[int, Of("of it inside or between devices", "ns")]
    copy_other_ns: Annotated[int, Of("of it any other direction", "ns")]
    memset_ns: Annotated[int, Of("nothing but memsets runs", "ns")]
    idle_ns: Annotated[int, Of("nothing runs", "ns")]
    busy_ns: Annotated[int, Of("GPU busy: the union of all GPU work", "ns")]
    hidden_copy_ns: Annotated[int, Of("copies that ran behind kernels", "ns")]
    hidden_comm_ns: Annotated[int, Of("communication that ran behind compute", "ns")]
    idle_causes: Annotated[Mapping[str, int], Of("idle time by cause; the causes sum to idle_ns", "ns")]


def by_activity(row: GpuRow) -> dict[DeviceActivity, int]:
    """Return what the device did (ns); the parts sum to the window."""
    return {
        DeviceActivity.COMPUTE: row["compute_ns"],
        DeviceActivity.COMM: row["comm_ns"],
        DeviceActivity.COPY: row["copy_ns"],
        DeviceActivity.MEMSET: row["memset_ns"],
        DeviceActivity.IDLE: row["idle_ns"],
    }


COLUMNS = columns_of(GpuRow)
ROWS: TableOf[GpuRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="rows",
    place=10,
    ledger=True,
)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per (process, device) that worked in the steady steps."""
    return pl.DataFrame(profile.once(rows_of), schema=frame_columns.schema(COLUMNS))


def rows_of(profile: Profile) -> list[GpuRow]:
    """Return the rows of the table. Raises NotRecorded."""
    if not profile.steps.windows.height:
        raise NotRecorded("no GPU work was recorded", "-t cuda")
    rows: list[GpuRow] = []
    for process, device, start, end in profile.steps.windows["process", "device", "start_ns", "end_ns"].iter_rows():
        parts = ledger.gpu_parts(profile.ledgers.activity[process, device], np.array([start]), np.array([end]))
        pieces = profile.idle()[process, device]
        ns = totals(pieces["cause"].to_numpy(), pieces["ns"].to_numpy(), len(CAUSES)).tolist()
        causes = {cause: n for cause, n in zip(CAUSES, ns, strict=True) if n}
        named = {k: int(v[0]) for k, v in parts.items()}
        steps = profile.scope_of(process).steps or None
        row = {"process": process, "device": device, "steps": steps, **named, "idle_causes": causes}
        rows.append(cast(GpuRow, row))
    return rows
