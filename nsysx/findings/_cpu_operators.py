"""Operators of torch that work on the CPU while the GPU waits: with one thread of many cores they take far longer than they have to.

An X-ray notes operators and lines. An operator that takes long and makes no CUDA call works on tensors of the CPU.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl

from nsysx.events.code_lines import CodeLines
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._finding_bounds import FEWEST_CORES_PER_PROCESS, LONG_CPU_OPERATOR_NS, MOST_SHARE
from nsysx.findings._rank_rows import rank_rows
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64

#: Operators that go through their elements in turn, whatever threads there are, such as those that draw numbers.
_IN_TURN = r"^aten::_?(rand|normal|uniform|bernoulli|multinomial|exponential|unique|nonzero|masked_select|bincount)"


def more_threads(case: Case, line_row: int) -> Fix | None:
    """Return the advice for a line that mostly computes on the CPU with one thread although more cores are there, else None."""
    settings, code = settings_of(case.profile), case.profile.code()
    if settings is None or code is None or settings.cpu("torch_threads") != 1:
        return None
    ranks = max(Counter(row["host"] for row in rank_rows(case)).values(), default=1)
    cores = cores_of(settings) // ranks
    if cores < FEWEST_CORES_PER_PROCESS or case.profile.once(_shares)[line_row] < MOST_SHARE:
        return None
    several = ranks > 1
    text = (
        f"Give torch more threads for its work on the CPU: it has 1, and there are {cores} cores{' for each rank' if several else ''}"
        f"{' (torchrun sets OMP_NUM_THREADS=1 where nobody sets it)' if several else ''}"
    )
    paste = f"torch.set_num_threads({cores})  # or OMP_NUM_THREADS={cores} in the environment"
    return Fix.by_name(way("threads-cores", text, paste))


def cores_of(settings: RecordedSettings) -> int:
    """Return how many cores the program may use, 0 where that is not known."""
    limits = [int(n) for name in ("allowed", "quota") if isinstance(n := settings.cpu(name), int | float)]
    return min(limits, default=0)


def _shares(profile: Profile) -> F64:
    """Return of each line (places of `CodeLines`) which share of its own time in the X-ray such operators take."""
    code = profile.code()
    assert code is not None
    size = code.places.height + 1
    whole = np.zeros(size, np.int64)
    for function in code.open.values():
        ns = np.diff(function.times)
        whole += lookup.totals(code.places_of(function.labels[: len(ns)].astype(np.int64)), ns, size)
    line_row, ns = _operators_without_cuda(profile, code)
    shares: F64 = lookup.totals(line_row, ns, size) / np.maximum(whole, 1)
    return shares


def _operators_without_cuda(profile: Profile, code: CodeLines) -> tuple[I64, I64]:
    """Return the line and the length (ns) of each long operator that calls nothing of CUDA, the outermost of several."""
    ranges = profile.ranges.ranges
    ops = ranges.filter(
        (pl.col("kind") == "op")
        & (pl.col("end_ns") - pl.col("start_ns") >= LONG_CPU_OPERATOR_NS)
        & ~(pl.col("crossing") | pl.col("open") | pl.col("repeated"))
        & pl.col("name").cast(pl.String).str.starts_with("aten::")
    )
    calls = profile.attributed.api_calls
    places, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for (key,), part in ops.sort("start_ns").group_by("thread", maintain_order=True):
        thread = int(str(key))
        called = calls["start_ns"].filter(calls["thread"] == thread).sort().to_numpy()
        start, end = part["start_ns"].to_numpy(), part["end_ns"].to_numpy()
        free = np.searchsorted(called, start) == np.searchsorted(called, end)
        names = part["name"].filter(pl.Series(free, dtype=pl.Boolean))
        start, end = start[free], end[free]
        outer = start >= np.append(0, np.maximum.accumulate(end))[:-1] if len(end) else free[:0]
        chosen = outer & ~lookup.matching(names, _IN_TURN)
        places.append(code.places_of(code.at(thread, start[chosen])))
        lengths.append((end - start)[chosen])
    return np.concatenate(places), np.concatenate(lengths)
