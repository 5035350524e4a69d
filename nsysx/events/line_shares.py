"""The host's time of plain steps, divided among lines of Python in the shares that an X-ray shows.

A thread's timeline is calls and the gaps between them. A call has its line. A gap between two calls is divided as the time
between the two calls of the X-ray that they correspond to: that is a *stratum*, with all gaps that correspond to the same two.
A thread on which no lines were noted, such as autograd's, is preparing its next call, and has the line of that. The parts sum to
the whole to the nanosecond; what no line is known for is part of it, as stack -1. No length is taken from the X-ray, only shares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.catalogue import Cause
from nsysx.events.code_lines import CodeLines
from nsysx.events.event_bounds import FAR_CALLS, STACK_IN_CALL, STACK_UNKNOWN
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.events.sampled_lines import shared_out
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, StepFunction, merged, overlay


@dataclass(frozen=True)
class _Cut:
    """Pieces of a thread's time cut where its calls begin and end: group, ns, the call that it is in, the one before, and behind."""

    group: I64
    ns: I64
    call: I64
    before: I64
    behind: I64


def divided(profile: Profile, lines: CodeLines, pieces: pl.DataFrame) -> pl.DataFrame:
    """Return group, stack (-1: not known), ns: the time of disjoint pieces of threads by what ran.

    ``pieces``: thread, start_ns, end_ns, group; pieces with thread -1 are nobody's. Sums of a group are exact.
    """
    parts = [pl.DataFrame(schema={"group": pl.Int64, "stack": pl.Int64, "ns": pl.Int64})]
    for (thread,), part in lookup.parted(pieces, "thread").items():
        parts.append(_of_thread(profile, lines, thread, part.sort("start_ns")))
    return pl.concat(parts).group_by("group", "stack", maintain_order=True).agg(pl.col("ns").sum())


def _of_thread(profile: Profile, lines: CodeLines, thread: int, pieces: pl.DataFrame) -> pl.DataFrame:
    cut = _cut(profile, thread, pieces)
    calls = profile.attributed.api_calls
    inside = cut.call >= 0
    direct = np.append(lines.call, -1)[np.where(inside, cut.call, cut.behind)]
    sure = inside | np.full(len(inside), thread not in lines.open)
    parts = [_summed(cut.group[sure], direct[sure], cut.ns[sure])]
    gaps = np.flatnonzero(~sure)
    if len(gaps):
        templates = np.append(lines.of, -1)
        before, behind = templates[cut.before[gaps]], templates[cut.behind[gaps]]
        # Where the X-ray saw all of the gap in front of the latter call, as between its own steps, that is what this one is like.
        ahead = np.maximum(behind - 1, 0)
        whole = (behind > 0) & (lines.call[ahead] >= 0) & (lines.of[ahead] == ahead)
        stratum, ways = _strata(calls, before, behind, cut.group[gaps], whole)
        parts.append(_shared(profile, lines, cut.group[gaps], cut.ns[gaps], stratum, ways))
    return pl.concat(parts)


def _summed(group: I64, stack: I64, ns: I64) -> pl.DataFrame:
    return pl.DataFrame(
        {"group": group, "stack": stack, "ns": ns}, schema_overrides=dict.fromkeys(("group", "stack", "ns"), pl.Int64)
    )


def _cut(profile: Profile, thread: int, pieces: pl.DataFrame) -> _Cut:
    """Return the pieces of one thread, in order of time, cut by its calls."""
    start, end, group = (pieces[c].to_numpy() for c in ("start_ns", "end_ns", "group"))
    empty = np.empty(0, np.int64)
    calls = profile.ledgers.threads.get(thread, StepFunction(empty, empty))
    times = merged([start, end, calls.borders_in(start, end)])
    piece = np.searchsorted(start, times[:-1], side="right") - 1
    inside = (piece >= 0) & (times[:-1] < end[np.maximum(piece, 0)])
    begin, ns, piece = times[:-1][inside], np.diff(times)[inside], piece[inside]
    call = calls.at(begin).astype(np.int64)
    # The labels in front of a gap and behind it are those of the calls that end and begin there.
    segment = np.searchsorted(calls.times, begin, side="right") - 1
    labels = np.concatenate(([-1], calls.labels, [-1, -1])).astype(np.int64)
    last = np.maximum.accumulate(np.where(labels >= 0, np.arange(len(labels)), 0))
    following = np.minimum.accumulate(np.where(labels >= 0, np.arange(len(labels)), len(labels) - 1)[::-1])[::-1]
    segment = np.clip(segment + 1, 0, len(labels) - 1)
    return _Cut(group[piece], ns, call, labels[last[segment]], labels[following[segment]])


def _strata(calls: pl.DataFrame, before: I64, behind: I64, group: I64, whole: Flags) -> tuple[I64, pl.DataFrame]:
    """Return the stratum of each gap, and stratum, thread, start_ns, end_ns of the time in the X-ray that each is divided as.

    ``before`` and ``behind`` are the calls of the X-ray that its own calls correspond to. Where those do not follow each other, as
    at the border of two steps, it is the gap before the latter; if that is not recorded as a ``whole``, both gaps beside them.
    """
    thread, start, end = (np.append(calls[c].to_numpy(), 0) for c in ("thread", "start_ns", "end_ns"))
    keys = pl.DataFrame({"group": group, "before": before, "behind": behind, "whole": whole})
    distinct = keys.unique(maintain_order=True).with_row_index("stratum").with_columns(pl.col("stratum").cast(pl.Int64))
    stratum = keys.join(distinct, on=keys.columns, how="left", maintain_order="left")["stratum"].to_numpy()
    before, behind = distinct["before"].to_numpy(), distinct["behind"].to_numpy()
    both = (before >= 0) & (behind > before) & (behind - before <= FAR_CALLS) & (thread[before] == thread[behind])
    rows = np.arange(len(before))
    windows = [_window(rows[both], thread[before[both]], end[before[both]], start[behind[both]], edge=False)]
    for chosen, row, step in ((~distinct["whole"].to_numpy() & (before >= 0), before, 1), (behind >= 0, behind, -1)):
        alone = rows[~both & chosen]
        near = row[alone] + step
        there = (near >= 0) & (near < calls.height) & (thread[near] == thread[row[alone]])
        first, last = np.minimum(near, row[alone])[there], np.maximum(near, row[alone])[there]
        windows.append(_window(alone[there], thread[first], end[first], start[last], edge=True))
    return stratum, pl.concat(windows).filter(pl.col("end_ns") > pl.col("start_ns"))


def _window(stratum: I64, thread: I64, start: I64, end: I64, *, edge: bool) -> pl.DataFrame:
    """Return windows as rows. ``edge``: an X-ray may begin or end in them, so that only what is known in them counts."""
    columns = {"stratum": stratum, "thread": thread, "start_ns": start, "end_ns": end}
    kinds = dict.fromkeys(columns, pl.Int64)
    return pl.DataFrame({**columns, "edge": np.full(len(stratum), edge)}, schema_overrides=kinds)


def _shared(
    profile: Profile, lines: CodeLines, group: I64, ns: I64, stratum: I64, windows: pl.DataFrame
) -> pl.DataFrame:
    """Return group, stack, ns of gaps by the shares of lines in the windows of their strata."""
    count = int(stratum.max(initial=-1)) + 1
    whole, group_of = lookup.totals(stratum, ns, count), np.zeros(count, np.int64)
    group_of[stratum] = group
    weights = [pl.DataFrame(schema={"stratum": pl.Int64, "stack": pl.Int64, "weight": pl.Int64})]
    for (thread,), part in lookup.parted(windows, "thread").items():
        weights.append(_weights(profile, lines, thread, part))
    rows = _unfolded(lines, pl.concat(weights))
    rows = rows.group_by("stratum", "stack").agg(pl.col("weight").sum()).sort("stratum", "stack")
    rows = rows.with_columns(all=pl.col("weight").sum().over("stratum"))
    bare = np.setdiff1d(np.arange(count), rows["stratum"].to_numpy())
    rest = {
        "stratum": bare,
        "stack": np.full(len(bare), STACK_UNKNOWN),
        "weight": np.ones(len(bare)),
        "all": np.ones(len(bare)),
    }
    rows = pl.concat([rows, pl.DataFrame(rest, schema=rows.schema)])
    rows = shared_out(rows.with_columns(whole=lookup.at(pl.Series(whole), rows["stratum"].to_numpy())))
    return _summed(group_of[rows["stratum"].to_numpy()], rows["stack"].to_numpy(), rows["ns"].to_numpy())


def _unfolded(lines: CodeLines, rows: pl.DataFrame) -> pl.DataFrame:
    """Return stratum, stack, weight with the time of functions that have no lines given to lines that they had before, by their shares.

    Those of the same stratum count, else of all; without any, the line that called the function has its time, else no line.
    """
    folded = np.append(lines.folded, False)[rows["stack"].to_numpy()]
    parts = [rows.filter(pl.Series(~folded))]
    for stack in np.unique(rows["stack"].to_numpy()[folded]).tolist():
        whole = rows.filter(rows["stack"] == stack).select("stratum", whole="weight")
        below = np.append(lines.lines_of_folded(stack), False)
        before = rows.filter(pl.Series(below[rows["stack"].to_numpy()], dtype=pl.Boolean))
        anywhere = before.group_by("stack").agg(pl.col("weight").sum())
        others = whole.join(before, on="stratum", how="anti").join(anywhere, how="cross")
        shares = pl.concat([whole.join(before, on="stratum"), others], how="diagonal")
        part = pl.col("whole") * pl.col("weight") / pl.col("weight").sum().over("stratum")
        parts.append(shares.select("stratum", "stack", part.round().cast(pl.Int64).alias("weight")))
        if not anywhere.height:
            above = int(lines.parent[stack])
            parts.append(whole.select("stratum", pl.lit(above).alias("stack"), pl.col("whole").alias("weight")))
    return pl.concat(parts)


def _weights(profile: Profile, lines: CodeLines, thread: int, windows: pl.DataFrame) -> pl.DataFrame:
    """Return stratum, stack, weight (ns): what was open in windows of one thread of the X-ray, outside of calls."""
    stratum, start, end = (windows[c].to_numpy() for c in ("stratum", "start_ns", "end_ns"))
    if not len(start) or thread not in lines.open:
        return pl.DataFrame(schema={"stratum": pl.Int64, "stack": pl.Int64, "weight": pl.Int64})
    calls = profile.ledgers.threads[thread]
    times, (label, stack) = overlay([calls, lines.open[thread]], int(start.min()), int(end.max()))
    stack = np.where(label >= 0, STACK_IN_CALL, stack.astype(np.int64))
    first = np.searchsorted(times, start, side="right") - 1
    count = np.maximum(np.searchsorted(times, end, side="left") - first, 0)
    row = np.repeat(np.arange(len(start)), count)
    segment = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + first[row]
    ns = np.minimum(times[segment + 1], end[row]) - np.maximum(times[segment], start[row])
    kept = (stack[segment] != STACK_IN_CALL) & (ns > 0)
    kept &= (stack[segment] != STACK_UNKNOWN) | ~windows["edge"].to_numpy()[row]
    frame = pl.DataFrame({"stratum": stratum[row][kept], "stack": stack[segment][kept], "weight": ns[kept]})
    return frame.group_by("stratum", "stack").agg(pl.col("weight").sum())


def driver(profile: Profile) -> int | None:
    """Return the thread that drives the steps of the shown process, None where it made no call."""
    # Steps that were found by their kernels belong to the thread that launched these.
    threads = profile.steps.cpu.filter(profile.steps.cpu["process"] == profile.process)["thread"].drop_nulls()
    threads = threads if len(threads) else profile.steady_calls["thread"]
    return int(threads.mode().sort().item(0)) if len(threads) else None


@dataclass(frozen=True)
class Shares:
    """stack, ns of the steady steps: ``host``, the timeline of the thread that drives them; ``idle`` time of the shown device that
    the host caused; ``own_idle_ns``, the rest of that, which no line caused.
    """

    host: pl.DataFrame
    idle: pl.DataFrame
    own_idle_ns: int


def host_time(profile: Profile, lines: CodeLines) -> pl.DataFrame:
    """Return stack, ns of the timeline of the thread that drives the steady steps."""
    windows = profile.steps.cpu_windows.filter(pl.col("process") == profile.process)["start_ns", "end_ns"]
    lead = driver(profile)
    host = windows.with_columns(thread=pl.lit(-1 if lead is None else lead), group=pl.lit(0, pl.Int64))
    return divided(profile, lines, host).drop("group")


def shares(profile: Profile) -> Shares:
    """Return where the host's time and the idle time of the steady steps went, by stack. Errors: ValueError without an X-ray."""
    lines = profile.code()
    if lines is None:
        raise ValueError("no lines were noted")
    of_host = host_time(profile, lines)
    start, end = profile.window
    pieces = profile.ledgers.idle_of(profile.process, profile.device)
    pieces = pieces.filter((pieces["end_ns"] > start) & (pieces["start_ns"] < end)).with_columns(
        pl.col("start_ns").clip(start), pl.col("end_ns").clip(None, end), group=pl.lit(0, pl.Int64)
    )
    late = divided(profile, lines, pieces.filter(pl.col("thread").is_not_null())).drop("group")
    others = pieces.filter(pl.col("thread").is_null())
    ns = (others["end_ns"] - others["start_ns"]).to_numpy()
    launching = (others["cause"] == Cause.LAUNCH_LATENCY.number).to_numpy()
    stack = np.append(lines.op, -1)[others["op"].fill_null(-1).to_numpy()[launching]]
    waited = pl.DataFrame({"stack": stack, "ns": ns[launching]}, schema_overrides={"stack": pl.Int64, "ns": pl.Int64})
    idle = pl.concat([late, waited]).group_by("stack", maintain_order=True).agg(pl.col("ns").sum())
    return Shares(of_host, idle, int(ns[~launching].sum()))
