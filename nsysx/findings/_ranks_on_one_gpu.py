"""Ranks that compute on the GPU of another rank: the two take turns there, while a GPU of their own idles."""

from __future__ import annotations

import re
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.catalogue import DeviceActivity
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving
from nsysx.model import Row
from nsysx.replay import peers

#: A line that names the first GPU, whichever rank runs it.
_FIRST = re.compile(r"[\"']cuda:0[\"']|\.cuda\(0\)|\bset_device\(0\)")


class _Elsewhere(NamedTuple):
    """A rank that computes on the GPU of another one: the number of the process, the GPU, and for how long in the steps (ns)."""

    process: int
    device: int
    ns: int


def _elsewhere(profile: Profile) -> _Elsewhere | None:
    """Return the rank that computes longest on a GPU that another rank computes on, besides the one that it computes on most; else None."""
    ranks, (start, end) = peers.ranks(profile), profile.window
    if len(ranks) < 2 or end <= start:
        return None
    ops = profile.attributed.gpu_ops
    ops = ops.filter((ops["cls"] == DeviceActivity.COMPUTE.value) & (ops["start_ns"] >= start) & (ops["end_ns"] <= end))
    sums = (
        ops.filter(ops["process"].is_in(ranks))
        .group_by("process", "device")
        .agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    )
    longest = sums.sort("ns", "process", descending=[True, False])["process", "device"].rows()
    owners: dict[int, int] = {}  # of each GPU the rank that computes most there
    main: dict[int, int] = {}  # of each rank the GPU on which it computes most
    for process, device in longest:
        owners.setdefault(device, process)
        main.setdefault(process, device)
    # A process numbers the GPUs that it sees: ranks that see one each (CUDA_VISIBLE_DEVICES) all call it 0.
    rows = sums["process", "device", "ns"].iter_rows()
    away = [_Elsewhere(*row) for row in rows if row[1] != main[row[0]] and owners[row[1]] != row[0]]
    return max(away, key=lambda each: each.ns, default=None)


def on_one_gpu(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that a rank computes on the GPU of another one, where that is notable."""
    away = case.profile.once(_elsewhere)
    if away is None or not case.notable(case.per_step(away.ns)):
        return ""
    rank = peers.ranks(case.profile).index(away.process)
    return (
        f"the process of rank {rank} computes {units.duration(case.per_step(away.ns))} of a step on GPU {away.device}, which another rank "
        "computes on: they take turns there"
    )


def apart(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return the most that it saves if each rank computes on its own GPU."""
    away = case.profile.once(_elsewhere)
    return (
        None if away is None else case.bound(case.per_step(away.ns), "what a rank computes on the GPU of another one")
    )


def place_of_work(case: Case) -> Row:
    """Return the line that launches most of it, else the one line of the program that names the first GPU; empty where neither is known."""
    away, code = case.profile.once(_elsewhere), case.profile.code()
    if away is None:
        return {}
    if code is not None and away.process == case.process:
        ops = case.ops.filter((case.ops["device"] == away.device) & (case.ops["cls"] == DeviceActivity.COMPUTE.value))
        if ops.height and away.device != case.device:
            return code.where_most(
                code.places_of(code.op[ops["op"].to_numpy()]), (ops["end_ns"] - ops["start_ns"]).to_numpy()
            )
    named = [
        (file, int(number))
        for file, texts in lines.texts(case.profile).items()
        for number, text in texts.items()
        if away.device == 0 and _FIRST.search(str(text))
    ]
    return {"file": named[0][0], "line": named[0][1]} if len(named) == 1 else {}
