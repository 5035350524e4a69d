"""The idle time of a device by the part of the verdict that it counts with, and the pages of unified memory that move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.analyses.helpers import one_time_cost
from nsysx.catalogue import Call, Cause, StepPart
from nsysx.events.profile import Profile
from nsysx.frames.intervals import I64, StepFunction, coverage
from nsysx.frames.lookup import at, having
from nsysx.judging.judging_bounds import OTHER_PART_PAUSE_NS
from nsysx.replay.engine import (
    RemoveWaits,
    Replay,
    idle_of,
    replay_of,
)

#: Copy kinds of unified memory: pages that move when touched, without a call (``schema.COPY_KINDS``).
MIGRATIONS = (11, 12)
#: To the device they move for a kernel that touches them, to the host for its own code.
TO_DEVICE, TO_HOST = MIGRATIONS


def _window(profile: Profile, process: int, device: int) -> tuple[int, int]:
    window = having(profile.steps.windows, process=process, device=device)
    start, end = window["start_ns", "end_ns"].row(0)
    return int(start), int(end)


def pages_moving(
    profile: Profile, process: int, device: int, kinds: Sequence[int] = MIGRATIONS, *, beneath: bool = False
) -> int:
    """Return how long pages of unified memory move, of these copy kinds, with no kernel beside them, or ``beneath`` kernels (ns)."""
    ops = having(profile.attributed.gpu_ops, process=process, device=device)
    moves = ops["copy_kind"].is_in(list(kinds)).fill_null(False)
    if not moves.any():
        return 0
    start, end = _window(profile, process, device)
    kernels = ops["op_kind"].is_in(["kernel", "graph"])
    both = coverage([_spans(ops.filter(moves)), _spans(ops.filter(kernels))], start, end)
    return int(both.within(both.labels == (3 if beneath else 1), np.array([start]), np.array([end]))[0])


def _spans(frame: pl.DataFrame) -> tuple[I64, I64]:
    return frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()


def idle_parts(profile: Profile, process: int, device: int, *, real: bool = False) -> dict[StepPart, int]:
    """Return the steady idle time of a device by part (ns, by Part); it sums to the idle time.

    ``real``: without a profiler; only for the busiest device of the shown process.

    The parts follow the idle causes, except that within steps the CPU time after a synchronizing call counts toward that call
    if the device ran dry inside it: had the CPU run ahead instead of waiting, there would be no gap. That holds only up to
    what the waits are worth (``_worth_of_waits``): a CPU without time to run ahead keeps the device waiting by its own code.
    Without steps, the time after a wait may be another part of the program; one-time costs and long pauses are parts of
    their own there.
    """
    pieces = profile.once(idle_of) if real else profile.ledgers.idle_of(process, device)
    start, end = _window(profile, process, device)
    pieces = pieces.filter((pieces["end_ns"] > start) & (pieces["start_ns"] < end))
    begin, finish = np.maximum(pieces["start_ns"].to_numpy(), start), np.minimum(pieces["end_ns"].to_numpy(), end)
    ns = pieces["real_ns"].to_numpy() if real else finish - begin
    number = {part: i for i, part in enumerate(StepPart)}
    of_cause = np.array([number[cause.part] for cause in Cause])
    part = of_cause[pieces["cause"].to_numpy()]
    once = np.zeros(len(ns), np.int64)
    if profile.steps.source == "capture":
        part[(part == number[StepPart.HOST]) & (ns >= OTHER_PART_PAUSE_NS)] = number[StepPart.ELSEWHERE]
        once = _paid_once(profile, process, begin, finish)
        once[(part == number[StepPart.ELSEWHERE]) | (part == number[StepPart.PROFILER])] = 0
        # Behind a launch, code is loaded on the device: then a kernel waits, and nothing that was recorded is what it waits for.
        loading = (part == number[StepPart.DEPENDENCY]) & pieces["waited_device"].is_null().to_numpy()
        late = loading | np.isin(part, (number[StepPart.HOST], number[StepPart.LAUNCH]))
        first = _before_first(profile, pieces, once) & late
        once[first] = ns[first]
    else:
        kind = at(profile.attributed.api_calls["kind"], pieces["began_in"].fill_null(-1).to_numpy())
        waited = kind.is_in(Call.WAITS).fill_null(False).to_numpy()
        part[waited & np.isin(part, (number[StepPart.HOST], number[StepPart.LAUNCH]))] = number[StepPart.SYNC]
    untraced = part == number[StepPart.UNTRACED]
    if untraced.any():
        kind = at(profile.attributed.gpu_ops["copy_kind"], pieces["op"].fill_null(-1).to_numpy())
        part[untraced & (kind == TO_DEVICE).fill_null(False).to_numpy()] = number[StepPart.MIGRATION]
        touched = untraced & (kind == TO_HOST).fill_null(False).to_numpy()
        part[touched] = number[StepPart.HOST]
        # One pause for the pages and for what follows the last of them.
        if profile.steps.source == "capture" and touched.any():
            other = _in_other_part(profile, process, device, begin, finish)
            part[(part == number[StepPart.HOST]) & other] = number[StepPart.ELSEWHERE]
    sums = np.zeros(len(StepPart), np.int64)
    np.add.at(sums, part, ns - once)
    sums[number[StepPart.START_UP]] += once.sum()
    parts = {p: int(sums[i]) for p, i in number.items() if sums[i]}
    return _capped(profile, parts)


def _in_other_part(profile: Profile, process: int, device: int, begin: I64, finish: I64) -> npt.NDArray[np.bool_]:
    """Return which times without work lie in a long pause of all that calls ask for, or behind the last of it.

    There the host reads or writes memory that it shares with the device, page by page, and the device waits for nothing.
    """
    ops = having(profile.attributed.gpu_ops, process=process, device=device)
    ops = ops.filter(~ops["copy_kind"].is_in(list(MIGRATIONS)).fill_null(False))
    starts, ends = ops["start_ns"].sort().to_numpy(), ops["end_ns"].sort().to_numpy()
    behind = np.searchsorted(starts, finish)
    next_ns: I64 = np.append(starts, np.iinfo(np.int64).max)[behind]
    last_ns: I64 = np.append(ends, 0)[np.searchsorted(ends, begin, side="right") - 1]
    return next_ns - last_ns >= OTHER_PART_PAUSE_NS


def _capped(profile: Profile, parts: dict[StepPart, int]) -> dict[StepPart, int]:
    """Return the parts with the waits capped at what they are worth; the excess goes to the host code that follows them."""
    waits = parts.get(StepPart.SYNC, 0)
    if not waits:
        return parts
    more = waits - min(waits, _worth_of_waits(profile))
    return {**parts, StepPart.SYNC: waits - more, StepPart.HOST: parts.get(StepPart.HOST, 0) + more}


def _worth_of_waits(profile: Profile) -> int:
    """Return the most that the steady window saves if no call waits (ns): by the replay, else the time of all waits."""
    replay = replay_of(profile)
    if isinstance(replay, Replay) and replay.trusted:
        return max(0, replay.saving(RemoveWaits()).saving_ns + replay.bar_ns) * max(profile.scope.steps, 1)
    waits = profile.wait_sites().filter(pl.col("process") == profile.steps.process)
    return int(waits.select((pl.col("backlog_ns") + pl.col("own_op_ns") + pl.col("host_ns")).sum()).item() or 0)


def _paid_once(profile: Profile, process: int, begin: I64, finish: I64) -> I64:
    """Return how much of each idle piece lies in the one-time cost of calls: loading code, filling caches (ns)."""
    paid = one_time_cost.costs(profile).filter(pl.col("process") == process)
    start = paid["start_ns"].to_numpy()
    busy: StepFunction = coverage([(start, start + paid["one_time_ns"].to_numpy())])
    return busy.within(busy.labels > 0, begin, finish) if len(busy.labels) else np.zeros(len(begin), np.int64)


def _before_first(profile: Profile, pieces: pl.DataFrame, once: I64) -> npt.NDArray[np.bool_]:
    """Return which pieces lie in a gap that ends with the first run of a kernel and contains one-time costs.

    Libraries set themselves up in host code between such calls: that is a one-time cost too.
    """
    ops = profile.attributed.gpu_ops
    runs = pl.DataFrame({"name": ops["name"].to_physical(), "op": ops["op"], "start_ns": ops["start_ns"]})
    first = runs.group_by("name").agg(pl.col("op").sort_by("start_ns").first())["op"]
    paying = pieces["gap"].filter(pl.Series(once > 0)).unique()
    return (pieces["op"].is_in(first.implode()).fill_null(False) & pieces["gap"].is_in(paying.implode())).to_numpy()
