"""An optimizer whose state is shared out over the ranks: what it sends behind each step, if there is room not to, and what that saves."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.events import shared_optimizer
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_jobs import on_all_ranks
from nsysx.findings._exposed_transfer import transfer_of_ops_ns
from nsysx.findings._finding_bounds import SMALL_BUCKETS_TIMES
from nsysx.findings._needs import FUSABLE
from nsysx.findings._once import Takes
from nsysx.findings._rank_rows import rank_rows
from nsysx.findings._sharded_models import spare_bytes
from nsysx.reading import nccl_notes
from nsysx.replay import job_changes
from nsysx.replay.edits import RemoveOps, ScaleOps
from nsysx.replay.replay_bounds import TRUSTED_ERROR

_WHOLE = "whole-state"


def _sent(case: Case) -> frozenset[int]:
    """Return the broadcasts with which the ranks send each other what they have updated."""
    return job_changes.gone(case.profile, _WHOLE)


def shares_state(case: Case, settings: RecordedSettings) -> str:
    """Return that ranks share out the state of an optimizer for which each of them has room."""
    shared, sent = shared_optimizer.of_settings(settings), _sent(case)
    if shared is None or not sent:
        return ""
    never_used = spare_bytes(settings, shared.state_bytes)
    if never_used is None:
        return ""
    return (
        f"{units.several(shared.ranks, 'rank')} share out the state of {shared.update}: behind each step they send each other what they "
        f"have updated, in {units.several(round(len(sent) / case.steps), 'broadcast')}, for which the next forward waits. The state of all "
        f"parameters takes {units.size(shared.state_bytes)}, and {units.size(never_used)} of the card are never used"
    )


def whole_state(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves if each rank updates all parameters: no broadcasts, and as much more of the optimizer's kernels.

    By the replay of all ranks; where that is too far off the recorded steps, at most what the broadcasts move less what is computed more.
    """
    sent, (updates, times) = _sent(case), job_changes.grown(case.profile, _WHOLE)
    if not sent:
        return None
    rows = rank_rows(case)
    if max((row["replay_error"] or 0 for row in rows), default=0) > TRUSTED_ERROR:
        computed = case.timed_ops(case.ops["op"].is_in(list(updates)), "op")
        more = (times - 1) * case.per_step(int(computed["ns"].sum()))
        return case.bound(transfer_of_ops_ns(case, sent) - more, "what the broadcasts move, less the longer update")
    return on_all_ranks(case, _WHOLE) or case.worth(RemoveOps(sent), ScaleOps(updates, times), bound=True)


def of_broadcasts(case: Case) -> Takes:
    """Return the broadcasts."""
    return Takes(_sent(case))


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return the advice with the optimizer that the program shares out."""
    shared = shared_optimizer.shared_optimizer(case.profile)
    if shared is None:
        return title, remedy
    optimizer = f"torch.optim.{shared.update}" if shared.of_torch else shared.update
    paste = remedy.paste.replace("torch.optim.AdamW", optimizer)
    fused = shared.of_torch and shared.update in FUSABLE
    return title, replace(remedy, paste=paste if fused else paste.replace("fused=True, ", ""))


# ---- where there is no room --------------------------------------------------------------------------------------------


def sends_one_by_one(case: Case, settings: RecordedSettings) -> str:
    """Return that ranks without room for the whole state send what they have updated in a message for each parameter."""
    shared, sent = shared_optimizer.of_settings(settings), _sent(case)
    often = round(len(sent) / case.steps)
    if shared is None or shared.bucket_view or often < SMALL_BUCKETS_TIMES * shared.ranks:
        return ""
    if spare_bytes(settings, shared.state_bytes) is not None:
        return ""
    return (
        f"behind each step {units.several(shared.ranks, 'rank')} send each other what they have updated in {often} broadcasts, one for "
        "each parameter (parameters_as_bucket_view=False): each is a launch and a meeting of all ranks, and the next forward waits for all"
    )


def in_buckets(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return the most that one message of each rank saves: the broadcasts, less what their bytes take at the best rate of any of them."""
    sent = _sent(case)
    ops = case.ops.filter(case.ops["op"].is_in(list(sent)))
    members = nccl_notes.members(case.profile.trace).get(case.process, {})
    sizes = [message.bytes for message in nccl_notes.messages(case.profile.trace, ops, members)]
    noted = ops.select(ns=pl.col("end_ns") - pl.col("start_ns"), bytes=pl.Series(sizes, dtype=pl.Int64)).drop_nulls()
    noted = noted.filter((noted["ns"] > 0) & (noted["bytes"] > 0))
    if not noted.height or noted.height < ops.height:
        return None
    # The largest of them, or the one that waits least for the other ranks.
    best = noted.select((pl.col("bytes") / pl.col("ns")).max()).item()
    gone = case.worth(RemoveOps(sent), bound=True)
    if gone.likely_ns is None:
        return gone
    left = case.per_step(int(noted["bytes"].sum()) / best)
    return case.bound(gone.likely_ns - left, "one message of each rank, at the rate of the fastest broadcast")
