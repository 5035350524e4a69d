"""How a sharded model is made of its blocks, in the words of its wrapper and with the names of its parts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from nsysx.advice import Alternative
from nsysx.events.frozen_base import sharded_networks, trained_numbers
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._small_units import block_of


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


def in_blocks(case: Case) -> Fix:
    """Return the advice to a model that is one unit: each block a unit."""
    return Fix.by_name(in_its_words(case, "", way("sharded-blocks"))[1])


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return advice to make each block a unit, with the class or the list of the program's blocks and with the wrapper that it has."""
    settings, named = settings_of(case.profile), blocks(case)
    if settings is None or remedy.name not in ("sharded-blocks", "blocks-as-units"):
        return title, remedy
    if settings.wrappers("FSDP"):
        return title, replace(remedy, paste=_by_policy(settings, named, kept=remedy.name == "sharded-blocks"))
    return title, replace(
        remedy, paste=remedy.paste.replace("model.blocks", f"model.{named.path}")
    ) if named else remedy


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
