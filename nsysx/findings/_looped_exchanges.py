"""Collectives that a loop of the program makes one after the other with nothing computed between them: one of them can carry all.

A layer that exchanges what it has computed, as of a model that is split over the ranks, needs each before it goes on: there a product
lies between two of them.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity
from nsysx.events.code_lines import CodeLines
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, ops_of, way
from nsysx.findings._finding_bounds import LOOP_LAUNCHES, MOST_BETWEEN_EXCHANGES
from nsysx.findings._messages_in_one import by_owners, in_one_message
from nsysx.findings._once import Takes, edits_without
from nsysx.findings._reduced_twice import is_again
from nsysx.findings._values_of_ranks import values_at_once
from nsysx.frames.intervals import I64
from nsysx.model import Row
from nsysx.replay.edits import RemoveCalls, RemoveHost

_EXCHANGES = re.compile(
    r"\b(all_to_all\w*|all_gather\w*|broadcast|reduce_scatter\w*|all_reduce)\s*\((?!.*\b(grad|param|weight)s?\b)"
)
#: Kinds of kernels whose result an exchange behind them may need.
_COMPUTES = ("gemm", "attention", "convolution", "norm")
#: Kernels that only copy.
_COPIES = r"(?i)copy|CatArray"


class _ExchangeLoop(NamedTuple):
    """A loop that exchanges: the place that makes each exchange, the one that calls it, how often a step, and how many ``together``.

    ``calls`` make all exchanges but the first of those together, ``copying`` those that only copy for them: the bytes of these move all the
    same, in one launch.
    """

    place: int
    caller: int
    times: float
    together: float
    calls: frozenset[int]
    copying: frozenset[int]


def _loop(profile: Profile) -> _ExchangeLoop | None:
    """Return the loop that exchanges most often in forward or outside of the networks; None without one."""
    code, steps = profile.code(), profile.scope.steps
    if code is None or not steps:
        return None
    ops = profile.steady_ops["op", "call", "cls", "family", "phase", "start_ns"]
    phase = ops["phase"].cast(pl.String)
    forward = ops.filter((phase != "backward").fill_null(value=True) & ops["call"].is_not_null()).sort("call")
    place_of_op = code.places_of(code.op[forward["op"].to_numpy()])
    exchanges = (forward["cls"] == DeviceActivity.COMM.value).to_numpy()
    source = lines.texts(profile)
    often = {
        n: int((exchanges & (place_of_op == n)).sum()) for n in np.unique(place_of_op[exchanges]).tolist() if n >= 0
    }
    for n in sorted(often, key=lambda n: -often[n]):
        site = code.places.row(n)[:2]
        exchanging = _EXCHANGES.search(lines.text_of(source, *site) or "") or by_owners(profile, *site)
        if often[n] < LOOP_LAUNCHES * steps or not exchanging:
            continue
        rows = np.flatnonzero(exchanges & (place_of_op == n))
        runs = _runs(forward, rows)
        # As many in each run, or in those of one kind, where there are several in a step, as the layers of a network have.
        alike = len(runs) <= steps or all(count % steps == 0 for count in Counter(runs).values())
        if alike and len(rows) - len(runs) >= LOOP_LAUNCHES * steps and len(rows) >= 2 * len(runs):
            return _with_backward(profile, code, n, forward["op"].to_numpy()[rows], max(len(runs), steps))
    return None


def _runs(ops: pl.DataFrame, rows: I64) -> list[int]:
    """Return how many of these rows lie together, run by run: nothing is computed between one and the next of a run."""
    computes = ops["family"].cast(pl.String).is_in(_COMPUTES).fill_null(value=False).to_numpy()
    so_far = np.concatenate(([0], np.cumsum(computes)))
    close = (np.diff(rows) <= MOST_BETWEEN_EXCHANGES + 1) & (so_far[rows[1:]] == so_far[rows[:-1] + 1])
    return [int(n) for n in np.diff(np.concatenate(([0], np.flatnonzero(~close) + 1, [len(rows)])))]


def _with_backward(profile: Profile, code: CodeLines, exchange_row: int, made: I64, runs: int) -> _ExchangeLoop:
    """Return the loop with all calls that go but the first round of each of its runs, and those of its backward."""
    chain = code.chain(int(code.op[made[0]]))
    caller = next((n for n in reversed(chain) if n != exchange_row), exchange_row)
    owner = str(code.places["function"].to_list()[exchange_row]).rpartition(".")[0]
    functions = code.places["function"].to_list()
    backward = [n for n, f in enumerate(functions) if owner and f == f"{owner}.backward"]
    calls = profile.steady_calls["call", "thread", "start_ns"].sort("start_ns")
    stacks, ids = code.call[calls["call"].to_numpy()], calls["call"].to_numpy()
    gone = [ids[code.passing(stacks, frozenset({exchange_row}))], ids[code.passing(stacks, frozenset(backward))]]
    rounds = [(these, these[behind_first_round(len(these), runs, len(made) / runs)]) for these in gone if len(these)]
    later = frozenset(np.concatenate([each for _, each in rounds]).tolist())
    copying = frozenset[int]().union(*(_copying_between(profile, calls, *each) for each in rounds))
    times = len(made) / (profile.scope.steps or 1)
    return _ExchangeLoop(exchange_row, caller, times, len(made) / runs, later, copying - later)


def _copying_between(profile: Profile, calls: pl.DataFrame, every: I64, later: I64) -> frozenset[int]:
    """Return the calls between two exchanges of a loop, on its thread, where nothing but a few copies is launched there.

    ``calls`` in their order; ``every`` exchange's, and the ``later`` ones'. A gradient that goes back through a stack is made contiguous
    for each of its exchanges.
    """
    kernel = profile.steady_ops["call", "name"].filter(pl.col("call").is_not_null())
    copies = kernel["name"].cast(pl.String).str.contains(_COPIES).fill_null(value=False).to_numpy()
    launching, others = kernel["call"].to_numpy(), kernel["call"].to_numpy()[~copies]
    behind_first, made = set(later.tolist()), list[int]()
    for _, of_thread in calls.filter(pl.col("call").is_in(every.tolist()).any().over("thread")).group_by("thread"):
        ids = of_thread["call"].to_numpy()
        launches, computes = np.isin(ids, launching), np.isin(ids, others)
        places = np.flatnonzero(np.isin(ids, every))
        for a, b in itertools.pairwise(places.tolist()):
            between = slice(a + 1, b)
            few = 0 < launches[between].sum() <= MOST_BETWEEN_EXCHANGES and not computes[between].any()
            if few and ids[b] in behind_first:
                made += ids[between].tolist()
    return frozenset(made)


def behind_first_round(count: int, steps: int, times: float | None = None) -> Flags:
    """Return which of ``count`` calls of a loop, in their order, are not of its first round in each step.

    The loop has ``times`` rounds in a step; None: each call is one.
    """
    each = max(round(count / steps), 1)
    first = 1 if times is None else max(round(each / times), 1)
    return np.arange(count) % each >= first


def in_words_of_line(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy for what the line exchanges."""
    loop, code = case.profile.once(_loop), case.profile.code()
    if loop is None or code is None:
        return title, remedy
    # Single numbers are no tensors to pack.
    advised = values_at_once(case.profile, loop.place)
    if advised is not None:
        return "Values of all ranks are reduced one by one", advised.ways[0]
    site = code.places.row(loop.place)[:2]
    paste = in_one_message(case.profile, *site)
    if by_owners(case.profile, *site):
        title, remedy = "What each rank updates is broadcast one by one", way("updates-gathered")
    return title, replace(remedy, paste=paste) if paste else remedy


def _text_of(profile: Profile, code: CodeLines, line_row: int) -> str:
    return lines.text_of(lines.texts(profile), *code.places.row(line_row)[:2]) or ""


def one_by_one(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that a loop exchanges one tensor after the other."""
    loop, code = case.profile.once(_loop), case.profile.code()
    if loop is None or code is None or is_again(case, loop.place):  # none of them is needed
        return ""
    text = _text_of(case.profile, code, loop.place)
    together = f", {loop.together:.0f} at a time," if 2 * loop.together <= loop.times else ""
    return (
        f"line {code.places.row(loop.place)[1]} ({text}) runs {units.count(round(loop.times))} times in each step{together} with nothing "
        "computed between: each is a launch and a meeting of all ranks, in backward once more where gradients go back through it"
    )


def in_one(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves if one exchange carries all; the bytes move all the same."""
    loop = case.profile.once(_loop)
    if loop is None:
        return None
    calls = case.calls.filter(case.calls["call"].is_in(list(loop.calls)))
    # What is copied for one exchange is copied for all at once.
    return case.worth(
        *edits_without(calls, case.ops, leading=True), RemoveCalls(loop.copying), RemoveHost(loop.copying, leading=True)
    )


def taken(case: Case) -> Takes:
    """Return the GPU work that goes."""
    loop = case.profile.once(_loop)
    calls = frozenset() if loop is None else loop.calls
    return Takes(ops_of(case.ops.filter(case.ops["call"].is_in(list(calls)).fill_null(value=False))))


def place_of_loop(case: Case) -> Row:
    """Return the line of the loop."""
    loop, code = case.profile.once(_loop), case.profile.code()
    if loop is None or code is None:
        return {}
    made = values_at_once(case.profile, loop.place)  # there the line of the values is told
    # A loop that stands in the function of the line is told with it, one of other functions with what calls these.
    inside = made is not None or in_one_message(case.profile, *code.places.row(loop.place)[:2])
    file, line, _ = code.places.row(loop.place if inside else loop.caller)
    return {"file": file, "line": line}
