"""Time that a program pays once: compiling, loading code. A steady step holds none; what comes back is no such time.

Compilations of torch.compile are known from the probe's marks. In a report without a probe a compilation shows as a pause of the
host that ends with the loading of what was compiled (cuModuleLoadData, cuLibraryLoadData).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.catalogue import Call, DeviceActivity
from nsysx.events.attribute import Attributed
from nsysx.events.event_bounds import (
    FEWEST_RETURNS,
    LATE_START_SHARE,
    LATE_START_STEPS,
    LATE_START_TIMES,
    ONE_TIME_EXPLAINS_SHARE,
    UNEVEN_RETURNS_TIMES,
)
from nsysx.events.nvtx_ranges import Flags
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, coverage


def spans(process: int, attributed: Attributed, pauses: pl.DataFrame) -> tuple[I64, I64]:
    """Return start and end (ns) of the one-time work of one process; the spans may overlap.

    ``pauses``: process, kind, start_ns, end_ns. A span of loading begins where the last call before it ended.
    """
    calls = lookup.having(attributed.api_calls["process", "kind", "start_ns", "end_ns"], process=process)
    # Code is mostly loaded in the first seconds, and what comes behind the last loading tells nothing of it.
    last_ns = calls["start_ns"].filter(calls["kind"] == Call.LOAD).max()
    calls = calls.clear() if last_ns is None else calls.filter(calls["start_ns"] <= last_ns)
    calls = lookup.ordered(calls, "start_ns", ["end_ns"])
    start, end = (calls[c].to_numpy() for c in ("start_ns", "end_ns"))
    # Code that is loaded on a kernel's first launch is loaded inside the call that launches it. A watchdog that asks for events
    # meanwhile does not end the pause.
    works = (calls["kind"] != Call.EVENT).to_numpy()
    reach = np.append(0, np.maximum.accumulate(np.where(works, end, 0)))[:-1] if len(end) else end
    loads = np.flatnonzero(calls["kind"] == Call.LOAD)
    root = np.maximum.accumulate(np.where(reach <= start, np.arange(len(start)), 0))[loads]
    begins = np.where(reach[root] > 0, np.minimum(reach[root], start[root]), start[root])
    compiled = lookup.having(pauses, process=process)
    compiled = compiled.filter(compiled["kind"] == "compile")
    return (
        np.concatenate((begins, compiled["start_ns"].to_numpy())),
        np.concatenate((np.maximum(end[root], end[loads]), compiled["end_ns"].to_numpy())),
    )


def one_time_steps(
    process: int,
    windows: list[tuple[I64, I64]],
    usual_ns: list[tuple[float, float]],
    attributed: Attributed,
    pauses: pl.DataFrame,
) -> tuple[Flags, Flags]:
    """Return which steps are long because of one-time work, this process's or that of one that it waits for, or of a late start that
    nothing recorded explains, and which because of such work of its own that comes back.

    ``windows``: start and end of each step, on the CPU and on the device: what the host does before the first launch of a step
    lies in the step before on the device. ``usual_ns``: the usual length for each, and the length from which a step is long.
    """
    start, end = spans(process, attributed, pauses)
    function = coverage([(start, end)])
    none = np.zeros(len(windows[0][0]), np.bool_)
    chosen = none.copy()
    for begin, finish, needed in _explained_by(windows, usual_ns):
        chosen |= function.within(function.labels > 0, begin, finish) >= needed
    once, often = (none, chosen) if _come_back(chosen) else (chosen, none)
    behind = _behind_others(process, windows, usual_ns, attributed, pauses)
    return _late_start(windows) | (once if _come_back(behind) else once | behind), often


def _explained_by(
    windows: list[tuple[I64, I64]], usual_ns: list[tuple[float, float]]
) -> Iterator[tuple[I64, I64, npt.NDArray[np.float64]]]:
    """Yield start and end of each step, and how much one-time work explains its length (ns), without end where it is not long."""
    for (begin, finish), (usual, most) in zip(windows, usual_ns, strict=True):
        length = finish - begin
        yield begin, finish, np.where(length > most, ONE_TIME_EXPLAINS_SHARE * (length - usual), np.inf)


def _behind_others(
    process: int,
    windows: list[tuple[I64, I64]],
    usual_ns: list[tuple[float, float]],
    attributed: Attributed,
    pauses: pl.DataFrame,
) -> Flags:
    """Return which steps are long because a collective waits for one-time work of another process.

    A collective lasts until the last process has come to it, so what one of them has paid once since the collective before stands in it
    for all others. The arguments are those of `one_time_steps`.
    """
    chosen = np.zeros(len(windows[0][0]), np.bool_)
    ops = attributed.gpu_ops
    comm = ops["process", "start_ns", "end_ns"].filter(ops["cls"] == DeviceActivity.COMM.value)
    others = [other for other in lookup.present(comm["process"]) if other != process]
    if not others:
        return chosen
    of_process = lookup.having(comm, process=process).sort("start_ns")
    start, end = (of_process[c].to_numpy() for c in ("start_ns", "end_ns"))
    needed_of = []  # of each window: the step of each collective, and what explains its length
    for begin, _, needed in _explained_by(windows, usual_ns):
        step = np.searchsorted(begin, start, side="right") - 1
        needed_of.append((step, np.where(step >= 0, needed[step], np.inf)))
    if not any((end - start >= needed).any() for _, needed in needed_of):
        return chosen
    before = np.append(np.int64(0), np.maximum.accumulate(end)[:-1])
    once = [coverage([spans(other, attributed, pauses)]) for other in others]
    paid = np.max([each.within(each.labels > 0, before, end) for each in once], axis=0)
    for step, needed in needed_of:
        chosen[step[np.minimum(end - start, paid) >= needed]] = True
    return chosen


def _late_start(windows: list[tuple[I64, I64]]) -> Flags:
    """Return the one early step that takes many times as long as any other but the first; none of few steps.

    Ranks that meet for the first time, or a library that sets itself up, stand still for seconds without a call that says so. Among
    steps of several lengths the mean counts, and of over a thousand steps this one alone made it an eighth longer.
    """
    chosen = np.zeros(len(windows[0][0]), np.bool_)
    early = int(LATE_START_SHARE * len(chosen))
    for begin, end in windows if len(chosen) >= LATE_START_STEPS else ():
        length = np.append(0, (end - begin)[1:])
        longest = int(length.argmax())
        if longest < early and length[longest] > LATE_START_TIMES * np.delete(length, longest).max():
            chosen[longest] = True
    return chosen


def _come_back(chosen: Flags) -> bool:
    """Return whether these steps are a habit: a new shape every third step compiles every third step."""
    places = np.flatnonzero(chosen & ~np.append(False, chosen[:-1]))  # a pause between two steps is long in both
    places = places[places > 0]  # the first step pays for whatever the program does at first
    if len(places) < FEWEST_RETURNS:
        return False
    gaps = np.diff(places)
    return bool(
        gaps.max() <= UNEVEN_RETURNS_TIMES * gaps.min()
        and len(chosen) - places[-1] <= UNEVEN_RETURNS_TIMES * gaps.max()
    )
