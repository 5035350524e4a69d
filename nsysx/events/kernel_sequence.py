"""Steps from the repeated sequence of GPU work, where nothing names them.

A neural network repeats at several levels: kernels in a layer, layers in a step, steps in a run. Each level shows as *markers*,
kinds of work that come back at a regular distance. The step is the level that has what happens once in a step (the embedding,
the loss, the optimizer, sampling, a copy of the input or of the result), not the layer below it and not the epoch above:

    layer    |k k k|k k k|k k k|                    the shortest level that holds half of the GPU work
    step     |embed k k k k k k k k k head|         it holds kernels that its layers do not: one level up
    epoch    |step step step ... evaluation|        a step that holds an optimizer is whole: no further up

A distance that fails these tests is not a step. Where the same few launches repeat all through the capture, their period is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from nsysx.catalogue import Call
from nsysx.events.event_bounds import (
    ALIKE_DISTANCES_SHARE,
    COMPARED_NEIGHBORS,
    DIFFERING_DISTANCES_SHARE,
    FEW_DISTANCES,
    FEWEST_MARKERS,
    INPUT_COPIES_SHARE,
    INPUT_COPY_BYTES,
    LEVEL_COVERAGE_SHARE,
    LEVEL_EXTRA_SHARE,
    LONGEST_STEP_PERIODS,
    LOOP_ALIKE_SHARE,
    LOOP_REPETITIONS,
    SAME_KINDS_SHARE,
    SHORTEST_PERIOD,
)
from nsysx.events.nvtx_ranges import Flags
from nsysx.frames import frame_columns, lookup
from nsysx.frames.intervals import I64

#: What every source of steps gives.
STEP = frame_columns.schema(frame_columns.CPU_STEPS, "process", "thread", "number", "start_ns", "end_ns")


#: What happens once in a step, by the names that PyTorch and its usual companions give to kernels.
_OPTIMIZER = re.compile(r"adam|sgd|multi_tensor_apply|lamb(?!da)|adagrad|rmsprop|addcdiv", re.IGNORECASE)
_OUTPUT = re.compile(r"nll_loss|cross_?entropy|log_?softmax|mse_loss|argmax|multinomial|distribution_", re.IGNORECASE)
#: Kernels of neural networks: their layers repeat. Of anything else a repeated sequence is an iteration.
_NETWORK = re.compile(r"gemm|nvjet|cutlass|flash|fmha|at::native|layer_?norm|cudnn|triton_|conv", re.IGNORECASE)


@dataclass(frozen=True)
class _LaunchOrder:
    """The GPU work of one process in the order of its launches. A launch of a CUDA graph is one element, whatever it holds.

    ``kind`` numbers the names, ``shape`` the names with their grids; ``names`` is the name of each kind. ``work`` is the time
    of kernels and graphs before each element, one value more than elements. ``process``, ``thread``, ``start``, ``end``: of
    the call.
    """

    process: int
    kind: I64
    shape: I64
    names: list[str]
    work: I64
    input_work: I64
    computes: Flags
    thread: I64
    start: I64
    end: I64

    def flags(self, pattern: re.Pattern[str]) -> Flags:
        """Return which kinds match a pattern."""
        return np.array([bool(pattern.search(name)) for name in self.names], np.bool_)


@dataclass(frozen=True)
class _Level:
    """A distance at which kinds of work recur: ``markers`` are the places of each such kind."""

    period: int
    markers: tuple[I64, ...]

    @cached_property
    def segments(self) -> tuple[I64, I64]:
        """Begin and end of the regular periods, by the marker that has the most of them."""
        begin = end = np.empty(0, np.int64)
        for places in self.markers:
            gaps = np.diff(places)
            same = np.abs(gaps - self.period) <= ALIKE_DISTANCES_SHARE * self.period
            if same.sum() > len(begin):
                begin, end = places[:-1][same], places[1:][same]
        return begin, end


_GRAPH = "[CUDA graph]"


def _line(process: int, ops: pl.DataFrame, calls: pl.DataFrame) -> _LaunchOrder:
    """Return the work of one process that has a call. ``ops`` holds nothing else."""
    ops = ops.sort("call_start_ns", "start_ns", "op")
    call = ops["call"].to_numpy()
    graph = lookup.at(calls["kind"], call).cast(pl.String).to_numpy() == Call.GRAPH_LAUNCH
    opaque = (ops["op_kind"].cast(pl.String) == "graph").to_numpy()
    first = np.concatenate(([True], call[1:] != call[:-1])) | ~graph
    element = np.cumsum(first) - 1
    kernel = (ops["op_kind"].cast(pl.String) == "kernel").to_numpy()
    ns = (ops["end_ns"] - ops["start_ns"]).to_numpy()
    words, kind = lookup.distinct(ops["name"])
    names = [*(word or "" for word in words), _GRAPH]
    kind = np.where(graph | opaque, len(words), kind)[first]
    grids, grid = lookup.distinct(ops["grid"].cast(pl.String).cast(pl.Categorical))
    _, shape = np.unique(kind * (len(grids) + 1) + np.where(graph, 0, grid)[first], return_inverse=True)
    size = int(first.sum())
    computing = np.where(kernel | opaque | graph, ns, 0)
    is_input = lookup.coded(ops["name"], {"HtoD": 1}) == 1
    work, inputs = (
        np.concatenate(([0], np.cumsum(lookup.totals(element, values, size))))
        for values in (computing, np.where(is_input, ns, 0))
    )
    # A copy of a few bytes is not an input: it gets a kind of its own that marks nothing.
    small = is_input[first] & (ops["bytes"].fill_null(0).to_numpy()[first] < INPUT_COPY_BYTES)
    kind = np.where(small, len(names), kind)
    thread, start, end = (ops[c].to_numpy()[first] for c in ("thread", "call_start_ns", "call_end_ns"))
    computes = (kernel | opaque | graph)[first]
    return _LaunchOrder(
        process,
        kind,
        shape=shape,
        names=[*names, "[scalar]"],
        work=work,
        input_work=inputs,
        computes=computes,
        thread=thread,
        start=start,
        end=end,
    )


def _places(ids: I64) -> Iterator[I64]:
    """Yield the places of each id that occurs often enough, in order; of what comes in bursts also where each burst begins."""
    order = np.argsort(ids, kind="stable")
    borders = np.flatnonzero(np.diff(ids[order], prepend=-1, append=-1))
    for a, b in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        if b - a < FEWEST_MARKERS:
            continue
        places = order[a:b]
        yield places
        gaps = np.diff(places)
        burst = places[np.concatenate(([True], 2 * gaps > np.partition(gaps, -2)[-2]))]
        if FEWEST_MARKERS <= len(burst) < len(places):
            yield burst


def _levels(line: _LaunchOrder) -> list[_Level]:
    """Return the levels that hold enough of the computing, the shortest period first."""
    least = LEVEL_COVERAGE_SHARE * int(line.work[-1])
    periods: list[tuple[int, I64]] = []
    for places in (*_places(line.kind), *_places(line.shape)):
        gaps, count = np.unique(np.diff(places), return_counts=True)
        period = int(gaps[np.argmax(count)])
        same = np.abs(np.diff(places) - period) <= ALIKE_DISTANCES_SHARE * period
        if same.sum() < FEWEST_MARKERS - 1:
            continue
        held = np.diff(line.work[places])[same]
        # The last period has no marker behind it that would show where it ends.
        if held.sum() + np.median(held) >= least:
            periods.append((period, places))
    by_graphs = {period for period, places in periods if line.names[line.kind[places[0]]] == _GRAPH}
    periods = [(p, places) for p, places in periods if p >= SHORTEST_PERIOD or p in by_graphs]
    grouped: list[tuple[int, list[I64]]] = []
    for period, places in sorted(periods, key=lambda f: f[0]):
        if not grouped or period > grouped[-1][0] * (1 + ALIKE_DISTANCES_SHARE / 2):
            grouped.append((period, []))
        grouped[-1][1].append(places)
    levels = (_Level(period, tuple(markers)) for period, markers in grouped)
    return [level for level in levels if _repeats(line, level)]


def _repeats(line: _LaunchOrder, level: _Level) -> bool:
    """Return whether neighboring periods hold the same work."""
    begin, end = level.segments
    pairs = np.flatnonzero(begin[1:] == end[:-1])
    shares = []
    for i in pairs[:: max(1, len(pairs) // COMPARED_NEIGHBORS)].tolist():
        counts, other = (np.bincount(line.kind[begin[j] : end[j]], minlength=len(line.names)) for j in (i, i + 1))
        shares.append(np.minimum(counts, other).sum() / max(1, np.maximum(counts, other).sum()))
    if not shares or float(np.median(shares)) < SAME_KINDS_SHARE:
        return False
    work = line.work[end] - line.work[begin]
    return len(begin) >= FEW_DISTANCES or int(work.min()) >= (1 - DIFFERING_DISTANCES_SHARE) * int(work.max())


def _holds(line: _LaunchOrder, level: _Level, kinds: Flags) -> bool:
    """Return whether most periods of a level hold one of these kinds."""
    begin, end = level.segments
    seen = np.concatenate(([0], np.cumsum(kinds[line.kind])))
    return bool(len(begin)) and 2 * int((seen[end] > seen[begin]).sum()) > len(begin)


def _is_level_above(line: _LaunchOrder, below: _Level, above: _Level) -> bool:
    """Return whether a longer period holds enough that its shorter ones do not: then those are parts of it."""
    if above.period < 2 * (1 - ALIKE_DISTANCES_SHARE) * below.period:
        return False
    if not any(line.computes[places[0]] for places in above.markers):
        return False  # only copies mark it: every tenth step that reads a loss
    begin, end = above.segments
    inner_begin, inner_end = below.segments
    held = np.zeros(len(line.kind) + 1, np.int64)
    np.add.at(held, inner_begin, 1)
    np.add.at(held, inner_end, -1)
    outside = np.cumsum(held[:-1]) <= 0
    by_count = np.concatenate(([0], np.cumsum(outside)))
    by_time = np.concatenate(([0], np.cumsum(np.where(outside, np.diff(line.work), 0))))
    extra = (by_count[end] - by_count[begin]).sum() / max(1, (end - begin).sum())
    extra_time = (by_time[end] - by_time[begin]).sum() / max(1, (line.work[end] - line.work[begin]).sum())
    return bool(max(extra, extra_time) >= LEVEL_EXTRA_SHARE)


def _step_level(line: _LaunchOrder) -> _Level | None:
    """Return the level of the steps, None where no level has what happens once in a step.

    A level that has others below it is a step. So is the only one, where it holds an optimizer, a loss, sampling, a copy of
    the input or of the result, or a graph; a lone level without any may as well be a layer of a step that the capture cuts.
    """
    optimizer, output = line.flags(_OPTIMIZER), line.flags(_OUTPUT)
    last = optimizer if optimizer[line.kind].any() else output
    chosen: _Level | None = None
    climbed = False
    for level in _levels(line):
        if chosen is None:
            chosen = level
        elif _holds(line, chosen, last):
            break
        elif _is_level_above(line, chosen, level) or _holds(line, level, last):
            chosen, climbed = level, True
    if chosen is None:
        return _loop_level(line)
    if climbed:
        return chosen
    if not line.flags(_NETWORK)[line.kind].any():
        return chosen if len(chosen.segments[0]) >= FEW_DISTANCES else None
    marks = optimizer | output | np.array([name in ("DtoH", _GRAPH) for name in line.names])
    begin, end = chosen.segments
    inputs = (line.input_work[end] - line.input_work[begin]).sum()
    if 0 < inputs <= INPUT_COPIES_SHARE * (line.work[end] - line.work[begin]).sum():
        marks |= np.array([name == "HtoD" for name in line.names])
    return chosen if _holds(line, chosen, marks) else _loop_level(line)


def _loop_level(line: _LaunchOrder) -> _Level | None:
    """Return the period of work that is the same again and again, to the grid, all through the capture; None where none is.

    No network has so many layers that are alike with nothing else between: it is a loop, of which nothing else tells what a step is.
    """
    size = len(line.shape)
    markers: dict[int, list[I64]] = {}
    for places in _places(line.shape):
        gaps, count = np.unique(np.diff(places), return_counts=True)
        period = int(gaps[np.argmax(count)])
        lasts = int(line.start[places[-1]] - line.start[places[0]])
        if lasts < LEVEL_COVERAGE_SHARE * int(line.end[-1] - line.start[0]):
            continue  # a few readings between other things
        if 2 <= period <= size / LOOP_REPETITIONS and len(places) >= LOOP_ALIKE_SHARE * size / period:
            markers.setdefault(period, []).append(places)
    for period in sorted(markers):
        if (line.shape[period:] == line.shape[:-period]).mean() >= LOOP_ALIKE_SHARE:
            return _Level(period, tuple(markers[period]))
    return None


def _period_begins(line: _LaunchOrder, level: _Level) -> I64:
    """Return where periods begin: at one of the markers that are regular most often, the period behind the last one included.

    Of those it is the one before which the host pauses longest, for that is where a loop turns around.
    """
    pause = np.maximum(line.start - np.concatenate((line.start[:1], line.end[:-1])), 0)

    optimizer = line.flags(_OPTIMIZER)[line.kind]

    def regular(places: I64) -> int:
        last = len(line.kind) - int(places[-1]) >= (1 - ALIKE_DISTANCES_SHARE) * level.period
        return int((np.abs(np.diff(places) - level.period) <= ALIKE_DISTANCES_SHARE * level.period).sum()) + last

    def evenness(places: I64) -> tuple[bool, int, float, int]:
        pauses = float(np.median(pause[places[places > 0]]))
        return not optimizer[places[0]], regular(places), pauses, -int(places[0])

    most = max(regular(places) for places in level.markers)
    best = max((places for places in level.markers if regular(places) >= most - 1), key=evenness)
    return _behind_optimizer(line, level, best) if optimizer[best[0]] else best


def _behind_optimizer(line: _LaunchOrder, level: _Level, places: I64) -> I64:
    """Return where the work behind each optimizer begins: an optimizer ends a step."""
    updates = np.flatnonzero(line.flags(_OPTIMIZER)[line.kind])
    last = updates[np.searchsorted(updates, np.append(places[1:], len(line.kind)), side="left") - 1]
    begins: I64 = last[last + 1 < len(line.kind)] + 1
    before = int(begins[0]) - level.period if len(begins) else -1
    return np.concatenate(([max(before, 0)], begins)) if before >= -ALIKE_DISTANCES_SHARE * level.period else begins


def _steps(line: _LaunchOrder, level: _Level) -> pl.DataFrame:
    """Return the steps: a longer piece ends after one period (something else follows), half a period is not a step."""
    first = _period_begins(line, level)
    size = len(line.kind)
    behind = np.append(first[1:], size)
    length = behind - first
    last = np.arange(len(first)) == len(first) - 1
    cut = (length > LONGEST_STEP_PERIODS * level.period) | (last & (length > level.period))
    until = np.where(cut, first + level.period, behind)
    keep = np.where(last, length >= (1 - ALIKE_DISTANCES_SHARE) * level.period, 2 * length > level.period)
    first, until = first[keep], until[keep]
    begin = np.maximum.accumulate(line.start[first])
    next_begin = np.where(until < size, line.start[np.minimum(until, size - 1)], line.end[-1])
    # Threads launch at the same time: the last call of a step may begin after the first of the next.
    end = np.minimum(np.maximum(next_begin, begin), np.append(begin[1:], np.iinfo(np.int64).max))
    return pl.DataFrame(
        {
            "process": np.full(len(first), line.process),
            "thread": line.thread[first],
            "number": np.arange(len(first)),
            "start_ns": begin,
            "end_ns": end,
        },
        schema=STEP,
    ).filter(pl.col("end_ns") > pl.col("start_ns"))


def from_kernels(ops: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of each process whose GPU work repeats; kernels, graphs and copies count, in the order of launches."""
    wanted = ("op", "call", "call_start_ns", "call_end_ns", "start_ns", "end_ns", "thread", "op_kind", "name", "grid")
    launched = ops.select("process", "bytes", *wanted).filter(pl.col("call").is_not_null())
    parts: Sequence[pl.DataFrame] = []
    for (process,), part in launched.group_by("process", maintain_order=True):
        if part.height < FEWEST_MARKERS:
            continue
        line = _line(int(str(process)), part, calls)
        level = _step_level(line)
        if level is not None:
            parts = [*parts, _steps(line, level)]
    return pl.concat([pl.DataFrame(schema=STEP), *parts])
