"""An embedding and a head that are left to the unit of a whole sharded network, so that nothing runs beside their gather and reduction."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.catalogue import StepPart
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.events.root_unit import RootUnit, root_unit
from nsysx.findings._case import Case, Saving
from nsysx.findings._costly_jobs import hidden_beside
from nsysx.findings._exposed_transfer import exposed_share, transfer_of_ops_ns
from nsysx.findings._once import Takes
from nsysx.findings._small_units import block_of
from nsysx.findings._units_in_words import blocks

LARGE_ROOT = "Embedding and head are gathered at once before the first layer, and reduced at once behind the last"


def seen(case: Case, settings: RecordedSettings) -> str:
    """Return how large the unit around the blocks is, "" where it is small, hidden, or one table alone, or sizes are not known."""
    root = root_unit(case.profile)
    # One table that is embedding and head at once has to be one unit.
    tied = any(row.get("tied") is not False for row in settings.rows("networks") or ({},))
    if root is None or tied or not case.notable(_separable_ns(case, root)):
        return ""
    return (
        f"the first gather of each forward brings {units.size(root.size)}, {root.times:.0f} times as much as those of the blocks: what no "
        f"unit of its own has, embedding and head, is in that of the whole model. {units.duration(_exposed_ns(case, root))} of its gather "
        "and of the reduction of its gradients run beside nothing; the head is needed last, and its gradient is there first"
    )


def _exposed_ns(case: Case, root: RootUnit) -> float:
    """Return for how long a step's gather and reduction of that unit are exposed (ns): their transfer, where ranks tell it from waiting."""
    ops = root.gathers | root.reductions
    return transfer_of_ops_ns(case, ops) or exposed_share(case, ops) * case.taken_by((StepPart.COMM,))


def _separable_ns(case: Case, root: RootUnit) -> float:
    """Return the part of that which a unit for the head can hide: a head is as large as an embedding."""
    return _exposed_ns(case, root) / 2


def worth(case: Case, _: RecordedSettings | None) -> Saving | None:
    """Return what it saves if the head's half runs beside the blocks: the embedding's is needed at once, and its gradient comes last."""
    root = root_unit(case.profile)
    if root is None:
        return None
    return hidden_beside(_separable_ns(case, root), "the half of the head runs beside the blocks")


def taken(case: Case) -> Takes:
    """Return the gathers and reductions of that unit."""
    root = root_unit(case.profile)
    return Takes(frozenset() if root is None else root.gathers | root.reductions)


def worded(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return the advice with the names of the program's parts, for the wrapper that it has."""
    settings, named = settings_of(case.profile), blocks(case)
    modules = case.profile.attributed.modules.select(pl.col("module").cast(pl.String), pl.col("cls").cast(pl.String))
    around = [(name, cls) for name, cls in modules.drop_nulls().iter_rows() if name and not block_of(name)]
    embedding = next((name for name, cls in around if "Embedding" in cls), "embed")
    head = next((name for name, cls in reversed(around) if cls == "Linear"), "head")
    if settings is not None and settings.wrappers("FSDP"):
        cls = (named.cls if named is not None else "") or "Block"
        paste = (
            f"model.{head} = FullyShardedDataParallel(model.{head}, ...)  # with the options of the whole, before it\n"
            f"policy = ModuleWrapPolicy({{{cls}, torch.nn.Embedding}})"
        )
        return title, replace(remedy, paste=paste)
    return title, replace(
        remedy, paste=remedy.paste.replace("model.embed", f"model.{embedding}").replace("model.head", f"model.{head}")
    )
