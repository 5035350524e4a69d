"""Workers of a loader that make nothing, because a stream has fewer parts than there are workers: few of them make all batches.

A stream is cut by its files. A worker without one stops when it is asked for its first batch, and the loader goes on with the others:
num_workers says eight, and one works. More workers stop, too. How many still give batches the probe has read of the loader itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nsysx import units
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._needs import LOADER
from nsysx.findings._rank_rows import rank_rows
from nsysx.findings._work_bounds import STOPPED_WORKERS_SHARE
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.saving import Saving

_NAME = "more-shards"
_DATASETS = (
    'data = load_dataset("json", data_files=files, split="train").to_iterable_dataset(num_shards={shards})\n'
    "data = split_dataset_by_node(data, rank, world_size)  # before map and shuffle; ranks must divide the number of shards"
)
_FILES = (
    "info = get_worker_info()  # in __iter__ of the dataset; at least {shards} files\n"
    "for path in files[rank * info.num_workers + info.id :: world_size * info.num_workers]: ..."
)


def few_at_work(case: Case, loader: Row) -> Fix | None:
    """Return the advice for a loader of which few workers give batches, None where most do or that is not known."""
    workers, at_work, stream = whole_number(loader.get("workers")), _at_work(loader), _stream(loader)
    if workers is None or at_work is None or at_work > STOPPED_WORKERS_SHARE * workers:
        return None
    shards, split = (whole_number(stream.get(name)) for name in ("shards", "split"))
    whole = whole_number(stream.get("total")) or shards
    ranks = split or len(rank_rows(case)) or 1
    remedy, needed = way(_NAME), ranks * workers
    why = f"it has {units.several(shards, 'shard')}" if shards else "its parts are fewer"
    works = f"{at_work} of {workers} workers {'makes' if at_work == 1 else 'make'} all batches"
    text = f"{remedy.text} ({units.count(needed)} or more): {works}, as {why}, and a worker without one stops. More of them would stop, too"
    if split and whole and whole % split:
        reads = f"each rank reads all of them and keeps one of {split} samples"
        text += f". As {split} ranks do not divide {units.several(whole, 'shard')}, {reads}"
    paste = (_DATASETS if stream else _FILES).format(shards=needed)
    return Fix.by_name(way(_NAME, text, paste), needs=(LOADER,))


def as_all_workers_can(case: Case, loader: Row, worth: Saving) -> Saving:
    """Return what is saved, no more than all workers can give: batches come as many times as often as there are more of them."""
    workers, at_work = whole_number(loader.get("workers")), _at_work(loader)
    if worth.likely_ns is None or not workers or not at_work:
        return worth
    most_ns = round(case.step_ns * (1 - at_work / workers))
    if worth.likely_ns <= most_ns:
        return worth
    why = f"{workers} workers in place of {at_work} give batches {workers / at_work:.3g} times as often at most"
    return replace(
        worth, likely_ns=most_ns, most_ns=None, confidence=f"{why}: {worth.confidence}" if worth.confidence else why
    )


def is_of_few(fix: Fix) -> bool:
    """Return whether an advice is that of few workers."""
    return [remedy.name for remedy in fix.ways] == [_NAME]


def _stream(loader: Row) -> Mapping[str, Any]:
    stream = loader.get("stream")
    return stream if isinstance(stream, Mapping) else {}


def _at_work(loader: Row) -> int | None:
    """Return how many workers of a loader give batches; None where they all may, as at the end of one of several short passes."""
    seen, shards = whole_number(loader.get("at_work")), whole_number(_stream(loader).get("shards"))
    workers = whole_number(loader.get("workers")) or 0
    if shards and shards < workers:
        return shards
    return seen if seen and loader.get("iterators") == 1 else None
