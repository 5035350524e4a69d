"""Communication that the program's own lines or its normalization layers ask for, and what can be done about it there.

A wrapper reduces gradients from inside backward: its collectives have the line that runs backward. What another line launches in a loop,
or with objects that are pickled, is no matter of links or of buckets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity
from nsysx.events.recorded_settings import settings_of
from nsysx.findings import _line_remedies
from nsysx.findings._case import Case, Fix, Saving, ops_of, way
from nsysx.findings._finding_bounds import (
    LARGE_MESSAGE_BYTES,
    LOOP_LAUNCHES,
    MOST_SHARE,
    SLOW_NVLINK_BYTES_PER_S,
)
from nsysx.findings._once import edits_without
from nsysx.model import Row
from nsysx.replay.edits import RemoveOps

#: Remedies of lines that are better than those of exposed communication.
_OF_LINES = ("gradients-in-buckets", "tensors-gathered", "own-part-of-data", "shards-kept", "weights-sent-once")
#: Lines that exchange whole weights, which a step of training need not: remedy -> text of the line that communicates.
_OF_WEIGHTS = {
    "shards-kept": r"\.full_tensor\(|\bsummon_full_params\(|\bstate_dict\(|_state_dict\(",
    "weights-sent-once": r"\bbroadcast\w*\([^,]*(param|weight|buffer|\bp\b)",
}
#: Layers that exchange their statistics in each forward and backward.
_SYNCHRONIZED = r"\bSyncBatchNorm"


class CommunicationCause(NamedTuple):
    """What to do about communication, at which place, and what goes then: ``worth`` by the replay, None: what no communication saves."""

    fix: Fix
    where: Row
    worth: Saving | None = None


def meeting(case: Case) -> CommunicationCause | None:
    """Return the place that most of the communication of the steps comes from, if it is one that can be changed; else None."""
    comm = case.ops.select("op", "call", "module", ns=pl.col("end_ns") - pl.col("start_ns")).filter(
        case.ops["cls"] == DeviceActivity.COMM.value
    )
    return _of_line(case, comm) or _of_layers(case, comm) or _of_links(case)


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
    fix = next((Fix.by_name(name) for name, of_weights in _OF_WEIGHTS.items() if re.search(of_weights, text)), None)
    fix = fix or _line_remedies.fix_of(_line_remedies.Seen(text))
    if fix is not None and "all_reduce" in text and often >= LOOP_LAUNCHES:
        fix = Fix.by_name("gradients-in-buckets")
    if sums[most] < MOST_SHARE * ns.sum() or fix is None or not fix.ways or fix.ways[0].name not in _OF_LINES:
        return None
    worth = case.worth(*edits_without(code.made_at(case.calls, [most]), case.ops), bound=True)
    return CommunicationCause(fix, {"file": file, "line": line}, worth)


def _of_layers(case: Case, comm: pl.DataFrame) -> CommunicationCause | None:
    """Return the layers that normalize over all ranks, if most communication is theirs."""
    modules = case.profile.attributed.modules
    layers = modules["module"].filter(modules["cls"].str.contains(_SYNCHRONIZED).fill_null(value=False))
    if not len(layers):
        return None
    theirs = comm.filter(comm["module"].cast(pl.String).is_in(layers.cast(pl.String).to_list()).fill_null(value=False))
    if int(theirs["ns"].sum()) < MOST_SHARE * int(comm["ns"].sum()):
        return None
    return CommunicationCause(Fix.by_name("own-statistics"), {}, case.worth(RemoveOps(ops_of(theirs)), bound=True))


#: Variables that keep NCCL off the fast way between GPUs, with the value that does so where only one does.
_SLOW_WAYS = {"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "LOC", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket"}
#: Cards whose GPUs are joined by NVLink in one host, and what its slowest way (a pair of A100s with half of their links) is far above.
_JOINED = r"(H100|H200|B200|B300|GB\d00|A100|A800|H800|H20)(?!.*(PCIe|NVL|MIG))"


def _of_links(case: Case) -> CommunicationCause | None:
    """Return that data takes a slow way between GPUs of one host, where most of the exposed communication is transfer."""
    rows = (case.ranks.rows if case.ranks is not None else None) or ()
    exposed = sum(row["comm_ns"] for row in rows)
    if not exposed or sum(row["exposed_transfer_ns"] or 0 for row in rows) < MOST_SHARE * exposed:
        return None
    settings = settings_of(case.profile)
    for name, value in _SLOW_WAYS.items():
        if settings is not None and settings.variable(name).strip().lower() == value.lower():
            text = f"Unset {name}={value}: GPUs then exchange data through the host's memory, not directly"
            return CommunicationCause(
                Fix.by_name(way("unset-variable", text, f"env -u {name} torchrun train.py")), {"near": name}
            )
    return None if (slow := _slowest(rows)) is None else CommunicationCause(Fix(slow), {})


def _slowest(rows: Sequence[Row]) -> str | None:
    """Return what to look at where large messages of ranks on one host are far slower than the links of their cards; else None."""
    if len({row["host"] for row in rows}) != 1 or not all(re.search(_JOINED, row["gpu"]) for row in rows):
        return None
    rates = [
        each["bus_bytes_per_s"]
        for row in rows
        for each in row["by_collective"] or ()
        if each["bus_bytes_per_s"] and each["bytes"] and each["bytes"] >= LARGE_MESSAGE_BYTES * each["calls"]
    ]
    if not rates or max(rates) >= SLOW_NVLINK_BYTES_PER_S:
        return None
    return (
        f"Find out why NCCL does not use NVLink: large messages move at {units.size(max(rates))} a second at most. NCCL_DEBUG=INFO says "
        "which way each pair takes (P2P is right, SHM and NET are not), nvidia-smi topo -m which there is"
    )
