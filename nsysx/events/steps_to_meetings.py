"""Steps of a job that only infers, or of one whose ranks infer and train: forward passes up to the collective in which its ranks meet.

Where no optimizer ends a step, each call of the network is proposed as one. Ranks that share the samples of a query or of a batch call it
several times, each as often as its share asks for, and meet once behind all of them, to gather what they found:

    proposed   |f   |f   |f   |f   |f   |f   |f   |f   |        f: one forward pass
    collective                  c                   c
    step       |                   |                   |

How many passes a query has may differ, from query to query and between the ranks: a step is what lies between two meetings all the same.
What one rank has more of than the others stands in each pass, and the wait for it in every so many of them alone: neither is a matter of
one pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.event_bounds import MOST_STEP_PARTS
from nsysx.events.operator_bounds import FEWEST_MEETINGS
from nsysx.frames import lookup
from nsysx.frames.intervals import I64

#: Phases in which a pass runs.
_PASSES = ("forward", "evaluation")
_COLLECTIVE = pl.col("cls") == DeviceActivity.COMM.value


def up_to_meetings(
    cpu: pl.DataFrame, ops: pl.DataFrame, seams: Sequence[int] = ()
) -> tuple[pl.DataFrame, dict[int, float]]:
    """Return the steps of each process, with the passes up to a collective as one, and process -> how many on average where that is so.

    ``cpu``: process, index, number, thread, start_ns, end_ns, cut, parts. Passes before the first whole step of a window are none; those
    behind the last collective are a step that is cut. ``seams``: where the later parts of the capture begin.
    """
    if not (ops["cls"] == DeviceActivity.COMM.value).any():
        return cpu, {}
    inferring = [_Inferring.of_process(steps, ops, seams) for steps in lookup.parted(cpu, "process").values()]
    in_rounds = _in_rounds(inferring)
    # A rank that has a single pass of each query meets as often as one that has several.
    if not in_rounds and not any(rank.meets and rank.passes > 1 for rank in inferring):
        return cpu, {}
    made, passes = [], {}
    for rank in inferring:
        if not rank.meets and not in_rounds:
            made.append(rank.steps)
            continue
        whole = pl.concat([_in_wholes(window, met, rank.size) for window, met in rank.windows])
        process = int(whole["process"][0])
        made.append(whole.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("index")))
        ended = whole.filter(~pl.col("cut"))["parts"].to_numpy()
        passes[process] = float(rank.size or ended.mean())
    return pl.concat(made), passes


def _in_rounds(ranks: Sequence[_Inferring]) -> bool:
    """Return whether some ranks infer and others train, each with as many passes or updates from one meeting to the next as always.

    What all of them wait for is a round, as of an actor that plays and a learner that learns from it: no update is a step of the job.
    """
    meetings = {sum(len(met) for _, met in rank.windows) for rank in ranks}
    alike = all(rank.size is not None for rank in ranks) and max(meetings) - min(meetings) <= 1
    often = min(meetings) >= FEWEST_MEETINGS and any(rank.passes > 1 for rank in ranks)
    return len({rank.infers for rank in ranks}) > 1 and alike and often


class _Inferring:
    """The passes of one process: its ``windows``, each with the passes in which it calls a collective, and how far these lie apart.

    ``size``: so many passes lie between two meetings, the last of them included, None where that differs. ``meets``: these are meetings.
    """

    def __init__(
        self, steps: pl.DataFrame, windows: list[tuple[pl.DataFrame, I64]], *, infers: bool, behind: bool
    ) -> None:
        self.steps, self.windows, self.infers = steps, windows, infers
        apart = np.concatenate([np.diff(met) for _, met in windows])
        self.size = int(apart[0]) if len(apart) and (apart == apart[0]).all() else None
        self.passes = float(apart.mean()) if len(apart) else 0.0
        often = max(len(met) for _, met in windows) >= FEWEST_MEETINGS and apart.max() <= MOST_STEP_PARTS
        # Unlike numbers of passes are those of queries: a network that now and then communicates does so within a pass.
        self.meets = often and infers and (behind or self.size is not None)

    @classmethod
    def of_process(cls, steps: pl.DataFrame, ops: pl.DataFrame, seams: Sequence[int]) -> _Inferring:
        """Return what is known of the proposed steps of one process."""
        launched = lookup.having(ops["process", "call_start_ns", "cls", "phase"], process=steps["process"][0])
        launched = launched.drop_nulls("call_start_ns")
        collectives = launched.filter(_COLLECTIVE)
        called = collectives["call_start_ns"].sort().to_numpy()
        part = np.searchsorted(np.asarray(seams, np.int64), steps["start_ns"].to_numpy(), side="right")
        windows = [(window := steps.filter(part == number), _with_calls(window, called)) for number in np.unique(part)]
        within = collectives["phase"].cast(pl.String).is_in(_PASSES).any()
        return cls(steps, windows, infers=_only_infers(steps, launched), behind=not within)


def _with_calls(steps: pl.DataFrame, called: I64) -> I64:
    """Return in which of these steps, counted from the first, one of these calls begins."""
    held = np.searchsorted(called, steps["end_ns"].to_numpy()) - np.searchsorted(called, steps["start_ns"].to_numpy())
    return np.flatnonzero(held)


def _only_infers(steps: pl.DataFrame, launched: pl.DataFrame) -> bool:
    """Return whether these passes compute no gradient, by their phases."""
    called = pl.col("call_start_ns").is_between(steps["start_ns"][0], steps["end_ns"][-1])
    phases = set(launched.filter(called)["phase"].cast(pl.String).unique().to_list())
    return "evaluation" in phases and not phases & {"backward", "optimizer"}


def _in_wholes(steps: pl.DataFrame, met: I64, size: int | None) -> pl.DataFrame:
    """Return the passes of one window in steps that end with a meeting.

    Of unlike numbers of passes it is not known where the first step of a window begins, but for the first pass of all.
    """
    if not len(met):
        return steps.clear()
    if size is not None:
        first = np.arange((int(met[0]) + 1) % size, steps.height, size)
        last = np.minimum(first + size, steps.height) - 1
        cut = last - first + 1 < size
    else:
        first = np.append([0] if steps["number"][0] == 0 else [], met + 1).astype(np.int64)
        first = first[first < steps.height]
        last = np.append(first[1:], steps.height) - 1
        cut = ~np.isin(last, met)
    return steps[first].with_columns(
        pl.Series("end_ns", steps["end_ns"].to_numpy()[last]),
        pl.Series("cut", cut | steps["cut"].to_numpy()[last]),
        pl.Series("parts", last - first + 1, dtype=pl.Int64),
    )


def numbered(cpu: pl.DataFrame, ops: pl.DataFrame, passes: Mapping[int, float]) -> pl.DataFrame:
    """Return these steps, numbered by their meetings where the number of their first pass does not tell which ranks have in common.

    So it is where a rank has not as many passes in each step, or not as many as another rank. Ranks end a collective together; what is
    known of one rank alone is counted on from its first pass in a window, which all begin with the same number.
    """
    unlike = passes and cpu.filter(pl.col("process").is_in(list(passes)) & ~pl.col("cut"))["parts"].n_unique() > 1
    if not unlike:
        return cpu
    return _by_window(cpu) if len(passes) == 1 else _by_time(cpu, ops, passes)


def _by_window(cpu: pl.DataFrame) -> pl.DataFrame:
    """Return the steps numbered one by one from the first pass in their window on."""
    begins = pl.col("number") != pl.col("number").shift(1) + pl.col("parts").shift(1)
    window = cpu.with_columns(begins.fill_null(value=True).cum_sum().over("process").alias("window"))
    counted = pl.col("number").first() + pl.int_range(pl.len(), dtype=pl.Int64)
    return window.with_columns(counted.over("process", "window").alias("number")).drop("window")


def _by_time(cpu: pl.DataFrame, ops: pl.DataFrame, passes: Mapping[int, float]) -> pl.DataFrame:
    """Return the steps numbered by which meeting ends them, as far as they are of these processes."""
    collectives = ops.filter(_COLLECTIVE & pl.col("call_start_ns").is_not_null()).sort("call_start_ns")
    made = []
    for (process,), steps in cpu.group_by("process", maintain_order=True):
        if process not in passes:
            made.append(steps)
            continue
        launched = collectives.filter(pl.col("process") == process)
        last = np.searchsorted(launched["call_start_ns"].to_numpy(), steps["end_ns"].to_numpy()) - 1
        # One that is cut has not met: its meeting comes behind the last one.
        ended = np.where(steps["cut"], -1, launched["end_ns"].to_numpy()[np.maximum(last, 0)])
        made.append(steps.with_columns(pl.Series("met_ns", ended, dtype=pl.Int64)))
    whole = pl.concat(made, how="diagonal")
    meetings = _meetings(whole.filter(pl.col("met_ns") >= 0))
    behind = (pl.col("meeting").forward_fill().fill_null(-1) + 1).over("process")
    number = pl.when(pl.col("met_ns").is_null()).then(pl.col("number")).otherwise(pl.coalesce("meeting", behind))
    joined = whole.join(meetings, on=["process", "index"], how="left", maintain_order="left")
    return joined.with_columns(number.alias("number"))[cpu.columns]


def _meetings(steps: pl.DataFrame) -> pl.DataFrame:
    """Return process, index and meeting of these steps: those that met at about one time did so in the same one."""
    process, index, met = (steps.sort("met_ns")[name].to_numpy() for name in ("process", "index", "met_ns"))
    apart = min(int(np.diff(met[process == each]).min(initial=1 << 62)) for each in np.unique(process))
    number, begun, came = -1, 0, set[int]()
    meeting = np.zeros(len(met), np.int64)
    for row, (rank, met_ns) in enumerate(zip(process.tolist(), met.tolist(), strict=True)):
        if number < 0 or rank in came or met_ns - begun > apart / 2:
            number, begun, came = number + 1, met_ns, set()
        came.add(rank)
        meeting[row] = number
    return pl.DataFrame({"process": process, "index": index, "meeting": meeting}).cast(
        {"process": steps["process"].dtype}
    )
