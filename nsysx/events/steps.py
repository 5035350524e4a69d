"""Training steps: where they come from, which of them are steady, and how they tile the timeline of each device.

Sources, the first that gives steps wins: ``--step-range``, nsysx's own ranges, a user's ranges or marks named like steps,
optimizer ranges, the repeated kernel sequence, the whole capture as one step.

CPU step = its range on the thread that drives it. GPU step i runs from the first GPU op launched in step i to the first
launched in step i + 1, so that GPU steps tile the device timeline without a gap or an overlap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.events.attribute import Attributed
from nsysx.events.nvtx_ranges import Ranges
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.model import Row

#: A step belongs to the warm-up while it is this much longer than the later ones, or carries first-call work.
_WARMUP_EXCESS = 0.15
_FIRST_CALL_SHARE = 0.02

_STEP = {
    "process": pl.Int64,
    "thread": pl.Int64,
    "number": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}


@dataclass(frozen=True)
class StepTable:
    """``cpu``: process, index, number, thread, start_ns, end_ns, warmup, steady, cut (its end is not seen).

    ``gpu``: process, device, index, start_ns, end_ns. ``windows``: the steady part per (process, device) on the device
    timeline; ``cpu_windows`` the same per process on the CPU. ``process`` is the one whose steps are shown.
    """

    source: str
    rule: str
    cpu: pl.DataFrame
    gpu: pl.DataFrame
    windows: pl.DataFrame
    cpu_windows: pl.DataFrame
    process: int
    steady: tuple[int, int] | None
    whole: bool


def parse_window(text: str) -> tuple[int, int] | None:
    """Return ``A:B`` as (A, B), B exclusive; None for ``all``. Errors: NsysxError, exit code 2."""
    if text == "all":
        return None
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or int(match[1]) >= int(match[2]):
        what = f"--steps {text}: not a window of steps"
        raise NsysxError(what, slug="steps-syntax", hint="Write A:B with A < B, or all", exit_code=EXIT_USAGE)
    return int(match[1]), int(match[2])


def _from_spans(spans: pl.DataFrame) -> pl.DataFrame:
    """Return step rows from ranges; of overlapping ones in a process the earlier stays."""
    spans = spans.sort("process", "start_ns", "end_ns")
    reach = pl.col("end_ns").cum_max().shift(1).over("process")
    return spans.filter(reach.is_null() | (pl.col("start_ns") >= reach)).select(list(_STEP))


def _from_marks(marks: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return steps between marks; the last one runs to the end of the last call of the process."""
    last = calls.group_by("process").agg(pl.col("end_ns").max().alias("last_ns"))
    return (
        marks.sort("process", "start_ns")
        .with_columns(pl.col("start_ns").shift(-1).over("process").alias("next_ns"))
        .join(last, on="process", how="left")
        .with_columns(pl.coalesce("next_ns", "last_ns").alias("end_ns"))
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .select(list(_STEP))
    )


def _from_optimizer(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return steps that end where the optimizer's step ends; with several optimizers, the first that is seen."""
    spans = ranges.filter((pl.col("kind") == "phase") & (pl.col("name") == "optimizer")).sort("process", "start_ns")
    spans = spans.filter(pl.col("label") == pl.col("label").first().over("process"))
    first = pl.concat([calls.select("process", "start_ns"), ranges.select("process", "start_ns")])
    first = first.group_by("process").agg(pl.col("start_ns").min().alias("first_ns"))
    return (
        spans.join(first, on="process", how="left")
        .with_columns(
            pl.coalesce(pl.col("end_ns").shift(1).over("process"), "first_ns").alias("start_ns"),
            pl.int_range(pl.len(), dtype=pl.Int64).over("process").alias("number"),
        )
        .select(list(_STEP))
    )


def _period(names: I64) -> tuple[int, int] | None:
    """Return (first index, period) of the repeated part of a sequence of kernel ids, None when nothing repeats.

    Candidates are the distances at which a kernel recurs regularly: half of its occurrences or more lie that far apart. One
    holds when at least 90 % of a tail of three periods or more repeats with it. Parts of a step repeat too (layers,
    optimizer kernels), but explain a short tail only: the smallest period wins whose tail is nearly the longest.
    """
    n = len(names)
    order = np.argsort(names, kind="stable")
    same = names[order][1:] == names[order][:-1]
    gaps, kernel = (order[1:] - order[:-1])[same], names[order][1:][same]
    pairs, counts = np.unique(np.stack([kernel, gaps]), axis=1, return_counts=True)
    whole = dict(zip(*np.unique(kernel, return_counts=True), strict=True))
    regular = [
        int(gap)
        for (name, gap), count in zip(pairs.T.tolist(), counts.tolist(), strict=True)
        if 2 * count >= whole[name] and 8 <= gap <= n // 3
    ]
    found: list[tuple[int, int]] = []
    for period in sorted(set(regular)):
        equal = names[:-period] == names[period:]
        # The tail that repeats: steady steps come last, warm-up first; teardown is short.
        share = np.cumsum(equal[::-1])[::-1] / np.arange(len(equal), 0, -1)
        good = np.flatnonzero(share >= 0.9)
        if len(good) and len(equal) - good[0] >= 2 * period:
            head = np.flatnonzero(equal[good[0] :])
            found.append((int(good[0] + head[0]), period))
    longest = min((first for first, _ in found), default=0)
    return next(((first, period) for first, period in found if n - first >= 0.9 * (n - longest)), None)


def _from_kernels(ops: pl.DataFrame) -> pl.DataFrame:
    """Return steps from the repeated kernel sequence of each process's busiest stream; kernels of graphs count too."""
    parts = []
    kernels = ops.filter((pl.col("op_kind").cast(pl.String) == "kernel") & pl.col("call").is_not_null())
    for (process,), part in kernels.group_by("process", maintain_order=True):
        top = (
            part.group_by("device", "stream")
            .len()
            .sort("len", "device", "stream", descending=[True, False, False])
            .row(0)
        )
        line = part.filter((pl.col("device") == top[0]) & (pl.col("stream") == top[1])).sort("start_ns", "op")
        names = line["name"].to_physical().to_numpy()
        found = _period(names) if len(names) >= 24 else None
        if found is None:
            continue
        first, period = found
        starts = line["call_start_ns"].to_numpy()
        borders = np.maximum.accumulate(starts[first::period])
        if len(borders) < 3:
            continue
        parts.append(
            pl.DataFrame(
                {
                    "process": np.full(len(borders) - 1, process),
                    "thread": line["thread"].to_numpy()[first::period][:-1],
                    "number": np.arange(len(borders) - 1),
                    "start_ns": borders[:-1],
                    "end_ns": borders[1:],
                },
                schema=_STEP,
            )
        )
    return pl.concat([pl.DataFrame(schema=_STEP), *parts]).filter(pl.col("end_ns") > pl.col("start_ns"))


def _whole(attributed: Attributed) -> pl.DataFrame:
    """Return one step per process: everything that it did."""
    calls, ops = attributed.api_calls, attributed.gpu_ops
    rows = pl.concat(
        [
            calls.select("process", "thread", "start_ns", "end_ns"),
            ops.select("process", pl.lit(None, dtype=pl.Int64).alias("thread"), "start_ns", "end_ns"),
        ]
    )
    busiest = calls.group_by("process", "thread").len().sort("len", "thread", descending=[True, False])
    main = busiest.unique("process", keep="first", maintain_order=True).select("process", "thread")
    return (
        rows.group_by("process")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .join(main, on="process", how="left")
        .with_columns(pl.lit(0, dtype=pl.Int64).alias("number"))
        .sort("process")
        .select(list(_STEP))
    )


def _labelled(frame: pl.DataFrame, pattern: re.Pattern[str]) -> pl.DataFrame:
    """Return the rows whose label the pattern is found in; it is tried once per distinct label."""
    labels = [label for label in frame["label"].unique().to_list() if pattern.search(label)]
    return frame.filter(pl.col("label").is_in(labels))


def _find(ranges: Ranges, attributed: Attributed, step_range: str | None) -> tuple[str, str, pl.DataFrame]:
    rows, marks, calls = ranges.ranges, ranges.marks, attributed.api_calls
    if step_range:
        try:
            pattern = re.compile(step_range)
        except re.error as error:
            what = f"--step-range {step_range}: {error}"
            raise NsysxError(what, slug="step-range-syntax", exit_code=EXIT_USAGE) from None
        chosen, chosen_marks = _labelled(rows, pattern), _labelled(marks, pattern)
        found = _from_spans(chosen) if chosen.height else _from_marks(chosen_marks, calls)
        if not found.height:
            what = f"--step-range {step_range} matches no range and no mark"
            common = pl.concat([rows["label"], marks["label"]]).value_counts(sort=True)["label"].head(6)
            hint = "There is: " + (", ".join(label[:60] for label in common) or "nothing in this report")
            raise NsysxError(what, slug="step-range-empty", hint=hint, exit_code=EXIT_EMPTY)
        return "user", f"ranges that match {step_range!r}", found
    named = pl.col("kind") == "step"
    own, user, marked = rows.filter(named & pl.col("own")), rows.filter(named & ~pl.col("own")), marks.filter(named)
    sources: tuple[tuple[str, str, int, Callable[[], pl.DataFrame]], ...] = (
        ("nsysx", "step ranges of the probe", 1, lambda: _from_spans(own)),
        ("user", "NVTX ranges named like steps", 1, lambda: _from_spans(user)),
        ("user", "NVTX marks named like steps", 2, lambda: _from_marks(marked, calls)),
        ("optimizer", "each step ends where the optimizer's step ends", 2, lambda: _from_optimizer(rows, calls)),
    )
    narrow: tuple[str, str, pl.DataFrame] | None = None
    for source, rule, least, make in sources:
        steps = make()
        if steps.height >= least and narrow is None:
            if _covers(steps, attributed.gpu_ops):
                return source, rule, steps
            # Ranges around the warm-up of a CUDA graph say nothing about its replays.
            narrow = source, rule, steps
    steps = _from_kernels(attributed.gpu_ops)
    if steps.height > 1:
        why = f"the {narrow[1]} hold less than half of the GPU work" if narrow else "no step range in the report"
        return "kernels", f"the repeated kernel sequence ({why})", steps
    if narrow:
        return narrow
    why = "no step range, no optimizer range, no repeated kernel sequence"
    return "capture", f"the whole capture as one step: {why}", _whole(attributed)


def _covers(steps: pl.DataFrame, ops: pl.DataFrame) -> bool:
    """Return whether at least half of the GPU work whose launch is known was launched inside the steps.

    The last of four or more does not count: a range that nothing closed swallows whatever comes after the training loop.
    """
    known = ops.select("process", "call_start_ns", "start_ns", "end_ns").drop_nulls("call_start_ns")
    whole = known.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() or 0
    inside = 0
    for (process,), mine in steps.group_by("process"):
        part = known.filter(pl.col("process") == process)
        start, end = mine["start_ns"].sort().to_numpy(), mine["end_ns"].sort().to_numpy()
        if len(start) >= 4:
            start, end = start[:-1], end[:-1]
        called = part["call_start_ns"].to_numpy()
        i = np.searchsorted(start, called, side="right") - 1
        within = (i >= 0) & (called < end[np.maximum(i, 0)])
        inside += int((part["end_ns"] - part["start_ns"]).to_numpy()[within].sum())
    return 2 * inside >= whole


def _gpu_tiles(cpu: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return GPU steps per (process, device, index): from the first op of a step to the first op of the next."""
    parts = []
    schema = {"process": pl.Int64, "device": pl.Int64, "index": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
    wanted = ops.select("process", "device", "call_start_ns", "start_ns", "end_ns")
    launched = wanted.drop_nulls("call_start_ns")
    for (process, device), part in launched.group_by("process", "device", maintain_order=True):
        steps = cpu.filter(pl.col("process") == process)
        if not steps.height:
            continue
        starts, last_end = steps["start_ns"].to_numpy(), int(steps["end_ns"].to_numpy()[-1])
        called, begin, end = (part[c].to_numpy() for c in ("call_start_ns", "start_ns", "end_ns"))
        step = np.searchsorted(starts, called, side="right") - 1
        inside = (step >= 0) & (called < last_end)
        if not inside.any():
            continue
        n = len(starts)
        border = np.full(n + 1, np.iinfo(np.int64).max)
        np.minimum.at(border, step[inside], begin[inside])
        # The last step has no successor to end it: it ends with its own work.
        border[n] = end[inside & (step == step[inside].max())].max()
        # A step without GPU work takes the border of the next: an empty tile. Prefetched work may start early.
        border = np.minimum.accumulate(border[::-1])[::-1]
        parts.append(
            pl.DataFrame(
                {
                    "process": np.full(n, process),
                    "device": np.full(n, device),
                    "index": steps["index"].to_numpy(),
                    "start_ns": border[:-1],
                    "end_ns": border[1:],
                },
                schema=schema,
            )
        )
    return pl.concat([pl.DataFrame(schema=schema), *parts]).sort("process", "device", "index")


def _full(cpu: pl.DataFrame, ops: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Return for each step of one process whether it launches at least half as much GPU work as the median step."""
    starts, last_end = cpu["start_ns"].to_numpy(), int(cpu["end_ns"].to_numpy()[-1])
    mine = ops.select("process", "call_start_ns").filter(pl.col("process") == cpu["process"][0])
    called = mine["call_start_ns"].drop_nulls().to_numpy()
    at = np.searchsorted(starts, called, side="right") - 1
    counts = np.bincount(at[(at >= 0) & (called < last_end)], minlength=cpu.height)
    return np.asarray(counts >= np.median(counts) / 2)


def _told(probes: Sequence[Row], process: int) -> Row:
    """Return what the probe of a process wrote about its steps; empty when there is none."""
    told = next((p.get("steps") for p in probes if p.get("pid") == process & 0xFFFFFF), None)
    return told if isinstance(told, dict) else {}


def _worked(steps: pl.DataFrame, probes: Sequence[Row]) -> pl.DataFrame:
    """Leave out the steps that began and held nothing, as the probe knows: a fetch that found its loader exhausted."""
    for process in steps["process"].unique().to_list():
        empty = _told(probes, process).get("empty")
        numbers = [n for n in empty if isinstance(n, int)] if isinstance(empty, list) else []
        steps = steps.filter(~((pl.col("process") == process) & pl.col("number").is_in(numbers)))
    return steps


def _steady(cpu: pl.DataFrame, gpu: pl.DataFrame, attributed: Attributed, told: Row) -> tuple[int, int]:
    """Return the first and last steady step of one process. ``told`` is what the probe wrote about the steps.

    Warm-up is the longest prefix whose steps are longer than the later ones, carry first-call work (loading kernels), or hold
    little GPU work (the capture of a CUDA graph).
    The last full step has no full step after it that would show where it ends, so it is left out where there are enough
    others; behind it there may be a rest with little work (an exhausted loader, a last print).
    """
    n = cpu.height
    duration = (cpu["end_ns"] - cpu["start_ns"]).to_numpy().astype(float)
    if gpu.height:
        longest = gpu.group_by("index").agg((pl.col("end_ns") - pl.col("start_ns")).max().alias("d")).sort("index")
        by_index = dict(longest.iter_rows())
        duration = np.array([by_index.get(i) or 0 for i in cpu["index"].to_list()], float)
    full = _full(cpu, attributed.gpu_ops)
    last = int(np.flatnonzero(full)[-1])
    # A step that only the program's exit ended holds whatever came after training.
    if last >= 1 and (n >= 4 or (told.get("last_closed_by") == "exit" and last == n - 1)):
        last -= 1
    tail = duration[n // 2 : last + 1] if last >= n // 2 else duration[-1:]
    base = float(np.median(tail))
    spread = 3 * float(np.median(np.abs(tail - base)))
    calls = attributed.api_calls
    once = lookup.matching(calls["kind"], "^(load|alloc|host_alloc)$")
    loads = calls.select("process", "start_ns", "self_ns").filter(once).filter(pl.col("process") == cpu["process"][0])
    loads = loads.sort("start_ns")
    at = np.searchsorted(cpu["start_ns"].to_numpy(), loads["start_ns"].to_numpy(), side="right") - 1
    first_calls = np.zeros(n)
    np.add.at(first_calls, at[at >= 0], loads["self_ns"].to_numpy()[at >= 0])
    # What every step pays is no first call: an allocator that keeps missing is part of the steady step.
    first_calls -= float(np.median(first_calls[n // 2 : last + 1])) if last >= n // 2 else 0.0
    fine = (duration <= base * (1 + _WARMUP_EXCESS) + spread) & (first_calls <= _FIRST_CALL_SHARE * max(base, 1.0))
    # Before the probe took the cheap leaves back, steps cost more and modules were told apart otherwise.
    thinned = told.get("thinned_from")
    least = int((cpu["number"] < thinned).sum()) if isinstance(thinned, int) else 0
    least = least if least <= last else 0
    for first in range(least, min(max(n // 2, least) + 1, last + 1)):
        if full[first] and fine[first : first + 2].all():
            return first, last
    return min(max(n // 2, least), last), last


def find(
    ranges: Ranges,
    attributed: Attributed,
    *,
    steps: str | None = None,
    step_range: str | None = None,
    probes: Sequence[Row] = (),
    whole_in: tuple[int, int] | None = None,
) -> StepTable:
    """Return the steps of a report, the steady ones, and the windows that averages are taken over.

    ``steps`` is A:B (those steps count as steady) or "all" (the window is the whole capture). ``probes`` is what the probe
    of each process wrote about itself. ``whole_in``: steps that do not lie in this time are none. Errors: NsysxError with
    exit code 2 for a malformed window, 4 for one that holds no step.
    """
    source, rule, found = _find(ranges, attributed, step_range)
    if source == "nsysx":
        found = _worked(found, probes)
    else:
        probes = ()
    if whole_in is not None and source != "capture":
        found = found.filter((pl.col("start_ns") >= whole_in[0]) & (pl.col("end_ns") <= whole_in[1]))
        if not found.height:
            what = "--time-range: no whole step lies in it"
            raise NsysxError(what, slug="time-range-empty", hint="Widen it, or add --steps all", exit_code=EXIT_EMPTY)
    cpu = found.sort("process", "start_ns").with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).over("process").alias("index"),
        (pl.int_range(pl.len()).over("process") == pl.len().over("process") - 1).alias("cut"),
    )
    ops = attributed.gpu_ops
    gpu = _gpu_tiles(cpu, ops)
    busiest = ops.group_by("process").agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("d"))
    ranked = (
        cpu.group_by("process")
        .len()
        .join(busiest, on="process", how="left")
        .sort("d", "len", "process", nulls_last=True, descending=[True, True, False])
    )
    process = int(ranked["process"][0]) if ranked.height else 0
    mine = cpu.filter(pl.col("process") == process)
    window = parse_window(steps) if steps else None
    whole = steps == "all" or source == "capture"
    steady: tuple[int, int] | None = None
    if window:
        steady = (window[0], min(window[1], mine.height) - 1)
        if steady[0] > steady[1]:
            what = f"--steps {steps}: the report holds steps 0 to {mine.height - 1}"
            raise NsysxError(what, slug="steps-empty", exit_code=EXIT_EMPTY)
    elif mine.height and source != "capture":
        steady = _steady(mine, gpu.filter(pl.col("process") == process), attributed, _told(probes, process))
    elif mine.height:
        steady = (0, mine.height - 1)
    first, last = steady or (0, -1)
    in_steady = (pl.col("index") >= first) & (pl.col("index") <= last)
    cpu = cpu.with_columns(in_steady.alias("steady"), (pl.col("index") < first).alias("warmup"))
    span = [pl.col("start_ns").min(), pl.col("end_ns").max()]
    if whole:
        windows = ops.group_by("process", "device").agg(span)
        cpu_windows = _whole(attributed).select("process", "start_ns", "end_ns")
    else:
        windows = (
            gpu.filter(in_steady).group_by("process", "device").agg(span).filter(pl.col("end_ns") > pl.col("start_ns"))
        )
        cpu_windows = cpu.filter("steady").group_by("process").agg(span)
    return StepTable(
        source, rule, cpu, gpu, windows.sort("process", "device"), cpu_windows.sort("process"), process, steady, whole
    )
