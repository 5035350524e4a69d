"""NSX109 slow-steps: some steady steps take far longer than the others.

What it means
    A mean hides them. Slow steps are compared with the usual ones, part by part of the GPU breakdown: more compute means
    other shapes or a lower clock, more idle time names its cause (data loader, allocator, waits, host code). Garbage
    collections, recompilations and the clock are named where they were recorded (`nsysx run`, with --clocks for the clock),
    and so is a period (every 10th step), but only one that the same steps in random order would hardly ever show.

In the trace
    Single long steps; the evidence lists the parts that grew.

Bad
    for i, batch in enumerate(loader):
        step(batch)
        if i % 10 == 0: save(model.state_dict()); gc.collect()

Good
    # write checkpoints from a thread, from copies in pinned memory; validate and collect garbage between epochs
    gc.freeze(); gc.disable()                          # after warm-up; gc.collect() once per epoch

Harmless when
    They are few, or their length comes from the data itself.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import CAUSES, WORKING, DeviceActivity
from nsysx.catalogue import Cause as IdleCause
from nsysx.events import bare, ledger, python_pauses, sampled_stacks, trend
from nsysx.findings import _rare_steps as rare_steps
from nsysx.findings import _unrecorded_steps
from nsysx.findings._case import Case, Fix, Rule, Saving, ops_of
from nsysx.findings._finding_bounds import (
    CAUSE_NAMED_SHARE,
    MOST_LISTED_SLOW_STEPS,
    MOST_NAMED_SLOW_STEPS,
    MOST_SHARE,
    SLOW_CAUSE_ALL_SHARE,
    SLOW_STEP_SHARE,
    SLOW_STEPS_FEWEST_STEPS,
)
from nsysx.findings._found import Found
from nsysx.findings._lines import running
from nsysx.findings._once import Takes
from nsysx.findings._rank_rows import rank_rows
from nsysx.findings._slow_causes import (
    Mask,
    SlowCause,
    came_unrecorded,
    copied_out,
    idle_pauses,
    lower_clock,
    seen_by_probe,
)
from nsysx.frames.intervals import I64
from nsysx.model import Finding, Row

RULE = Rule(
    "NSX109",
    "slow-steps",
    "Slow steps",
    cost_as_recorded=True,
    about="slow steps",
    direct=3,
    tries=("gc-freeze", "compile-dynamic"),
)
REQUIRES = ("gpu",)
_HOST_CODE = f"idle: {IdleCause.HOST_CODE.value}"
_PARTS = tuple(activity.column for activity in WORKING)


def _components(case: Case, tiles: pl.DataFrame) -> pl.DataFrame:
    """Return one row per step: the parts of the GPU ledger and the idle time by cause (ns)."""
    assert case.device is not None
    activity = case.profile.ledgers.activity[case.process, case.device]
    parts = ledger.gpu_parts(activity, tiles["start_ns"].to_numpy(), tiles["end_ns"].to_numpy())
    table = tiles.select("index", pl.Series("ns", parts["window_ns"]), *(pl.Series(k, parts[k]) for k in _PARTS))
    # A step begins with the op that ends a gap, so no idle piece lies in two steps.
    start, cause, ns = (case.idle[c].to_numpy() for c in ("start_ns", "cause", "ns"))
    step = np.searchsorted(tiles["start_ns"].to_numpy(), start, side="right") - 1
    sums = np.zeros((len(CAUSES), tiles.height + 1), np.int64)
    np.add.at(sums, (cause, step), ns)  # what lies before the first step lands in the extra last place
    causes = zip(CAUSES, sums[:, :-1], strict=True)
    return table.with_columns(pl.Series(f"idle: {name}", values) for name, values in causes if values.any())


def _ends_of_gaps(case: Case, tiles: pl.DataFrame, slow: Mask) -> tuple[int, ...]:
    """Return the calls that end the longest gaps of the slow steps, at least half as long as the longest of all."""
    idle, begin = case.idle, tiles["start_ns"].to_numpy()
    step = np.searchsorted(begin, idle["start_ns"].to_numpy(), side="right") - 1
    gaps = idle.filter(pl.Series((step >= 0) & slow[step], dtype=pl.Boolean) & idle["op"].is_not_null())
    longest = gaps.group_by("op").agg(pl.col("ns").sum()).filter(2 * pl.col("ns") >= pl.col("ns").max())
    return tuple(case.profile.attributed.gpu_ops["call"].gather(longest["op"]).drop_nulls().sort().to_list())


def _every_kth(case: Case, ns: I64, late: int, longer: float) -> str:
    """Return ", every 10th" where the ``late`` slow steps, ``longer`` than usual (ns), come in a fixed period, else nothing."""
    rhythm = trend.period(ns, SLOW_STEP_SHARE * float(np.median(ns)))
    of_level = (level.every for level in case.profile.steps.levels[1:] if level.count == late)
    every = rhythm.every if rhythm else next(of_level, None)
    if every is None and came_unrecorded(case, longer):
        every = _every_kth_bare(case, len(ns), late)
    return f", every {trend.ordinal(every)}" if every else ""


def _every_kth_bare(case: Case, steps: int, late: int) -> int | None:
    """Return the period of the long steps that were timed while nothing was recorded, None where these are not as many."""
    stretches = bare.stretches(case.profile.trace.capture, case.process)
    usual = float(np.median(np.concatenate(stretches)))
    rhythm = trend.period_of_parts(stretches, SLOW_STEP_SHARE * usual)
    return rhythm.every if rhythm and steps // rhythm.every <= late <= -(-steps // rhythm.every) else None


def check(case: Case) -> list[Finding]:
    """Return one finding where steady steps are 20 % longer than the median, beyond the usual spread."""
    steps = case.profile.steps
    if steps.whole or steps.steady is None:
        return case.no_steps(RULE)
    first, last = steps.steady
    tiles = steps.gpu.filter(
        (pl.col("process") == case.process)
        & (pl.col("device") == case.device)
        & pl.col("index").is_between(first, last)
    ).sort("index")
    if tiles.height < SLOW_STEPS_FEWEST_STEPS:
        return case.cannot_tell(RULE, f"{tiles.height} steady steps are too few to call one slow", "profile more steps")
    table = _components(case, tiles)
    ns = table["ns"].to_numpy()
    median, slow = float(np.median(ns)), bare.long_steps(ns)
    cost = round(float((ns - median)[slow].sum()) / len(ns))
    rare = rare_steps.rare_steps(case, tiles)
    apart = [_finding_of_rare_steps(rare, tiles)] if rare is not None and case.notable(rare.cost_ns) else []
    if not case.notable(cost):
        apart = apart or _unrecorded_steps.found(case, RULE)
        return apart or case.clear(RULE, f"the slowest of {len(ns)} steady steps takes {units.duration(int(ns.max()))}, "
                            f"the median {units.duration(median)}")  # fmt: skip
    return [_finding_of_steps(case, tiles, table, slow, cost), *apart]


def _finding_of_rare_steps(rare: rare_steps.Rare, steady: pl.DataFrame) -> Finding:
    """Return the finding about the rare long steps of a long capture; the steps that the figures are of have none of them."""
    tiles = pl.concat([rare.tiles, steady]).sort("index")
    slow = tiles["index"].is_in(rare.tiles["index"].to_list()).to_numpy()
    return _finding_of_steps(rare.case, tiles, _components(rare.case, tiles), slow, rare.cost_ns, rare)


def _explained(cause: SlowCause | None, reason: str, excess: float, longer: float) -> str:
    """Return why steps are longer by ``longer``: the cause, else what grows most, by ``excess`` (ns); how much of it, unless nearly all."""
    reason, explained = (cause.name, cause.ns) if cause else (reason, excess)
    return (
        reason
        if explained >= SLOW_CAUSE_ALL_SHARE * longer
        else f"{reason}, {units.share(explained, longer)} of the difference"
    )


def _finding_of_steps(
    case: Case, tiles: pl.DataFrame, table: pl.DataFrame, slow: Mask, cost: int, rare: rare_steps.Rare | None = None
) -> Finding:
    """Return the finding about these slow steps: what they have more of, and the cause of that where it is known."""
    ns = table["ns"].to_numpy()
    median = float(np.median(ns))
    usual, late = table.filter(pl.Series(~slow)), table.filter(pl.Series(slow))
    names = [c for c in table.columns if c not in ("index", "ns")]
    more = {
        n: float(late[n].cast(pl.Float64).sum()) / late.height - float(np.median(usual[n].to_numpy())) for n in names
    }
    ranked = sorted(more.items(), key=lambda item: (-item[1], item[0]))
    worst, excess = ranked[0]
    label = worst.removesuffix("_ns").replace("_", " ")
    if worst.startswith("idle: "):
        label = f"GPU idle, {IdleCause.named(worst.removeprefix('idle: ')).label}"
    longer = float(late["ns"].cast(pl.Float64).sum()) / late.height - median
    candidates = (
        *idle_pauses(case, tiles, slow),
        *lower_clock(case, tiles, table, slow),
        *copied_out(case, tiles, slow),
    )
    reason = label if worst.startswith("idle") else f"more {label}"
    if worst == DeviceActivity.COMM.column and (waited_for := _late_at_times(case)) is not None:
        reason = f"they wait for rank {waited_for}"
    elif rare is None and all(c.ns < MOST_SHARE * longer for c in candidates) and not _some_rank_is_late(case):
        candidates = (*candidates, *seen_by_probe(case, tiles, slow, worst))
    causes = [c for c in candidates if c.ns >= CAUSE_NAMED_SHARE * longer]
    cause = next((c for c in sorted(causes, key=lambda c: -c.ns) if c.ns >= MOST_SHARE * longer), None)
    count, total = (rare.long, rare.steps) if rare else (late.height, len(ns))
    every, several = "" if rare else _every_kth(case, ns, late.height, longer), late.height > 1
    takes = _steps_in_words(case, late, several)
    lasts = f"{units.duration(float(late['ns'].to_numpy().mean()))}{' on average' if several else ''}"
    which = f"{count} of {total} steps take"
    if every:
        which = f"E{every[3:]} step takes"
    elif count <= MOST_NAMED_SLOW_STEPS:
        which = takes.replace(",", " and")
    middle = units.duration(float(np.median(late["ns"].to_numpy())))  # what the headline says of these steps, too
    title = f"{which} {middle}: {_explained(cause, reason, excess, longer)}"
    of_it = f"Of the difference, {units.duration(min(excess, longer))} is {label}."
    compared = f"{takes} {lasts}, the median step {units.duration(median)}. {of_it}"
    detail = " ".join((compared, *(c.detail for c in causes)))
    if every and cause is None:
        detail += f" Look for what happens{every[1:]} step: logging, evaluation, checkpoints, or a DataLoader with that many workers."
    grown = [(n.removesuffix("_ns").replace("_", " "), v) for n, v in ranked[:5] if v > 0]
    evidence = [{"part": n, "more in slow steps_ns": round(v)} for n, v in (*grown, *((c.name, c.ns) for c in causes))]
    listened = python_pauses.listened(case.profile.ranges.notes, case.process)
    collects = "" if listened else "garbage collection, "
    fix: str | Fix = f"Look at what else these steps do: checkpoints, logging, validation, {collects}larger shapes"
    claimed = Takes() if rare else _of_steps(case, tiles, slow)
    where = cause.where if cause else None
    alone = bool(every) and cause is None and worst == _HOST_CODE
    if alone:  # what recurs costs each step its share, whether its line is known or not
        cause = SlowCause(label, excess, "", fix, excess, bound=True)
        where = running(case.profile, claimed)
        fix = _recurring(where, every.removeprefix(", "))
    sure = _APART if rare else _worth(case, cause, longer, late.height / len(ns), float(ns.mean()))
    return Found(
        RULE,
        title,
        detail,
        worth=sure,
        cost_ns=cost,
        fix=cause.fix if cause and not alone else fix,
        evidence=evidence,
        where=where,
        calls=(cause.calls if cause else ()) or _ends_of_gaps(case, tiles, slow),
        title_as_recorded=True,
        takes=claimed,
    ).as_finding(case)


def _some_rank_is_late(case: Case) -> bool:
    """Return whether a rank is late in few steps alone, which has a finding of its own."""
    return any(row["late_at_times"] for row in rank_rows(case))


def _late_at_times(case: Case) -> int | None:
    """Return the rank that is late in few steps alone, None if that is the shown one, or none is."""
    rows = rank_rows(case)
    return next((row["rank"] for row in rows if row["late_at_times"] and row["process"] != case.process), None)


def _recurring(line: Row, every: str) -> Fix:
    """Return what to do about host code of "every 5th" step; ``line`` is what runs in it, empty where that was not recorded."""
    each = every.replace("every", "each", 1)
    if line:
        there = sampled_stacks.spoken(line["file"], line["line"], line["function"])
        return Fix(f"Do what {there} does in {each} step less often, in less time, or in another thread or process")
    return Fix(
        f"Find what runs in {each} step alone: logging, evaluation, checkpoints, a file that is written anew. The line is not recorded: "
        f"look for the condition of {each} step (step % n == 0); do it less often, in less time, or in another process",
        unexplained=True,
    )


#: Steps that lie apart from those that the figures are of are no part of their mean.
_APART = Saving(None, "the steps that the figures are of have none of these")


def _steps_in_words(case: Case, late: pl.DataFrame, several: bool) -> str:
    """Return "Steps 8, 16 take", numbered as in the capture."""
    numbers = [case.profile.step_of_capture(i) for i in late["index"].head(MOST_LISTED_SLOW_STEPS).to_list()]
    more = f" and {late.height - MOST_LISTED_SLOW_STEPS} more" if late.height > MOST_LISTED_SLOW_STEPS else ""
    return f"Step{'s' if several else ''} {', '.join(map(str, numbers))}{more} take{'s' if not several else ''}"


def _of_steps(case: Case, tiles: pl.DataFrame, chosen: Mask) -> Takes:
    """Return all that lies in these steps: what they cost beyond the usual step is a share of each piece."""
    begin = tiles["start_ns"].to_numpy()

    def inside(frame: pl.DataFrame) -> Mask:
        step = np.searchsorted(begin, frame["start_ns"].to_numpy(), side="right") - 1
        return np.asarray((step >= 0) & chosen[step], np.bool_)

    return Takes(ops_of(case.ops.filter(pl.Series(inside(case.ops), dtype=pl.Boolean))), inside(case.idle))


def _worth(case: Case, cause: SlowCause | None, longer: float, share: float, mean: float) -> Saving:
    """Return what the mean step saves if slow steps, a ``share`` of all, had the usual length as far as the cause explains it.

    ``longer``: how much longer they are than the median step, ``mean``: the mean step (ns), both as recorded. Where the shown step is
    shorter than that, so is the difference: without its cause, no mean step is shorter than the usual one. Where steps without the
    profiler are slow, too, their number and length count: a window of 24 steps holds two or three of those that come every tenth.
    """
    if cause is None or cause.saving_ns is None:
        return Saving(None, "from step lengths, not replayed")
    saving = min(cause.saving_ns, longer * min(1.0, case.step_ns / mean)) * share
    timed = 0.0 if case.profile.steps.in_rounds else bare.excess_ns(case.profile.trace.capture, case.process)
    if timed:
        saving = min(cause.saving_ns / longer, 1.0) * timed
    return Saving(
        round(saving),
        "from step lengths: slow steps would take the usual time",
        bound=cause.bound,
        source="steps",
    )
