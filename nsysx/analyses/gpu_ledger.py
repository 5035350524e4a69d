"""Where the steady time of each device went; the parts sum to the window exactly."""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.catalogue import CAUSES
from nsysx.events import ledger
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import declared
from nsysx.frames.lookup import totals
from nsysx.model import Column, TableSpec

KEY = "gpu_ledger"
TITLE = "GPU ledger"
COLUMNS = (
    Column("process", "Int64", "", "process key"),
    Column("device", "Int64", "", "CUDA ordinal inside the process"),
    Column("steps", "Int64", "", "steps that the row covers; null where it covers the whole capture"),
    Column("window_ns", "Int64", "ns", "the steady steps on the device timeline"),
    Column("compute_ns", "Int64", "ns", "at least one compute kernel runs"),
    Column("comm_ns", "Int64", "ns", "communication runs and no compute: exposed communication"),
    Column("copy_ns", "Int64", "ns", "copies run and no kernel: exposed copies"),
    Column("copy_HtoD_ns", "Int64", "ns", "of it host to device"),
    Column("copy_DtoH_ns", "Int64", "ns", "of it device to host"),
    Column("copy_DtoD_ns", "Int64", "ns", "of it inside or between devices"),
    Column("copy_other_ns", "Int64", "ns", "of it any other direction"),
    Column("memset_ns", "Int64", "ns", "nothing but memsets runs"),
    Column("idle_ns", "Int64", "ns", "nothing runs"),
    Column("busy_ns", "Int64", "ns", "GPU busy: the union of all GPU work"),
    Column("hidden_copy_ns", "Int64", "ns", "copies that ran behind kernels"),
    Column("hidden_comm_ns", "Int64", "ns", "communication that ran behind compute"),
    Column("idle_causes", "Object", "ns", "idle time by cause; the causes sum to idle_ns"),
)
SHOWN = TableSpec(
    covers="rows",
    place=10,
    ledger=True,
)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per (process, device) that worked in the steady steps."""
    if not profile.steps.windows.height:
        raise NotRecorded("no GPU work was recorded", "-t cuda")
    rows = []
    for process, device, start, end in profile.steps.windows.select(
        "process", "device", "start_ns", "end_ns"
    ).iter_rows():
        parts = ledger.gpu_parts(profile.ledgers.activity[process, device], np.array([start]), np.array([end]))
        pieces = profile.idle()[process, device]
        ns = totals(pieces["cause"].to_numpy(), pieces["ns"].to_numpy(), len(CAUSES)).tolist()
        causes = {cause: n for cause, n in zip(CAUSES, ns, strict=True) if n}
        named = {k: int(v[0]) for k, v in parts.items()}
        steps = profile.scope_of(process).steps or None
        rows.append({"process": process, "device": device, "steps": steps, **named, "idle_causes": causes})
    return pl.DataFrame(rows, schema=declared.schema(COLUMNS))
