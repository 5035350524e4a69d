"""Servers that answer one request at a time: when a program is one, and what it is worth to batch its inputs."""

from __future__ import annotations

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.findings import _needs
from nsysx.findings._case import Case, Fix, Saving
from nsysx.findings.nsx114_host_stall import stalls_of_host
from nsysx.frames import lookup

#: A forward-only step as short as this pays for guards and copied inputs as much as a graph of it saves.
_SHORT_NS = 3_000_000
#: Inputs of a batch for which its worth is told.
_IN_A_BATCH = 8
BATCH = Fix.by_name("batched-inputs")


def batched(case: Case) -> Saving:
    """Return what batches are worth: a step then serves several inputs. The launches stay; the GPU's work grows with them, or less."""
    works = case.taken_by(part for part in StepPart if not part.idle)
    least = _IN_A_BATCH * case.step_ns / max(case.step_ns + (_IN_A_BATCH - 1) * works, 1)
    grows = f"the GPU's {units.duration(works)} for one input grow with the batch"
    return Saving(
        None,
        f"a batch of {_IN_A_BATCH} gives about {least:.1f}x the inputs a second if {grows}, up to {_IN_A_BATCH}x if they do not",
    )


def served(case: Case, cost: int) -> bool:
    """Return whether the program only computes forward, in short steps that launches limit: a server, one request at a time.

    Each request is answered, so its result is waited for; passes that follow each other without that are one computation. ``cost`` is
    what the GPU idles for launches (ns): where long pauses of the host make most of it, a batch would have them, too (NSX114).
    """
    program = case.program
    paused = case.per_step(int(stalls_of_host(case)["real_ns"].sum()))
    short = case.step_ns <= _SHORT_NS and 2 * cost >= case.step_ns and 2 * paused < cost
    answers = 2 * case.profile.once(_needs.waits).height >= case.steps
    if not program.torch or program.trains or program.compiled or program.graphs or not (short and answers):
        return False
    if lookup.matching(case.calls["phase"], "^(backward|optimizer)$").any():
        return False
    return not any(need.test(case)[0] == "violated" for need in _needs.GRAPH)
