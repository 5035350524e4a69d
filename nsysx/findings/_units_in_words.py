"""How a sharded model is made of its blocks, in the words of its wrapper and with the names of its parts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil
from typing import NamedTuple

import polars as pl

from nsysx import units
from nsysx.advice import Alternative
from nsysx.events.frozen_base import sharded_networks, trained_numbers
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Fix, Saving, way
from nsysx.findings._job_bounds import HOOKS_OF_UNIT_NS, MOST_HOOKS_OF_UNIT_NS
from nsysx.findings._own_shards import call_for_block
from nsysx.findings._small_units import block_of
from nsysx.model import Finding
from nsysx.replay.engine import RemoveOps, Replay


class BlocksOfList(NamedTuple):
    """The list of a network that holds most of its blocks (path in the network), their class, "" where they have several, and how many
    it holds.
    """

    path: str
    cls: str
    length: int = 0


def blocks(case: Case) -> BlocksOfList | None:
    """Return the blocks of the network, None where none are seen."""
    modules = case.profile.attributed.modules.select(pl.col("module").cast(pl.String), pl.col("cls").cast(pl.String))
    whole = {name: cls or "" for name, cls in modules.drop_nulls("module").iter_rows() if block_of(name) == name}
    lists = Counter(name.rpartition(".")[0] for name in whole)
    path = max(lists, key=lambda each: lists[each], default="")
    if not path or lists[path] < 2:
        return None
    kinds = {cls.removeprefix("FSDP") for name, cls in whole.items() if name.rpartition(".")[0] == path}
    return BlocksOfList(path, kinds.pop() if len(kinds) == 1 else "", lists[path])


def blocks_of(case: Case) -> int:
    """Return how many blocks the network has, as far as they are seen."""
    names = case.profile.attributed.modules["module"].drop_nulls().cast(pl.String)
    return len({block for name in names.to_list() if (block := block_of(name))})


def in_blocks(case: Case, finding: Finding) -> Finding:
    """Return the finding with the advice to a model that is one unit: each block a unit, or several blocks.

    What runs beside computation shortens no host code, and each unit has hooks that run there: where the host takes nearly as long as the
    step, these may cost as much as is hidden, or more. Few units have few hooks, and hide all but the first gather and the last reduction.
    """
    advised = Fix.by_name(in_its_words(case, "", way("sharded-blocks"))[1]).into(finding)
    saving, replay, named = finding.saving, case.replay, blocks(case)
    count = blocks_of(case) if named is None else named.length
    if saving.likely_ns is None or not isinstance(replay, Replay) or not replay.trusted:
        return advised
    # What the replay takes for the host's own work is the most that it may be: one that waits for a busy GPU is not seen at work.
    idle = replay.saving(RemoveOps(frozenset(case.ops["op"].to_list()))).saving_ns
    if idle - HOOKS_OF_UNIT_NS * count >= saving.likely_ns + (saving.error_ns or 0):
        return advised
    in_turn = _blocks_in_unit(case, saving.likely_ns, idle)
    units_then = ceil(count / in_turn) if in_turn else count
    of_some = _beside(saving, 1 - 1 / units_then if in_turn else 1.0, idle, units_then)
    if in_turn:
        advised = Fix.by_name(_in_groups(case, in_turn, units_then)).into(finding)
    each = _beside(saving, 1.0, idle, count)
    slower = -(each.likely_ns or 0) + (each.error_ns or 0)
    longer = f"may make it up to {units.duration(slower)} longer" if slower > 0 else "may gain nothing"
    detail = (
        f"{finding.detail} The host may take up to {units.duration(max(0, case.step_ns - idle))} of the {units.duration(case.step_ns)} "
        f"for itself, and the hooks of each more unit run there: a unit for each of {count} blocks {longer}."
    )
    return replace(advised, detail=detail, saving=of_some)


def _beside(saving: Saving, hidden: float, idle_ns: int, more_units: int) -> Saving:
    """Return what is saved if of what all could hide this share is hidden, by so many units, of a step whose host is idle so long.

    The least is below zero where the host, with all of their hooks, takes longer than the step now.
    """
    likely, error = (hidden * (ns or 0) for ns in (saving.likely_ns, saving.error_ns))
    ends = (
        min(likely - error, idle_ns - MOST_HOOKS_OF_UNIT_NS * more_units),
        min(likely, idle_ns - HOOKS_OF_UNIT_NS * more_units),
    )
    least, told = round(ends[0]), max(0, round(ends[1]))
    why = f"the host may take nearly as long as the step, and the hooks of {more_units} more units run there"
    return replace(
        saving,
        likely_ns=told,
        error_ns=told - least,
        most_ns=max(told, round(likely + error)),
        confidence=why + (": it may lose" if least < 0 else ""),
    )


def _blocks_in_unit(case: Case, hidden_ns: int, idle_ns: int) -> int:
    """Return how many blocks to take as one unit so that as much as possible is hidden and the host still keeps up, by the most that hooks
    may take; 0 where a wrapper takes no list of blocks, or a unit for each is better.
    """
    settings, named = settings_of(case.profile), blocks(case)
    count = 0 if named is None else named.length
    if settings is None or settings.wrappers("FSDP") or count < 4:
        return 0

    def saved_ns(several: int) -> float:
        several = ceil(count / ceil(count / several))
        return min((1 - 1 / several) * hidden_ns, idle_ns - MOST_HOOKS_OF_UNIT_NS * several)

    best = max(range(2, count + 1), key=saved_ns)
    return ceil(count / best) if ceil(count / best) > 1 else 0


def _in_groups(case: Case, in_turn: int, count: int) -> Alternative:
    """Return the advice to shard so many blocks in turn as one unit, of which there are then ``count``, in the words of the program."""
    settings, named, remedy = settings_of(case.profile), blocks(case), way("grouped-blocks")
    if settings is None or named is None:
        return remedy
    path = f"model.{named.path}"
    call = call_for_block(case, settings, "reshard_after_forward=False", block=f"[*{path}[first : first + {in_turn}]]")
    paste = f"for first in range(0, len({path}), {in_turn}):\n    {call}"
    text = remedy.text.replace("a few units of several blocks each", f"{count} units of up to {in_turn} blocks each")
    return replace(remedy, text=text, paste=paste)


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
