"""Lines of a program whose own code holds the host for much of a step: what of the host's time goes if they take none.

The GPU of the rank that is shown may have work meanwhile, or wait in a collective for a rank whose host is longer at the same line.
A line that sends Python objects to other ranks pickles them, copies the bytes by way of pageable memory, and reads them back: without
what it sends, these copies and its collectives go, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.catalogue import Call, DeviceActivity
from nsysx.events.line_shares import divided
from nsysx.events.profile import Profile
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.frames.statistics import F64
from nsysx.replay.chain_columns import Flags
from nsysx.replay.replay_bounds import (
    HOLDING_FOR_LAUNCH_NS,
    HOLDING_LINE_SHARE,
    LEAST_SENT_BYTES,
    LONG_PAUSE_NS,
    MOST_HOLDING_LINES,
)

#: What the name of a change ends with that takes what a line sends.
_UNSENT = " sends nothing"


class Unheld(NamedTuple):
    """What no longer holds a host: of each item the share of the code before it, and whether its call itself."""

    code: F64
    calls: Flags

    @classmethod
    def of_calls(cls, calls: Flags) -> Unheld:
        """Return that calls hold it no more, nor does any code before them."""
        return cls(calls.astype(np.float64), calls)

    def only(self, first: int, last: int) -> Unheld:
        """Return that of items [first, last)."""
        return Unheld(self.code[first:last], self.calls[first:last])


class _HoldingLine(NamedTuple):
    """A line: call -> the share of the pause before it that is the line's own code, and the calls that it makes."""

    name: str
    code: Mapping[int, float]
    calls: frozenset[int]


class SendingLine(NamedTuple):
    """A line (row of the places) that launches collectives and copies from or to pageable memory: its GPU ops, how long its own code and
    its calls hold the host, how many bytes it copies and how many collectives it launches, each per step.
    """

    line_row: int
    name: str
    ops: frozenset[int]
    host_ns: int
    copied_bytes: int
    collectives: float


class _CodeOfLines(NamedTuple):
    """The own code of lines in long pauses of the host: call behind the pause, row of the line, ns and share of the pause; ``host``: the
    sum of each line (ns).
    """

    call: I64
    row: I64
    ns: I64
    share: F64
    host: I64

    def of_line(self, row: int) -> dict[int, float]:
        """Return call -> the share of the pause before it that is the line's; several stacks that end there each have a part."""
        theirs, of_call = np.flatnonzero(self.row == row), dict[int, float]()
        for call, part in zip(self.call[theirs].tolist(), self.share[theirs].tolist(), strict=True):
            of_call[call] = of_call.get(call, 0.0) + part
        return of_call


def pauses(profile: Profile) -> pl.DataFrame:
    """Return call, thread, start_ns, end_ns of the host code before each steady call: the time since the call before on its thread."""
    calls = profile.steady_calls["call", "thread", "start_ns", "end_ns"]
    calls = lookup.ordered(calls, "start_ns", (), group="thread")
    thread, start_ns, end_ns = (calls[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    before_ns = start_ns.copy()  # none before the first of a thread
    borders = np.flatnonzero(np.diff(thread)) + 1
    for first, last in pairwise([0, *borders.tolist(), len(thread)]):
        np.maximum.accumulate(end_ns[first : last - 1], out=before_ns[first + 1 : last])
    late = np.flatnonzero(start_ns > before_ns)
    return calls[late].select("call", "thread", start_ns=pl.Series(before_ns[late]), end_ns="start_ns")


def name_of(file: str, line: int) -> str:
    """Return what the change is called that takes a line's own code, and its calls, from the hosts of all ranks."""
    return f"{PurePath(file).name}:{line}"


def unsent(file: str, line: int) -> str:
    """Return what the change is called that takes, besides, what the line sends and copies from the GPUs of all ranks."""
    return f"{name_of(file, line)}{_UNSENT}"


def without_lines(profile: Profile, calls: I64) -> dict[str, Unheld]:
    """Return name of a line -> what no longer holds the host without it, of items with these calls; the longest lines alone, and those
    that send what they copy.
    """
    made = {}
    for line in (*profile.once(_holding_lines), *profile.once(_without_sending)):
        code = np.array([line.code.get(call, 0.0) for call in calls.tolist()], np.float64)
        if code.any():
            made[line.name] = Unheld(code, np.isin(calls, list(line.calls)))
    return made


def unsent_by(profile: Profile) -> dict[str, frozenset[int]]:
    """Return name of a change -> the GPU work that goes without what a line sends, of lines that send what they copy."""
    return {f"{line.name}{_UNSENT}": line.ops for line in profile.once(sending_lines)}


def is_unsent(name: str) -> bool:
    """Return whether a change is one that takes what a line sends."""
    return name.endswith(_UNSENT)


def sending_lines(profile: Profile) -> list[SendingLine]:
    """Return the lines that send much of what they copy by way of pageable memory, in each step, as objects are sent."""
    code, steps = profile.code(), profile.scope.steps or 0
    if code is None or not steps:
        return []
    ops = profile.steady_ops["op", "cls", "op_kind", "bytes", "src_kind", "dst_kind"]
    row_of = code.places_of(code.op[ops["op"].to_numpy()])
    comm = (ops["cls"] == DeviceActivity.COMM.value).to_numpy()
    pageable = ((pl.col("src_kind") == 0) | (pl.col("dst_kind") == 0)).fill_null(value=False)
    copies = ops.select((pl.col("op_kind") == "memcpy") & pageable).to_series().fill_null(value=False).to_numpy()
    size = code.places.height + 1
    collectives = lookup.totals(row_of, comm.astype(np.int64), size)[:-1]
    copied = lookup.totals(row_of, np.where(copies, ops["bytes"].fill_null(0).to_numpy(), 0), size)[:-1]
    rows = np.flatnonzero((collectives >= steps) & (copied >= LEAST_SENT_BYTES * steps)).tolist()
    host = profile.once(_code_of_lines).host if rows else np.zeros(size, np.int64)
    calls, made = profile.steady_calls, []
    for row in rows:
        file, line, _ = code.places.row(row)
        if not file or line is None or not _is_alone(code.places, file, line):
            continue
        theirs = code.made_at(calls, [row])
        held_ns = int(host[row]) + int((theirs["end_ns"] - theirs["start_ns"]).sum())
        gone = frozenset(ops["op"].filter(pl.Series((row_of == row) & (comm | copies))).to_list())
        per_step = round(held_ns / steps), round(int(copied[row]) / steps), float(collectives[row]) / steps
        made.append(SendingLine(row, name_of(file, line), gone, *per_step))
    return made


def _without_sending(profile: Profile) -> list[_HoldingLine]:
    """Return these lines with what of the host's time goes without what they send."""
    code = profile.code()
    lines = profile.once(sending_lines)
    if code is None or not lines:
        return []
    by_code = profile.once(_code_of_lines)
    made = []
    for line in lines:
        calls = frozenset(code.made_at(profile.steady_calls, [line.line_row])["call"].to_list())
        made.append(_HoldingLine(f"{line.name}{_UNSENT}", by_code.of_line(line.line_row), calls))
    return made


def _waits_for_backward(calls: pl.DataFrame, gaps: pl.DataFrame) -> Flags:
    """Return in which pauses another thread makes calls of a backward: a line that starts it only waits for that."""
    there = calls.filter(calls["phase"].cast(pl.String) == "backward").sort("start_ns")
    waits = np.zeros(gaps.height, np.bool_)
    for (thread,), part in there.group_by("thread"):
        begins = part["start_ns"].to_numpy()
        first, behind = (np.searchsorted(begins, gaps[c].to_numpy()) for c in ("start_ns", "end_ns"))
        waits |= (behind > first) & (gaps["thread"] != thread).to_numpy()
    return waits


def _is_alone(places: pl.DataFrame, file: str, line: int) -> bool:
    """Return whether a name stands for one line: of two files with the same name and line number it would tell neither."""
    every = {(f, n) for f, n, _ in places.iter_rows() if f and n is not None and name_of(f, n) == name_of(file, line)}
    return len(every) == 1


def _code_of_lines(profile: Profile) -> _CodeOfLines:
    """Return the own code of lines in the long pauses of the steady steps, in which the host waits for no backward."""
    code, steady = profile.code(), profile.steady_calls
    assert code is not None
    gaps = pauses(profile)
    ns = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    long = (ns >= LONG_PAUSE_NS) & ~_waits_for_backward(steady, gaps)
    gaps, ns = gaps[np.flatnonzero(long)], ns[long]
    pieces = gaps.select("thread", "start_ns", "end_ns", group=pl.int_range(pl.len(), dtype=pl.Int64))
    parts = divided(profile, code, pieces)
    row_of, gap, part_ns = code.places_of(parts["stack"].to_numpy()), parts["group"].to_numpy(), parts["ns"].to_numpy()
    share = part_ns / np.maximum(ns[gap], 1)
    host = lookup.totals(row_of, part_ns, code.places.height + 1)[:-1]
    return _CodeOfLines(gaps["call"].to_numpy()[gap], row_of, part_ns, share, host)


def _holding_lines(profile: Profile) -> list[_HoldingLine]:
    """Return the lines of the program that hold the host longest, each for a notable share of the steps and not by its launches."""
    code = profile.code()
    steady = profile.steady_calls
    if code is None or not steady.height or not profile.scope.steps:
        return []
    by_code = profile.once(_code_of_lines)
    host, size = by_code.host, code.places.height + 1
    launch = steady["call"].filter(steady["kind"].is_in(Call.LAUNCHES)).to_numpy()
    often = lookup.totals(code.places_of(code.call[launch]), np.ones(len(launch), np.int64), size)[:-1]
    begin, end = profile.window
    least = np.maximum(HOLDING_LINE_SHARE * (end - begin), HOLDING_FOR_LAUNCH_NS * often)
    rows = [row for row in np.argsort(-host, kind="stable")[:MOST_HOLDING_LINES].tolist() if host[row] > least[row]]
    made = []
    for row in rows:
        file, line, _ = code.places.row(row)
        if file and line is not None and _is_alone(code.places, file, line):
            calls = frozenset(code.made_at(steady, [row])["call"].to_list())
            made.append(_HoldingLine(name_of(file, line), by_code.of_line(row), calls))
    return made
