"""Whether the report holds what was recorded: rows that cannot be used, and events that nsys says it may have lost."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np

from nsysx import nsys_messages, units
from nsysx.catalogue import Call
from nsysx.events.profile import Profile
from nsysx.judging import probe_checks, tracing_checks
from nsysx.model import Check
from nsysx.reading.trace import REVERSED, LeftOut, Trace

#: Names of checks that mean missing events if they are not ok.
BAD_TIMES, DIAGNOSTICS = "bad times", "diagnostics"

#: Rows that are not used as they are in the report: the check, its status, what happened to them, what to do.
_EFFECTS: dict[str, tuple[str, Literal["ok", "warn"], str, str]] = {
    "left out": ("bad rows", "warn", "left out because they cannot be placed", "export the report again"),
    "kept": ("mended rows", "warn", "kept without their wrong values", "export the report again"),
    "merged": (
        "merged rows",
        "ok",
        "merged: copies of others, or rows whose missing value can only be one",
        "",
    ),
}


def _left_out(trace: Trace) -> list[Check]:
    """Count by table the rows that the report holds and the figures leave out or change."""
    checks = []
    if bad := [n for n in trace.left_out if n.reason == REVERSED]:
        detail = f"{_rows_in_words(bad)} left out because they end before they begin: {_by_table(bad, reasons=False)}"
        checks.append(Check(BAD_TIMES, "warn", detail, "export the report again", doubt="numbers"))
    for effect, (check, status, effect_words, fix) in _EFFECTS.items():
        if notes := [n for n in trace.left_out if n.effect == effect and n.reason != REVERSED]:
            checks.append(
                Check(check, status, f"{_rows_in_words(notes)} {effect_words}: {_by_table(notes, reasons=True)}", fix)
            )
    return checks


def _rows_in_words(notes: list[LeftOut]) -> str:
    return units.several(sum(n.rows for n in notes), "row")


def _by_table(notes: list[LeftOut], *, reasons: bool) -> str:
    return "; ".join(f"{units.count(n.rows)} of {n.table}" + (f" with {n.reason}" if reasons else "") for n in notes)


#: What nsys says of every process without ranges, and of every process without CUDA calls: a launcher, a loader's worker.
_NO_RANGES, _NO_CUDA = re.compile(r"No NVTX events", re.IGNORECASE), re.compile(r"No CUDA events", re.IGNORECASE)


def _of_others(profile: Profile, text: str) -> bool:
    """Return whether a message from nsys is about other processes: the shown one has the events that it says are missing."""
    if _NO_CUDA.search(text):
        return profile.steady_ops.height > 0
    return bool(_NO_RANGES.search(text)) and profile.ranges.ranges.height > 0


def _settled(profile: Profile, text: str) -> str:
    """Return how the report shows that the events nsys calls possibly missing are there; "" if it does not show that.

    The probe counts the ranges that it pushes; each launch of a steady step has its work on the device.
    """
    explained = nsys_messages.recognized(text)
    if explained is None or explained.message.certain:
        return ""
    if explained.message.hides == "ranges":
        complete = any(c.check == "probe ranges" and c.status == "ok" for c in probe_checks.probe_ranges(profile))
        return "it holds every range that the probe pushed" if complete and profile.trace.capture.probe else ""
    return "it holds the work of every launch in the steady steps" if profile.once(_every_launch_works) else ""


def _every_launch_works(profile: Profile) -> bool:
    """Return whether there are launches in the steady steps, and all have work on the device."""
    launches = profile.steady_calls["call"].filter(profile.steady_calls["kind"].is_in(Call.LAUNCHES)).to_numpy()
    return bool(len(launches)) and bool(np.isin(launches, profile.steady_ops["call"].drop_nulls().to_numpy()).all())


def checks(profile: Profile) -> list[Check]:
    """Return what was read of the session, which rows of it are not used, what nsys says is missing, and ranges without an end."""
    trace = profile.trace
    listed = []
    if trace.window is not None:
        start, end = (f"{t / 1e9:g}" for t in trace.window)
        detail = f"only {start} s to {end} s of the session were read, with the GPU work launched then"
        listed.append(Check("time range", "ok", detail))
    listed += _left_out(trace)
    messages = [d["text"] for d in trace.capture.diagnostics if not tracing_checks.is_explained(d["text"])]
    messages = [text for text in messages if not _of_others(profile, text)]
    settled = {text: why for text in messages if (why := _settled(profile, text))}
    if settled:
        whys = " and ".join(dict.fromkeys(settled.values()))
        listed.append(
            Check("nsys warnings", "ok", f"nsys says: {next(iter(settled))} But the report is complete: {whys}")
        )
    if lost := [text for text in messages if text not in settled]:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        detail = f"nsys says: {lost[0]}{more}"
        explained = nsys_messages.recognized(lost[0])
        fix = explained.remedy if explained else "profile a shorter window: --steps A:B"
        listed.append(Check(DIAGNOSTICS, "warn", detail, fix, doubt="cause"))
    open_ = int(profile.ranges.ranges["open"].sum())
    if open_:
        detail = f"{units.several(open_, 'range')} without an end, counted up to the end of the capture"
        listed.append(Check("open ranges", "warn", detail))
    return listed
