"""When a line of the program reduces, or sends from one rank, over all ranks what a wrapper of the network has made equal in backward.

A wrapper (DDP) reduces each gradient while backward runs. A loop that averages gradients over the ranks, from before there was a wrapper,
then moves the same bytes again, and changes nothing: the mean of equal numbers. So does one that sends the weights of a rank to all others.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.catalogue import DeviceActivity
from nsysx.events import line_runs
from nsysx.events.behind_backward import behind_backward
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Fix, Saving, way
from nsysx.findings._finding_bounds import SAME_BYTES_SHARE, SAME_LOOP_SHARE
from nsysx.findings._helpers_of_steps import calling_row, without_call
from nsysx.findings._once import Takes, edits_without
from nsysx.findings._sharded_models import parameter_bytes
from nsysx.model import Row
from nsysx.reading import nccl_notes

_REMEDY = way("not-reduced-again")
_ALL_REDUCE, _BROADCAST = "allreduce", "broadcast"


class _Again(NamedTuple):
    """A line (row of the places) that reduces again, the lines that run as often beside it, its GPU ops, and its bytes in a step.

    ``sends``: it sends what one rank has.
    """

    line_row: int
    beside: list[int]
    ops: frozenset[int]
    calls: int
    bytes: int
    sends: bool


def _find(profile: Profile) -> _Again | None:
    """Return the line that reduces as many bytes behind backward as were reduced in it; None without one, or where bytes are not known."""
    code, steps = profile.code(), profile.scope.steps
    ops = profile.steady_ops.filter(profile.steady_ops["call_start_ns"].is_not_null())
    comm = ops.filter(ops["cls"] == DeviceActivity.COMM.value)
    if code is None or not steps or not comm.height:
        return None
    members = nccl_notes.members(profile.trace).get(profile.process, {})
    messages = nccl_notes.messages(profile.trace, comm, members)
    reduces = np.array([message.kind == _ALL_REDUCE for message in messages], np.bool_)
    equals = reduces | np.array([message.kind == _BROADCAST for message in messages], np.bool_)
    size = np.array([message.bytes or 0 for message in messages], np.int64)
    backward = (comm["phase"].cast(pl.String) == "backward").fill_null(value=False).to_numpy()
    of_wrapper = int(size[reduces & backward].sum())
    behind = behind_backward(ops, comm) & comm["phase"].is_null().to_numpy() & equals
    line_of_op = np.where(behind, code.places_of(code.op[comm["op"].to_numpy()]), -1)
    if not of_wrapper or not (line_of_op >= 0).any():
        return None
    of_line = np.bincount(line_of_op[line_of_op >= 0], size[line_of_op >= 0], minlength=code.places.height)
    most = int(of_line.argmax())
    if abs(of_line[most] - of_wrapper) > SAME_BYTES_SHARE * of_wrapper:
        return None
    theirs = line_of_op == most
    ops_again = frozenset(comm["op"].to_numpy()[theirs].tolist())
    often, moved = round(theirs.sum() / steps), round(of_line[most] / steps)
    sends = not reduces[theirs].any()
    if sends and not _updates_all(profile, moved):
        return None
    # What runs beside a line that sends weights may update them, such as an average of weights: it stays.
    return _Again(most, [] if sends else _beside(profile, most), ops_again, often, moved, sends)


def _updates_all(profile: Profile, sent_bytes: int) -> bool:
    """Return whether the optimizers of the rank hold all that is sent: where each rank updates a part, the others need it."""
    settings = settings_of(profile)
    return settings is not None and parameter_bytes(settings) >= (1 - SAME_BYTES_SHARE) * sent_bytes


def _beside(profile: Profile, line_row: int) -> list[int]:
    """Return the lines of its function that run about as often as a line: they are of its loop."""
    code = profile.code()
    if code is None:
        return []
    runs = profile.once(line_runs.of_lines).runs
    file, _, function = code.places.row(line_row)
    return [
        other
        for other, (of_file, _, of_function) in enumerate(code.places.iter_rows())
        if (of_file, of_function) == (file, function)
        and SAME_LOOP_SHARE * runs[line_row] <= runs[other] <= runs[line_row] / SAME_LOOP_SHARE
    ]


def reduced_again(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that a line reduces the bytes of the gradients again, which were reduced in backward."""
    again, code = case.profile.once(_find), case.profile.code()
    if again is None or code is None:
        return ""
    file, line, _ = code.places.row(again.line_row)
    return (
        f"{PurePath(str(file)).name}:{line} {'sends' if again.sends else 'reduces'} {units.size(again.bytes)} over all ranks behind each "
        f"backward, in {units.several(again.calls, 'call')}: as much as the wrapper has reduced in it. "
        f"{'All ranks have equal weights' if again.sends else 'The mean of equal numbers is the same'}"
    )


def without(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves if the line, and what runs as often beside it, is not run."""
    again, code = case.profile.once(_find), case.profile.code()
    if again is None or code is None:
        return None
    calls = code.made_at(case.calls, [again.line_row, *again.beside])
    return case.worth(*edits_without(calls, case.ops))


def taken(case: Case) -> Takes:
    """Return the collectives of the line."""
    again = case.profile.once(_find)
    return Takes(frozenset() if again is None else again.ops)


def place_of_line(case: Case) -> Row:
    """Return the line, or that of the step which calls its helper."""
    again, code = case.profile.once(_find), case.profile.code()
    if again is None or code is None:
        return {}
    return code.where(calling_row(case, code, again.line_row, again.ops))


def worded(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy, with the step's own lines where the exchange is a helper's."""
    again, code = case.profile.once(_find), case.profile.code()
    if again is None or code is None:
        return title, remedy
    outer = calling_row(case, code, again.line_row, again.ops)
    paste = without_call(case, code, outer) if outer != again.line_row else ""
    return title, replace(remedy, paste=paste) if paste else remedy


def deleted(case: Case, line_row: int) -> Fix | None:
    """Return the advice to delete what a line (row of places) exchanges, None for other lines."""
    return Fix.by_name(worded(case, "", _REMEDY)[1]) if is_again(case, line_row) else None


def is_again(case: Case, line_row: int) -> bool:
    """Return whether a line (row of places) is the one that exchanges what is equal on all ranks."""
    again = case.profile.once(_find)
    return again is not None and again.line_row == line_row
