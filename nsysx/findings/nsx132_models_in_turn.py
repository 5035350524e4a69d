"""NSX132 models-in-turn: many models of one class run one after the other, each with launches of its own.

What it means
    An ensemble, a population or one model for each class or agent: each is small, and the GPU waits for the launches of every one of
    them. Their parameters can be stacked, so that one batched operation serves all: torch.func.stack_module_state and vmap, with one
    optimizer for the stacked parameters. The saving keeps the launches of one model and the GPU's work as it is: larger kernels may
    save some of that, too.

In the trace
    The same launches again and again, for modules of one class that are no part of each other.

Bad
    for model, opt in zip(models, opts): loss_of(model(x)).backward(); opt.step()

Good
    params, buffers = torch.func.stack_module_state(models)
    y = torch.vmap(lambda p, b: torch.func.functional_call(base, (p, b), (x,)))(params, buffers)

Harmless when
    The models are large enough to keep the GPU busy, or one needs the result of another.
"""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.catalogue import Call, StepLimit, StepPart
from nsysx.findings._case import Case, Fix, Rule, Saving
from nsysx.findings._finding_bounds import (
    FEWEST_MODELS_IN_TURN,
    MODELS_IN_TURN_LAUNCHES_SHARE,
    MODELS_IN_TURN_SHARE,
    STACKED_MODELS_MAY_STAY_SHARE,
)
from nsysx.findings._held import idle_ns
from nsysx.findings._lines import calling_line
from nsysx.findings._once import Takes
from nsysx.findings.nsx112_fusion import outermost
from nsysx.model import Finding

RULE = Rule(
    "NSX132",
    "models-in-turn",
    "Models of one class that run in turn",
    cause=(StepPart.HOST, StepPart.LAUNCH),
    about=StepLimit.LAUNCH,
    leads=True,
)
REQUIRES = ("steps", "gpu", "launches")


def check(case: Case) -> list[Finding]:
    """Return one finding about the class with most models, where the GPU idles for their launches."""
    calls = case.calls.filter(case.calls["kind"].is_in(Call.LAUNCHES)).select("call", pl.col("module").cast(pl.String))
    roots = _roots(case)
    made = calls.join(roots, on="module", how="inner").group_by("cls").agg(pl.len(), pl.col("root").n_unique())
    made = made.filter(pl.col("root") >= FEWEST_MODELS_IN_TURN).sort("root", "cls", descending=[True, False])
    if not made.height:
        return case.clear(RULE, f"fewer than {FEWEST_MODELS_IN_TURN} models of one class run in a step")
    cls, launches, count = made.row(0)
    # What host code between takes that no launch explains stays, however many models there are.
    lost = max(0, case.lost_to(StepLimit.LAUNCH) - case.per_step(idle_ns(case.profile)))
    if launches < MODELS_IN_TURN_LAUNCHES_SHARE * calls.height or not case.notable(lost, MODELS_IN_TURN_SHARE):
        return case.clear(RULE, f"the GPU idles {case.share(lost)} of the step waiting for launches, or for others")
    saved = round((1 - 1 / count) * lost)
    worth = Saving(
        saved,
        "the launches of one model stay, and the GPU's work as it is",
        error_ns=round(STACKED_MODELS_MAY_STAY_SHARE * saved),
        most_ns=round((1 - 1 / count) * case.step_ns),
        source="time",
    )
    detail = (
        f"{count} models of class {cls} make {launches / case.steps:.0f} of {calls.height / case.steps:.0f} launches {case.per}; the GPU "
        f"idles {units.duration(lost)} ({case.share(lost)}) waiting for launches."
    )
    theirs = case.ops["module"].cast(pl.String).is_in(roots.filter(pl.col("cls") == cls)["module"].to_list())
    takes = Takes(frozenset(case.ops.filter(theirs.fill_null(value=False))["op"].to_list()))
    where = calling_line(case.profile, takes, of_one=1.1) or {"module": cls}
    title = f"{count} models of class {cls} run one after the other; the GPU idles {units.duration(lost)} for launches"
    return [case.found(RULE, title, detail, worth=worth, cost_ns=lost, fix=Fix.by_name("stacked-models"), where=where)]


def _roots(case: Case) -> pl.DataFrame:
    """Return module, root (the outermost module that it is a part of) and cls (the class of that)."""
    rows = [(module, root, cls) for module, (root, cls) in outermost(case.profile).items()]
    return pl.DataFrame(rows, schema=dict.fromkeys(("module", "root", "cls"), pl.String), orient="row").drop_nulls()
