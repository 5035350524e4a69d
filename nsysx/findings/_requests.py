"""Servers that answer one request at a time: when a program is one, and what it is worth to batch its inputs."""

from __future__ import annotations

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.findings import _needs
from nsysx.findings._case import Case, Fix, Saving
from nsysx.findings._finding_bounds import BATCHED_INPUTS, SHORT_FORWARD_STEP_NS
from nsysx.findings.nsx114_host_stall import stalls_of_host
from nsysx.frames import lookup

#: Inputs of a batch for which its worth is told.
BATCH = Fix.by_name("batched-inputs")


def batched(case: Case) -> Saving:
    """Return what batches are worth: a step then serves several inputs. The launches stay; the GPU's work grows with them, or less."""
    works = case.taken_by(part for part in StepPart if not part.idle)
    least = BATCHED_INPUTS * case.step_ns / max(case.step_ns + (BATCHED_INPUTS - 1) * works, 1)
    grows = f"the GPU's {units.duration(works)} for one input grow with the batch"
    return Saving(
        None,
        f"a batch of {BATCHED_INPUTS} gives about {least:.1f}x the inputs a second if {grows}, up to {BATCHED_INPUTS}x if they do not",
    )


def served(case: Case, cost: int) -> bool:
    """Return whether the program only computes forward, in short steps that launches limit: a server, one request at a time.

    Each request is answered, so its result is waited for; passes that follow each other without that are one computation. ``cost`` is
    what the GPU idles for launches (ns): where long pauses of the host make most of it, a batch would have them, too (NSX114).
    """
    program = case.program
    paused = case.per_step(int(stalls_of_host(case)["real_ns"].sum()))
    short = case.step_ns <= SHORT_FORWARD_STEP_NS and 2 * cost >= case.step_ns and 2 * paused < cost
    answers = 2 * case.profile.once(_needs.waits).height >= case.steps
    if not program.torch or program.trains or program.compiled or program.graphs or not (short and answers):
        return False
    if lookup.matching(case.calls["phase"], "^(backward|optimizer)$").any():
        return False
    if not program.networks and not lookup.matching(case.calls["phase"], "^forward$").any():
        return False  # nothing that could take several inputs in one call
    return not any(need.test(case)[0] == "violated" for need in _needs.GRAPH)
