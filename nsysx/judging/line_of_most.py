"""The line of the program that has most of the idle time, GPU work, copies or exposed communication of the steady steps, for the headline.

Where no line has much of it, the lines of one function may have it together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.code_lines import CodeLines
from nsysx.events.device_activity import CLASSES
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64
from nsysx.judging.judging_bounds import (
    GPU_AT_LINE_SHARE,
    IDLE_AT_LINE_SHARE,
    LINES_OF_A_PLACE,
    MUCH_OF_FUNCTION_SHARE,
    WHOLE_AT_LINE_SHARE,
)
from nsysx.replay.engine import Replay, idle_of, replay_of
from nsysx.replay.idle_lines import by_line
from nsysx.replay.late_causes import late_rank_of

#: What Python calls the code of a file outside of functions.
TOP_OF_FILE = "<module>"
_SITE = ("file", "line", "function")


class LineShare(NamedTuple):
    """A line of the program, and its share of the whole."""

    file: str
    line: int
    share: float

    @property
    def short(self) -> str:
        """The line as "train.py:31"."""
        return f"{self.file.rpartition('/')[2][:80]}:{self.line}"


class FunctionShare(NamedTuple):
    """Lines of one function of the program, from ``first`` to ``last``, and their share of the whole; ``line`` has most of it."""

    file: str
    line: int
    share: float
    first: int
    last: int
    function: str

    @property
    def short(self) -> str:
        """The lines as "train.py:31-35 (Norm.forward)"."""
        there = f"{self.first}-{self.last}" if self.last > self.first else f"{self.first}"
        return f"{self.file.rpartition('/')[2][:80]}:{there} ({self.function[:60]})"


Place = LineShare | FunctionShare


def idle(profile: Profile) -> Place | None:
    """Return the line at which the device idles most, of all its idle time without tracing; else the function.

    What was waiting in collectives for a later rank is idle at the lines of that rank. None where neither has 40 % of it, or lines
    were not recorded.
    """
    if profile.code() is None or not profile.recorded("runtime"):
        return None
    sites = _idle_at_sites(profile)
    replay = replay_of(profile)
    share = replay.turned_share if isinstance(replay, Replay) else 0.0
    late = late_rank_of(profile) if share else None
    if late is not None and late.code() is not None:
        theirs = _idle_at_sites(late).with_columns(pl.col("ns") * share)
        every = pl.concat([sites.with_columns(pl.col("ns") * (1 - share)), theirs])
        sites = every.group_by(_SITE, maintain_order=True).agg(pl.col("ns").sum())
    return _place_with_share(sites, 1.0, IDLE_AT_LINE_SHARE)


def _idle_at_sites(profile: Profile) -> pl.DataFrame:
    """Return the lines at which the shown device idles, as of `_at_sites`, with the share of all its idle time as ``ns``."""
    lines, whole = profile.code(), int(profile.once(idle_of)["real_ns"].sum())
    assert lines is not None
    idle_by_line = by_line(profile)
    sites = _at_sites(lines, idle_by_line["stack"].to_numpy(), idle_by_line["real_ns"].to_numpy())
    return sites.with_columns(pl.col("ns") / max(whole, 1))


def gpu_work(profile: Profile, process: int, device: int) -> Place | None:
    """Return the line that launches most of the work of a device, backward included, communication excluded, and its share of all.

    Else the function. None where neither has 40 % of it or one has all but 10 %, which is the call of the whole model, or lines were
    not recorded.
    """
    lines = profile.code()
    if lines is None or not profile.recorded("runtime"):
        return None
    ops = lookup.having(profile.steady_ops, process=process, device=device)
    ns = (ops["end_ns"] - ops["start_ns"]).to_numpy()
    compute = (ops["cls"] != DeviceActivity.COMM.value).to_numpy()
    sites = _at_sites(lines, lines.op[ops["op"].to_numpy()][compute], ns[compute])
    most = _place_with_share(sites, int(ns.sum()), GPU_AT_LINE_SHARE)
    return most if most is not None and most.share < WHOLE_AT_LINE_SHARE else None


def communication(profile: Profile, process: int, device: int) -> Place | None:
    """Return the line that launches most of the communication of a device that no compute hides, and its share of that; else the function.

    Where several run at once the time is that of the first. None where neither has 40 % of it, or lines were not recorded.
    """
    lines = profile.code()
    if lines is None or not profile.recorded("runtime"):
        return None
    ops = lookup.having(profile.steady_ops, process=process, device=device)
    ops = ops.filter(ops["cls"] == DeviceActivity.COMM.value).sort("start_ns", "end_ns")
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    begin = np.maximum(start, np.concatenate((start[:1], np.maximum.accumulate(end)[:-1])))
    activity = profile.ledgers.activity[process, device]
    comm, compute = (1 << CLASSES.index(name) for name in (DeviceActivity.COMM, DeviceActivity.COMPUTE))
    alone = ((activity.labels & comm) > 0) & ((activity.labels & compute) == 0)
    exposed = activity.within(alone, begin, np.maximum(begin, end))
    sites = _at_sites(lines, lines.op[ops["op"].to_numpy()], exposed)
    return _place_with_share(sites, int(exposed.sum()), GPU_AT_LINE_SHARE)


def copies(profile: Profile, process: int, device: int) -> Place | None:
    """Return the line that makes most of the copies of a device, by their time, and its share of that; else the function.

    None where neither has 40 % of it, or lines were not recorded.
    """
    lines = profile.code()
    if lines is None or not profile.recorded("runtime"):
        return None
    ops = lookup.having(profile.steady_ops, process=process, device=device)
    ops = ops.filter(ops["op_kind"] == "memcpy")
    ns = (ops["end_ns"] - ops["start_ns"]).to_numpy()
    return _place_with_share(_at_sites(lines, lines.op[ops["op"].to_numpy()], ns), int(ns.sum()), GPU_AT_LINE_SHARE)


def _at_sites(lines: CodeLines, stack: I64, ns: I64 | F64) -> pl.DataFrame:
    """Return the lines that some time is at: file, line, function, ns."""
    row = lines.places_of(stack)
    noted = row >= 0
    sums = np.bincount(row[noted], ns[noted], minlength=lines.places.height)
    return lines.places.select(_SITE).with_columns(ns=pl.Series(sums, dtype=pl.Float64)).filter(pl.col("ns") > 0)


def _place_with_share(sites: pl.DataFrame, whole: float, least_share: float) -> Place | None:
    if not whole or not sites.height:
        return None
    line = _line_with_share(sites, whole, least_share)
    return line if line is not None else _function_with_share(sites, whole, least_share)


def _function_with_share(sites: pl.DataFrame, whole: float, least_share: float) -> FunctionShare | None:
    """Return the function that has most of some time in its own lines; of these it names those that have much of that.

    Code at the top of a file is no function, and lines far apart are no place.
    """
    functions = sites.group_by("file", "function", maintain_order=True).agg(pl.col("ns").sum())
    functions = functions.sort("ns", "file", "function", descending=[True, False, False])
    file, function, most = functions.row(0)
    inside = sites.filter((sites["file"] == file) & (sites["function"] == function))
    named = inside.filter(inside["ns"] >= MUCH_OF_FUNCTION_SHARE * most)["line"].to_numpy()
    if most < least_share * whole or function == TOP_OF_FILE or named.max() - named.min() > LINES_OF_A_PLACE:
        return None
    longest = inside.sort("ns", "line", descending=[True, False])["line"][0]
    return FunctionShare(file, longest, float(most / whole), int(named.min()), int(named.max()), function)


def _line_with_share(sites: pl.DataFrame, whole: float, least_share: float) -> LineShare | None:
    file, line, _, most = sites.row(int(np.argmax(sites["ns"].to_numpy())))
    return LineShare(file, line, float(most / whole)) if most >= least_share * whole else None
