"""Tables of embeddings that lie in host memory behind a cache on the GPU (FBGEMM, TorchRec), although the GPU has room for them.

Each step looks its ids up in the cache, drops rows and reads the missing ones over the bus. That is no copy of the trace: the kernels of
the cache read host memory themselves, which makes them long.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nsysx import units
from nsysx.catalogue import StepPart
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Saving, ops_of
from nsysx.findings._finding_bounds import REPORTED_SHARE
from nsysx.findings._once import Takes
from nsysx.findings._work_bounds import FREE_FOR_TABLES_SHARE
from nsysx.frames import lookup
from nsysx.records import count_or_zero
from nsysx.replay.engine import RemoveOps

#: Kernels of such caches; those that put rows in read host memory.
_OF_CACHE = r"\b(lxu|lru|lfu|direct_mapped_l[rf]u)_cache_|linearize_cache_indices"
_READS_HOST = r"\b(lru|lfu|direct_mapped_l[rf]u)_cache_insert"


def _kernels(case: Case) -> pl.DataFrame:
    return case.kernels.filter(pl.Series(lookup.matching(case.kernels["name"], _OF_CACHE), dtype=pl.Boolean))


def behind_cache(case: Case, settings: RecordedSettings) -> str:
    """Return what the cache takes, and how much of the GPU's memory is free; "" where that is little, or memory is short."""
    memory = settings.record.get("memory")
    keys = ("total_bytes", "reserved_peak_bytes")
    total, peak = (count_or_zero(memory.get(key)) for key in keys) if isinstance(memory, Mapping) else (0, 0)
    told, free = seen(case), total - peak
    if not told or not total or not peak:
        return told
    return f"{told}; {units.size(free)} of the card are never used" if free >= FREE_FOR_TABLES_SHARE * total else ""


def seen(case: Case) -> str:
    """Return the same by the kernels alone."""
    kernels = _kernels(case)
    ns = case.per_step(int(kernels["ns"].sum()))
    if not case.notable(ns, REPORTED_SHARE):
        return ""
    reads = kernels.filter(pl.Series(lookup.matching(kernels["name"], _READS_HOST), dtype=pl.Boolean))
    inserts = case.per_step(int(reads["ns"].sum()))
    which = f", {units.duration(inserts)} of it to read missing rows over the bus" if inserts else ""
    return f"kernels of a cache of embedding rows take {units.duration(ns)} {case.per} ({case.share(ns)}){which}"


def without(case: Case, settings: RecordedSettings | None) -> Saving:
    """Return what it saves that no cache is looked up and filled: all of its kernels go."""
    return case.worth_or_freed(RemoveOps(ops_of(_kernels(case))), cause=(StepPart.WORK,))


def taken(case: Case) -> Takes:
    """Return the kernels of the cache."""
    return Takes(ops_of(_kernels(case)))
