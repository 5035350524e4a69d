"""CUDA_LAUNCH_BLOCKING: by the environment, or by launches that return only after their kernels have ended; and what that costs."""

from __future__ import annotations

from nsysx.catalogue import Call, StepPart
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_when import on
from nsysx.findings._finding_bounds import (
    BLOCKED_SHARE,
    CLOCKS_APART_NS,
    FEWEST_BLOCKED,
    FREE_LAUNCH_NS,
    LONG_KERNEL_NS,
)
from nsysx.frames import lookup


def in_environment(case: Case, settings: RecordedSettings) -> str:
    value = settings.variable("CUDA_LAUNCH_BLOCKING")
    return f"CUDA_LAUNCH_BLOCKING={value}: each launch returns when its kernel has ended" if on(value) else ""


def seen(case: Case) -> str:
    """Return that launches return only after their kernels have ended, "" where they do not: nothing else makes them wait so."""
    ops, calls = case.ops, case.profile.attributed.api_calls
    long = ops.filter(
        (ops["op_kind"] == "kernel") & ops["call"].is_not_null() & (ops["end_ns"] - ops["start_ns"] >= LONG_KERNEL_NS)
    )
    launched = long["call"].to_numpy()
    launch = lookup.at(calls["kind"], launched).is_in(Call.LAUNCHES).to_numpy() if len(launched) else launched
    waits = calls["end_ns"].to_numpy()[launched] + CLOCKS_APART_NS >= long["end_ns"].to_numpy()
    if len(launched) < FEWEST_BLOCKED or waits[launch].sum() < BLOCKED_SHARE * len(launched):
        return ""
    return "each launch returns when its kernel has ended, as with CUDA_LAUNCH_BLOCKING=1"


def unblocked(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what launches take longer than those that wait for nothing.

    The replay cannot tell: it takes launches that are longer than launches are elsewhere for what tracing adds.
    """
    launches = case.calls.filter(case.calls["kind"].is_in(Call.LAUNCHES))
    waited = int((launches["end_ns"] - launches["start_ns"] - FREE_LAUNCH_NS).clip(0).sum())
    idle = case.taken_by(p for p in StepPart if p.idle)
    why = "what launches take longer than those that wait for nothing"
    return Saving(min(case.per_step(waited), idle), why, most_ns=idle, source="time")
