"""The loaders of a program: their options, how often they make an iterator, and which samples they draw in the step that is watched.

Which samples are drawn is kept as a checksum of their numbers: ranks that draw the same ones load, or train on, the same data, unless each
has a dataset of its own. What the data are, with numbers or without as a stream, is told by a checksum of some numbers in the batch
itself, of tensors on the CPU alone; where each rank augments its samples, by its tensors one by one and by what the dataset holds.
"""

from __future__ import annotations

import sys
import weakref
import zlib
from collections.abc import Callable
from typing import Any

from . import patch, settings_objects, tensor_checksum
from .batch_padding import tensors_on_cpu
from .batch_parts import batch_parts
from .changes import place
from .dataset_facts import dataset_facts
from .output import Output
from .probe_bounds import (
    FEWEST_DRAWN,
    MOST_BATCH_TENSORS,
    MOST_DRAWN,
    MOST_DRAWS,
    MOST_LOADERS,
    MOST_PARTED,
)
from .setting_places import SettingPlaces
from .settings_state import asked

#: torch's iterators of loaders: what they return is a batch.
_ITERATORS = ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")

#: As `patch.RESULT`, and ``_nsysx_out`` gets the iterator. No local variable stays where the sampler ends, which is an exception.
_OF_ITERATOR = """
if _nsysx_compiling():
    BODY
_nsysx_e = self
try:
    RESULT
finally:
    del _nsysx_e
"""

#: A loader, and what is told of it.
_Entry = tuple["weakref.ref[Any]", dict[str, Any]]


class LoaderSettings:
    """The record's ``loaders``, in the order in which they were first iterated."""

    def __init__(self, torch: Any, places: SettingPlaces) -> None:
        self.torch = torch
        self.places = places
        self._held: list[tuple[dict[str, Any], Any, Any]] = []  # datasets, until the window has closed
        self._loaders: dict[int, _Entry] = {}
        self._of_sampler: dict[int, dict[str, Any]] = {}  # an iterator holds its sampler, not its loader
        self._last: dict[str, Any] = {}  # what is told of the loader that began an iterator last

    def rows(self) -> list[dict[str, Any]]:
        """Return what is known of each loader now."""
        return [dict(about) for _, about in self._loaders.values()]

    def iterates(self, loader: Any, steps: int) -> None:
        """A loader makes an iterator, after so many steps."""
        entry = self._loaders.get(id(loader))
        if entry is None or entry[0]() is not loader:
            line, made = place(), self.places.made_at(loader)
            entry = self._of_before(loader, line, made)
        if entry is None:
            if len(self._loaders) >= MOST_LOADERS:
                return
            about = {
                **settings_objects.loader(loader),
                "first_step": steps,
                "last_step": steps,
                "place": line,
                "made": made,
                "made_again": 0,
                "drawn": [],
                "batches": [],
                "parts": [],
                "sampler_rank": asked(sampler_rank, loader),
            }
            entry = self._loaders[id(loader)] = weakref.ref(loader), about
        self._of_sampler[id(loader._index_sampler)] = entry[1]
        entry[1]["iterators"] += 1
        entry[1]["last_step"] = steps
        self._last = entry[1]

    def _of_before(self, loader: Any, line: str | None, made: str | None) -> _Entry | None:
        """Return what is told of a loader that is gone and in whose place this one was made, by the same line for the same loop."""
        for key, (held, about) in list(self._loaders.items()):
            if made is not None and held() is None and (about["place"], about["made"]) == (line, made):
                about["made_again"] += 1
                del self._loaders[key]
                entry = self._loaders[id(loader)] = weakref.ref(loader), about
                return entry
        return None

    def begun_before(self, steps: int) -> str | None:
        """Return the line that makes the loader that began an iterator last, if that was after so many steps."""
        return self._last.get("made") if self._last.get("last_step") == steps else None

    def draws(self, iterator: Any, samples: Any) -> None:
        """An iterator has drawn the numbers of the samples of one batch."""
        if not isinstance(samples, (list, tuple)) or len(samples) < FEWEST_DRAWN:
            return
        first = samples[:MOST_DRAWN]
        if not all(isinstance(number, int) for number in first):  # None: of data that has no numbers
            return
        about = self._of_sampler.get(id(iterator._index_sampler))
        if about is not None and len(about["drawn"]) < MOST_DRAWS:
            about["drawn"].append(zlib.crc32(repr([len(samples), *first]).encode()))

    def loads(self, iterator: Any, batch: Any) -> None:
        """An iterator has made a batch."""
        torch = self.torch
        about = self._of_sampler.get(id(iterator._index_sampler))
        if about is not None:
            about["at_work"] = asked(workers_at_work, iterator)
        if about is not None and len(about["batches"]) < MOST_DRAWS:
            number = asked(checksum, torch, batch)
            if number is not None:
                about["batches"].append(number)
        if about is not None and len(about["parts"]) < MOST_PARTED:
            about["parts"].append(
                asked(batch_parts, torch, tensors_on_cpu(torch, batch), asked(len, iterator._dataset))
            )
            self._held.append((about, iterator._dataset, iterator._collate_fn))

    def window_closed(self) -> None:
        """Read what the datasets hold: nothing is recorded any more."""
        for about, dataset, collate in self._held:
            about.setdefault("data", asked(dataset_facts, self.torch, dataset, collate))
        self._held.clear()

    @staticmethod
    def patches(
        compiling: Callable[[], bool], batch: Callable[..., Any], drawn: Callable[..., Any], out: Output
    ) -> list[patch.Patch]:
        """Return the functions that are followed while a step is watched: ``batch`` gets each one, ``drawn`` the numbers of its samples."""
        dataloader = vars(sys.modules.get("torch.utils.data.dataloader") or object)
        followed = [(dataloader.get(name), "_next_data", batch) for name in _ITERATORS]
        followed.append((dataloader.get("_BaseDataLoaderIter"), "_next_index", drawn))
        made = []
        for owner, name, tell in followed:
            names = {"_nsysx_compiling": compiling, "_nsysx_out": tell}
            try:
                if owner is not None:
                    made.append(patch.Patch(getattr(owner, name), _OF_ITERATOR, names))
            except Exception as error:
                out.wrong("settings: batches", error)
        return made


def sampler_rank(loader: Any) -> int | None:
    """Return the number of the rank that the sampler of a loader knows, None where it knows none."""
    for sampler in (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)):
        rank = getattr(sampler, "__dict__", {}).get("rank")
        if isinstance(rank, int):
            return rank
    return None


def workers_at_work(iterator: Any) -> int | None:
    """Return how many workers of an iterator still give batches; None without workers, and until each was asked for one.

    A worker whose part of a stream has ended stops, or never gives a batch, and its loader goes on with the others.
    """
    going_on = getattr(iterator, "_workers_status", None)
    if not going_on or iterator._rcvd_idx < len(going_on):
        return None
    return sum(map(bool, going_on))


def checksum(torch: Any, batch: Any) -> int | None:
    """Return a checksum of some numbers of each tensor of a batch, None where it could be that of any other batch, too.

    That is a batch without a tensor on the CPU of many different values, and one that is not looked at whole: of what is left out the
    ranks may have different ones.
    """
    tensors = list(tensors_on_cpu(torch, batch))
    if len(tensors) >= MOST_BATCH_TENSORS:
        return None
    return tensor_checksum.checksum(
        torch, [tensor for _, tensor in tensors if tensor.numel() and not tensor.is_complex()]
    )
