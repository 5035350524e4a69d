"""NSX114 host-stall: the launching thread pauses between two launches, and the GPU runs dry.

What it means
    Two launches are much further apart than the usual few microseconds: another thread holds the GIL, the garbage
    collector runs, Python computes, logs, or reads a file. Garbage collections and recompilations are named where `nsysx run`
    noted them; samples of Python's stack, or the lines that `nsysx run` records, show what else it was.

In the trace
    A single long gap on the GPU that ends with a launch, and no API call of the thread in it.

Bad
    for batch in loader:
        loss = step(batch)
        metrics.append(compute_f1(preds.tolist()))     # Python works while the GPU idles

Good
    # metrics on the GPU, or in another process; garbage collection out of the loop:
    gc.disable()                                       # gc.collect() once per epoch

Harmless when
    The GPU has enough work queued to outlast the stall.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.analyses.helpers.module_names import folded
from nsysx.catalogue import Call, Cause, StepLimit, StepPart
from nsysx.events import python_pauses, sampled_stacks
from nsysx.events.lacking_nvtx import LACKS_NVTX, lacks_nvtx
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.os_calls import os_idle
from nsysx.events.sampled_lines import known_lines
from nsysx.findings import _pauses
from nsysx.findings._case import SITE, Case, Fix, Rule, Saving
from nsysx.findings._dispatched import dispatched_batches
from nsysx.findings._finding_bounds import (
    CAUSE_NAMED_SHARE,
    MOST_SHARE,
    MOST_STALL_PLACES,
    SAVED_BYTES,
    SAVED_TIMES,
    STALL_MADE_BYTES,
    STALL_NS,
    STALL_STANDS_OUT_SHARE,
    STALL_TIMES,
    WHOLE_STALL_SHARE,
)
from nsysx.findings._found import Found
from nsysx.findings._line_causes import encloses, of_no_parameters
from nsysx.findings._line_remedies import Seen, fix_of, of_training
from nsysx.findings._lines import row_of, running, runs_networks, share_running
from nsysx.findings._made_there import unless_made_there
from nsysx.findings._needs import steady_steps, step_of
from nsysx.findings._once import Takes
from nsysx.frames import lookup
from nsysx.model import Finding, Row
from nsysx.replay.engine import RemoveCalls, RemoveHost

RULE = Rule(
    "NSX114",
    "host-stall",
    "GIL or host stalls between launches",
    cause=(StepPart.HOST, StepPart.LAUNCH, StepPart.SYNC),
    about=StepLimit.LAUNCH,
    tries=("gc-freeze", "threads-1", "threads-cores", "near-gpu"),
)
REQUIRES = ("steps", "gpu", "launches")
#: The parts of the verdict that are the host's own, without any wait.
_ALONE = (StepPart.HOST, StepPart.LAUNCH)
_NO_STALL = "no long pause between launches lets the GPU idle for 1 % of the step"
_AFTER_A_WAIT = (
    " {} of it also counts as idle after host syncs: the pause would be harmless if the thread ran ahead of the GPU."
)


def stalls_of_host(case: Case) -> pl.DataFrame:
    """Return the gaps of the busiest device that host code makes far longer than usual: op, ns, real_ns (without tracing).

    Columns gc and compile: the part of ns that lies in pauses of that kind, as the probe noted them. A gap that began in a
    call that waits belongs to that call (NSX101).
    """
    pieces = case.idle["cause", "op", "gap", "began_in", "start_ns", "end_ns", "ns", "real_ns"]
    host = pieces.filter((pl.col("cause") == Cause.HOST_CODE.number) & pl.col("op").is_not_null())
    kind = lookup.at(case.profile.attributed.api_calls["kind"], host["began_in"].fill_null(-1).to_numpy())
    host = host.filter(~kind.is_in(Call.WAITS).fill_null(False))
    start, end = (host[c].to_numpy() for c in ("start_ns", "end_ns"))
    paused = [
        pl.Series(k.key, python_pauses.time_in(_pauses.pauses_of_kind(case, k), start, end)) for k in _pauses.KINDS
    ]
    keys = [k.key for k in _pauses.KINDS]
    host = host.with_columns(paused).filter(~pl.Series(_of_a_checkpoint(case, host), dtype=pl.Boolean))
    gaps = host.group_by("gap").agg(pl.col("op").first(), pl.col("ns", "real_ns", *keys).sum())
    usual = _usual_pause(case.calls)
    least = max(STALL_NS, STALL_TIMES * usual) if usual is not None else STALL_NS
    return gaps.filter(gaps["ns"] >= least).select("op", "ns", "real_ns", *keys)


def _usual_pause(calls: pl.DataFrame) -> float | None:
    """Return the median time from the call before a launch on its thread to that launch (ns), None without any."""
    launch = np.flatnonzero(calls["kind"].is_in(Call.LAUNCHES).to_numpy())
    launch = launch[launch > 0]
    # Only at launches: these calls lie in several pieces, and a whole column of them would be a copy.
    launch = launch[(calls["thread"].gather(launch) == calls["thread"].gather(launch - 1)).to_numpy()]
    pause = calls["start_ns"].gather(launch) - calls["end_ns"].gather(launch - 1)
    return float(np.median(pause.to_numpy())) if len(launch) else None


def _of_a_checkpoint(case: Case, gaps: pl.DataFrame) -> Flags:
    """Return which idle pieces (start_ns, op) border a copy to the host in steps that save: NSX109 tells those.

    Such steps copy from 1 MB on and ten times what the usual step does. The program gathers before the first copy and writes after.
    """
    ops = case.ops["op", "call", "op_kind", "name", "bytes", "end_ns", "device"]
    if case.device is None:
        return np.zeros(gaps.height, np.bool_)
    ops = lookup.having(ops, device=case.device)
    out = (ops["op_kind"] == "memcpy") & (ops["name"] == "DtoH")
    if not gaps.height or not out.any():
        return np.zeros(gaps.height, np.bool_)
    calls = case.profile.attributed.api_calls["start_ns"]
    copies = ops["op", "call", "bytes"].filter(out.fill_null(False))
    step = step_of(case.profile, calls.gather(copies["call"].fill_null(0)))  # the one in which it is launched
    moved = np.zeros(steady_steps(case.profile).height + 1, np.int64)
    np.add.at(moved, step, copies["bytes"].fill_null(0).to_numpy())
    saves = moved >= max(SAVED_BYTES, SAVED_TIMES * float(np.median(moved[1:])) if len(moved) > 1 else 0)
    saved = copies.filter(pl.Series(saves[step], dtype=pl.Boolean))
    if not saved.height:
        return np.zeros(gaps.height, np.bool_)
    ops = lookup.ordered(ops["op", "end_ns"], "end_ns", ["op"])
    last = np.searchsorted(ops["end_ns"].to_numpy(), gaps["start_ns"].to_numpy(), side="right") - 1
    behind = np.isin(ops["op"].to_numpy()[np.maximum(last, 0)], saved["op"].to_numpy()) & (last >= 0)
    return np.asarray(behind | np.isin(gaps["op"].to_numpy(), saved["op"].to_numpy()), np.bool_)


def _with_small_calls(case: Case, launches: list[int]) -> tuple[frozenset[int], frozenset[int]]:
    """Return the launches with the small calls directly before each on its thread, and the small calls alone.

    Small calls are those between two launches that neither launch, copy, wait nor allocate, such as queries.
    """
    calls = case.profile.attributed.api_calls
    small = calls["kind"].is_in([Call.OTHER, Call.EVENT, Call.LOAD]).to_numpy()
    thread = calls["thread"].to_numpy()
    calls_before = set()
    for call in launches:  # calls are numbered by thread and time
        calls_before.add(call)
        while call and small[call - 1] and thread[call - 1] == thread[call]:
            call -= 1
            calls_before.add(call)
    small_calls = pl.Series(sorted(c for c in calls_before if small[c]), dtype=pl.Int64)
    return frozenset(calls_before), frozenset(small_calls.filter(case.is_call(small_calls)))


def _activities_in_words(case: Case, row: Row, kinds: list[_pauses.Kind], ops: pl.Series) -> str:
    """Return in words what the thread is known to do in these gaps, which end with ``ops``."""
    parts = [f"{units.share(row[k.key], row['gaps_ns'])} of that is {k.name}" for k in kinds]
    parts += _os_call(case, ops)
    noted = f"{', and '.join(parts)}." if parts else ""
    if noted and known_lines(case.profile) is None:
        return noted
    return f"{noted} {_what_ran(case, ops)}".lstrip()


def _os_call(case: Case, ops: pl.Series) -> list[str]:
    """Return the operating system call in which the thread spent much of the gaps before these ops, if that was recorded."""
    if not case.profile.recorded("osrt"):
        return []
    inside = case.profile.once(os_idle).filter(pl.col("op").is_in(ops.to_list()))
    ns = pl.col("end_ns") - pl.col("start_ns")
    whole = int(inside.select(ns.sum()).item())
    calls = inside.drop_nulls("span").group_by("name", "kind").agg(ns.sum().alias("ns")).cast({"name": pl.String})
    most = calls.sort("ns", "name", descending=[True, False]).head(1).to_dicts()
    return [
        f"{units.share(m['ns'], whole)} of that is spent in {m['name']} ({m['kind']})"
        for m in most
        if m["ns"] >= STALL_STANDS_OUT_SHARE * whole
    ]


def _what_ran(case: Case, ops: pl.Series) -> str:
    """Return a sentence on what the thread did in the gaps before these ops, from samples of its stack."""
    listened = python_pauses.listened(case.profile.ranges.notes, case.process)
    suspects = f"Python, the GIL{'' if listened else ', garbage collection'} or the operating system"
    sampled = known_lines(case.profile)
    if sampled is None:
        return f"The capture does not say why: {suspects if case.program.python else 'its own code or the operating system'}."
    seen = sampled.seen.filter(pl.col("op").is_in(ops.to_list()))
    if not seen.height:
        return f"No sample of Python's stack lies in these gaps: {suspects}."
    places = sampled.places.places.with_row_index("place").with_columns(pl.col("place").cast(pl.Int64))
    most = (
        seen.group_by("place")
        .len()
        .sort("len", "place", descending=[True, False])
        .join(places, on="place")
        .row(0, named=True)
    )
    name = sampled_stacks.spoken(most["file"], most["line"], most["function"])
    name += f", in {most['framework']}" if most["framework"] else ""
    if most["len"] < STALL_STANDS_OUT_SHARE * seen.height:
        return f"No line stands out in {seen.height} samples of its stack there; the most frequent, {most['len']} times, is {name}."
    return f"{most['len']} of {seen.height} samples of its stack there are of {name}."


def _move_it(case: Case, row: Row, line: Mapping[str, Any]) -> Fix:
    """Return the advice for a pause whose kind is not known; ``line`` is what runs in it, empty where that was not recorded."""
    before = _before_what(case, row)
    if line:
        if (dispatched := dispatched_batches(case, line["file"], line["line"])) is not None:
            return dispatched
        there = sampled_stacks.spoken(line["file"], line["line"], line["function"])
        if _line_stays(case, line):
            inside = "Look for what keeps the CPU busy below"
            return Fix(
                f"{inside} {there} {before}: nsysx run --source torch -- CMD names the lines there", unexplained=True
            )
        return _of_its_text(case, line) or Fix(f"Move what {there} does {before} out of the loop")
    if case.program.python and known_lines(case.profile) is None:
        if lacks_nvtx(case.profile.trace.capture.probe):
            unknown = f"the line that keeps the CPU busy {before} is not known, since {LACKS_NVTX}"
            return Fix(f"Install nvtx where the program runs and record again: {unknown}", unexplained=True)
        return Fix(
            f"Find the line that keeps the CPU busy {before} (nsysx run), and move it out of the loop", unexplained=True
        )
    return Fix(f"Move what {case.program.host} does {before} out of the loop")


def _of_its_text(case: Case, line: Mapping[str, Any]) -> Fix | None:
    """Return what can be done about a line by what it calls, None where that is not known."""
    code = case.profile.code()
    line_row = -1 if code is None else row_of(code, line)
    texts = (str(row["text"] or "").partition("  #")[0] for row in _rows_of(case, line))
    advice = ((text, unless_made_there(case, line_row, fix_of(Seen(text)))) for text in texts if text)
    return next((f for text, f in advice if f is not None and not of_no_parameters(case, line_row, text, f)), None)


def _rows_of(case: Case, line: Mapping[str, Any]) -> list[lines.CodeLineRow]:
    return [r for r in case.typed_rows(lines.ROWS) if (r["file"], r["line"]) == (line["file"], line["line"])]


def _line_stays(case: Case, line: Mapping[str, Any]) -> bool:
    """Return whether a line runs the network, the backward pass, the optimizer or the steps themselves: no loop of steps is without it."""
    code = case.profile.code()
    if code is not None and (line_row := row_of(code, line)) >= 0 and encloses(case, line_row):
        return True
    return any(of_training(str(r["text"] or "")) for r in _rows_of(case, line)) or runs_networks(case.profile, line)


def _before_what(case: Case, row: Row) -> str:
    """Return before what the thread pauses."""
    return f"before {module}" if (module := case.module(row)) else "between launches"


def _making(case: Case, ops: pl.Series, row: Row) -> Fix | None:
    """Return the advice for pauses that mostly end with a pageable copy to the device: the program makes that data on the CPU."""
    if 2 * row["made_ns"] < row["gaps_ns"]:
        return None
    chosen = case.profile.attributed.gpu_ops.filter(pl.col("op").is_in(ops.implode()))
    size = units.size(int(chosen.filter(_is_pageable_upload())["bytes"].sum()) / case.steps)
    if not case.program.torch:
        return Fix(
            f"Create this data on the GPU, or in another thread: {size} {case.per} are created on the CPU while the GPU idles"
        )
    return Fix(
        f"Create this data on the GPU (torch.randn, randint, randperm and indexing take device='cuda'), or in DataLoader workers with "
        f"pin_memory=True: {size} {case.per} are created on the CPU and copied from pageable memory"
    )


def _is_pageable_upload() -> pl.Expr:
    """Return whether a GPU op is a copy of much data from pageable memory to the device."""
    copy = (pl.col("op_kind") == "memcpy") & (pl.col("copy_kind") == 1) & (pl.col("src_kind") == 0)
    return (copy & (pl.col("bytes") >= STALL_MADE_BYTES)).fill_null(False)


def _before_ops(case: Case, ops: pl.Series) -> Takes:
    """Return the idle time for host code before these ops."""
    before = (case.idle["cause"] == Cause.HOST_CODE.number) & case.idle["op"].is_in(ops.implode()).fill_null(
        value=False
    )
    return Takes(idle=before.to_numpy())


def _placed(case: Case, stalls: pl.DataFrame) -> pl.DataFrame:
    """Return the stalls of launches of the shown process, with the place of each launch, and made_ns: before a copy of much data."""
    ended = case.profile.attributed.gpu_ops.select("call", made=_is_pageable_upload())[stalls["op"]]
    stalls = stalls.with_columns(ended["call"], pl.when(ended["made"]).then("ns").otherwise(0).alias("made_ns"))
    calls = case.profile.attributed.api_calls
    # The call that ends the last gap already belongs to the step after the steady ones.
    launched = lookup.at(calls["process"], stalls["call"].fill_null(-1).to_numpy()) == case.process
    stalls = case.with_lines(stalls.filter(launched.fill_null(False)))
    stalls = stalls.with_columns(calls[c].gather(stalls["call"]).cast(pl.String) for c in ("module", "phase"))
    # Places that differ by a number alone are one: each for itself, a layer of a token may stall for next to nothing.
    alike = lookup.changed(stalls["module"].cast(pl.Categorical), folded).cast(pl.String)
    several = pl.col("module").n_unique().over(alike) > 1
    stalls = stalls.with_columns(pl.when(several).then(alike).otherwise("module").alias("module"))
    return _as_one_change(stalls)


def _as_one_change(stalls: pl.DataFrame) -> pl.DataFrame:
    """Return the stalls with column paused_by, what most of each is: those of a kind have one place, where most of them is.

    One change ends them all: where a forward is compiled anew, its backward is, too.
    """
    mostly = pl.coalesce(
        *(pl.when(pl.col(k.key) >= MOST_SHARE * pl.col("ns")).then(pl.lit(k.key)) for k in _pauses.KINDS), pl.lit("")
    )
    stalls = stalls.with_columns(mostly.alias("paused_by"))
    parts = [stalls.filter(stalls["paused_by"] == "")]
    for kind in _pauses.KINDS:
        part = stalls.filter(stalls["paused_by"] == kind.key)
        if part.height:
            sums = part.group_by(*SITE).agg(pl.col("real_ns").sum())
            most = sums.sort("real_ns", *SITE, descending=[True] + [False] * 4, nulls_last=True).head(1)
            part = part.with_columns(pl.lit(most[c][0], dtype=part.schema[c]).alias(c) for c in SITE)
        parts.append(part)
    return pl.concat(parts)


def _of_the_line(worth: Saving, share: float) -> Saving:
    """Return what a change of the line saves that runs for a share of a stall: no more goes for sure, all of it at most."""
    if worth.likely_ns is None or share >= WHOLE_STALL_SHARE:
        return worth
    why = f"{worth.confidence}; the line runs in {units.share(share, 1)} of that time"
    return replace(worth, likely_ns=round(share * worth.likely_ns), most_ns=worth.likely_ns, confidence=why)


def check(case: Case) -> list[Finding]:
    """Return a finding per place before which these stalls sum to 1 % of the step or more."""
    stalls = stalls_of_host(case)
    if not stalls.height:
        return case.clear(RULE, _NO_STALL)
    stalls = _placed(case, stalls)
    columns = (*SITE, "paused_by")
    rows = stalls.group_by(*columns).agg(
        pl.len().alias("stalls"),
        pl.col("real_ns").sum(),
        pl.col("ns").max().alias("longest_ns"),
        pl.col("ns").sum().alias("gaps_ns"),
        pl.col("made_ns").sum(),
        pl.col(*(k.key for k in _pauses.KINDS)).sum(),
    )
    rows = rows.sort("real_ns", *columns, descending=[True] + [False] * 5, nulls_last=True)
    findings = []
    for row in rows.head(MOST_STALL_PLACES).to_dicts():
        cost = min(case.per_step(row["real_ns"]), case.taken_by(RULE.cause))
        if not case.notable(cost):
            continue
        before, small = _with_small_calls(case, stalls.filter(lookup.same_values(row, columns))["call"].to_list())
        # The stall may lie before an allocation or a capture query in front of the launch, as when a kernel is compiled.
        worth = case.worth(RemoveHost(before, leading=True), RemoveCalls(small), cause=RULE.cause)
        ops = stalls.filter(lookup.same_values(row, columns))["op"]
        cost = case.lost(cost, worth)
        named = [k for k in _pauses.KINDS if row[k.key] >= CAUSE_NAMED_SHARE * row["gaps_ns"]]
        mostly = next((k for k in named if row[k.key] >= MOST_SHARE * row["gaps_ns"]), None)
        title = f"GPU idle {units.duration(cost)} {case.per} {_before_what(case, row)}"
        # The verdict counts idle time after a wait toward the wait: without it the thread would have been ahead.
        after = cost - case.taken_by(_ALONE)
        if case.notable(after):
            title += ", some of it after a wait"
        making, takes = _making(case, ops, row), _before_ops(case, ops)
        line = running(case.profile, takes)
        if mostly:
            title += f": {mostly.name}"
        elif making:
            title += ": the CPU makes data, then copies it"
        elif line:
            title += f", while the host runs {sampled_stacks.spoken(line['file'], line['line'], line['function'])}"
        elif case.program.python and known_lines(case.profile) is None:
            title += "; CPU cause not recorded"
        detail = (
            f"In {units.several(row['stalls'], 'gap')} in {case.steps} steps (longest: {units.duration(row['longest_ns'])} as recorded) "
            f"the launching thread makes no CUDA call and the GPU idles. {_activities_in_words(case, row, named, ops)}"
        )
        if case.notable(after):
            detail += _AFTER_A_WAIT.format(units.duration(after))
        fix = mostly.fix if mostly else making or _move_it(case, row, line)
        if line and not mostly and not making and not fix.unexplained:
            worth = _of_the_line(worth, share_running(case.profile, takes, line))
        where = row | line  # the line that runs meanwhile is the cause, not the one that ends the gap
        findings.append(
            Found(
                RULE, title, detail, worth=worth, cost_ns=cost, where=where, fix=fix, calls=before, takes=takes
            ).as_finding(case)
        )
    return findings or case.clear(RULE, _NO_STALL)
