"""How a sharded model is made of its blocks, in the words of its wrapper and with the names of its parts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.events.frozen_base import sharded_networks, trained_numbers
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._job_bounds import HOOKS_OF_UNIT_NS
from nsysx.findings._own_shards import call_for_block
from nsysx.findings._small_units import block_of
from nsysx.model import Finding
from nsysx.replay.engine import RemoveOps, Replay


class BlocksOfList(NamedTuple):
    """The list of a network that holds most of its blocks (path in the network), and their class, "" where they have several."""

    path: str
    cls: str


def blocks(case: Case) -> BlocksOfList | None:
    """Return the blocks of the network, None where none are seen."""
    modules = case.profile.attributed.modules.select(pl.col("module").cast(pl.String), pl.col("cls").cast(pl.String))
    whole = {name: cls or "" for name, cls in modules.drop_nulls("module").iter_rows() if block_of(name) == name}
    lists = Counter(name.rpartition(".")[0] for name in whole)
    path = max(lists, key=lambda each: lists[each], default="")
    if not path or lists[path] < 2:
        return None
    kinds = {cls.removeprefix("FSDP") for name, cls in whole.items() if name.rpartition(".")[0] == path}
    return BlocksOfList(path, kinds.pop() if len(kinds) == 1 else "")


def blocks_of(case: Case) -> int:
    """Return how many blocks the network has, as far as they are seen."""
    names = case.profile.attributed.modules["module"].drop_nulls().cast(pl.String)
    return len({block for name in names.to_list() if (block := block_of(name))})


def in_blocks(case: Case, finding: Finding) -> Finding:
    """Return the finding with the advice to a model that is one unit: each block a unit.

    What runs beside computation shortens no host code, and each unit has hooks that run there: where the host takes nearly as long as the
    step, these may cost as much as is hidden, or more.
    """
    advised = Fix.by_name(in_its_words(case, "", way("sharded-blocks"))[1]).into(finding)
    saving, replay = finding.saving, case.replay
    if saving.likely_ns is None or not isinstance(replay, Replay) or not replay.trusted:
        return advised
    # What the replay takes for the host's own work is the most that it may be: one that waits for a busy GPU is not seen at work.
    idle = replay.saving(RemoveOps(frozenset(case.ops["op"].to_list()))).saving_ns
    most = saving.likely_ns + (saving.error_ns or 0)
    gained = idle - HOOKS_OF_UNIT_NS * blocks_of(case)
    if gained >= most:
        return advised
    likely = max(0, min(saving.likely_ns, gained))
    detail = (
        f"{finding.detail} The host may take up to {units.duration(max(0, case.step_ns - idle))} of the {units.duration(case.step_ns)} "
        "for itself, and the hooks of each more unit run there: it may gain nothing, or lose. Units of several blocks have fewer."
    )
    why = "the host may take nearly as long as the step, and the hooks of more units run there: perhaps nothing"
    saving = replace(saving, likely_ns=likely, error_ns=likely, most_ns=most, confidence=why)
    return replace(advised, detail=detail, saving=saving)


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return advice to make each block a unit, with the class or the list of the program's blocks and with the wrapper that it has."""
    settings, named = settings_of(case.profile), blocks(case)
    if settings is None or remedy.name not in ("sharded-blocks", "blocks-as-units"):
        return title, remedy
    if settings.wrappers("FSDP"):
        return title, replace(remedy, paste=_by_policy(settings, named, kept=remedy.name == "sharded-blocks"))
    call = call_for_block(case, settings, "reshard_after_forward=False" if remedy.name == "sharded-blocks" else "")
    path = named.path if named is not None else "blocks"
    return title, replace(
        remedy, paste=f"for block in model.{path}: {call}\n# before fully_shard(model), with its other options"
    )


def _by_policy(settings: RecordedSettings, named: BlocksOfList | None, *, kept: bool) -> str:
    """Return the lines that give FSDP a policy; ``kept``: gathered until backward."""
    cls = (named.cls if named is not None else "") or "Block"
    numbers = max((each for _, each in sharded_networks(settings)), default=0)
    options = ["auto_wrap_policy=policy"]
    options += ["sharding_strategy=ShardingStrategy.SHARD_GRAD_OP"] if kept else []
    # A unit of flat parameters takes trained and frozen ones together only as views of them.
    options += ["use_orig_params=True"] if 0 < trained_numbers(settings) < numbers else []
    return (
        f"policy = ModuleWrapPolicy({{{cls}}})  # from torch.distributed.fsdp.wrap; the class of the blocks\n"
        f"model = FullyShardedDataParallel(model, {', '.join(options)})  # and the other options as they are"
    )
