"""Ranks that compute each by itself: nothing goes between them in forward and backward, so they can only be there to share the samples.

Ranks that share tensors, a sequence, experts or a pipeline exchange what their networks make, inside of these or between two of them, and
must read the same samples. Members of an ensemble read the same ones, too: they have no gradients in common, and where nothing is
trained they may add up what their networks return, or each load its own weights.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.analyses.lines import texts_of_ranks
from nsysx.catalogue import DeviceActivity
from nsysx.events.between_parts import Collective, between_steps
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case
from nsysx.findings._finding_bounds import MOST_METRIC_BYTES
from nsysx.reading import nccl_notes
from nsysx.records import count_or_zero

#: What has a rank choose what it computes with, as members of an ensemble do; ``map_location`` only says where weights go.
_OWN_NETWORK = re.compile(
    r"\b\w*(?:load|from_pretrained|checkpoint|ckpt|weights)\w*\s*(?:\(|=)(?!.*map_location)[^#]*rank\b"
    r"|\b\w*(?:model|member|net|network|checkpoint|fold|variant)s?\[[^\]]*rank\b"
)
#: What wrappers send in a forward: buffers, and parameters that are divided.
_SENT_IN_FORWARD = MappingProxyType({"DDP": ("broadcast",), "FSDP": ("allgather",), "fully_shard": ("allgather",)})
#: Groups that share layers or a sequence, by their name.
_OF_ONE_SEQUENCE = re.compile(r"(?i)(?<![a-z])(tp|cp|sp|tensor|context|sequence|seq|ulysses)(?![a-z])")
#: Kinds of collectives that add up; what is gathered is kept apart.
_ADDS_UP = ("allreduce", "reduce", "reducescatter")


class _Exchanged(NamedTuple):
    """What goes between the ranks: whether any of it goes before the backward of its step has ended, in a forward, or from one rank to
    another alone, how many bytes are added up in a step, None where that is not known, the kinds of all but small messages of a forward,
    and whether what forwards return is gathered, or more than numbers of it added up, before a backward.
    """

    before_backward_ends: bool
    in_forward: bool
    to_one: bool
    added_bytes: float | None
    kinds_in_forward: frozenset[str] = frozenset()
    outputs: bool = False


def apart(case: Case, settings: RecordedSettings) -> bool:
    """Return whether the ranks compute apart from each other, without a wrapper; False where that is not known."""
    together = bool(settings.groups_of_ranks())
    backwards, sent = settings.number("backwards"), case.profile.once(_exchanged)
    if settings.rows("wrappers") != () or not together or backwards is None or sent is None or sent.to_one:
        return False
    if backwards:
        elements = sum(count_or_zero(row.get("elements")) for row in settings.rows("optimizers") or ())
        return not sent.before_backward_ends and (sent.added_bytes or 0) >= elements > 0
    # Layers that a function calls one by one are networks each: what goes between them is in none of their forwards.
    alone = len(settings.rows("networks") or ()) == 1 and not sent.in_forward
    return (
        alone
        and sent.added_bytes is not None
        and sent.added_bytes <= MOST_METRIC_BYTES
        and not chooses_network(case.profile)
    )


def forwards_alone(case: Case, settings: RecordedSettings) -> bool:
    """Return whether a wrapper gathers gradients, and in a forward nothing goes between the ranks but what it sends itself.

    Ranks that take their parts of a sequence within the network exchange them there, and must be given the same samples.
    """
    kinds = {kind for name, sent in _SENT_IN_FORWARD.items() if settings.wrappers(name) for kind in sent}
    sent = case.profile.once(_exchanged) if kinds else None
    return sent is not None and sent.kinds_in_forward <= kinds


def evaluates_alone(case: Case, settings: RecordedSettings) -> bool:
    """Return whether nothing goes between the ranks in a forward, of a step or of an evaluation, but what a wrapper sends itself.

    Ranks that share layers, experts, a sequence or a pipeline must be given the same, and exchange what they make of it.
    """
    kinds = {kind for name, sent in _SENT_IN_FORWARD.items() if settings.wrappers(name) for kind in sent}
    sent = case.profile.once(_exchanged)
    if sent is None or sent.to_one or (sent.outputs and not kinds):
        return False
    every, large = case.profile.once(_kinds_in_forwards)
    recorded = between_steps(case.profile)
    if recorded is not None and any(_gathers(each) and each.kind not in kinds for each in recorded.collectives):
        return False  # each may have made a part of what they put together
    return (large if kinds else every) <= kinds and not chooses_network(case.profile)


def _gathers(sent: Collective) -> bool:
    """Return whether collectives move more than numbers from rank to rank, and do not add them up."""
    adds = sent.kind in _ADDS_UP or "broadcast" in sent.kind
    return not adds and (sent.bytes is None or sent.bytes > MOST_METRIC_BYTES * sent.calls)


def _kinds_in_forwards(profile: Profile) -> tuple[frozenset[str], frozenset[str]]:
    """Return the kinds of all messages of recorded forwards, evaluations between steps included, and of all but the small ones."""
    ops = profile.attributed.gpu_ops
    ops = ops.filter((ops["process"] == profile.process) & (ops["cls"] == DeviceActivity.COMM.value))
    inside = ops["phase"].cast(pl.String).is_in(("forward", "evaluation")).fill_null(value=False)
    ops = ops.filter(ops["call_start_ns"].is_not_null() & inside)
    messages = nccl_notes.messages(profile.trace, ops, nccl_notes.members(profile.trace).get(profile.process, {}))
    large = (m.kind for m in messages if m.bytes is None or m.bytes > MOST_METRIC_BYTES)
    return frozenset(m.kind for m in messages), frozenset(large)


def shares_forwards(case: Case, settings: RecordedSettings) -> bool:
    """Return whether ranks exchange more in a forward than wrappers send: they compute one together. False where that is not known.

    Ranks that own experts send rows of samples of their own to each other, as those that share heads do with rows of the same samples: the
    names of their groups tell them apart.
    """
    sent = case.profile.once(_exchanged)
    if sent is None:
        return False
    more = sent.kinds_in_forward - {kind for kinds in _SENT_IN_FORWARD.values() for kind in kinds}
    names = (str(row.get(name) or "") for row in settings.rows("groups") or () for name in ("dimension", "description"))
    return bool(more) and (not all("alltoall" in kind for kind in more) or any(map(_OF_ONE_SEQUENCE.search, names)))


def sends_to_one(case: Case) -> bool:
    """Return whether ranks send to one other rank alone, as those with experts or stages of their own do; True where that is not known."""
    sent = case.profile.once(_exchanged)
    return sent is None or sent.to_one


def compares_samples(case: Case) -> bool:
    """Return whether ranks exchange what their forwards return, as losses over pairs do: their samples may be alike on purpose.

    True where that is not known.
    """
    sent = case.profile.once(_exchanged)
    return sent is None or sent.outputs


def chooses_network(profile: Profile) -> bool:
    """Return whether a line has each rank choose a network of its own."""
    lines = (text for of_file in texts_of_ranks(profile).values() for text in of_file.values())
    return any(isinstance(text, str) and _OWN_NETWORK.search(text.partition("  #")[0]) for text in lines)


def _exchanged(profile: Profile) -> _Exchanged | None:
    """Return what goes between the shown rank and the others in the steady steps, None where no forward is seen."""
    ops = profile.steady_ops.filter(profile.steady_ops["call_start_ns"].is_not_null())
    phase = ops["phase"].cast(pl.String)
    forward, backward = (
        phase.is_in(names).fill_null(value=False) for names in (("forward", "evaluation"), ("backward",))
    )
    if not profile.scope.steps or not forward.any():
        return None
    communicates = ops["cls"] == DeviceActivity.COMM.value
    comm = ops.filter(communicates)
    began = comm["call_start_ns"].to_numpy()
    behind_backward = _last(ops, backward & ~communicates, began) > _last(ops, forward & ~communicates, began)
    in_phase = (forward | backward).filter(communicates)
    messages = nccl_notes.messages(profile.trace, comm, nccl_notes.members(profile.trace).get(profile.process, {}))
    added = [message.bytes for message in messages if message.kind in _ADDS_UP]
    sizes = [size for size in added if size is not None]
    of_forward = zip(messages, forward.filter(communicates).to_list(), strict=True)
    large = (m for m, inside in of_forward if inside and (m.bytes is None or m.bytes > MOST_METRIC_BYTES))
    between = (~(in_phase | behind_backward)).to_list()
    outputs = (m for m, outside in zip(messages, between, strict=True) if outside)
    return _Exchanged(
        before_backward_ends=bool(in_phase.any()) or not bool(behind_backward.all()),
        in_forward=bool(in_phase.any()),
        to_one=any(message.kind == nccl_notes.SEND_RECEIVE or "alltoall" in message.kind for message in messages),
        added_bytes=sum(sizes) / profile.scope.steps if len(sizes) == len(added) else None,
        kinds_in_forward=frozenset(m.kind for m in large),
        outputs=any(m.kind not in _ADDS_UP or m.bytes is None or m.bytes > MOST_METRIC_BYTES for m in outputs),
    )


def _last(ops: pl.DataFrame, chosen: pl.Series, began: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pl.Series:
    """Return when the last chosen op before each of these times was launched, -1 without one."""
    times = np.sort(ops.filter(chosen)["call_start_ns"].to_numpy())
    return pl.Series(np.append(-1, times)[np.searchsorted(times, began)])
