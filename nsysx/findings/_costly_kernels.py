"""What kernels show of settings that cost: work that a setting adds, or that a compiler no longer fuses."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.catalogue import StepPart
from nsysx.events.layers import layer_of
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._compiled_before import CompiledWork, compiled_before
from nsysx.findings._once import Takes, edits_without
from nsysx.findings._work_bounds import DETERMINISM_MAY_STAY_SHARE
from nsysx.findings.nsx112_fusion import chains_among
from nsysx.frames import lookup
from nsysx.model import Row
from nsysx.replay.edits import RemoveOps

#: Kernels that only deterministic algorithms launch so many of in a backward: sorted indices, whose equal ones are added in order.
_IN_ORDER = r"indexing_backward|(?<!ten)sort|radix|DeviceScan"
#: Operators that make new memory. What is launched in one fills it, for determinism's sake.
_NEW_MEMORY = r"^aten::(new_)?empty\w*$|^aten::resize_$"
#: Operators that add at indices by atomic operations, unless determinism is asked for: then they sort, and add in order.
_SORTED_FOR_IT = r"^aten::(scatter_(add|reduce)\w*|index_add_?|gather_backward|index_select_backward)$"

#: Families of kernels that a compiler takes from libraries as they are.
_OF_LIBRARIES = ("gemm", "convolution", "attention", "sort, scan and gather", "communication", "optimizer", "graph")


def _for_determinism(profile: Profile) -> frozenset[int]:
    """Return the GPU ops that deterministic algorithms add: indices added in order, and new memory that is filled."""
    ops = profile.steady_ops
    in_backward = (ops["phase"].cast(pl.String) == "backward").fill_null(False).to_numpy()
    call = ops["call"].fill_null(-1).to_numpy()
    chosen = lookup.matching(ops["name"], _IN_ORDER) & (in_backward | _called_within(profile, _SORTED_FOR_IT)[call])
    chosen |= _called_within(profile, _NEW_MEMORY)[call] & (ops["op_kind"] == "kernel").to_numpy()
    return ops_of(ops.filter(pl.Series(chosen, dtype=pl.Boolean)))


def _called_within(profile: Profile, operators: str) -> Flags:
    """Return of each API call, and of none (-1), whether it, or the one of an X-ray step that it is like, is made in such an operator."""
    calls, ranges = profile.attributed.api_calls, profile.ranges.ranges
    rows = ranges.filter((ranges["kind"] == "op") & ~ranges["repeated"] & ~ranges["crossing"])
    around = layer_of(rows.filter(pl.Series(lookup.matching(rows["name"], operators), dtype=pl.Boolean)))
    thread, start, within = (
        calls["thread"].to_numpy(),
        calls["start_ns"].to_numpy(),
        np.zeros(calls.height + 1, np.bool_),
    )
    for key in around.threads:
        a, b = np.searchsorted(thread, [key, key + 1]).tolist()
        within[a:b] = around.at(key, start[a:b]) >= 0
    repeats = profile.ranges.repeats
    if repeats is not None:
        within[:-1] |= within[np.where(repeats.of >= 0, repeats.of, -1)]
    return within


def not_deterministic(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it is worth without the kernels that determinism adds; None where none was seen.

    Operators that have no deterministic kernel are put together from many others: their launches go, too, so that the host follows.
    Likely is the time of the kernels, or what the replay saves without their launches where that is more.
    """
    added = of_determinism(case).ops
    ns = int(case.timed_ops(case.ops["op"].is_in(list(added)), "op")["ns"].sum())
    if not ns:
        return None
    called = case.ops.filter(case.ops["op"].is_in(list(added)))["call"].drop_nulls().sort()
    made = case.calls.filter(lookup.among(called, case.calls["call"]))
    parts = (StepPart.WORK, StepPart.HOST, StepPart.LAUNCH)
    replayed = case.worth(*edits_without(made, case.ops), cause=parts, bound=True)
    likely = min(max(case.per_step(ns), replayed.likely_ns or 0), case.step_ns)
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


#: A guard that a whole number, or another one, of an attribute or an argument had a value.
_NUMBER_GUARD = re.compile(
    r"^(?:\d+/\d+: )?(?P<held>self(?:\._modules\[[^\]]*\])*)?\.?(?P<name>[A-Za-z_]\w*) == (?P<value>-?[\d.e+-]+)\s*(?:#|$)"
)


def worded_by_guard(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy in words of the number that changed from call to call, where the guard names it."""
    row = _given_up(settings_of(case.profile))
    guard = _NUMBER_GUARD.match(str(row.get("reason") or "").replace("L['self']", "self")) if row is not None else None
    if guard is None:
        return title, remedy
    name = f"self.{guard['name']}" if guard["held"] else guard["name"]
    if guard["held"] and guard["value"].lstrip("-").isdigit():
        paste = (
            f"torch._dynamo.config.allow_unspec_int_on_nn_module = True  # before the first call: {name} is no constant"
        )
        text = (
            f"Let torch.compile take {name} for a number that changes (allow_unspec_int_on_nn_module), or give it a tensor of what comes "
            "of it: it compiles anew for each value, until its limit is reached"
        )
    else:
        paste = f"{name} = torch.tensor({name}, device=x.device)  # before the call; a branch on it becomes torch.where"
        text = f"Give the function {name} as a tensor: torch.compile compiles anew for each value, until its limit is reached"
    return title, replace(remedy, text=text, paste=paste)


def _of_function(profile: Profile) -> frozenset[int]:
    """Return the GPU ops that the function launches which was given up, and all that it calls."""
    code, row = profile.code(), _given_up(settings_of(profile))
    if code is None or row is None:
        return frozenset()
    places = code.places.with_row_index("row").filter((pl.col("file") == row["file"]) & (pl.col("line") >= row["line"]))
    called = places["function"].cast(pl.String).str.ends_with(str(row["function"])).fill_null(value=False)
    first = places.filter(called).sort("line")["function"].first()
    inside = (
        frozenset(places.filter(places["function"] == first)["row"].to_list())
        if first is not None
        else frozenset[int]()
    )
    ops = profile.steady_ops
    below = code.passing(code.op[ops["op"].to_numpy()], inside)
    return ops_of(ops.filter(pl.Series(below, dtype=pl.Boolean)))


def fused_again(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it is worth if the function is compiled again; None where its kernels are not known.

    Steps before the limit show what kernels the compiler makes of it: longer ones are another function's. Without them its chains of
    kernels are one each, as long as the longest of it; how far the compiler goes beyond that is not known.
    """
    theirs = taken(case).ops
    if not theirs:
        return None
    before = case.profile.once(compiled_before)
    if before is not None and before.ns < case.per_step(
        int(case.timed_ops(case.ops["op"].is_in(list(theirs)), "op")["ns"].sum())
    ):
        return _as_before(case, theirs, before)
    chains = chains_among(case.profile, np.isin(case.ops["op"].to_numpy(), list(theirs)))
    extra = ops_of(chains.filter(~chains["longest"]))
    if not extra:
        return None
    worth = case.worth(RemoveOps(extra), cause=(StepPart.WORK,), bound=True)
    why = "no compiled call was recorded: the replay leaves the longest kernel of each chain, and the compiler may fuse more"
    return worth if worth.likely_ns is None else replace(worth, bound=False, source="time", confidence=why)


def _as_before(case: Case, theirs: frozenset[int], before: CompiledWork) -> Saving:
    """Return what it is worth if the function's GPU ops ``theirs``, but those of libraries, are what they were in compiled calls.

    Then the step is as long as its GPU work, or as the host without these calls where that is longer; at most as long as both.
    """
    written = case.ops["op"].is_in(list(theirs)) & ~case.ops["family"].is_in(_OF_LIBRARIES)
    called = case.ops.filter(written)["call"].drop_nulls().unique().sort()
    made = case.calls.filter(lookup.among(called, case.calls["call"]))
    worth = case.worth(*edits_without(made, case.ops, leading=True))
    if worth.likely_ns is None:
        return worth
    without_ns = case.step_ns - worth.likely_ns
    other_ns = case.per_step(int(case.timed_ops(~written & (case.ops["device"] == case.device), "op")["ns"].sum()))
    likely = max(without_ns, other_ns + before.ns)
    longest = max(without_ns + before.ns + (worth.error_ns or 0), other_ns + before.most_ns)
    shortest = min(other_ns + before.least_ns, likely)
    why = (
        f"before the limit its compiled calls took the GPU {units.duration(before.ns)} a step, in "
        f"{units.several(before.kernels, 'kernel')}"
    )
    saved = max(case.step_ns - likely, 0)
    return Saving(
        saved, why, error_ns=max(longest - likely, 0), most_ns=max(case.step_ns - shortest, saved), source="time"
    )


def taken(case: Case) -> Takes:
    """Return the work of that function."""
    return Takes(case.profile.once(_of_function))
