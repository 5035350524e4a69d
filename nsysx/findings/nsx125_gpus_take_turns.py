"""NSX125 gpus-take-turns: the GPUs of one process work one after the other.

What it means
    The layers of the model lie on several GPUs, and each batch goes through them in order. While one GPU computes, the others
    wait for what it hands on. Such a program runs larger models, not faster ones: two GPUs take as long as one would.

In the trace
    The rows of the GPUs are busy in turn, with a copy from GPU to GPU (PtoP) where one hands on to the next.

Bad
    model = AutoModelForCausalLM.from_pretrained(name, device_map="auto")

Good
    # torchrun --nproc-per-node 2: every layer is split, and the GPUs work at the same time
    model = AutoModelForCausalLM.from_pretrained(name, tp_plan="auto")

Harmless when
    The model fits on no single GPU and speed does not matter.
"""

from __future__ import annotations

import numpy as np

from nsysx import units
from nsysx.catalogue import StepLimit
from nsysx.findings._case import Case, Fix, Rule
from nsysx.findings._finding_bounds import GPUS_IN_TURNS_SHARE
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.judging.other_work import other_gpus
from nsysx.model import Finding

RULE = Rule("NSX125", "gpus-take-turns", "GPUs that take turns", about=StepLimit.SYNC, direct=1)
REQUIRES = ("gpu", "steps")
_FIX = Fix.by_name("tensor-parallel")


def check(case: Case) -> list[Finding]:
    """Return a finding where another GPU of the process works while the shown one idles, for 10 % of the step or more."""
    work = other_gpus(case.profile)
    if not work.devices:
        return case.clear(RULE, "the process works on one GPU")
    # Without the profiler a GPU idles less, and while another works not more than at all.
    cost = round(case.per_step(work.meanwhile_ns) * case.real_part(frozenset()))
    if not case.notable(cost, GPUS_IN_TURNS_SHARE):
        return case.clear(RULE, f"another GPU works while this one idles for {case.share(cost)} of the step")
    others = f"GPU {work.devices[0]} works" if len(work.devices) == 1 else f"{len(work.devices)} other GPUs work"
    detail = (
        f"GPU {case.device} idles for {units.duration(cost)} {case.per} ({case.share(cost)}) while {others} for the same "
        "process: the parts of the model run one after the other."
    )
    title = f"The GPUs take turns: for {units.duration(cost)} {case.per} GPU {case.device} idles while {others}"
    worth = case.bound(cost, "all GPUs work at the same time, and nothing else holds them up")
    return [
        Found(
            RULE, title, detail, worth=worth, cost_ns=cost, fix=_FIX, takes=Takes(idle=np.ones(case.idle.height))
        ).as_finding(case)
    ]
