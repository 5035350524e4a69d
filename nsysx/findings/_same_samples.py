"""Ranks that draw the same samples: each loads what the others load, or trains on it.

A loader's probe notes a checksum of the numbers of the samples that it draws in the step that is watched, the same step on each rank;
of data without numbers, as a stream is, one of what is in its batches. Where those are not known, a line that takes a rank's part of each
batch tells that the rank has loaded more. Ranks of DistributedDataParallel share the data, and so do those that compute apart from each
other: equal draws are a sampler, or a stream, that knows nothing of ranks. Ranks that share tensors or a sequence read the same samples
and must: nothing is said of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

from nsysx import ids, units
from nsysx.advice import Alternative
from nsysx.events.recorded_settings import RecordedSettings, settings_of
from nsysx.findings import _costly_jobs
from nsysx.findings._case import Case, Fix, Saving, way
from nsysx.findings._flow_work import in_short
from nsysx.findings._ranks_apart import apart
from nsysx.findings._shares_of_ranks import cut_after_loading
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.replay import peers

#: Each rank's part of data: by a sampler, and of what no sampler draws in the dataset's own iterator, of which workers take a part each.
_SAMPLER = (
    "sampler = DistributedSampler(data, shuffle={shuffle})  # with shuffle, sampler.set_epoch(epoch) in each epoch\n"
    "loader = DataLoader(data, batch_size, sampler=sampler, num_workers=8)"
)
_STREAM = (
    "def __iter__(self):  # of the dataset; with workers, take get_worker_info() into account as well\n"
    "    return itertools.islice(self.samples(), dist.get_rank(), None, dist.get_world_size())"
)
_TRAINED = "The batch of all ranks together grows: fit the learning rate to it, or divide batch_size, and a step is shorter instead."
_SUMMED = (
    "Put the results of all ranks together. DistributedSampler repeats a few samples so that each rank has as many."
)


class SameSamples(NamedTuple):
    """The loader whose samples ``ranks`` ranks all draw; ``cut``: the line at which each then takes its part, empty where none is seen.

    ``streamed``: no sampler draws them, batches were seen to be alike. ``trains``: a backward runs in the step.
    """

    loader: Row
    ranks: int
    cut: Row = MappingProxyType({})
    streamed: bool = False
    trains: bool = True

    def sentence(self) -> str:
        """Return what was seen, without a full stop."""
        batch = whole_number(self.loader.get("batch_size"))
        size = f"the same {units.count(batch)} samples for a batch" if batch else "the same samples"
        sampler = self.loader.get("dataset" if self.streamed else "sampler")
        by = f" ({sampler})" if isinstance(sampler, str) and sampler else ""
        if self.cut:
            whole = f"{units.count(batch)} samples" if batch else "all samples"
            return f"each rank loads {whole} of a batch{by} and then takes its part of them, at {in_short(self.cut)}"
        ranks = "both ranks" if self.ranks == 2 else f"all {self.ranks} ranks"
        return f"{ranks} {'load' if self.streamed else 'draw'} {size}{by}"

    def worth(self) -> str:
        """Return what own samples are worth, in words: not a step gets shorter, but fewer of them go over the data."""
        part = "half" if self.ranks == 2 else f"1/{self.ranks}"
        whole = "an epoch" if self.trains else "a pass over the data"
        return f"{whole} takes {part} of the steps, each as long as now: up to {self.ranks}x faster"

    def way(self) -> Alternative:
        """Return the remedy with what was seen."""
        share = way("own-samples")
        seen = f"{share.text}: {self.sentence()}"
        if self.cut:
            return way("own-samples", seen)
        paste = _STREAM if self.streamed else _SAMPLER.format(shuffle=self.trains)
        return way("own-samples", seen, paste, _TRAINED if self.trains else _SUMMED)

    def fix(self) -> Fix:
        """Return the advice to share the samples."""
        return Fix.by_name(self.way())


def same_samples(case: Case, settings: RecordedSettings | None) -> SameSamples | None:
    """Return the loader of the shown rank whose samples every rank draws, None where one draws others, or it is not known."""
    if settings is None:
        return None
    others = [_settings(case, process) for process in peers.ranks(case.profile) if process != case.process]
    wrapped = _costly_jobs.ddp(settings) is not None
    alike = _alike(case, settings, others, wrapped=wrapped) if others else None
    if alike is None or not (wrapped or apart(case, settings)):
        return None
    return alike._replace(trains=wrapped or bool(settings.number("backwards")))


def _alike(
    case: Case, settings: RecordedSettings, others: Sequence[RecordedSettings], *, wrapped: bool
) -> SameSamples | None:
    """Return the loader that draws alike on all ranks, whatever these have in common besides.

    What is alike in one batch of ranks that train is shared, and the cut of a batch may be of a sequence: only ``wrapped`` ranks have no
    other reason for it.
    """
    cut = cut_after_loading(case.profile, settings) if wrapped else None
    drawn = _noted(settings, "drawn")
    for noted in ("drawn", "batches"):
        theirs = [_noted(each, noted) for each in others]
        for made, numbers in _noted(settings, noted).items():
            if all(numbers & each.get(made, frozenset()) for each in theirs):
                loader = next(row for row in settings.rows("loaders") or () if row.get("made") == made)
                line = cut.where if cut and cut.loader is loader else {}
                return SameSamples(loader, 1 + len(others), line, streamed=noted == "batches")
    if cut is None or drawn or not cut.loader.get("workers"):
        return None
    return SameSamples(cut.loader, 1 + len(others), cut.where)


def drawn_alike(case: Case, settings: RecordedSettings) -> str:
    """Return that the ranks draw the same samples and compute the same with them, "" where they do not."""
    same = same_samples(case, settings)
    return f"{same.sentence()}; with own ones {same.worth()}" if same and not same.cut else ""


def loaded_alike(case: Case, settings: RecordedSettings) -> str:
    """Return that the ranks load the same samples and then take their parts of them, "" where they do not."""
    same = same_samples(case, settings)
    return same.sentence() if same and same.cut else ""


def fewer_steps(case: Case, settings: RecordedSettings | None) -> Saving | None:
    """Return that no step gets shorter, in words."""
    same = same_samples(case, settings)
    return Saving(None, same.worth()) if same else None


def in_its_words(case: Case, title: str, remedy: Alternative) -> tuple[str, Alternative]:
    """Return title and remedy for what the ranks do with the samples."""
    same = same_samples(case, settings_of(case.profile))
    return title, remedy if same is None else same.way()


def _settings(case: Case, process: int) -> RecordedSettings:
    records = (probe.get("settings") for probe in ids.records_of(case.profile.trace.capture.probe, process))
    return RecordedSettings(next((record for record in records if isinstance(record, dict)), {}))


def _noted(settings: RecordedSettings, name: str) -> dict[str, frozenset[int]]:
    """Return the checksums of each loader under a name, by the line that makes it.

    Batches that are all alike on one rank are made up: they tell nothing of what the ranks load.
    """
    noted: dict[str, list[int]] = {}
    for row in settings.rows("loaders") or ():
        made, numbers = row.get("made"), row.get(name)
        if isinstance(made, str) and isinstance(numbers, list):
            noted.setdefault(made, []).extend(number for number in numbers if isinstance(number, int))
    made_up = {
        made for made, numbers in noted.items() if name == "batches" and len(set(numbers)) < min(2, len(numbers))
    }
    return {made: frozenset(numbers) for made, numbers in noted.items() if numbers and made not in made_up}
