"""Communication that the program's own lines or its normalization layers ask for, and what can be done about it there.

A wrapper reduces gradients from inside backward: its collectives have the line that runs backward. What another line launches in a loop,
or with objects that are pickled, is no matter of links or of buckets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity
from nsysx.findings import _line_remedies
from nsysx.findings._case import Case, Fix, Saving, calls_of, ops_of
from nsysx.model import Row
from nsysx.replay.edits import RemoveCalls, RemoveHost, RemoveOps, RemoveWaits

#: Remedies of lines that are better than those of exposed communication.
_OF_LINES = ("gradients-in-buckets", "tensors-gathered", "own-part-of-data")
#: A line, or layers of one kind, are the cause if they launch this share of the time of all communication.
_MOST = 0.5
_SYNCHRONIZED = r"\bSyncBatchNorm"


class CommunicationCause(NamedTuple):
    """What to do about communication at a place, and what goes then: ``worth`` by the replay."""

    fix: Fix
    where: Row
    worth: Saving


def meeting(case: Case) -> CommunicationCause | None:
    """Return the place that most of the communication of the steps comes from, if it is one that can be changed; else None."""
    comm = case.ops.select("op", "call", "module", ns=pl.col("end_ns") - pl.col("start_ns")).filter(
        case.ops["cls"] == DeviceActivity.COMM.value
    )
    return _of_line(case, comm) or _of_layers(case, comm)


def _of_line(case: Case, comm: pl.DataFrame) -> CommunicationCause | None:
    code = case.profile.code()
    if code is None or not comm.height:
        return None
    line_of_op = code.places_of(code.op[comm["op"].to_numpy()])
    noted = line_of_op >= 0
    if not noted.any():
        return None
    ns = comm["ns"].to_numpy()
    sums = np.bincount(line_of_op[noted], ns[noted], minlength=code.places.height)
    most = int(sums.argmax())
    file, line, _ = code.places.row(most)
    text = lines.text_of(lines.texts(case.profile), file, line) or ""
    often = int((line_of_op == most).sum()) / case.steps
    fix = _line_remedies.fix_of(_line_remedies.Seen(text))
    if fix is not None and "all_reduce" in text and often >= _line_remedies.LOOPS:
        fix = Fix.by_name("gradients-in-buckets")
    if sums[most] < _MOST * ns.sum() or fix is None or not fix.ways or fix.ways[0].name not in _OF_LINES:
        return None
    here = np.isin(code.places_of(code.call[case.calls["call"].to_numpy()]), [most])
    calls = calls_of(case.calls.filter(pl.Series(here, dtype=pl.Boolean)))
    theirs = case.ops.filter(case.ops["call"].is_in(list(calls)).fill_null(value=False))
    worth = case.worth(RemoveWaits(calls), RemoveCalls(calls), RemoveHost(calls), RemoveOps(ops_of(theirs)), bound=True)
    return CommunicationCause(fix, {"file": file, "line": line}, worth)


def _of_layers(case: Case, comm: pl.DataFrame) -> CommunicationCause | None:
    """Return the layers that normalize over all ranks, if most communication is theirs."""
    modules = case.profile.attributed.modules
    layers = modules["module"].filter(modules["cls"].str.contains(_SYNCHRONIZED).fill_null(value=False))
    if not len(layers):
        return None
    theirs = comm.filter(comm["module"].cast(pl.String).is_in(layers.cast(pl.String).to_list()).fill_null(value=False))
    if int(theirs["ns"].sum()) < _MOST * int(comm["ns"].sum()):
        return None
    return CommunicationCause(Fix.by_name("own-statistics"), {}, case.worth(RemoveOps(ops_of(theirs)), bound=True))
