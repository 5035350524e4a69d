"""Steps that ran without the profiler between two windows of recording and after them, as the probe of their process timed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from nsysx import ids
from nsysx.events.bare_alone import alone
from nsysx.events.bare_calls import single_calls
from nsysx.events.bare_settled import unsettled
from nsysx.events.event_bounds import (
    BARE_FEWEST_STEPS,
    ENOUGH_BARE_STEPS,
    FEWEST_STARVED_WAITS,
    LONG_BARE_STEP_SHARE,
    LONGEST_STEP_NS,
    STARVED_WAIT_SHARE,
    STOCK_GAPS,
    UNEVEN_SPREAD_SHARE,
    WHOLE_ROUNDS_SHARE,
)
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.trend import Trend, trend
from nsysx.frames.intervals import I64
from nsysx.model import Capture, Row


def lengths(record: Mapping[str, Any]) -> list[int]:
    """Return the lengths (ns) of the bare steps between two windows that the probe of a process has noted, [] without any.

    Those that lived on batches made during the window's pause are left out (see `_starved`), those that were slower than all that
    followed (see `unsettled`), and single ones of many times the usual length (see `alone`).
    """
    return _paced(record)[0][0]


def after(record: Mapping[str, Any], capture: Capture) -> list[int]:
    """Return the lengths (ns) of the bare steps after the second window, [] without any, or if nsys was in their calls."""
    return _paced(record)[1][0] if detached(record, capture) else []


def loader_sets_pace(record: Mapping[str, Any]) -> bool:
    """Return whether the bare steps wait for a loader again and again once they have used up what it made during the pause."""
    return any(_starved(*_noted_steps(record, stretch)) is not None for stretch in ("", "after_"))


def _starved(steps_ns: Sequence[int], fetches_ns: Sequence[int]) -> slice | None:
    """Return the steps from behind the first wait for a batch to the last one, None where the steps before it are like the rest.

    While nsys ends a window the program stands still for seconds, and a loader's workers fill their queue. Steps that use up these
    batches are as short as with a loader that is always ready. That queue is told by its end: a stretch without a wait, over twice as
    long as any between two waits behind it. From the end of one wait to the end of another the steps take as many batches as are made.
    """
    least = STARVED_WAIT_SHARE * float(np.median(steps_ns)) if steps_ns else 0.0
    waits = [i for i, ns in enumerate(fetches_ns) if ns > least]
    if len(waits) < FEWEST_STARVED_WAITS or len(steps_ns) != len(fetches_ns):
        return None
    longest_gap = max(later - earlier for earlier, later in pairwise(waits))
    return slice(waits[0] + 1, waits[-1] + 1) if waits[0] > STOCK_GAPS * longest_gap else None


def _noted_steps(record: Mapping[str, Any], stretch: str) -> tuple[list[int], list[int]]:
    """Return the lengths of the noted steps of a stretch ("", "after_") and the time in loaders of each (ns), without single calls."""
    steps_ns = _noted_numbers(record, f"{stretch}ns" if stretch else "lengths_ns")
    alone_first = 0 if stretch else single_calls(record, steps_ns)
    return steps_ns[alone_first:], _noted_numbers(record, f"{stretch}fetch_ns", 0)[alone_first:]


def noted_lengths(record: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Return the lengths (ns) of all bare steps that were noted between the windows, and after them."""
    return _noted_steps(record, "")[0], _noted_steps(record, "after_")[0]


def _paced(record: Mapping[str, Any]) -> tuple[tuple[list[int], list[int]], tuple[list[int], list[int]]]:
    """Return lengths and times in loaders (ns) of the steps between the windows and after them, at the pace that they can hold.

    Where a stretch shows that the loader sets it, one that does not has lived on the queue, and is left out.
    """
    stretches, _ = _without_alone(record)
    parts = [(stretch, part) for stretch in stretches if (part := _starved(*stretch)) is not None]
    paced = [(steps_ns[part], fetches_ns[part]) for (steps_ns, fetches_ns), part in parts] or [
        (steps_ns[part], fetches_ns[part])
        for steps_ns, fetches_ns in stretches
        for part in (_settled(steps_ns, fetches_ns),)
    ]
    return paced[0], paced[1] if len(paced) > 1 else ([], [])


def _without_alone(record: Mapping[str, Any]) -> tuple[list[tuple[list[int], list[int]]], list[list[int]]]:
    """Return lengths and times in loaders (ns) of the steps between the windows and after them, and the lengths of those left out of each.

    Left out are single steps of many times the usual length; none where waits for a loader recur.
    """
    stretches = [_noted_steps(record, stretch) for stretch in ("", "after_")]
    if any(_starved(*stretch) is not None for stretch in stretches):
        return stretches, [[], []]
    rows = alone(record, stretches)
    rest = [
        ([ns for i, ns in enumerate(steps_ns) if i not in out], [ns for i, ns in enumerate(fetches_ns) if i not in out])
        for (steps_ns, fetches_ns), out in zip(stretches, rows, strict=True)
    ]
    return rest, [[steps_ns[i] for i in sorted(out)] for (steps_ns, _), out in zip(stretches, rows, strict=True)]


def left_alone(record: Mapping[str, Any], capture: Capture) -> list[int]:
    """Return the lengths (ns) of single bare steps that take many times the others: these are in no length and no mean."""
    _, (between, later) = _without_alone(record)
    return between + (later if detached(record, capture) else [])


def _settled(steps_ns: Sequence[int], fetches_ns: Sequence[int]) -> slice:
    """Return the steps of a stretch without those that are not settled, and in whole rounds of a loader that waits again and again.

    A stretch begins and ends anywhere between two waits, and the first wait is of batches that the workers began before it. As in
    `_starved`, from the end of one wait to the end of another the steps take as many batches as are made.
    """
    first, count = unsettled(steps_ns), len(steps_ns)
    least = STARVED_WAIT_SHARE * float(np.median(steps_ns)) if steps_ns else 0.0
    waits = np.flatnonzero(np.asarray(fetches_ns) > least)
    ends = waits[
        np.diff(waits, append=count + 1) > 1
    ]  # waits that follow one another are one: each worker is late by as much
    if first or len(fetches_ns) != count or len(ends) < FEWEST_STARVED_WAITS:
        return slice(first, count)
    begin, end = int(ends[0]) + 1, int(ends[-1]) + 1
    return slice(begin, end) if end - begin >= WHOLE_ROUNDS_SHARE * count else slice(0, count)


def slower_at_first(record: Mapping[str, Any]) -> list[int]:
    """Return the lengths (ns) of the steps right behind the first window that are left out because all that followed were faster."""
    (steps_ns, _), _ = _without_alone(record)[0]
    return [] if loader_sets_pace(record) else steps_ns[: unsettled(steps_ns)]


def batches(record: Mapping[str, Any], capture: Capture) -> list[tuple[int, int]]:
    """Return the length of each bare step and the time that the host spent in the ``next`` of its loader (ns).

    [] where that was not noted.
    """
    between, later = _paced(record)
    parts = [between, later] if detached(record, capture) else [between]
    return [pair for steps, fetches in parts if len(steps) == len(fetches) for pair in zip(steps, fetches, strict=True)]


def stretches(capture: Capture, process: int) -> tuple[I64, I64]:
    """Return the lengths (ns) of the bare steps of a process between the windows, and after them."""
    record: Row = next(iter(ids.records_of(capture.probe, process)), {})
    return np.asarray(lengths(record), np.int64), np.asarray(after(record, capture), np.int64)


def of_process(capture: Capture, process: int) -> list[int]:
    """Return the lengths (ns) of all bare steps of a process, between the windows and after them, in order."""
    return [ns for stretch in stretches(capture, process) for ns in stretch.tolist()]


def long_steps(ns: I64) -> Flags:
    """Return which steps are long, by their lengths (ns)."""
    median = float(np.median(ns))
    spread = 1.4826 * float(np.median(np.abs(ns - median)))
    return np.asarray(ns > median + max(LONG_BARE_STEP_SHARE * median, 5 * spread), np.bool_)


def excess_ns(capture: Capture, process: int) -> float:
    """Return what long steps add to the mean of all bare steps of a process (ns), 0 where none is known to be long."""
    ns = np.asarray(of_process(capture, process), np.int64)
    if len(ns) < BARE_FEWEST_STEPS:
        return 0.0
    return float((ns - np.median(ns))[long_steps(ns)].sum()) / len(ns)


def loop(record: Mapping[str, Any], capture: Capture) -> tuple[list[int], list[int]]:
    """Return the lengths (ns) of the bare steps between the windows, and after them, each to the beginning of the next one.

    So an evaluation or a rollout counts with the step that it follows. Both are [] where next to nothing ran between the steps, and
    where the loader sets the pace: which of them lived on its queue is known of the steps alone.
    """
    if loader_sets_pace(record):
        return [], []
    later = _settled_loop(record, "after_") if detached(record, capture) else []
    return _settled_loop(record, ""), later


def _settled_loop(record: Mapping[str, Any], stretch: str) -> list[int]:
    """Return the loop's lengths (ns) of a stretch ("", "after_") without those of its steps that are not settled.

    A step with an evaluation has no length of its own, so the loop may have more of them: it is cut at the same share.
    """
    loop_ns = list(_noted_numbers(record, f"{stretch}loop_ns"))
    loop_ns = loop_ns if stretch else loop_ns[single_calls(record, loop_ns) :]
    stretches, left_out = _without_alone(record)
    later = stretch != ""
    steps_ns, fetches_ns = stretches[later]
    for ns in left_out[later]:  # with what ran behind it
        if longer := [loop for loop in loop_ns if loop >= ns]:
            loop_ns.remove(min(longer))
    if not steps_ns:
        return loop_ns[unsettled(loop_ns) :]
    part, times = _settled(steps_ns, fetches_ns), len(loop_ns) / len(steps_ns)
    return loop_ns[round(part.start * times) : round(part.stop * times)]


def rest(record: Mapping[str, Any], capture: Capture) -> list[tuple[int, int]]:
    """Return steps and ns of each block of the steps behind those, to the program's end, with what ran between them; [] without any."""
    noted = record.get("rest")
    blocks = noted.get("blocks") if isinstance(noted, dict) and detached(record, capture) else None
    given = [tuple(b) for b in blocks if isinstance(b, list) and len(b) == 2] if isinstance(blocks, list) else []
    whole = all(isinstance(n, int) and not isinstance(n, bool) and 0 < n < 1 << 62 for block in given for n in block)
    return [(steps, ns) for steps, ns in given if ns < steps * LONGEST_STEP_NS] if whole else []


def lead_ns(blocks: Sequence[tuple[int, int]]) -> float:
    """Return how far the host may be ahead of the device at the end of some blocks of steps (ns), that `rest` has.

    They are timed by the host, which begins beside a device at rest and ends wherever it is. What it gains on the device while it
    fills its queue stands in the first block, whose steps are that much shorter than usual; a step may lie between two looks.
    """
    each = [ns / steps for steps, ns in blocks]
    usual = float(np.median(each)) if each else 0.0
    return max(usual - each[0], 0.0) * blocks[0][0] + usual if blocks else 0.0


def detached(record: Mapping[str, Any], capture: Capture) -> bool:
    """Return whether nothing of nsys was in the program's CUDA calls between the windows, so that launches took as long as without.

    nsys was asked to leave them, and says that it did. Of a job it has to leave all ranks, because they wait for each other.
    """
    noted = record.get("unrecorded_steps")
    asked = isinstance(noted, dict) and noted.get("detached") is True
    ranks = [p for p in capture.probe if p.get("rank") is not None and isinstance(p.get("unrecorded_steps"), dict)]
    left = capture.cupti_left
    return asked and bool(left) and (None in left or all(p.get("pid") in left for p in (record, *ranks)))


def _noted_numbers(record: Mapping[str, Any], name: str, least: int = 1) -> list[int]:
    noted = record.get("unrecorded_steps")
    given = noted.get(name) if isinstance(noted, dict) else None
    lengths_ns = given if isinstance(given, list) else []
    sane = all(isinstance(ns, int) and not isinstance(ns, bool) and least <= ns < LONGEST_STEP_NS for ns in lengths_ns)
    return lengths_ns if sane else []


def timed(probes: Sequence[Row], process: int) -> bool:
    """Return whether enough bare steps of a process were timed to tell by themselves whether its steps grow."""
    return len(next(map(lengths, ids.records_of(probes, process)), [])) >= ENOUGH_BARE_STEPS


def course(recorded: Trend, probes: Sequence[Row], process: int) -> Trend:
    """Return the course of the recorded steps, without a growth that the same program's bare steps do not have.

    In a window of 24 steps the profiler's own cost can grow: of four programs on an H100 one was recorded with steps of 25 to 31 ms,
    and its 160 bare steps just before the window did not grow.
    """
    if recorded.kind not in ("growing", "falling"):
        return recorded
    bare_ns = next(map(lengths, ids.records_of(probes, process)), [])
    if len(bare_ns) < ENOUGH_BARE_STEPS or trend(np.asarray(bare_ns, np.int64)).kind == recorded.kind:
        return recorded
    uneven = recorded.spread is not None and recorded.spread > UNEVEN_SPREAD_SHARE
    return replace(recorded, kind="uneven" if uneven else "level", note="")
