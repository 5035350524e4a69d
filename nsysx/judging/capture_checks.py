"""How far the capture can be trusted, before anything is concluded from it."""

from __future__ import annotations

import re
from collections.abc import Iterable

import polars as pl

from nsysx import units
from nsysx.events.profile import Profile
from nsysx.judging import (
    gpu_work_checks,
    probe_checks,
    row_checks,
    sample_checks,
    step_checks,
    tracing_checks,
    unprofiled_checks,
    window_checks,
)
from nsysx.judging.gpu_work_checks import GPU_WORK, IDLE_LAUNCHES
from nsysx.judging.judging_bounds import NEWEST_READ_SCHEMA
from nsysx.judging.other_work import shared_gpu
from nsysx.judging.probe_checks import LOST_RANGES
from nsysx.judging.row_checks import BAD_TIMES, DIAGNOSTICS
from nsysx.model import Check, Table, in_order
from nsysx.reading.trace import Trace
from nsysx.replay.engine import Withheld, replay_of

_EXIT_CODE = "exit code"
#: The checks that mean missing events if they are not ok.
EVENTS_MISSING = (GPU_WORK, IDLE_LAUNCHES, DIAGNOSTICS, LOST_RANGES, BAD_TIMES, _EXIT_CODE)

_GRADES = {
    "thread": "by the range open on the launching thread",
    "seq": "by autograd's sequence numbers",
    "sequence": "by repeating the calls of a step whose modules were marked",
    "time": "by what the calling thread did at that time",
    "none": "to none",
}


def _attribution(profile: Profile) -> list[Check]:
    ops = profile.steady_ops
    if not ops.height or not profile.ranges.ranges.height:
        return []
    ns = pl.col("end_ns") - pl.col("start_ns")
    whole, *parts = ops.select(ns.sum(), *(ns.filter(pl.col("grade") == g).sum().alias(g) for g in _GRADES)).row(0)
    by_grade = dict(zip(_GRADES, parts, strict=True))
    grades = ", ".join(f"{units.share(ns, whole)} {_GRADES[g]}" for g, ns in by_grade.items() if ns)
    weak = by_grade["none"] > 0.01 * whole
    detail = f"GPU time tied to the code that launched it: {grades}"
    if not weak:
        return [Check("attribution", "ok", detail)]
    short = f"{units.share(by_grade['none'], whole)} of the GPU time is not matched to code."
    return [Check("attribution", "warn", detail, "nsysx run -- CMD", doubt="cause", short=short)]


def _replayed(profile: Profile) -> list[Check]:
    replay = replay_of(profile)
    if isinstance(replay, Withheld):
        detail = f"no savings are given: {replay.reason}"
        fix = "profile a script with steps: nsysx run -- CMD"
        return [Check("replay", "missing", detail, fix)]
    lengths = f"the unchanged replay takes {units.duration(replay.unchanged_ns)}, the recording {units.duration(replay.recorded_ns)}"
    if not replay.trusted:
        detail = (
            f"{lengths}: off by {units.share(replay.error, 1)}, so no savings are given but what recorded times tell"
        )
        return [Check("replay", "warn", detail, doubt="cause")]
    detail = f"{lengths} ({units.share(replay.error, 1)} off); over 22 measured changes, savings were off by a median 3.3 % of the step"
    return [Check("replay", "ok", detail)]


#: How nsys names an instance of a divided card: "NVIDIA A30 MIG 2g.12gb".
_INSTANCE = re.compile(r"\bMIG (\d{1,2}g\.[\w.]{1,12})")


def _instances(trace: Trace) -> list[Check]:
    """Return a warning if a GPU is only part of a card, so that the whole card's limits do not fit."""
    parts = sorted({match[1] for g in trace.capture.gpus if (match := _INSTANCE.search(g.name))})
    if not parts:
        return []
    detail = (
        f"the GPU is an instance of a divided card (MIG {', '.join(parts)}): work of other instances is not in the capture, and "
        "shares of the card's limits come out too small where the report gives those of the whole card"
    )
    return [Check("divided card", "warn", detail)]


def _newer(trace: Trace) -> list[Check]:
    """Return a warning if the export's schema is newer than any that was known when this was written."""
    version = trace.capture.schema_version or ""
    major = re.match(r"(\d{1,9})\.", version)
    if major is None or int(major[1]) <= NEWEST_READ_SCHEMA:
        return []
    detail = f"schema {version[:20]} of nsys is newer than any that was tried ({NEWEST_READ_SCHEMA}.x): a column may mean something else"
    return [Check("export schema", "warn", detail, "look for a newer nsysx")]


def checks(profile: Profile, tables: Iterable[Table] = ()) -> tuple[Check, ...]:
    """Return every check, trouble first, and one line per table of ``tables`` that the capture does not hold."""
    return in_order([*profile.once(_of_profile), *(Check.no_table(t) for t in tables if t.rows is None)])


def _of_profile(profile: Profile) -> list[Check]:
    every_check = [
        *gpu_work_checks.checks(profile),
        *tracing_checks.checks(profile.trace),
        *_instances(profile.trace),
        *shared_gpu(profile),
        *_newer(profile.trace),
        *row_checks.checks(profile),
        *probe_checks.probe_ranges(profile),
        *probe_checks.probe_cost(profile),
        *probe_checks.operator_cost(profile),
        *probe_checks.profiling_cost(profile),
        *_attribution(profile),
        *sample_checks.python_samples(profile),
        *probe_checks.modules_by_sequence(profile),
        *probe_checks.lines_left_out(profile),
        *step_checks.steps(profile),
        *window_checks.windows(profile),
        *_replayed(profile),
        *unprofiled_checks.unprofiled(profile),
    ]
    code = profile.trace.capture.exit_code
    if code:
        detail = f"the profiled command ended with exit code {code}: its last part may be missing"
        every_check.append(Check(_EXIT_CODE, "warn", detail, doubt="numbers"))
    return every_check
