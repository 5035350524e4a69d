"""The line of Python of what a finding is about, from the X-ray of the run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import polars as pl

from nsysx.catalogue import Call, Cause
from nsysx.events import sampled_stacks as stacks_room
from nsysx.events.attribute import IN_STEP
from nsysx.events.code_lines import CodeLines
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.findings._finding_bounds import BELOW_ALL_WORK_SHARE, BELOW_ONE_LINE_SHARE, MOST_SHARE, OF_ONE_LINE_SHARE
from nsysx.findings._once import Shares, Takes
from nsysx.frames import lookup
from nsysx.frames.intervals import I64
from nsysx.model import Row
from nsysx.replay.engine import idle_of
from nsysx.replay.idle_lines import by_line


def line_of(profile: Profile, site: Row, calls: Iterable[int], takes: Takes) -> dict[str, Any]:
    """Return file and line that most of the time of a finding belongs to; empty where no line is known.

    That is the line of the calls that it is about; else of the GPU ops and idle time that it takes; else of the work of its module;
    else, for one about time of the step, of most GPU work. Work that many lines launch has the line that calls them all. Where no call
    that it is about has a known line, none was noted in a usual step, and what else runs in the step says nothing of them.
    """
    code = profile.code()
    rows, ops = np.fromiter(calls, np.int64), profile.steady_ops
    if code is None:
        return _of_backtraces(profile, site, rows)
    ways: tuple[Callable[[], _Weights], ...] = (
        lambda: _of_calls(profile, code, rows),
        lambda: _of_takes(profile, code, takes),
        lambda: _of_module(profile, code, str(site.get("module") or "")),
        lambda: _of_ops(code, ops if takes.idle is not None or takes.ops else ops.clear()),
    )
    about = code.call[rows] if len(rows) or takes.idle is not None else code.op[list(takes.ops)]
    if len(about) and (code.places_of(about) < 0).all():
        ways = (lambda: _of_module(profile, code, str(site.get("module") or "")),)
    calling = calling_line(profile, takes) if takes.ops and takes.idle is None and not len(rows) else {}
    if calling and _share_below(code, ops, calling) >= BELOW_ALL_WORK_SHARE:
        calling = calling_line(profile, takes, MOST_SHARE)
    where = calling or next(filter(None, (_line_with_most(code, *weights()) for weights in ways)), {})
    return {k: where[k] for k in ("file", "line") if k in where}


def _of_backtraces(profile: Profile, site: Row, calls: I64) -> dict[str, Any]:
    """Return the line of the calls of a finding, else of those in its module, by nsys's own backtraces: the one that takes longest.

    They stand at calls that wait, copy and allocate, and at no launch.
    """
    if not profile.lines().height:
        return {}
    of_calls = profile.steady_calls.select("call", "module", ns=pl.col("end_ns") - pl.col("start_ns"))
    chosen = lookup.among(pl.Series(np.sort(calls)), of_calls["call"])
    if not len(calls):
        module = str(site.get("module") or "")
        chosen = (of_calls["module"].cast(pl.String) == module).fill_null(value=False) & bool(module)
    lined = of_calls.filter(chosen).join(profile.lines(), on="call", how="inner").drop_nulls("line")
    by_line = (
        lined.group_by("file", "line")
        .agg(pl.col("ns").sum())
        .sort("ns", "file", "line", descending=[True, False, False])
    )
    return dict(by_line["file", "line"].row(0, named=True)) if by_line.height else {}


#: Functions of modules: whoever calls the network names it better than a line in it.
OF_MODULE = re.compile(r"(^|\.)(forward|__call__)$")


def calling_line(profile: Profile, takes: Takes, of_one: float = OF_ONE_LINE_SHARE) -> dict[str, Any]:
    """Return file and line, outside of modules, that calls what launches the GPU ops.

    Empty where one line launches the share ``of_one`` of them, or none is known.
    """
    code = profile.code()
    if code is None:
        return {}
    ops = profile.steady_ops.filter(profile.steady_ops["op"].is_in(list(takes.ops)))
    stack, weight = _launched_by(code, ops)
    of_line, whole = lookup.totals(code.places_of(stack), weight, code.places.height), weight.sum()
    if not of_line.any() or of_line.max() >= of_one * whole:
        return {}
    chains = [code.chain(int(s)) for s in stack]
    path: list[int] = []
    while True:
        below: dict[int, int] = {}
        for chain, part in zip(chains, weight.tolist(), strict=True):
            if len(chain) > len(path) and chain[: len(path)] == path:
                below[chain[len(path)]] = below.get(chain[len(path)], 0) + part
        most = max(below, key=lambda line: below[line], default=-1)
        if most < 0 or below[most] < BELOW_ONE_LINE_SHARE * whole:
            break
        path.append(most)
    places = [code.places.row(line, named=True) for line in path]
    calling = [
        row for row in places if not stacks_room.is_library(row["file"]) and not OF_MODULE.search(row["function"])
    ]
    return {key: calling[-1][key] for key in ("file", "line")} if calling else {}


def _share_below(code: CodeLines, ops: pl.DataFrame, line: dict[str, Any]) -> float:
    """Return the share of GPU ops, by their time, that a line launches, or a line that it calls."""
    stack, weight = _launched_by(code, ops)
    there = (code.places["file"] == line["file"]) & (code.places["line"] == line["line"])
    places = frozenset(np.flatnonzero(there.fill_null(value=False).to_numpy()).tolist())
    return float(weight[code.passing(stack, places)].sum() / max(weight.sum(), 1))


def _launched_by(code: CodeLines, ops: pl.DataFrame) -> _Weights:
    """Return the stacks that launch GPU ops, each once, and the GPU time of what each launches (ns)."""
    stack, ns = code.op[ops["op"].to_numpy()], (ops["end_ns"] - ops["start_ns"]).to_numpy()
    distinct, number = np.unique(stack[stack >= 0], return_inverse=True)
    return distinct, lookup.totals(number, ns[stack >= 0], len(distinct))


def line_of_phase(profile: Profile, phase: str) -> dict[str, Any]:
    """Return file and line at which the thread that drives the steps stands in a phase for longest; empty where that is not known."""
    code, spans = profile.code(), profile.attributed.phase_spans
    if code is None:
        return {}
    theirs = spans.filter((pl.col("process") == profile.process) & (pl.col("phase").cast(pl.String) == phase))
    places, ns = [], []
    for (thread,), part in theirs.group_by("thread", maintain_order=True):
        begin = part["start_ns"].to_numpy()
        places.append(code.places_of(code.at(int(str(thread)), begin)))
        ns.append(part["end_ns"].to_numpy() - begin)
    if not places:
        return {}
    where = _line_with_most(code, np.concatenate(places), np.concatenate(ns))
    return {k: where[k] for k in ("file", "line") if k in where}


def launching(profile: Profile, kernel: str) -> dict[str, Any]:
    """Return file, line and function that mostly launch a kernel, in the whole capture; empty where that is not known."""
    code, ops = profile.code(), profile.ops
    return {} if code is None else _line_with_most(code, *_of_ops(code, ops.filter(ops["name"] == kernel)))


def running(profile: Profile, takes: Takes) -> dict[str, Any]:
    """Return file, line and function of what mostly runs in the time that a finding takes; empty where most of that has no line.

    An X-ray notes the lines of its few steps: of what other steps alone do, no line is known.
    """
    code = profile.code()
    if code is None:
        return {}
    line_row, ns = _of_takes(profile, code, takes)
    return _line_with_most(code, line_row, ns) if 2 * ns[line_row >= 0].sum() >= ns.sum() else {}


def share_running(profile: Profile, takes: Takes, line: Row) -> float:
    """Return the share of the time that a finding takes in which a line (file, line, function) runs, as in ``running``."""
    code = profile.code()
    if code is None:
        return 0.0
    line_row, ns = _of_takes(profile, code, takes)
    return float(ns[line_row == row_of(code, line)].sum() / max(ns.sum(), 1))


def calls_networks(code: CodeLines, line_row: int) -> bool:
    """Return whether a line calls a module whose own lines were noted right below it: what holds the host there is the module's."""
    below = (code.parent >= 0) & (code.place[code.parent] == line_row)
    functions = code.places["function"].cast(pl.String).gather(np.unique(code.place[below]))
    return bool(functions.str.contains(OF_MODULE.pattern).any())


def calling_networks(profile: Profile) -> Row:
    """Return file and line, outside of all modules, that calls what makes most of the launches in forwards of modules and their backward;
    empty where no line makes half of them, or none is known.
    """
    code, calls = profile.code(), profile.steady_calls
    if code is None:
        return {}
    launches = calls.filter(calls["kind"].is_in(Call.LAUNCHES))["call"].to_numpy()
    stack, often = np.unique(code.call[launches], return_counts=True)
    inner = code.places["function"].cast(pl.String).str.contains(OF_MODULE.pattern).fill_null(value=False).to_list()
    made: dict[int, int] = {}
    for chain, count in ((code.chain(s), n) for s, n in zip(stack.tolist(), often.tolist(), strict=True) if s >= 0):
        outside = chain[: next((i for i, row in enumerate(chain) if inner[row]), 0)]
        callers = [row for row in outside if not stacks_room.is_library(code.places["file"][row])]
        if callers:
            made[callers[-1]] = made.get(callers[-1], 0) + count
    most = max(made, key=lambda row: made[row], default=-1)
    if most < 0 or made[most] < MOST_SHARE * sum(made.values()):
        return {}
    return code.where(most)


def in_forward(code: CodeLines, stacks: I64) -> Flags:
    """Return which stacks have a line of a module's forward among theirs, or above them."""
    inner = code.places["function"].cast(pl.String).str.contains(OF_MODULE.pattern).fill_null(value=False)
    return code.passing(stacks, frozenset(inner.arg_true()))


def runs_networks(profile: Profile, line: Row) -> bool:
    """Return whether a line (file, line, function) is in the forward of a module, or calls a network: it has to stay where it is."""
    code = profile.code()
    if code is None:
        return False
    if OF_MODULE.search(str(line["function"])):
        return True
    calls = profile.steady_calls
    launches = calls["call", "module", "phase"].filter(calls["kind"].is_in(Call.LAUNCHES))
    line_row = row_of(code, line)
    stack = code.call[launches["call"].to_numpy()]
    made_there = launches.filter(pl.Series(code.places_of(stack) == line_row, dtype=pl.Boolean))
    if (made_there["phase"] == "forward").any():
        return True
    return bool((in_forward(code, stack) & code.passing(stack, frozenset([line_row]))).any())


def row_of(code: CodeLines, line: Row) -> int:
    """Return the row of a line (file, line, function) among the places, -1 where it has none."""
    there = lookup.same_values(line, ("file", "line", "function"))
    return int(next(iter(code.places.with_row_index().filter(there)["index"]), -1))


def _line_with_most(code: CodeLines, line_row: I64, ns: I64) -> dict[str, Any]:
    """Return the line with most of the time, empty where none has any."""
    there = line_row >= 0
    sums = lookup.totals(line_row[there], ns[there], code.places.height)
    return code.places.row(int(np.argmax(sums)), named=True) if sums.any() else {}


_Weights = tuple[I64, I64]


def _of_calls(profile: Profile, code: CodeLines, rows: I64) -> _Weights:
    api = profile.attributed.api_calls
    ns = (api["end_ns"] - api["start_ns"]).to_numpy()[rows]
    return code.places_of(code.call[rows]), ns + 1


def _of_ops(code: CodeLines, ops: pl.DataFrame) -> _Weights:
    return code.places_of(code.op[ops["op"].to_numpy()]), (ops["end_ns"] - ops["start_ns"]).to_numpy()


def _of_takes(profile: Profile, code: CodeLines, takes: Takes) -> _Weights:
    ops = profile.steady_ops
    line_row, ns = _of_ops(code, ops.filter(ops["op"].is_in(list(takes.ops))) if takes.ops else ops.clear())
    if takes.idle is None or not np.asarray(takes.idle).any():
        return line_row, ns
    late, share = by_line(profile), np.asarray(takes.idle, np.float64)
    part = late["real_ns"].to_numpy() * np.append(share, share.mean())[late["piece"].to_numpy()]
    return np.concatenate((line_row, late["place"].to_numpy())), np.concatenate((ns, part.astype(np.int64)))


def _of_module(profile: Profile, code: CodeLines, module: str) -> _Weights:
    """Return what the GPU ops of a module are launched by; "*" in its name stands for what differs between several."""
    if not module or module == IN_STEP:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    pattern = r"\d+".join(map(re.escape, module.split("*")))
    return _of_ops(code, profile.steady_ops.filter(lookup.matching(profile.steady_ops["module"], f"^{pattern}(\\.|$)")))


def share_of(profile: Profile, line_row: int) -> Shares:
    """Return which share of each idle piece of host code is at a line."""
    return share_of_idle(profile, (by_line(profile)["place"] == line_row).to_numpy())


def share_of_idle(profile: Profile, chosen: Flags) -> Shares:
    """Return which share of each idle piece is in these rows of ``by_line``, as far as they are host code."""
    idle, rows = profile.once(idle_of), by_line(profile)
    rows = rows.filter(pl.Series(chosen, dtype=pl.Boolean) & rows["host"])
    shares = np.zeros(idle.height + 1)
    host, ns = (idle["cause"] == Cause.HOST_CODE.number).to_numpy(), idle["ns"].to_numpy()
    whole = np.append(ns, ns[host].sum())
    np.add.at(shares, rows["piece"].to_numpy(), rows["ns"].to_numpy())
    shares /= np.maximum(whole, 1)
    result: Shares = np.clip(shares[:-1] + host * shares[-1], 0.0, 1.0)
    return result
