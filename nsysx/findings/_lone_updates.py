"""An optimizer that one rank alone runs for all: gradients are reduced to it, it updates every parameter, and sends them to the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import DeviceActivity, Late, Surplus
from nsysx.events.message_calls import with_messages
from nsysx.events.profile import Profile
from nsysx.findings._case import Case, Fix
from nsysx.findings._finding_bounds import MOST_METRIC_BYTES, MOST_SHARE, SENT_BACK_SHARE
from nsysx.findings._rank_rows import profile_of, rank_rows, straggler_of
from nsysx.frames.intervals import I64
from nsysx.model import Finding, Row
from nsysx.units import several

_REDUCES, _BROADCASTS = ("reduce", "allreduce", "gather"), ("broadcast", "bcast")


def updated_by_one(case: Case, finding: Finding) -> Finding | None:
    """Return a finding about a rank that computes alone, where that is the update of what it sends to all others; else None.

    What it runs alone lies behind a reduction and before a broadcast of like many bytes: a metric or a picture is not sent so.
    """
    late, rows = straggler_of(case), rank_rows(case)
    if (
        finding.verdict != "found"
        or late is None
        or late["late_cause"] != Late.COMPUTE
        or late["late_spread"] != Surplus.LONE
    ):
        return None
    shown = profile_of(case, late["process"])
    sent = 0.0 if shown is None else _sent_behind(shown, late)
    if not sent:
        return None
    detail = (
        f"{finding.detail} It lies between a reduction and a broadcast of {units.size(sent)} a step: rank {late['rank']} updates the "
        f"parameters for all, and {several(len(rows) - 1, 'rank')} {'waits' if len(rows) == 2 else 'wait'} for them."
    )
    return Fix.by_name("update-shared-out").into(replace(finding, detail=detail))


def _sent_behind(profile: Profile, late: Row) -> float:
    """Return how many bytes a step are broadcast behind what a rank runs alone, 0 where it is no update of them."""
    code = profile.code()
    if code is None or not profile.scope.steps:
        return 0.0
    alone = {(kind["file"], kind["line"]) for kind in late["late_work"] or () if kind["line"]}
    ops = profile.steady_ops.filter((pl.col("process") == profile.process) & pl.col("call").is_not_null()).sort("call")
    places = code.places_of(code.op[ops["op"].to_numpy()])
    theirs = np.isin(places, [n for n, row in enumerate(code.places.iter_rows()) if row[:2] in alone])
    theirs &= (ops["cls"] == DeviceActivity.COMPUTE.value).to_numpy()
    sent = profile.once(with_messages).filter(pl.col("op").is_in(ops["op"].to_list())).sort("call")
    if not theirs.any() or not sent.height:
        return 0.0
    reduces, sends = (sent["kind"].is_in(kinds).to_numpy() for kinds in (_REDUCES, _BROADCASTS))
    size = sent["bytes"].fill_null(0).to_numpy()
    next_message: I64 = np.searchsorted(sent["call"].to_numpy(), ops["call"].to_numpy()[theirs])
    ns = (ops["end_ns"] - ops["start_ns"]).to_numpy()[theirs]
    between = np.append(sends, False)[next_message] & np.append(reduces | sends, False)[next_message - 1]
    reduced, given = int(size[reduces].sum()), int(size[sends].sum())
    enough = given >= max(SENT_BACK_SHARE * reduced, MOST_METRIC_BYTES * profile.scope.steps)
    return profile.scope.per_step(given) if enough and ns[between].sum() >= MOST_SHARE * ns.sum() else 0.0
