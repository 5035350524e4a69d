"""Which Python lines the host's time went to, from samples of the stacks.

What the ledgers know exactly is split by what was seen in samples. A *stratum* is time that they charge to one thread, for one
reason, in one phase; of the samples of that thread that lie inside it, each stands for a part by its weight, which is the time
from half-way to the sample before to half-way to the one behind. So the parts sum to the stratum to the nanosecond, and where
samples come seldom (some versions of nsys need Python's lock for each) each counts for more. Time that no sample speaks for is
a row of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx.events import sampled_stacks as stacks_room
from nsysx.events.event_bounds import FAR_SAMPLE_PERIODS, NEAR_SAMPLE_PERIODS, QUANTILE_OF_95_PERCENT
from nsysx.events.host_pieces import CAUSES, host_pieces
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, StepFunction, coverage, merged
from nsysx.frames.intervals import union as union_of

KEY = ["place", "module", "phase", "thread"]


@dataclass(frozen=True)
class Spoken:
    """Disjoint time windows in order, and the thread whose samples speak for each (-1: none does).

    ``group``: a number for reason and place of what the window belongs to; windows of one group and thread are a stratum.
    """

    start: I64
    end: I64
    speaker: I64
    group: I64


@dataclass(frozen=True)
class SampledLines:
    """``rows``: place (row of ``places``, null for what was not sampled), module, phase, thread, and ``CAUSES`` with host_ns,
    low_ns, high_ns, samples. ``seen``: the samples in idle time: stack, place, op (that ended the gap), cause, module, phase, ns
    (a float: the part that it stands for). ``period_ns``: of the sampling.
    """

    rows: pl.DataFrame
    seen: pl.DataFrame
    places: stacks_room.Places
    period_ns: int


def nearest_for(time: I64, period: int) -> I64:
    """Return how long each sample of a thread is the nearest one (ns), and no longer than it may speak."""
    apart = np.concatenate(([period], np.diff(time), [period]))
    stretch: I64 = np.clip((apart[1:] + apart[:-1]) // 2, 1, 2 * FAR_SAMPLE_PERIODS * period)
    return stretch


class _Sampled:
    """The samples of a process by thread, and when they speak."""

    def __init__(self, profile: Profile) -> None:
        trace = profile.trace
        samples = trace.samples.filter(trace.samples["process"] == profile.process)
        self.places = stacks_room.places(trace.stacks)
        samples = samples.filter(self.places.known[samples["stack"].to_numpy()])
        self.time: dict[int, I64] = {}
        self.stack: dict[int, I64] = {}
        for (thread,), part in samples.group_by("thread", maintain_order=True):
            self.time[int(str(thread))] = part["time_ns"].to_numpy()
            self.stack[int(str(thread))] = part["stack"].to_numpy()
        steps = [np.diff(t) for t in self.time.values() if len(t) > 1]
        self.period = max(int(np.median(np.concatenate(steps))), 1) if steps else 1

    def covered(self, thread: int, periods: int, *, waiting: bool = False) -> StepFunction:
        """Return when samples of a thread speak; ``waiting``: only those in which it waits for autograd's thread."""
        time = self.time.get(thread, np.empty(0, np.int64))
        if waiting and len(time):
            time = time[self.places.waits[self.stack[thread]]]
        reach = periods * self.period
        return coverage([union_of(time - reach, time + reach)])


def _speakers(
    sampled: _Sampled, thread: int, driver: int | None, start: I64, end: I64, group: I64
) -> tuple[I64, I64, I64, I64]:
    """Return the windows of a thread cut where its speaker changes: start, end, speaker, group.

    It speaks for itself. Autograd's thread runs no Python: for it speaks the thread that called backward and waits for it.
    """
    speaking = []
    for periods in (NEAR_SAMPLE_PERIODS, FAR_SAMPLE_PERIODS):
        speaking.append((thread, sampled.covered(thread, periods)))
        if driver is not None and driver != thread:
            speaking.append((driver, sampled.covered(driver, periods, waiting=True)))
    times = merged([start, end, *(when.borders_in(start, end) for _, when in speaking)])
    window = np.searchsorted(start, times[:-1], side="right") - 1
    keep = (window >= 0) & (times[:-1] < end[window])
    begin, finish, window = times[:-1][keep], times[1:][keep], window[keep]
    speaker = np.full(len(begin), -1)
    for who, when in speaking:
        speaker = np.where((speaker < 0) & (when.at(begin) > 0), who, speaker)
    return begin, finish, speaker, group[window]


def _spoken(parts: list[tuple[I64, I64, I64, I64]]) -> Spoken:
    joined = [np.concatenate([p[i] for p in parts]) if parts else np.empty(0, np.int64) for i in range(4)]
    order = np.argsort(joined[0], kind="stable")
    return Spoken(*(column[order] for column in joined))


def _split(sampled: _Sampled, spoken: Spoken, groups: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what each sample stands for, and what no sample speaks for.

    The first: thread, stack, time_ns, weight, stratum, all (weight of the stratum), squares (of its weights, a float), whole (ns of
    it). The second: group, ns.
    """
    threads = sorted(sampled.time)
    parts = []
    for i, thread in enumerate(threads):
        time = sampled.time[thread]
        window = np.searchsorted(spoken.start, time, side="right") - 1
        inside = (
            (window >= 0)
            & (time < np.append(spoken.end, 0)[window])
            & (np.append(spoken.speaker, -1)[window] == thread)
        )
        rows = np.flatnonzero(inside)
        weight = nearest_for(sampled.time[thread], sampled.period)[rows]
        parts.append((np.full(len(rows), i), sampled.stack[thread][rows], time[rows], window[rows], weight))
    who, stack, time, window, weight = (
        np.concatenate([f[i] for f in parts]) if parts else np.empty(0, np.int64) for i in range(5)
    )
    thread_number = np.searchsorted(np.array(threads, np.int64), spoken.speaker)
    stratum = np.where(spoken.speaker < 0, -1, spoken.group * max(len(threads), 1) + thread_number)
    size = groups * max(len(threads), 1)
    length = spoken.end - spoken.start
    spoke = stratum >= 0
    whole = lookup.totals(stratum[spoke], length[spoke], size)
    of_sample = stratum[window]
    heavy = lookup.totals(of_sample, weight, size)
    squares = np.bincount(of_sample, weight.astype(np.float64) ** 2, minlength=size)
    silent = ~spoke | (heavy[np.maximum(stratum, 0)] == 0)
    rest = lookup.totals(spoken.group[silent], length[silent], groups)
    samples = pl.DataFrame(
        {
            "thread": np.array(threads, np.int64)[who] if len(who) else np.empty(0, np.int64),
            "stack": stack,
            "time_ns": time,
            "weight": weight,
            "stratum": of_sample,
            "all": heavy[of_sample],
            "whole": whole[of_sample],
            "squares": squares[of_sample],
        },
        schema=dict.fromkeys(("thread", "stack", "time_ns", "weight", "stratum", "all", "whole"), pl.Int64)
        | {"squares": pl.Float64},
    )
    return samples, pl.DataFrame({"group": np.arange(groups), "ns": rest}).filter(pl.col("ns") > 0)


def shared_out(rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``ns`` to rows of stratum, whole, all, weight: whole parts by weight, which sum to the stratum exactly.

    Largest remainders: each row has at least its part rounded down, what is left goes to those that lost most.
    """
    exact = pl.col("whole").cast(pl.Int128) * pl.col("weight")
    rows = rows.with_columns(ns=(exact // pl.col("all")).cast(pl.Int64), _lost=(exact % pl.col("all")).cast(pl.Int64))
    stratum, lost = rows["stratum"].to_numpy(), rows["_lost"].to_numpy()
    order = np.lexsort((-lost, stratum))
    first = np.searchsorted(stratum[order], stratum[order])  # row of the first of the same stratum
    turn = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order)) - first
    left = pl.col("whole") - pl.col("ns").sum().over("stratum")
    return rows.with_columns(ns=pl.col("ns") + (pl.Series(turn) < left).cast(pl.Int64)).drop("_lost")


def interval(share: pl.Expr, n: pl.Expr, whole: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Return low_ns and high_ns of a part of ``whole`` that ``share`` of ``n`` samples show: Wilson's score interval, 95 %.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).
    """
    middle = share + QUANTILE_OF_95_PERCENT**2 / (2 * n)
    reach = QUANTILE_OF_95_PERCENT * (share * (1 - share) / n + QUANTILE_OF_95_PERCENT**2 / (4 * n**2)).sqrt()
    scale = 1 + QUANTILE_OF_95_PERCENT**2 / n
    low = ((middle - reach) / scale).clip(0.0, 1.0) * whole
    high = ((middle + reach) / scale).clip(0.0, 1.0) * whole
    return low.round().cast(pl.Int64).alias("low_ns"), high.round().cast(pl.Int64).alias("high_ns")


def _grouped(phase: pl.Series, cause: npt.NDArray[np.int64]) -> tuple[list[str | None], I64]:
    names, code = lookup.distinct(phase)
    return names, cause * len(names) + code


def _driver(profile: Profile, sampled: _Sampled) -> int | None:
    """Return the thread that drives the steps of the shown process: the one that calls backward, else that of the steps."""
    waiting = {t: int(sampled.places.waits[stack].sum()) for t, stack in sampled.stack.items()}
    if any(waiting.values()):
        return max(waiting, key=lambda t: (waiting[t], -t))
    # Steps that were found by their kernels belong to the thread that launched these.
    threads = profile.steps.cpu.filter(profile.steps.cpu["process"] == profile.process)["thread"].drop_nulls()
    threads = threads if len(threads) else profile.steady_calls["thread"]
    return int(threads.mode().sort().item(0)) if len(threads) else None


def _of_idle(profile: Profile, sampled: _Sampled, lead: int | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (samples with cause, module, phase) and (rest with cause, phase) of the idle time of the shown device."""
    pieces = host_pieces(profile)
    names, group = _grouped(pieces["phase"], pieces["cause"].to_numpy())
    groups = (max(CAUSES.values()) + 1) * len(names)
    start, end, thread = (pieces[c].to_numpy() for c in ("start_ns", "end_ns", "thread"))
    parts = []
    for idle_thread in np.unique(thread).tolist():
        of_thread = thread == idle_thread
        parts.append(_speakers(sampled, idle_thread, lead, start[of_thread], end[of_thread], group[of_thread]))
    samples, rest = _split(sampled, _spoken(parts), groups)
    piece = np.searchsorted(start, samples["time_ns"].to_numpy(), side="right") - 1
    samples = samples.with_columns(
        cause=lookup.at(pieces["cause"], piece),
        module=lookup.at(pieces["module"], piece).cast(pl.String),
        phase=lookup.at(pieces["phase"], piece).cast(pl.String),
        op=lookup.at(pieces["op"], piece),
    )
    number = rest["group"].to_numpy()
    rest = rest.with_columns(
        cause=pl.Series(number // max(len(names), 1), dtype=pl.Int64),
        phase=pl.Series([names[i % len(names)] for i in number.tolist()], dtype=pl.String),
    )
    return samples, rest


def _of_host(profile: Profile, sampled: _Sampled, thread: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (samples with module, phase) and (rest with phase) of the time of a thread outside CUDA calls."""
    windows = profile.steps.cpu_windows.filter(pl.col("process") == profile.process)
    calls = profile.attributed.api_calls
    start, end = (int(windows[c].item(0)) for c in ("start_ns", "end_ns")) if windows.height else (0, 0)
    covered = profile.ledgers.threads.get(thread, coverage([])).clip(start, end)
    free = np.flatnonzero(covered.labels < 0)
    begin, finish = covered.times[:-1][free], covered.times[1:][free]
    if end > start:  # before the first and after the last call of the thread
        edges = covered.times if len(covered.labels) else np.array([end, end])
        begin = np.concatenate(([start], begin, [int(edges[-1])]))
        finish = np.concatenate(([int(edges[0])], finish, [end]))
        real = finish > begin
        begin, finish = begin[real], finish[real]
    # What comes next on the thread says what the time was for.
    low, high = np.searchsorted(calls["thread"].to_numpy(), [thread, thread + 1]).tolist()
    following = low + np.searchsorted(calls["start_ns"].to_numpy()[low:high], finish, side="left")
    following = np.where(following < high, following, -1)
    phase, module = lookup.at(calls["phase"], following), lookup.at(calls["module"], following)
    names, group = _grouped(phase, np.zeros(len(begin), np.int64))
    samples, rest = _split(sampled, _spoken([_speakers(sampled, thread, None, begin, finish, group)]), len(names))
    window = np.searchsorted(begin, samples["time_ns"].to_numpy(), side="right") - 1
    samples = samples.with_columns(
        module=lookup.at(module, window).cast(pl.String), phase=lookup.at(phase, window).cast(pl.String)
    )
    return samples, rest.with_columns(phase=pl.Series([names[i] for i in rest["group"].to_list()], dtype=pl.String))


def _ns_and_samples(samples: pl.DataFrame, places: stacks_room.Places, name: str) -> pl.DataFrame:
    """Return KEY and ``name`` (ns), samples, low and high of one kind of time."""
    place_number = places.place[samples["stack"].to_numpy()]
    rows = (
        samples.with_columns(place=pl.Series(place_number, dtype=pl.Int64))
        .group_by(*KEY, "stratum", "all", "squares", "whole", maintain_order=True)
        .agg(pl.len().cast(pl.Int64).alias("samples"), pl.col("weight").sum())
        .sort("stratum", "samples", *KEY, descending=[False, True] + [False] * len(KEY), nulls_last=True)
    )
    # Samples of uneven weight are as good as fewer even ones (L. Kish, Survey Sampling, 1965).
    share, effective = pl.col("weight") / pl.col("all"), pl.col("all").cast(pl.Float64) ** 2 / pl.col("squares")
    rows = shared_out(rows).with_columns(interval(share, effective, pl.col("whole")))
    return rows.group_by(KEY, maintain_order=True).agg(
        pl.col("ns").sum().alias(name), pl.col("samples", "low_ns", "high_ns").sum()
    )


def host_lines(profile: Profile) -> SampledLines:
    """Return which lines the host's time of the steady steps went to; no rows where no stack was sampled."""
    sampled = _Sampled(profile)
    lead = _driver(profile, sampled)
    samples, rest = _of_idle(profile, sampled, lead)
    parts, silent = [], []
    for name, cause in CAUSES.items():
        part = _ns_and_samples(samples.filter(samples["cause"] == cause), sampled.places, name)
        parts.append(part if name == "idle_ns" else part.drop("low_ns", "high_ns"))
        silent.append(rest.filter(rest["cause"] == cause).select("phase", pl.col("ns").alias(name)))
    if lead is not None:
        host, unseen = _of_host(profile, sampled, lead)
        parts.append(_ns_and_samples(host, sampled.places, "host_ns").drop("low_ns", "high_ns", "samples"))
        silent.append(unseen.select("phase", pl.col("ns").alias("host_ns")))
    numbers = ("idle_ns", "loader_idle_ns", "host_ns", "samples", "low_ns", "high_ns")
    schema = {"place": pl.Int64, "module": pl.String, "phase": pl.String, "thread": pl.Int64} | dict.fromkeys(
        numbers, pl.Int64
    )
    rows = pl.concat([pl.DataFrame(schema=schema), *parts, *silent], how="diagonal_relaxed")
    rows = rows.group_by(KEY, maintain_order=True).agg(pl.col(*numbers).sum())
    seen = samples.select(
        "stack",
        pl.Series("place", sampled.places.place[samples["stack"].to_numpy()], dtype=pl.Int64),
        "op",
        "cause",
        "module",
        "phase",
        ns=pl.col("whole") * (pl.col("weight") / pl.col("all")),
    )
    return SampledLines(rows, seen, sampled.places, sampled.period)


def known_lines(profile: Profile) -> SampledLines | None:
    """Return the lines that the host's time went to, None where no stack was sampled."""
    return profile.once(host_lines) if profile.trace.samples.height else None
