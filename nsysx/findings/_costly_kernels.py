"""What kernels show of settings that cost: work that a setting adds, or that a compiler no longer fuses."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsysx.analyses.helpers import operator_work
from nsysx.catalogue import StepPart
from nsysx.events.profile import NotRecorded, Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import DETERMINISM_MAY_STAY_SHARE
from nsysx.findings._once import Takes
from nsysx.findings.nsx112_fusion import chains_among
from nsysx.frames import lookup
from nsysx.model import Row
from nsysx.replay.edits import RemoveOps

#: Kernels that only deterministic algorithms launch so many of in a backward: sorted indices, whose equal ones are added in order.
_IN_ORDER = r"indexing_backward|(?<!ten)sort|radix|DeviceScan"
#: Operators that make new memory, which is filled for determinism's sake.
_NEW_MEMORY = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::resize_")


def _for_determinism(profile: Profile) -> frozenset[int]:
    """Return the GPU ops that deterministic algorithms add: indices added in order in backward, and new memory that is filled."""
    ops = profile.steady_ops
    ordered = (
        lookup.matching(ops["name"], _IN_ORDER)
        & (ops["phase"].cast(pl.String) == "backward").fill_null(False).to_numpy()
    )
    added = ops_of(ops.filter(pl.Series(ordered, dtype=pl.Boolean)))
    try:
        callers = profile.once(operator_work.operators_of_report).rows["caller"]
    except NotRecorded:
        return added
    work = profile.once(operator_work.work)
    caller = lookup.at(callers, work["row"].to_numpy())
    fills = work.filter(caller.is_in(list(_NEW_MEMORY)).fill_null(value=False))
    return added | ops_of(fills)


def not_deterministic(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it is worth without the kernels that determinism adds; None where none was seen.

    Their time is what is likely: operators that have no deterministic kernel are put together from many others, and the launches of those
    go, too, so that the host follows.
    """
    ns = int(case.timed_ops(case.ops["op"].is_in(list(of_determinism(case).ops)), "op")["ns"].sum())
    if not ns:
        return None
    likely = min(case.per_step(ns), case.step_ns)
    why = "the time of the kernels that only determinism needs; launches that it adds go, too"
    return Saving(likely, why, error_ns=round(DETERMINISM_MAY_STAY_SHARE * likely), most_ns=case.step_ns, source="time")


def of_determinism(case: Case) -> Takes:
    """Return these kernels."""
    return Takes(case.profile.once(_for_determinism))


# ---- functions that torch.compile has given up ------------------------------------------------------------------------


def _given_up(settings: RecordedSettings | None) -> Row | None:
    """Return the function that was compiled anew so often that torch.compile left it to Python, None where none was."""
    rows = settings.compiled("recompilations") if settings is not None else None
    limit = settings.compiled("recompile_limit") if settings is not None else None
    if not isinstance(rows, list) or not isinstance(limit, int):
        return None
    # The attempt that meets the limit has no name of its own; the first compilation is none of these.
    named = [row for row in rows if isinstance(row, dict) and isinstance(row.get("count"), int) and row.get("line")]
    return next((row for row in named if row["count"] + 1 >= limit), None)


def given_up(case: Case, settings: RecordedSettings) -> str:
    """Return which function runs without the compiler, after how many compilations, and why; "" where none does."""
    row = _given_up(settings)
    if row is None:
        return ""
    told = str(row.get("reason") or "")  # "0/6: self.calls == 6   # where"
    guard = re.match(r"(?:\d+/\d+: )?([^#]*)", told)
    why = f" ({' '.join(guard[1].split())})" if guard and guard[1].strip() else ""
    return (
        f"{row['function']} (line {row['line']}) was compiled {row['count'] + 1} times, each time for another value{why}: past that limit "
        "it runs without the compiler"
    )


def _of_function(profile: Profile) -> frozenset[int]:
    """Return the GPU ops that the function launches which was given up, and all that it calls."""
    code, row = profile.code(), _given_up(settings_of(profile))
    if code is None or row is None:
        return frozenset()
    places = code.places.with_row_index("row").filter((pl.col("file") == row["file"]) & (pl.col("line") >= row["line"]))
    called = places["function"].cast(pl.String).str.ends_with(str(row["function"])).fill_null(value=False)
    first = places.filter(called).sort("line")["function"].first()
    inside = (
        frozenset(places.filter(pl.col("function") == first)["row"].to_list())
        if first is not None
        else frozenset[int]()
    )
    ops = profile.steady_ops
    below = code.passing(code.op[ops["op"].to_numpy()], inside)
    return ops_of(ops.filter(pl.Series(below, dtype=pl.Boolean)))


def fused_again(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it is worth if its chains of kernels are fused; None where its kernels are not known."""
    theirs = taken(case).ops
    if not theirs:
        return None
    chains = chains_among(case.profile, np.isin(case.ops["op"].to_numpy(), list(theirs)))
    extra = ops_of(chains.filter(~pl.col("longest")))
    return case.worth(RemoveOps(extra), cause=(StepPart.WORK,), bound=True) if extra else None


def taken(case: Case) -> Takes:
    """Return the work of that function."""
    return Takes(case.profile.once(_of_function))
