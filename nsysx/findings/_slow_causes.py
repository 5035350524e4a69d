"""What slow steps have more of than the others: pauses of Python, a lower clock, large copies to the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import Cause as IdleCause
from nsysx.catalogue import DeviceActivity
from nsysx.events import bare, ledger, python_pauses, sm_clocks
from nsysx.events.recorded_settings import settings_of
from nsysx.findings import _copied_weights, _line_remedies, _pauses
from nsysx.findings._case import Case, Fix
from nsysx.findings._finding_bounds import (
    ALIKE_LONG_STEP_TIMES,
    SAVED_BYTES,
    SAVED_TIMES,
    SLOW_STEPS_FEWEST_STEPS,
    SLOWER_CLOCK_SHARE,
)
from nsysx.findings._long_step_lines import line_of_long_steps, line_of_one_alone
from nsysx.frames.intervals import I64
from nsysx.model import Row

Shares = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
#: What to do about large copies to the host.
_SAVE = Fix(
    "Copy to pinned memory without waiting and write from a thread: torch.distributed.checkpoint.async_save, or clones of the "
    "state dict that a thread saves; read other large results rarely"
)
#: The same where the program was seen and saves nothing.
_READ = Fix(
    "Compute on the GPU what is made of this on the CPU, and copy only the result; or do it rarely, or copy to pinned memory without "
    "waiting and let a thread go on with it"
)
#: What grows where the host does something else for long: the device idles, or waits for another rank.
_OF_THE_HOST = (f"idle: {IdleCause.HOST_CODE.value}", DeviceActivity.COMM.column)
#: Files of PyTorch itself: the function that it calls in place of the program's.
_OF_TORCH = r"(^|/)torch/|^external_utils\.py$"


class SlowCause(NamedTuple):
    """Something that slow steps have more of than the others: its name, ns a step, a sentence about it, what to change.

    ``saving_ns``: what of ``ns`` a change takes away, without tracing; None where that is not known. ``bound``: at most that.
    ``calls`` are those that it is about, where there are any, ``where`` a line of the program.
    """

    name: str
    ns: float
    detail: str
    fix: str | Fix
    saving_ns: float | None = None
    bound: bool = False
    calls: tuple[int, ...] = ()
    where: Row | None = None


def _more_in_slow(values: I64, slow: Mask) -> float:
    """Return the mean of the slow steps less the median of the others (ns)."""
    return float(values[slow].mean() - np.median(values[~slow]))


def idle_pauses(case: Case, tiles: pl.DataFrame, slow: Mask) -> list[SlowCause]:
    """Return the pauses of Python noted by the probe that leave the device without work in slow steps."""
    causes = []
    begin, end = (tiles[c].to_numpy() for c in ("start_ns", "end_ns"))
    idle_start = np.maximum(case.idle["start_ns"].to_numpy(), begin[0])
    idle_end = idle_start + case.idle["ns"].to_numpy()
    step = np.searchsorted(begin, idle_start, side="right") - 1
    for kind in _pauses.KINDS:
        rows = _pauses.pauses_of_kind(case, kind)
        if not rows.height:
            continue
        spent = python_pauses.time_in(rows, idle_start, idle_end)
        more, saved = (
            _more_in_slow(_by_step(values, step, tiles), slow) for values in (spent, spent * _real_share(case))
        )
        if more <= 0:
            continue
        row = np.searchsorted(begin, rows["start_ns"].to_numpy(), side="right") - 1
        inside = (row >= 0) & (rows["start_ns"].to_numpy() < end[row])
        pauses = rows.filter(pl.Series(inside & slow[row], dtype=pl.Boolean))
        detail = f"For {units.duration(more)} of it the GPU idles during {_pauses.pauses_in_words(kind, pauses)} in these steps."
        causes.append(SlowCause(kind.name, more, detail, kind.fix, saved, where=_line_of(pauses)))
    return causes


def _line_of(pauses: pl.DataFrame) -> Row | None:
    """Return the line of the program that most of these pauses are about; None for lines of PyTorch's own, which wrap a function."""
    elsewhere = pauses.filter(pl.col("file").is_not_null() & ~pl.col("file").str.contains(_OF_TORCH))
    lines = elsewhere.group_by("file", "line").len().sort("len", "file", "line", descending=[True, False, False])
    return lines.row(0, named=True) if lines.height else None


def _real_share(case: Case) -> Shares:
    """Return which share of each piece of idle time stays without tracing."""
    ns, real = (case.idle[c].to_numpy() for c in ("ns", "real_ns"))
    return np.asarray(real / np.maximum(ns, 1), np.float64)


def _by_step(values: I64 | Shares, step: I64, tiles: pl.DataFrame) -> I64:
    """Return the sum of the values in each step; ``step`` is -1 for what lies before the first."""
    sums = np.zeros(tiles.height + 1)
    np.add.at(sums, step, values)  # -1 lands in the extra last place
    return np.rint(sums[:-1]).astype(np.int64)


#: What lines that read much back now and then do with it.
_READ_FOR = frozenset({"histograms-rarely", "drawn-rarely", "metrics-rarely"})


def copied_out(case: Case, tiles: pl.DataFrame, slow: Mask) -> list[SlowCause]:
    """Return the copies to the host that slow steps alone make, some of them or all, as a checkpoint does, with what runs between.

    ``torch.save`` copies one tensor after the other and writes each: the device idles or copies from the first to the last.
    """
    out = (case.ops["op_kind"] == "memcpy") & (case.ops["name"] == "DtoH") & (case.ops["device"] == case.device)
    copies = case.ops.filter(out.fill_null(False)).sort("start_ns")
    begin, until = (tiles[c].to_numpy() for c in ("start_ns", "end_ns"))
    start, end, size = (copies[c].fill_null(0).to_numpy() for c in ("start_ns", "end_ns", "bytes"))
    step = np.searchsorted(begin, start, side="right") - 1
    inside = (step >= 0) & (start < until[step])
    step, start, end, size = (values[inside] for values in (step, start, end, size))
    moved = _by_step(size, step, tiles)
    usual = float(np.median(moved[~slow]))
    saves = slow & (moved >= max(SAVED_BYTES, SAVED_TIMES * usual))
    if not saves.any():
        return []
    first, last = np.full(tiles.height, np.iinfo(np.int64).max), np.zeros(tiles.height, np.int64)
    np.minimum.at(first, step, start)
    np.maximum.at(last, step, end)
    # What the host does before the first copy (pickling) and behind the last one (writing) lies in the gaps beside them.
    first, last = _with_gaps(case, np.where(saves, first, begin), np.where(saves, last, begin))
    first, last = np.maximum(first, begin), np.minimum(last, until)
    activity = case.profile.ledgers.activity[case.process, case.device or 0]
    burst = np.where(saves)[0]
    working = ledger.gpu_parts(activity, first[burst], last[burst])[DeviceActivity.COMPUTE.column]
    took = last[burst] - first[burst] - working
    some = f"{saves.sum()} of them {'copies' if saves.sum() == 1 else 'copy'}"
    who = "Each of them copies" if saves.sum() == slow.sum() else some
    detail = (
        f"{who} {units.size(float(moved[saves].mean()))} to the host, the others {units.size(usual)}: in these "
        f"copies, and in what runs around them, are {units.duration(float(took.mean()))}, as in torch.save."
    )
    ns = float(took.sum()) / int(slow.sum())
    made = tuple(copies.filter(pl.Series(inside))["call"].filter(pl.Series(saves[step])).drop_nulls().to_list())
    where, fix, name = _saving_line(case), _SAVE, "a checkpoint or another large read-back"
    if where is None and (where := _copying_line(case, made)) is not None:
        each = case.steps / int(saves.sum())  # as if each step made them
        text = text_of(texts(case.profile), where["file"], where["line"]) or ""
        if _copied_weights.of_weights(case, round(len(made) * each), round(float(moved[saves].sum()) * each), text):
            fix, name = _copied_weights.ON_GPU, "a copy of the weights to the CPU"
            detail = detail.removesuffix(", as in torch.save.") + "."
    if where is None and (line := line_of_long_steps(case)) is not None and not line.usual:
        where = line.where
    text = (text_of(texts(case.profile), where["file"], where["line"]) or "") if where is not None else ""
    if fix is _SAVE and (read := _line_remedies.fix_of(_line_remedies.Seen(text), _READ_FOR)) is not None:
        fix, name = read, "a large read-back"
        detail = detail.removesuffix(", as in torch.save.") + "."
    elif fix is _SAVE and where is not None and _saves_nothing(case):
        fix, name = _READ, "a large read-back"
        detail = detail.removesuffix(", as in torch.save.") + "."
    return [SlowCause(name, ns, detail, fix, ns, bound=True, calls=made, where=where)]


def _copying_line(case: Case, calls: tuple[int, ...]) -> Row | None:
    """Return the line that makes more than half of these calls, None where no line does or none is known."""
    code = case.profile.code()
    line_rows = code.places_of(code.call[list(calls)]) if code is not None else np.empty(0, np.int64)
    counts = np.bincount(line_rows[line_rows >= 0])
    if code is None or not len(counts) or 2 * counts.max() <= len(calls):
        return None
    return code.where(int(counts.argmax())) or None


def _saving_line(case: Case) -> Row | None:
    """Return the line that the probe saw save for most of the time, None where it saw none."""
    settings = settings_of(case.profile)
    saves = (settings.rows("saves") if settings else None) or ()
    timed = [row for row in saves if isinstance(row.get("ns"), int)]
    file, _, line = str(max(timed, key=lambda row: row["ns"], default={}).get("place") or "").rpartition(":")
    return {"file": file, "line": int(line)} if file and line.isdigit() else None


def _saves_nothing(case: Case) -> bool:
    """Return whether the probe saw the program, and no torch.save of it."""
    settings = settings_of(case.profile)
    return settings is not None and settings.rows("saves") == ()


def _with_gaps(case: Case, first: I64, last: I64) -> tuple[I64, I64]:
    """Return each stretch with the gap of the device that ends at its begin, and the one that begins at its end."""
    ops = case.ops["start_ns", "end_ns"].filter(case.ops["device"] == case.device).sort("start_ns")
    start, reach = ops["start_ns"].to_numpy(), ops["end_ns"].cum_max().to_numpy()
    before, behind = np.searchsorted(start, first, side="left") - 1, np.searchsorted(start, last, side="left")
    earlier = np.where(before >= 0, np.minimum(reach[np.maximum(before, 0)], first), first)
    later = np.where(behind < len(start), start[np.minimum(behind, len(start) - 1)], last)
    return earlier, later


def came_unrecorded(case: Case, longer: float) -> bool:
    """Return whether steps that are longer by about as much (ns) came while nothing was recorded, too."""
    capture = case.profile.trace.capture
    if case.profile.steps.in_rounds or not bare.excess_ns(capture, case.process):
        return False
    timed = np.asarray(bare.of_process(capture, case.process), np.int64)
    alone = float(np.median(timed[bare.long_steps(timed)]) - np.median(timed))
    return alone / ALIKE_LONG_STEP_TIMES < longer < alone * ALIKE_LONG_STEP_TIMES


def seen_by_probe(case: Case, tiles: pl.DataFrame, slow: Mask, worst: str) -> list[SlowCause]:
    """Return the line at which the probe saw long steps while nothing was recorded, if these few have more idle time of the host, or wait.

    ``worst`` is the part of the ledger that grew most.
    """
    longer = _more_in_slow((tiles["end_ns"] - tiles["start_ns"]).to_numpy(), slow)
    line = line_of_one_alone(case) if worst in _OF_THE_HOST and came_unrecorded(case, longer) else None
    if line is None:
        return []
    more = line.share * longer
    detail = f"Without the profiler the probe saw {line.in_words} run in {units.share(line.share, 1)} of the time of such steps."
    return [SlowCause(line.in_words, more, detail, line.fix("run-rarely"), more, where=line.where)]


def lower_clock(case: Case, tiles: pl.DataFrame, table: pl.DataFrame, slow: Mask) -> list[SlowCause]:
    """Return a lower clock in the slow steps: the extra compute time, as far as the clock explains it."""
    working = len({d for _, d in case.profile.ledgers.activity})
    samples = sm_clocks.sm_clock(case.profile.trace, working)
    mhz = sm_clocks.means(samples, tiles["start_ns"].to_numpy(), tiles["end_ns"].to_numpy())
    measured = np.isfinite(mhz)
    if (measured & slow).sum() == 0 or (measured & ~slow).sum() < SLOW_STEPS_FEWEST_STEPS:
        return []
    late, usual = float(mhz[measured & slow].mean()), float(np.median(mhz[measured & ~slow]))
    if late > usual * (1 - SLOWER_CLOCK_SHARE):
        return []
    compute = table[DeviceActivity.COMPUTE.column].to_numpy()
    # A kernel slows down at most in proportion to its clock.
    most = float(np.median(compute[~slow])) * (usual / late - 1)
    more = min(_more_in_slow(compute, slow), most)
    detail = f"The SM clock was {late:.0f} MHz in them and {usual:.0f} MHz in the others."
    fix = "See what lowers the clock: power limit, temperature (nvidia-smi -q -d PERFORMANCE); lock it to compare: nvidia-smi -lgc"
    return [SlowCause("a lower GPU clock", more, detail, fix)] if more > 0 else []
