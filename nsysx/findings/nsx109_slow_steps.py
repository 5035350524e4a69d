"""NSX109 slow-steps: some steady steps take far longer than the others.

What it means
    A mean hides them. Each slow step is compared with the usual ones, part by part of the GPU ledger: more compute means
    other shapes or a lower clock, more idle time names its cause (data loader, allocator, waits, host code).

In the trace
    Single long steps; the component that grew is listed as evidence.

Bad
    for i, batch in enumerate(loader):
        step(batch)
        if i % 10 == 0: save(model.state_dict()); gc.collect()

Good
    # write checkpoints from a thread, from copies in pinned memory; validate and collect garbage between epochs
    gc.freeze(); gc.disable()                          # after warm-up; gc.collect() once per epoch

Harmless when
    They are few, or their length comes from the data itself.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx import units
from nsysx.events import ledger
from nsysx.findings._case import Case, Rule, Worth
from nsysx.model import Finding

RULE = Rule("NSX109", "slow-steps", "Slow steps")
_SLOWER, _LEAST_STEPS = 0.2, 4
_PARTS = ("compute_ns", "comm_ns", "copy_ns", "memset_ns")


def _components(case: Case, tiles: pl.DataFrame) -> pl.DataFrame:
    """Return one row per step: the parts of the GPU ledger and the idle time by cause (ns)."""
    assert case.device is not None
    activity = case.profile.ledgers.activity[case.process, case.device]
    parts = ledger.gpu_parts(activity, tiles["start_ns"].to_numpy(), tiles["end_ns"].to_numpy())
    table = tiles.select("index", pl.Series("ns", parts["window_ns"]), *(pl.Series(k, parts[k]) for k in _PARTS))
    # A step begins with the op that ends a gap, so no idle piece lies in two steps.
    start, cause, ns = (case.idle[c].to_numpy() for c in ("start_ns", "cause", "ns"))
    step = np.searchsorted(tiles["start_ns"].to_numpy(), start, side="right") - 1
    sums = np.zeros((len(ledger.CAUSES), tiles.height + 1), np.int64)
    np.add.at(sums, (cause, step), ns)  # what lies before the first step lands in the extra last place
    causes = zip(ledger.CAUSES, sums[:, :-1], strict=True)
    return table.with_columns(pl.Series(f"idle: {name}", values) for name, values in causes if values.any())


def check(case: Case) -> list[Finding]:
    """Return one finding where steady steps are 20 % longer than the median, beyond the usual spread."""
    steps = case.profile.steps
    if case.device is None:
        return case.cannot_tell(RULE, case.missing("gpu_ledger") or "the steady steps hold no GPU work")
    if steps.whole or steps.steady is None:
        return case.no_steps(RULE)
    first, last = steps.steady
    tiles = steps.gpu.filter(
        (pl.col("process") == case.process)
        & (pl.col("device") == case.device)
        & pl.col("index").is_between(first, last)
    ).sort("index")
    if tiles.height < _LEAST_STEPS:
        return case.cannot_tell(RULE, f"{tiles.height} steady steps are too few to call one slow", "profile more steps")
    table = _components(case, tiles)
    ns = table["ns"].to_numpy()
    median = float(np.median(ns))
    spread = 1.4826 * float(np.median(np.abs(ns - median)))
    slow = ns > median + max(_SLOWER * median, 5 * spread)
    cost = round(float((ns - median)[slow].sum()) / len(ns))
    if not case.notable(cost):
        return case.clear(RULE, f"the slowest of {len(ns)} steady steps takes {units.duration(int(ns.max()))}, "
                            f"the median {units.duration(median)}")  # fmt: skip
    usual, late = table.filter(pl.Series(~slow)), table.filter(pl.Series(slow))
    names = [c for c in table.columns if c not in ("index", "ns")]
    more = {
        n: float(late[n].cast(pl.Float64).sum()) / late.height - float(np.median(usual[n].to_numpy())) for n in names
    }
    ranked = sorted(more.items(), key=lambda item: (-item[1], item[0]))
    worst, excess = ranked[0]
    longer = float(late["ns"].cast(pl.Float64).sum()) / late.height - median
    label = worst.removesuffix("_ns").replace("_", " ")
    indices = ", ".join(map(str, late["index"].head(8).to_list()))
    title = (
        f"{late.height} of {len(ns)} steady steps are slow: {label} explains {units.share(min(excess, longer), longer)}"
    )
    detail = (
        f"Steps {indices} take {units.duration(float(late['ns'].to_numpy().mean()))} on average, the median step "
        f"{units.duration(median)}. Of the difference, {units.duration(excess)} are {label}."
    )
    evidence = [
        {"part": n.removesuffix("_ns").replace("_", " "), "more in slow steps_ns": round(v)}
        for n, v in ranked[:5]
        if v > 0
    ]
    fix = "Look at what these steps do besides: checkpoints, logging, validation, garbage collection, larger shapes"
    sure = Worth(None, "from step lengths, not replayed")
    return [case.found(RULE, title, detail, worth=sure, cost_ns=cost, fix=fix, evidence=evidence)]
