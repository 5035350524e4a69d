"""Where steps come from: ranges, marks, the optimizer's ranges, or the whole capture."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache

import numpy as np
import polars as pl

from nsysx.catalogue import Call
from nsysx.errors import EXIT_EMPTY, EXIT_USAGE, NsysxError
from nsysx.events import measuring
from nsysx.events.attribute import Attributed
from nsysx.events.event_bounds import (
    FEWEST_BETWEEN,
    FEWEST_PLACED,
    FEWEST_SPREAD,
    IN_ONE_RANGE_SHARE,
    MOST_OPTIMIZERS,
    NEIGHBORS_OVERLAP_SHARE,
    REPEATED_BETWEEN_SHARE,
    REPETITIONS_SPREAD_TIMES,
    SAME_TURN_SHARE,
)
from nsysx.events.kernel_sequence import STEP, from_kernels
from nsysx.events.nvtx_ranges import Flags, Ranges
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, interval_of, union

#: The rule whose last step nothing closes.
MARKS = "NVTX marks named like steps"


def _from_spans(spans: pl.DataFrame) -> pl.DataFrame:
    """Return step rows from ranges: one inside an earlier one of its process is none, one that overlaps it a little cuts it."""
    if not spans.height:
        return pl.DataFrame(schema=STEP)
    spans = spans.sort("process", "start_ns", "end_ns", descending=[False, False, True])
    reach = pl.col("end_ns").cum_max().shift(1).over("process")
    spans = spans.filter(reach.is_null() | (pl.col("end_ns") > reach))
    shared = pl.col("end_ns").shift(1).over("process") - pl.col("start_ns")
    spans = spans.filter(
        shared.is_null() | (shared <= NEIGHBORS_OVERLAP_SHARE * (pl.col("end_ns") - pl.col("start_ns")))
    )
    following = pl.col("start_ns").shift(-1).over("process")
    ends = pl.min_horizontal("end_ns", following)
    return spans.with_columns(pl.when(following.is_null()).then("end_ns").otherwise(ends).alias("end_ns")).select(
        list(STEP)
    )


def _with_first_call(steps: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of the probe with the first call of a program that only infers, for which the probe begins no step.

    A network's first call with gradients is usually a look at shapes before training. Where no training follows, and the steps begin
    with calls of the same network, it was the first of them; it has no number.
    """
    first_calls = []
    for (process,), of_process in lookup.parted(steps, "process").items():
        if of_process["number"][0] != 0:
            continue
        phases = lookup.having(rows.filter(rows["own"] & (rows["kind"] == "phase")), process=process)
        if ((phases["name"] == "backward") | (phases["name"] == "optimizer")).any():
            continue
        phases = phases.sort("start_ns", "end_ns", descending=[False, True])
        began, ended = of_process["start_ns"].to_list(), of_process["end_ns"].to_list()
        on_thread = phases.filter(pl.col("thread") == of_process["thread"][0])
        before = on_thread.filter(pl.col("end_ns") <= began[0])
        before = before.filter((pl.col("end_ns") > pl.col("end_ns").cum_max().shift(1)).fill_null(True))
        inside = (pl.col("start_ns").is_between(*span, closed="left") for span in zip(began[:2], ended, strict=False))
        first_of = [on_thread.filter(of_step)["label"].head(1).to_list() for of_step in inside]
        if before.height == 1 and all(label == before["label"].to_list() for label in first_of):
            alike = of_process.head(1).with_columns(
                pl.lit(-1, dtype=pl.Int64).alias("number"),
                pl.lit(before["start_ns"][0], dtype=pl.Int64).alias("start_ns"),
                pl.lit(began[0], dtype=pl.Int64).alias("end_ns"),
            )
            first_calls.append(alike[list(STEP)])
    return pl.concat([steps, *first_calls]).sort("process", "start_ns") if first_calls else steps


def _from_marks(marks: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return steps between marks; the last one runs to the end of the last call of the process."""
    if not marks.height:
        return pl.DataFrame(schema=STEP)
    last = calls.group_by("process").agg(pl.col("end_ns").max().alias("last_ns"))
    return (
        marks.sort("process", "start_ns")
        .with_columns(pl.col("start_ns").shift(-1).over("process").alias("next_ns"))
        .join(last, on="process", how="left")
        .with_columns(pl.coalesce("next_ns", "last_ns").alias("end_ns"))
        .filter(pl.col("end_ns") > pl.col("start_ns"))[list(STEP)]
    )


def _turns(spans: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Keep one of several optimizers that share a name and take turns: how often they launch repeats after each turn."""
    kept = []
    for (process,), of_process in lookup.parted(spans, "process").items():
        launches = calls["start_ns"].filter((calls["process"] == process) & (calls["kind"] == Call.LAUNCH))
        called = launches.sort().to_numpy()
        counts = np.diff(np.searchsorted(called, of_process["end_ns"].to_numpy()))
        every = next(
            (
                k
                for k in range(1, MOST_OPTIMIZERS + 1)
                if len(counts) >= 3 * k and (counts[k:] == counts[:-k]).mean() >= SAME_TURN_SHARE
            ),
            1,
        )
        kept.append(of_process[every - 1 :: every])
    return pl.concat(kept) if kept else spans


#: The rule of the steps that follow.
_OPTIMIZER_RULE = "each step ends where the optimizer's step ends"


def _from_optimizer(spans: pl.DataFrame, ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return steps that end where the optimizer's step (``spans``) ends; with several optimizers, the same one each time."""
    if not spans.height:
        return pl.DataFrame(schema=STEP)
    spans = spans.sort("process", "start_ns")
    spans = spans.filter(pl.col("label") == pl.col("label").first().over("process"))
    spans = _turns(spans, calls)
    first = pl.concat([calls["process", "start_ns"], ranges["process", "start_ns"]])
    first = first.group_by("process").agg(pl.col("start_ns").min().alias("first_ns"))
    return spans.join(first, on="process", how="left").with_columns(
        pl.coalesce(pl.col("end_ns").shift(1).over("process"), "first_ns").alias("start_ns"),
        pl.int_range(pl.len(), dtype=pl.Int64).over("process").alias("number"),
    )[list(STEP)]


def whole_capture(attributed: Attributed) -> pl.DataFrame:
    """Return one step per process: everything that it did."""
    calls = attributed.api_calls
    span = pl.col("start_ns").min(), pl.col("end_ns").max()
    spans = pl.concat([frame.group_by("process").agg(span) for frame in (calls, attributed.gpu_ops)])
    busiest = calls.group_by("process", "thread").len().sort("len", "thread", descending=[True, False])
    main = busiest.unique("process", keep="first", maintain_order=True)["process", "thread"]
    return (
        spans.group_by("process")
        .agg(span)
        .join(main, on="process", how="left")
        .with_columns(pl.lit(0, dtype=pl.Int64).alias("number"))
        .sort("process")[list(STEP)]
    )


def _labeled(frame: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the rows whose label the pattern is found in; it is tried once per distinct label.

    polars matches in time that grows with the length of the text only; Python's own ``re`` may take for ever.
    """
    labels = frame["label"].unique().cast(pl.String)
    return frame.filter(pl.col("label").is_in(labels.filter(labels.str.contains(pattern)).to_list()))


#: Source, rule, steps.
Found = tuple[str, str, pl.DataFrame]


def find_steps(ranges: Ranges, attributed: Attributed, step_range: str | None) -> list[Found]:
    """Return the steps of each process that has any, by the source that suits it. Errors as in ``steps.find``."""
    rows, marks, calls = ranges.ranges, ranges.marks, attributed.api_calls
    if step_range:
        try:
            re.compile(step_range)
            pl.Series([""]).str.contains(step_range)
        except (re.error, RecursionError, OverflowError) as error:
            what = f"--step-range {step_range}: {error}"
            raise NsysxError(what, slug="step-range-syntax", exit_code=EXIT_USAGE) from None
        except pl.exceptions.PolarsError:
            what = f"--step-range {step_range}: look-around, back-references and very large patterns are not known here"
            raise NsysxError(what, slug="step-range-syntax", exit_code=EXIT_USAGE) from None
        chosen, chosen_marks = _labeled(rows, step_range), _labeled(marks, step_range)
        matched = _from_spans(chosen) if chosen.height else _from_marks(chosen_marks, calls)
        if not matched.height:
            what = f"--step-range {step_range} matches no range and no mark"
            common = pl.concat([rows["label"], marks["label"]]).value_counts(sort=True)["label"].head(6)
            hint = "The report has: " + (", ".join(label[:60] for label in common) or "nothing in this report")
            raise NsysxError(what, slug="step-range-empty", hint=hint, exit_code=EXIT_EMPTY)
        return [("user", f"ranges that match {step_range!r}", matched)]
    named, phase = rows["kind"] == "step", rows["kind"] == "phase"
    by_probe, user, marked, optimizers = (
        rows.filter(named & rows["own"]),
        rows.filter(named & ~rows["own"]),
        marks.filter(marks["kind"] == "step"),
        rows.filter(phase & (rows["name"] == "optimizer")),
    )
    # Each is made where a process has none of those before it.
    sources: tuple[tuple[str, str, int, Callable[[], pl.DataFrame]], ...] = (
        ("nsysx", "step ranges of the probe", 1, cache(lambda: _with_first_call(_from_spans(by_probe), rows))),
        ("user", "NVTX ranges named like steps", 1, cache(lambda: _from_spans(user))),
        ("user", MARKS, 2, cache(lambda: _from_marks(marked, calls))),
        ("optimizer", _OPTIMIZER_RULE, 2, cache(lambda: _from_optimizer(optimizers, rows, calls))),
    )
    chosen_of: list[Found] = []
    narrow: Found | None = None
    evaluations = rows.filter(rows["own"] & phase & (rows["name"] == "evaluation"))
    # A process has its own steps, whatever runs beside it. Ranks of one job have steps of one kind: what is an evaluation between steps of
    # one, however often it comes, is none of the rollouts that another could have.
    once = _with_steps(attributed, sources[0][-1](), evaluations)
    marking = (by_probe, user, marked, optimizers)
    for process in sorted({process for of_source in marking for process in lookup.present(of_source["process"])}):
        own_ops = lookup.having(attributed.gpu_ops, process=process)
        for source, rule, least, make in sources:
            steps = make()
            of_process = lookup.having(steps, process=process)
            if of_process.height < least:
                continue
            # What comes behind few of the steps is an exception, or ends a round of several of them (step_periods).
            repeats = max(FEWEST_BETWEEN, math.ceil(REPEATED_BETWEEN_SHARE * of_process.height))
            often = of_process.height if once - {process} else repeats
            of_probe = source == "nsysx"
            if (of_probe and process in once) or _covers(
                of_process, own_ops, evaluations, often, unmarked_before=of_probe
            ):
                chosen_of.append((source, rule, of_process))
                break
            # Ranges around the warm-up of a CUDA graph say nothing about its replays.
            narrow = narrow or (source, rule, steps)
    if chosen_of:
        return chosen_of
    measured = [
        process
        for (process,), of_process in calls.group_by("process")
        if measuring.measures(of_process, lookup.having(attributed.gpu_ops, process=process))
    ]
    repeated = from_kernels(attributed.gpu_ops, calls).filter(~pl.col("process").is_in(measured))
    behind = _behind_warmup(repeated, rows, attributed.gpu_ops, calls)
    steps, refused = _plausible(behind, rows, attributed.gpu_ops)
    if steps.height > 1:
        why = f"the {narrow[1]} hold less than half of the GPU work" if narrow else "no step range in the report"
        return [("kernels", f"the repeated kernel sequence ({why})", steps)]
    if narrow:
        return [narrow]
    why = (
        f"no step range, no optimizer range, {measuring.WHY if measured else refused or 'no repeated kernel sequence'}"
    )
    return [("capture", f"the whole capture as one step: {why}", whole_capture(attributed))]


#: What programs call the range around their warm-up.
_WARMUP = r"(?i)(?:^|[^a-z])warm[ _-]?up(?:$|[^a-z])"


def _behind_warmup(steps: pl.DataFrame, ranges: pl.DataFrame, ops: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the repetitions without those that begin inside of a range that the program calls its warm-up, where two others are left.

    Where none is left, what repeats behind the warm-up are the steps: a benchmark may warm up with another loop than it times.
    """
    called = _labeled(ranges, _WARMUP)
    kept = [steps.clear()]
    for (process,), of_process in steps.group_by("process", maintain_order=True):
        of_ranges = called.filter(pl.col("process") == process)
        start, end = union(of_ranges["start_ns"].to_numpy(), of_ranges["end_ns"].to_numpy())
        later = of_process.filter(~pl.Series(_within(of_process["start_ns"].to_numpy(), start, end), dtype=pl.Boolean))
        if later.height <= 1 and len(end):
            launched = lookup.having(ops, process=process)
            later = from_kernels(launched.filter(launched["call_start_ns"] >= int(end.max())), calls)
        kept.append(later if later.height > 1 else of_process)
    return pl.concat(kept)


def _plausible(steps: pl.DataFrame, ranges: pl.DataFrame, ops: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return the repetitions of the processes in which they may be steps, and why those of another process are none."""
    kept, refused = [steps.clear()], ""
    for (process,), of_process in steps.group_by("process", maintain_order=True):
        of_ranges, of_ops = (frame.filter(pl.col("process") == process) for frame in (ranges, ops))
        if why := _no_steps(of_process, of_ranges, of_ops):
            refused = why
        else:
            kept.append(of_process)
    return pl.concat(kept), refused


def _no_steps(steps: pl.DataFrame, ranges: pl.DataFrame, ops: pl.DataFrame) -> str:
    """Return why the repetitions of one process are no steps, "" where they may be."""
    begin = steps["start_ns"].to_numpy()
    whole_pass = (pl.col("kind") == "phase") & pl.col("name").cast(pl.String).is_in(["forward", "backward"])
    passes = ranges.filter(whole_pass | (pl.col("kind") == "module"))
    start, end = passes["start_ns"].to_numpy(), passes["end_ns"].to_numpy()
    inside = np.searchsorted(begin, end) - np.searchsorted(begin, start)
    if len(begin) >= FEWEST_PLACED and len(inside) and inside.max() >= max(IN_ONE_RANGE_SHARE * len(begin), 2):
        label = passes["label"].cast(pl.String)[int(inside.argmax())]
        return f"the repeated kernel sequence lies inside one range {label[:60]!r} and is a part of a pass"
    if len(begin) < FEWEST_SPREAD:
        return ""
    # The host may run ahead and then wait; the device may be late. Only what is uneven on both is no repetition.
    called = ops["call_start_ns", "start_ns"].drop_nulls().sort("call_start_ns", "start_ns")
    first = np.searchsorted(called["call_start_ns"].to_numpy(), begin)
    on_device = called["start_ns"].to_numpy()[np.minimum(first, called.height - 1)]
    spread = []
    for borders in (begin, on_device):
        # The first ones may be warm-up.
        low, high = np.quantile(np.maximum(np.diff(borders), 1)[len(borders) // 4 :], (0.25, 0.75))
        spread.append(float(high / low))
    if min(spread) > REPETITIONS_SPREAD_TIMES:
        return f"the lengths of the repeated kernel sequence differ too much (their middle half by a factor of {min(spread):.1f})"
    return ""


def _with_steps(attributed: Attributed, by_probe: pl.DataFrame, evaluations: pl.DataFrame) -> set[int]:
    """Return the processes whose steps of the probe cover their work, if those are the steps of several processes."""
    marked = lookup.present(by_probe["process"])
    if len(marked) < 2:
        return set()
    return {
        process
        for process in marked
        if _covers(
            lookup.having(by_probe, process=process),
            lookup.having(attributed.gpu_ops, process=process),
            evaluations,
            FEWEST_BETWEEN,
            unmarked_before=True,
        )
    }


def _covers(
    steps: pl.DataFrame, ops: pl.DataFrame, evaluations: pl.DataFrame, often: int, *, unmarked_before: bool
) -> bool:
    """Return whether at least half of the computing whose launch is known was launched inside the steps.

    The last of four or more does not count: a range that nothing closed swallows whatever comes after the training loop. Neither does
    what the probe saw to be an evaluation between steps, where that comes less ``often``: it may be most of the work of a short window,
    and an index that is made anew every tenth step most of the loop. One behind every third step may be a rollout, a part of each
    iteration. ``unmarked_before``: what knows a loop by its rounds has seen some of them before it marks one, so the same kernels before
    the first step do not count.
    """
    launched = ops["process", "call_start_ns", "start_ns", "end_ns", "name", "op_kind"].drop_nulls("call_start_ns")
    # Copies are not work of a step: what a program loads before its first step may take longer than all of them.
    computes = (launched["op_kind"] == "kernel") | (launched["op_kind"] == "graph")
    launched = launched.filter(computes) if computes.any() else launched
    whole = int((launched["end_ns"] - launched["start_ns"]).sum())
    inside = 0
    for (process,), of_process in lookup.parted(steps, "process").items():
        part = lookup.having(launched, process=process)
        start, end = of_process["start_ns"].sort().to_numpy(), of_process["end_ns"].sort().to_numpy()
        if len(start) >= 4:
            start, end = start[:-1], end[:-1]
        called, ns = part["call_start_ns"].to_numpy(), (part["end_ns"] - part["start_ns"]).to_numpy()
        within = _within(called, start, end)
        inside += int(ns[within].sum())
        if unmarked_before and (called < start[0]).any():
            repeated = part["name"].is_in(part["name"].filter(pl.Series(within, dtype=pl.Boolean)).unique().implode())
            whole -= int(ns[repeated.to_numpy() & (called < start[0])].sum())
        beside = lookup.having(evaluations, process=process).sort("start_ns")
        begin, until = union(*(beside[c].to_numpy() for c in ("start_ns", "end_ns")))
        if len(np.unique(np.searchsorted(start, begin))) < often:
            whole -= int(ns[~within & _within(called, begin, until)].sum())
    return 2 * inside >= whole


def _within(times: I64, start: I64, end: I64) -> Flags:
    """Return which times lie in one of the intervals [start, end), which are sorted and disjoint."""
    return interval_of(times, start, end) >= 0
