"""A reentrant checkpoint around each unit of a sharded model, so that backward gathers each unit twice: what to write instead.

Without ``use_reentrant`` the checkpoint computes again inside of the unit's own backward, which has gathered its parameters: the forward
that is repeated then finds them whole.
"""

from __future__ import annotations

import re
from dataclasses import replace

from nsysx import units
from nsysx.advice import Alternative
from nsysx.analyses.lines import texts
from nsysx.catalogue import StepPart
from nsysx.events.recomputed_gathers import recomputed_gathers
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_jobs import on_all_ranks
from nsysx.findings._exposed_transfer import exposed_share
from nsysx.findings._once import Takes
from nsysx.findings._recomputed import asking_lines, needless, place_of_call
from nsysx.model import Row
from nsysx.replay.edits import RemoveOps

GATHERED_TWICE = "A checkpoint around each unit of a sharded model gathers it twice in backward"


def seen(case: Case, settings: RecordedSettings) -> str:
    """Return how often backward gathers, "" where it gathers each unit once, or checkpoints are not needed at all."""
    gathers = recomputed_gathers(case.profile)
    if gathers is None or needless(case, settings):
        return ""
    return (
        f"forward gathers parameters {units.count(gathers.forward)} times in each step and backward {units.count(gathers.backward)} times: "
        "the checkpoint lies around each unit and is reentrant, so that backward calls the unit again, which gathers its parameters and "
        "frees them, and gathers them once more to go back through it"
    )


def worth(case: Case, _: RecordedSettings | None) -> Saving | None:
    """Return what a job saves that gathers each unit once in backward."""
    gathers = recomputed_gathers(case.profile)
    if gathers is None:
        return None
    replayed = on_all_ranks(case, "checkpoint-not-reentrant") or case.worth(RemoveOps(gathers.ops), bound=True)
    if replayed.likely_ns is not None:
        return replayed
    exposed_ns = exposed_share(case, gathers.ops) * case.taken_by((StepPart.COMM,))
    return case.bound(exposed_ns, "all that is exposed of these gathers is gone")


def taken(case: Case) -> Takes:
    """Return the gathers that go."""
    gathers = recomputed_gathers(case.profile)
    return Takes(frozenset() if gathers is None else gathers.ops)


def place(case: Case) -> Row:
    """Return the line that asks for checkpoints, else the one that shards."""
    settings = settings_of(case.profile)
    return place_of_call(case) or (settings.place("FSDP") if settings is not None else {})


_REENTRANT = re.compile(r"\buse_reentrant\s*=\s*True\b")
#: The call of a checkpoint, up to the end of a line that names no such option: its last parenthesis closes it.
_CALL = re.compile(r"\bcheckpoint\((?P<given>[^()]*(?:\([^()]*\)[^()]*)*)\)")
_OF_MODEL = re.compile(r"\bgradient_checkpointing_enable\(\s*\)")


def worded(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return the advice with the program's own line."""
    line = next((text for _, text in asking_lines(texts(case.profile))), "").strip()
    pasted = with_option(line)
    return title, replace(remedy, paste=pasted) if pasted else remedy


def with_option(line: str) -> str:
    """Return a line that asks for checkpoints, with those that are not reentrant; "" where it is not known how it asks."""
    line = line.partition("  #")[0]
    if _REENTRANT.search(line):
        return _REENTRANT.sub("use_reentrant=False", line)
    if "reentrant" in line:
        return ""
    if _OF_MODEL.search(line):
        option = 'gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})'
        return _OF_MODEL.sub(option, line)
    return (
        _CALL.sub(lambda call: f"checkpoint({call['given']}, use_reentrant=False)", line) if _CALL.search(line) else ""
    )
