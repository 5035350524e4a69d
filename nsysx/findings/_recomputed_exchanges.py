"""Exchanges of layers between ranks that checkpoints repeat in backward, where memory is too short to do without checkpoints.

What an exchange brought is small beside what is computed of it: kept, it need not be sent again, and all that is computed still is.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.catalogue import StepPart
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._costly_jobs import on_all_ranks, sharded
from nsysx.findings._exposed_transfer import exposed_share
from nsysx.findings._kept_exchanges import kept_by_policy
from nsysx.findings._once import Takes
from nsysx.findings._recomputed import needless, place_of_call
from nsysx.findings._sharded_models import spare_bytes
from nsysx.model import Row
from nsysx.reading import nccl_notes
from nsysx.replay import job_changes
from nsysx.replay.edits import RemoveOps

_KEPT = "exchanges-kept"
_GATHERS = re.compile("AllGather")


def _repeated(case: Case, settings: RecordedSettings | None) -> pl.DataFrame:
    """Return the exchanges that are repeated: a sharded network gathers its parameters for the backward in any case."""
    ops = case.ops.filter(case.ops["op"].is_in(list(job_changes.gone(case.profile, _KEPT))))
    if settings is None or not sharded(settings):
        return ops
    names = ops["name"].cast(pl.String).fill_null("").to_list()
    return ops.filter(pl.Series([_GATHERS.search(name) is None for name in names], dtype=pl.Boolean))


def exchanged_again(case: Case, settings: RecordedSettings) -> str:
    """Return that checkpoints repeat exchanges between ranks in backward, and that memory has room for what these bring."""
    calls, again = settings.number("checkpoints"), _repeated(case, settings)
    if not calls or again.height < case.steps or needless(case, settings):
        return ""
    noted = nccl_notes.messages(case.profile.trace, again, nccl_notes.members(case.profile.trace).get(case.process, {}))
    whole = round(sum(message.bytes or 0 for message in noted) / case.steps)
    if settings.record.get("memory") and spare_bytes(settings, whole) is None:
        return ""
    return (
        f"checkpoint() recomputes {units.several(calls, 'part')} of the forward in each backward, and sends again what they exchange with "
        f"other ranks: {units.several(round(again.height / case.steps), 'collective')} in each step"
        f"{f', {units.size(whole)}' if whole else ''}"
    )


def sent_once(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves if backward repeats no exchange."""
    again = _repeated(case, settings)
    ops = ops_of(again)
    worth = on_all_ranks(case, _KEPT) if len(ops) == len(job_changes.gone(case.profile, _KEPT)) else None
    worth = worth or case.worth(RemoveOps(ops), bound=True)
    if worth.likely_ns is not None:
        return worth
    return case.bound(
        exposed_share(case, ops) * case.taken_by((StepPart.COMM,)), "all that is exposed of these is gone"
    )


def taken(case: Case) -> Takes:
    """Return these exchanges."""
    return Takes(job_changes.gone(case.profile, _KEPT))


def place_of_checkpoint(case: Case) -> Row:
    """Return the line that asks for checkpoints, else the one that exchanges."""
    again, code = _repeated(case, None), case.profile.code()
    if asked := place_of_call(case):
        return asked
    if code is None or not again.height:
        return {}
    ns = (again["end_ns"] - again["start_ns"]).to_numpy()
    return code.where_most(code.places_of(code.op[again["op"].to_numpy()]), ns.astype(np.int64))


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy, with a policy for the program's own checkpoints where its exchanges are functional ones."""
    paste = kept_by_policy(case)
    if not paste:
        return title, remedy
    text = "Keep what the exchanges brought, by a policy of the checkpoints: backward then recomputes all else, and sends nothing again"
    return title, replace(remedy, text=text, paste=paste)
