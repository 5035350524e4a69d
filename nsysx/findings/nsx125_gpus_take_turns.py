"""NSX125 gpus-take-turns: the GPUs of one process work one after the other.

What it means
    The layers of the model lie on several GPUs, and each batch goes through them in order. While one GPU computes, the others
    wait for what it hands on. Such a program runs larger models, not faster ones: two GPUs take as long as one would. Where what was
    reserved on all GPUs together fits on one, each can have the whole model; a model in training that does not fit can be sharded.

In the trace
    The rows of the GPUs are busy in turn, with a copy from GPU to GPU (PtoP) where one hands on to the next.

Bad
    model = AutoModelForCausalLM.from_pretrained(name, device_map="auto")

Good
    # torchrun --nproc-per-node 2, where one GPU holds the whole model: each GPU computes batches of its own
    model = AutoModelForCausalLM.from_pretrained(name, device_map={"": local_rank})
    # torchrun --nproc-per-node 2: every layer is split, and the GPUs work at the same time
    model = AutoModelForCausalLM.from_pretrained(name, tp_plan="auto")

Harmless when
    The model fits on no single GPU and speed does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nsysx import units
from nsysx.catalogue import StepLimit
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, Rule, way
from nsysx.findings._finding_bounds import GPUS_IN_TURNS_SHARE
from nsysx.findings._found import Found
from nsysx.findings._once import Takes
from nsysx.findings._sharded_models import spare_bytes
from nsysx.judging.other_work import other_gpus
from nsysx.model import Finding
from nsysx.records import whole_number

RULE = Rule("NSX125", "gpus-take-turns", "GPUs that take turns", about=StepLimit.SYNC, direct=1)
REQUIRES = ("gpu", "steps")
_FIX = Fix.by_name("tensor-parallel")
#: A model of transformers that accelerate has spread over the GPUs.
_MAPPED = (
    'model = AutoModelForCausalLM.from_pretrained(name, device_map={"": int(os.environ["LOCAL_RANK"])})\n'
    "# torchrun --nproc-per-node=gpu train.py: a Trainer reduces the gradients; else DistributedDataParallel(model)"
)


def _fix(case: Case) -> Fix:
    """Return how the GPUs work at the same time, by whether one holds what all of them hold, and whether the model is trained."""
    settings = settings_of(case.profile)
    memory = settings.record.get("memory") if settings is not None else None
    others = whole_number(memory.get("other_devices_peak_bytes")) if isinstance(memory, Mapping) else None
    if settings is None or not isinstance(memory, Mapping) or not others:
        return _FIX
    mapped = any((whole_number(row.get("mapped_devices")) or 0) > 1 for row in settings.rows("networks") or ())
    if spare_bytes(settings, others) is not None:
        together = others + (whole_number(memory.get("reserved_peak_bytes")) or 0)
        whole = way("whole-on-each-gpu")
        fits = f"the GPUs hold {units.size(together)} together, and one has {units.size(memory['total_bytes'])}"
        return Fix.by_name(way(whole.name, f"{whole.text}; {fits}", _MAPPED if mapped else None))
    return Fix.by_name("sharded-over-gpus") if settings.rows("optimizers") else _FIX


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
            RULE, title, detail, worth=worth, cost_ns=cost, fix=_fix(case), takes=Takes(idle=np.ones(case.idle.height))
        ).as_finding(case)
    ]
