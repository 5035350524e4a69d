"""Lines that write into many tensors one after the other, each by small operators of its own, as an average of weights is kept in a loop.

An operator on one tensor computes little, and the host takes its time for each: about ten times as much where a subclass of tensors
passes it through Python, as DTensor does. torch has the same operators for lists of tensors. Rounds that need one another, and operators
that a backward goes through, have to stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.catalogue import DeviceActivity
from nsysx.events.event_bounds import ON_DEVICE_KIND
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_bounds import FEWEST_LOOPED_UPDATES
from nsysx.events.operator_flow import OperatorFlow, flow_of, in_place, is_view
from nsysx.events.profile import Profile
from nsysx.events.trained_operators import trained_of
from nsysx.frames.intervals import I64

#: Operators that work on each number by itself, and have a form for lists of tensors.
_FOR_EACH = re.compile(
    r"^aten::(add|sub|mul|div|true_divide|lerp|addcmul|addcdiv|copy|zero|fill|neg|abs|sqrt|square|pow|exp|log|reciprocal|rsqrt|sign|"
    r"maximum|minimum|clamp(_min|_max)?)_?$"
)
#: Those that hand a tensor on, and what makes a tensor of a number.
_HANDS_ON = re.compile(r"^aten::(to|_to_copy|contiguous|alias|detach_?|empty\w*|lift_fresh|resolve_\w+|result_type)$")
#: Phases in which a network computes.
_OF_NETWORKS = ("forward", "backward", "evaluation")


class LoopedUpdates(NamedTuple):
    """A loop: its lines (rows of ``CodeLines.places``, the one that launches most first) and its GPU ops of the steady steps.

    ``operators``: of each step, on tensors as the program has them. ``split``: a subclass of tensors passes them on to those on the parts
    of a rank, as DTensor does. ``left``: op -> what a form for lists leaves of its time: all in the last op of each run, and nothing else.
    """

    places: tuple[int, ...]
    ops: frozenset[int]
    operators: int
    split: bool
    left: Mapping[int, float]


def looped_updates(profile: Profile) -> tuple[LoopedUpdates, ...]:
    """Return the loops of the shown process that update tensors one by one in each step, the one with most operators first."""
    return profile.once(_loops)


def left_of_loops(profile: Profile) -> Mapping[int, float]:
    """Return op -> what is left of its time where all loops of the shown process take lists, 0: it is gone; see ``LoopedUpdates``."""
    return {op: left for loop in looped_updates(profile) for op, left in loop.left.items()}


def _loops(profile: Profile) -> tuple[LoopedUpdates, ...]:
    code, steps = profile.code(), profile.scope.steps
    launched = _launched(profile) if code is not None and steps else None
    flow = flow_of(profile) if launched is not None else None
    if code is None or launched is None or flow is None:
        return ()
    there: I64 = code.places_of(code.at(flow.thread, flow.start_ns))
    many = np.intersect1d(there, launched.places[launched.places >= 0])
    eligible = {row: seen for row in many.tolist() if (seen := _updates(profile, flow, there == row))}
    functions = code.places["file", "function"].rows()
    by_function: dict[object, list[int]] = {}
    for row in eligible:
        by_function.setdefault(functions[row], []).append(row)
    loops = []
    for rows in by_function.values():
        left = _left(launched, rows) if _apart(flow, np.isin(there, rows)) else {}
        if left:
            rows.sort(key=lambda row: -eligible[row][0])
            count, split = sum(eligible[row][0] for row in rows), any(eligible[row][1] for row in rows)
            loops.append(LoopedUpdates(tuple(rows), frozenset(left), count, split, left))
    return tuple(sorted(loops, key=lambda loop: -loop.operators))


def _apart(flow: OperatorFlow, at_lines: Flags) -> bool:
    """Return whether what lines run are many pieces, none of which needs what another has made."""
    first_of = dict[int, int]()  # the number of an operator -> that of the first one of its piece
    pieces = set[int]()
    for row in flow.outermost:
        if not at_lines[row]:
            continue
        needed = {first_of[number] for number in flow.made[row] if number in first_of}
        piece = min(needed, default=flow.number[row])
        for number, first in first_of.items() if len(needed) > 1 else ():
            first_of[number] = piece if first in needed else first
        first_of[flow.number[row]] = piece
        pieces = (pieces - needed) | {piece}
    return len(pieces) >= FEWEST_LOOPED_UPDATES


class _Launched(NamedTuple):
    """What the steady steps launch, by thread in order: ``ops`` (op, ns) and the place of each that may be a loop's, -1 for all else."""

    ops: pl.DataFrame
    places: I64


def _launched(profile: Profile) -> _Launched | None:
    """Return what is launched, None where no line launches much outside of networks, on one device and for this rank alone."""
    code, steps = profile.code(), profile.scope.steps or 1
    columns = ("op", "call", "phase", "cls", "op_kind", "copy_kind", "start_ns", "end_ns")
    ops = profile.steady_ops[columns].filter(profile.steady_ops["call"].is_not_null())
    if code is None or not ops.height:
        return None
    ops = ops.with_columns(thread=profile.attributed.api_calls["thread"].gather(ops["call"])).sort(
        "thread", "call", "op"
    )
    places = code.places_of(code.op[ops["op"].to_numpy()])
    elsewhere = ((ops["op_kind"] == "memcpy") & (ops["copy_kind"] != ON_DEVICE_KIND)).fill_null(value=True)
    of_networks = ops["phase"].cast(pl.String).is_in(_OF_NETWORKS).fill_null(value=False)
    communicates = ops["cls"] == DeviceActivity.COMM.value
    never = np.unique(places[(elsewhere | of_networks | communicates).to_numpy()])
    often = np.bincount(places[places >= 0], minlength=code.places.height)
    few = np.flatnonzero(often < FEWEST_LOOPED_UPDATES * steps)
    places = np.where(np.isin(places, np.concatenate((never, few))), -1, places)
    if (places < 0).all():
        return None
    return _Launched(ops.select("op", ns=pl.col("end_ns") - pl.col("start_ns")), places)


def _updates(profile: Profile, flow: OperatorFlow, at_line: Flags) -> tuple[int, bool] | None:
    """Return how many operators a line runs in the step of the flow, and whether a subclass passes them on; None where it does anything
    but to update tensors each by itself.
    """
    outer = [(row, last) for row, last in flow.outermost_spans if at_line[row]]
    computing = [
        (row, last) for row, last in outer if not is_view(flow.names[row]) and not _HANDS_ON.match(flow.names[row])
    ]
    names = [flow.names[row] for row, _ in computing]
    writes = sum(map(in_place, names))
    if writes < FEWEST_LOOPED_UPDATES or not all(map(_FOR_EACH.match, names)):
        return None
    if trained_of(profile)[[row for row, _ in computing]].any():
        return None
    passed_on = sum(
        any(
            flow.names[inner] == flow.names[row] and flow.size[inner] != flow.size[row]
            for inner in range(row + 1, last)
        )
        for row, last in computing
    )
    return len(computing), 2 * passed_on >= len(computing)


def _left(launched: _Launched, rows: list[int]) -> dict[int, float]:
    """Return what is left of each op of these lines, in runs with nothing else launched between."""
    there: Flags = np.isin(launched.places, rows)
    run = np.cumsum(there & ~np.append(False, there[:-1]))[there]
    numbers, ns = (launched.ops[column].to_numpy()[there] for column in ("op", "ns"))
    left: dict[int, float] = {}
    for each in np.unique(run).tolist():
        of_run = run == each
        if of_run.sum() >= FEWEST_LOOPED_UPDATES:
            left |= dict.fromkeys(numbers[of_run].tolist(), 0.0)
            left[int(numbers[of_run][-1])] = float(ns[of_run].sum() / max(int(ns[of_run][-1]), 1))
    return left
