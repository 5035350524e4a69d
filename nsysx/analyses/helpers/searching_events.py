"""Pairs of events with which libraries and compilers look for their fastest kernel, by what is recorded of them.

A torch.cuda.Event is made by cudaEventCreateWithFlags. What cuDNN (cudnn.benchmark) and PyTorch's TunableOp time with is made by
cudaEventCreate and destroyed again before the program goes on: in a process of PyTorch such events are none of its Python code. Their
operators have ranges in an X-ray step alone, and the search is long over then.

Inductor measures while it compiles. It and Triton's do_bench fill a buffer as large as the L2 cache before each window, launch nothing
else between two windows, and time kernels that were compiled while the program ran: these are launched by the driver's API.
"""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl

from nsysx.analyses.helpers.analysis_bounds import FEWEST_BENCHMARK_WINDOWS, SHORTEST_CACHE_FILL_NS
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, interval_of

_OF_TORCH = r"at::native|at_cuda_detail|c10::"
_CREATES, _DESTROYS = "cudaEventCreate", "cudaEventDestroy"
_FILLS = r"FillFunctor"
_OF_DRIVER = r"^cuLaunchKernel"


def searching(profile: Profile, pairs: pl.DataFrame) -> Flags:
    """Return which pairs time kernels for a library or a compiler that chooses among them."""
    thread = pairs["thread"].to_numpy()
    recorded_ns = profile.attributed.api_calls["start_ns"].gather(pairs["call"]).to_numpy()
    of_library = _between_creation_and_end(profile, thread, recorded_ns) & _of_torch(profile, pairs)
    return of_library | _while_compiling(profile, pairs, recorded_ns) | _with_cleared_cache(profile, pairs)


def _of_torch(profile: Profile, pairs: pl.DataFrame) -> Flags:
    """Return which pairs are of processes that run PyTorch."""
    ops, ranges = profile.attributed.gpu_ops, profile.ranges.ranges
    theirs = set(ops.filter(pl.Series(lookup.matching(ops["name"], _OF_TORCH)))["process"].unique().to_list())
    theirs |= set(ranges.filter("own")["process"].unique().to_list())
    return pairs["process"].is_in(list(theirs)).to_numpy()


def _between_creation_and_end(profile: Profile, thread: I64, recorded_ns: I64) -> Flags:
    """Return which records lie between cudaEventCreate and cudaEventDestroy of their thread, all within one call of a module."""
    calls = profile.attributed.api_calls
    about = calls.filter(calls["name"].cast(pl.String).is_in([_CREATES, _DESTROYS]))
    if not about.height:
        return np.zeros(len(thread), np.bool_)
    within = np.zeros(len(thread), np.bool_)
    for (key,), ends in about.sort("start_ns").group_by("thread", maintain_order=True):
        spans, alive, begin = list[tuple[int, int]](), 0, 0
        for name, start in ends.select(pl.col("name").cast(pl.String), "start_ns").iter_rows():
            creates = name == _CREATES
            begin = start if creates and not alive else begin
            alive = alive + 1 if creates else max(alive - 1, 0)
            if not creates and not alive and begin:
                spans.append((begin, start))
                begin = 0
        theirs = calls["start_ns", "module", "phase"].filter(calls["thread"] == key).sort("start_ns")
        run_of_call = theirs.select(pl.struct("module", "phase").rle_id())["module"].to_numpy()
        called_ns = theirs["start_ns"].to_numpy()
        alike = [
            (a, b)
            for a, b in spans
            if run_of_call[np.searchsorted(called_ns, a)] == run_of_call[np.searchsorted(called_ns, b)]
        ]
        starts, stops = np.array(alike, np.int64).reshape(-1, 2).T
        within |= (thread == key) & (interval_of(recorded_ns, starts, stops) >= 0)
    return within


def _while_compiling(profile: Profile, pairs: pl.DataFrame, recorded_ns: I64) -> Flags:
    """Return which pairs are recorded while torch.compile works in their process."""
    within = np.zeros(pairs.height, np.bool_)
    compiled = profile.ranges.pauses.filter(pl.col("kind") == "compile").sort("start_ns")
    for (process,), theirs in compiled.group_by("process"):
        ends = np.maximum.accumulate(np.append(-1, theirs["end_ns"].to_numpy()))
        begun = np.searchsorted(theirs["start_ns"].to_numpy(), recorded_ns, side="right")
        within |= (pairs["process"] == process).to_numpy() & (ends[begun] > recorded_ns)
    return within


def _with_cleared_cache(profile: Profile, pairs: pl.DataFrame) -> Flags:
    """Return which pairs stand in a row of windows before each of which nothing but one buffer is filled."""
    chosen = np.zeros(pairs.height, np.bool_)
    ops = profile.attributed.gpu_ops.filter(pl.col("call").is_not_null()).sort("call_start_ns")
    name = profile.attributed.api_calls["name"]
    fills = lookup.matching(ops["name"], _FILLS) | (ops["op_kind"] == "memset").fill_null(value=False).to_numpy()
    fills &= ((ops["end_ns"] - ops["start_ns"]) >= SHORTEST_CACHE_FILL_NS).to_numpy()
    driver = lookup.matching(name.gather(ops["call"]), _OF_DRIVER)
    start, end, thread = (ops[c].to_numpy() for c in ("start_ns", "end_ns", "thread"))
    numbered = pairs.with_row_index("row").sort("start_ns")
    for (process, key, stream), rows in numbered.group_by("process", "thread", "stream", maintain_order=True):
        theirs = np.flatnonzero(
            (thread == key) & (ops["stream"] == stream).to_numpy() & (ops["process"] == process).to_numpy()
        )
        opened, closed = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        before = np.append(0, closed[:-1])
        between = [theirs[(start[theirs] >= a) & (end[theirs] <= b)] for a, b in zip(before, opened, strict=True)]
        cleared = [
            len(each) > 0 and bool(fills[each[-1]]) and (n == 0 or len(each) == 1) for n, each in enumerate(between)
        ]
        first = 0
        for is_cleared, run in itertools.groupby(cleared):
            last = first + len(list(run))
            timed = theirs[(start[theirs] >= opened[first]) & (end[theirs] <= closed[last - 1])]
            if is_cleared and last - first >= FEWEST_BENCHMARK_WINDOWS and driver[timed].any():
                chosen[rows["row"].to_numpy()[first:last]] = True
            first = last
    return chosen
