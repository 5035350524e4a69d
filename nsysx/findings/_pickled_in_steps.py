"""Tensors that a line hands to other ranks as Python objects in each step: pickled, copied through pageable memory, and unpickled.

The rank that sends rarely idles for it: its GPU has work queued while its host pickles. The ranks that receive have to unpickle before
they can launch anything, and the others wait for them in the next message: what it costs is known by the replay of all ranks together.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses.lines import texts
from nsysx.events.profile import Profile
from nsysx.events.python_lines import place
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, way
from nsysx.findings._costly_jobs import on_all_ranks
from nsysx.findings._job_bounds import SENDING_STAYS_SHARE
from nsysx.findings._line_remedies import quoted
from nsysx.findings._lines import share_of
from nsysx.findings._object_calls import ObjectCall, object_call, paste_of, tensors_used
from nsysx.findings._once import Takes
from nsysx.findings._rank_rows import profiles_of_ranks, rank_rows
from nsysx.findings._sent_objects import what_is_sent
from nsysx.ids import TID_BITS
from nsysx.model import Row
from nsysx.replay.held_lines import SendingLine, sending_lines, unsent
from nsysx.replay.idle_lines import by_line

_ADVICE = {
    "broadcast_object_list": "Send {what} with dist.broadcast, from GPU to GPU, not as pickled objects, or let each rank read "
    "the batch for itself, with the same seed",
    "all_gather_object": "Gather the tensors themselves with dist.all_gather, from GPU to GPU, not as pickled objects",
    "gather_object": "Gather the tensors themselves with dist.gather, from GPU to GPU, not as pickled objects",
    "scatter_object_list": "Send each rank its part as a tensor with dist.scatter, from GPU to GPU, not as a pickled object, or let each "
    "rank read its part for itself",
}
_REMEDY = "objects-as-tensors"


class _Pickled(NamedTuple):
    """A line that sends objects in each step, ``here`` as the shown rank runs it, and ``on_ranks`` as each does that runs it; how long
    their GPUs idle there (ns a step), and the tensors that the ranks use that get them, as far as their lines tell.
    """

    file: str
    line: int
    function: str
    call: ObjectCall
    here: SendingLine
    on_ranks: dict[int, SendingLine]
    idle_ns: dict[int, float]
    tensors: tuple[str, ...] = ()


def _find(profile: Profile) -> list[_Pickled]:
    """Return the lines of the shown rank that send objects of data, with nothing of other ranks."""
    code, source = profile.code(), texts(profile)
    lines = [] if code is None else profile.once(sending_lines)
    made = []
    for sending in lines:
        assert code is not None
        file, line, function = code.places.row(sending.line_row)
        call = object_call(source.get(file, {}), line)
        if call is None or what_is_sent(profile, file, line) in ("weights", "plan"):
            continue
        made.append(_Pickled(file, line, str(function or ""), call, sending, {}, {}))
    return made


def _pickled(case: Case) -> _Pickled | None:
    """Return the line whose objects cost the job most, on all ranks that run it; None where there is none, or no replay of them."""
    costs = [
        (saved.likely_ns or 0, each)
        for each in case.profile.once(_find)
        if (saved := on_all_ranks(case, unsent(each.file, each.line))) is not None
    ]
    if not costs:
        return None
    most = max(costs, key=lambda each: each[0])[1]
    numbers = {row["process"]: row["rank"] for row in rank_rows(case)}
    on_ranks, idle_ns, lines_there = dict[int, SendingLine](), dict[int, float](), list[set[int]]()
    for profile in profiles_of_ranks(case):
        code, number = profile.code(), numbers.get(profile.process)
        if code is None or number is None:
            continue
        for sending in profile.once(sending_lines):
            if code.places.row(sending.line_row)[:2] == (most.file, most.line):
                idle = by_line(profile).filter(pl.col("place") == sending.line_row)["real_ns"].sum()
                on_ranks[number], idle_ns[number] = sending, float(idle) / max(profile.scope.steps or 0, 1)
        if str(number) != most.call.source:
            lines_there.append(_lines_run(profile, most.file))
    of_file = texts(case.profile).get(most.file, {})
    used = {n: str(of_file.get(str(n), "")) for n in set[int]().union(*lines_there) if n != most.line}
    tensors = tensors_used(most.call, most.function.rpartition(".")[2], used)
    return most._replace(on_ranks=dict(sorted(on_ranks.items())), idle_ns=idle_ns, tensors=tensors)


def _lines_run(profile: Profile, file: str) -> set[int]:
    """Return the lines of a file that the X-ray noted on the shown rank."""
    noted = profile.ranges.lines.filter((pl.col("thread") // 2**TID_BITS) == profile.process)["label"].unique()
    places = map(place, noted.cast(pl.String).drop_nulls().to_list())
    return {line for f, line, _ in places if f == file and line is not None}


def sent_in_each_step(case: Case, settings: RecordedSettings | None = None) -> str:
    """Return that a line sends objects in each step, on ranks that are replayed together."""
    sent = case.once(_pickled)
    if sent is None or not sent.on_ranks:
        return ""
    size = units.size(max(each.copied_bytes for each in sent.on_ranks.values()))
    hosts = " and ".join(f"{units.duration(each.host_ns)} (rank {rank})" for rank, each in [*sent.on_ranks.items()][:2])
    idle = max(sent.idle_ns, key=lambda rank: sent.idle_ns[rank])
    return (
        f"line {sent.line} (`{quoted(sent.call.text)}`) hands tensors to other ranks as pickled objects in each step: {size} are pickled, "
        "go through pageable memory to the GPU and back, and are unpickled before the host that gets them can launch anything. Hosts are "
        f"in this line for {hosts}, waiting included; the GPU of rank {idle} idles {units.duration(sent.idle_ns[idle])} of a step there"
    )


def as_tensors(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return what it saves if tensors are sent: hosts, copies and messages of the line go on all ranks, and a message of tensors comes."""
    sent = case.once(_pickled)
    saved = None if sent is None else on_all_ranks(case, unsent(sent.file, sent.line))
    if saved is None or saved.likely_ns is None:
        return saved
    error = max(saved.error_ns or 0, round(SENDING_STAYS_SHARE * saved.likely_ns))
    return Saving(
        saved.likely_ns,
        "all ranks replayed together, without the hosts' time, the copies and the messages of this line; sending tensors leaves a message",
        error_ns=error,
        most_ns=min(saved.likely_ns + error, case.step_ns),
        source="replay",
    )


def taken(case: Case) -> Takes:
    """Return the copies and messages of the line, and what the shown GPU idles for it."""
    sent = case.once(_pickled)
    return Takes() if sent is None else Takes(sent.here.ops, idle=share_of(case.profile, sent.here.line_row))


def place_of_line(case: Case) -> Row:
    """Return the line."""
    sent = case.once(_pickled)
    return {} if sent is None else {"file": sent.file, "line": sent.line}


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy, with the names of the line, and of what the ranks use that get it."""
    sent = case.once(_pickled)
    if sent is None:
        return title, remedy
    before = {n: str(text) for n, text in texts(case.profile).get(sent.file, {}).items()}
    names = " and ".join(f"`{name}`" for name in sent.tensors)
    kind = "a tensor" if len(sent.tensors) == 1 else "tensors"
    advice = _ADVICE[sent.call.name].format(what=f"{names or 'what the other ranks use'} as {kind}")
    where = f"{PurePath(sent.file).name}:{sent.line}"
    function = sent.function.rpartition(".")[2]
    return (
        f"{where} pickles tensors for other ranks in each step{f', in {function}' if function else ''}",
        way(_REMEDY, advice, paste_of(sent.call, sent.line, function, sent.tensors, before) or remedy.paste),
    )
