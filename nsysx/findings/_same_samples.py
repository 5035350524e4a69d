"""Ranks that draw the same samples: each loads what the others load, or trains on it.

A loader's probe notes checksums of the numbers of the samples that it draws in the step that is watched, the same step on each rank, and of
what is in its batches: datasets may be of a rank each, and numbers that are alike are of other samples then. What networks are given on
each rank decides where it is known, batches where it is not. Ranks that augment the samples each for itself have a part of the tensors of a
batch in common. Where no numbers are known, a line that takes a rank's part of each batch tells that the rank has loaded more. A program
without loaders, which takes rows of a tensor in an order that all ranks make alike, is told by what its networks are given: checksums of
that in some steps of each window.

Ranks of DistributedDataParallel share the data, and so do those that compute apart from each other: equal draws are a sampler, or a
stream, that knows nothing of ranks. Ranks that share tensors or a sequence read the same samples and must: nothing is said of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import NamedTuple

from nsysx import ids, units
from nsysx.advice import Alternative
from nsysx.events.recorded_settings import RecordedSettings, file_and_line, settings_of
from nsysx.findings import _costly_jobs
from nsysx.findings._case import Case, Fix, Saving, way
from nsysx.findings._flow_work import in_short
from nsysx.findings._ranks_apart import apart, compares_samples, forwards_alone
from nsysx.findings._shared_tensors import SharedTensors, in_one, shared_tensors, sizes_of
from nsysx.findings._shares_of_ranks import cut_after_loading
from nsysx.findings._worker_splits import WorkerSplit, worker_split
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
_ROWS = "order = order[dist.get_rank() :: dist.get_world_size()]  # behind the shuffle, which is the same on all ranks"
_TRAINED = "The batch of all ranks together grows: fit the learning rate to it, or divide batch_size, and a step is shorter instead."
_SUMMED = (
    "Put the results of all ranks together. DistributedSampler repeats a few samples so that each rank has as many."
)


class SameSamples(NamedTuple):
    """The loader whose samples ``ranks`` ranks all draw; ``cut``: the line at which each then takes its part, empty where none is seen.

    ``streamed``: no sampler draws them, batches were seen to be alike. ``given``: networks were seen to be given the same; in place of a
    loader is what was noted of one of them. ``trains``: a backward runs in the step. ``tensors``: those of a batch that are the same on all
    ranks where others are not, because each rank augments the samples for itself. ``split``: the line that deals a stream out to workers.
    """

    loader: Row
    ranks: int
    cut: Row = MappingProxyType({})
    streamed: bool = False
    trains: bool = True
    given: bool = False
    tensors: SharedTensors | None = None
    split: WorkerSplit | None = None

    def sentence(self) -> str:
        """Return what was seen, without a full stop."""
        if self.given:
            call = f"{self.loader.get('class')} at {in_short(self.line)}"
            return f"in the same steps {self._all()} call {call} with the same {self._rows()}"
        batch = whole_number(self.loader.get("batch_size"))
        size = f"the same {units.count(batch)} samples for a batch" if batch else "the same samples"
        sampler = self.loader.get("dataset" if self.streamed else "sampler")
        by = f" ({sampler})" if isinstance(sampler, str) and sampler else ""
        if self.cut:
            whole = f"{units.count(batch)} samples" if batch else "all samples"
            return f"each rank loads {whole} of a batch{by} and then takes its part of them, at {in_short(self.cut)}"
        augmented = f", which each augments for itself {self._repeated()}" if self.tensors else ""
        return f"{self._all()} {'load' if self.streamed else 'draw'} {size}{by}{augmented}"

    @property
    def line(self) -> Row:
        """Return the line that calls the network that was given the same, or deals a stream out; empty where neither was seen."""
        if self.split is not None:
            return self.split.where
        return file_and_line(self.loader.get("place")) if self.given else {}

    def _repeated(self) -> str:
        part = "half" if self.ranks == 2 else f"{self.ranks - 1}/{self.ranks}"
        seen = self.tensors.sentence() if self.tensors else ""
        return f"({seen}): {part} of the samples of a step are repeated"

    def _all(self) -> str:
        return "both ranks" if self.ranks == 2 else f"all {self.ranks} ranks"

    def _rows(self) -> str:
        rows = whole_number(self.loader.get("rows"))
        return f"tensors of {units.count(rows)} rows" if rows else "tensors"

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
        if self.given:
            return way("own-samples", seen, _ROWS, _TRAINED if self.trains else _SUMMED)
        paste = (
            self.split.among_ranks()
            if self.split is not None
            else _STREAM
            if self.streamed
            else _SAMPLER.format(shuffle=self.trains)
        )
        return way("own-samples", seen, paste, _TRAINED if self.trains else _SUMMED)

    def fix(self) -> Fix:
        """Return the advice to share the samples."""
        return Fix.by_name(self.way())


def same_samples(case: Case, settings: RecordedSettings | None) -> SameSamples | None:
    """Return the loader of the shown rank whose samples every rank draws, None where one draws others, or it is not known."""
    if settings is None:
        return None
    others = [settings_of_rank(case, process) for process in peers.ranks(case.profile) if process != case.process]
    wrapped = _costly_jobs.ddp(settings) is not None
    alike = _alike(case, settings, others, wrapped=wrapped) if others else None
    if alike is not None and not (wrapped or apart(case, settings)):
        return None
    if alike is None and others and (apart(case, settings) or forwards_alone(case, settings)):
        alike = _given_alike(settings, others)
    if alike is None and others and _may_augment(case, settings):
        alike = _augmented(settings, others)
    if alike is None:
        return None
    split = worker_split(case.profile) if alike.streamed and not alike.cut else None
    return alike._replace(trains=wrapped or bool(settings.number("backwards")), split=split)


def _alike(
    case: Case, settings: RecordedSettings, others: Sequence[RecordedSettings], *, wrapped: bool
) -> SameSamples | None:
    """Return the loader that draws alike on all ranks, whatever these have in common besides.

    What is alike in one batch of ranks that train is shared, and the cut of a batch may be of a sequence: only ``wrapped`` ranks have no
    other reason for it.
    """
    cut = cut_after_loading(case.profile, settings) if wrapped else None
    numbers, batches = (_shared(settings, others, noted) for noted in ("drawn", "batches"))
    given = _given_the_same(settings, others)
    for made in numbers | batches:
        loader = next(row for row in settings.rows("loaders") or () if row.get("made") == made)
        line = cut.where if cut and cut.loader is loader else {}
        drawn, held = numbers.get(made, batches.get(made)), batches.get(made) if given is None else given
        if drawn and (held or line):
            return SameSamples(loader, 1 + len(others), line, streamed=made not in numbers)
    if cut is None or checksums_of_loaders(settings, "drawn") or not cut.loader.get("workers"):
        return None
    return SameSamples(cut.loader, 1 + len(others), cut.where)


def _may_augment(case: Case, settings: RecordedSettings) -> bool:
    """Return whether the ranks train and exchange nothing but gradients, so that all can have samples of their own."""
    alone = apart(case, settings) or forwards_alone(case, settings)
    return alone and bool(settings.number("backwards")) and not compares_samples(case)


def _augmented(settings: RecordedSettings, others: Sequence[RecordedSettings]) -> SameSamples | None:
    """Return the loader whose samples all ranks draw alike and then change each for itself."""
    numbers = _shared(settings, others, "drawn")
    for made in dict.fromkeys(row.get("made") for row in settings.rows("loaders") or ()):
        of_ranks = [
            [row for row in each.rows("loaders") or () if row.get("made") == made] for each in (settings, *others)
        ]
        if not isinstance(made, str) or not all(of_ranks) or not numbers.get(made, True):
            continue
        loaders = [in_one(rows) for rows in of_ranks]
        drawn = made in numbers
        shared = shared_tensors(loaders, drawn=drawn)
        if shared and all(_whole(each, row) for each, row in zip((settings, *others), loaders, strict=True)):
            return SameSamples(loaders[0], 1 + len(others), streamed=not drawn, tensors=shared)
    return None


def _whole(settings: RecordedSettings, loader: Row) -> bool:
    """Return whether a network is given a tensor as large as one of a loader's batch: the rank takes no part of it.

    What comes first counts: a rank that takes its part of each sequence may be given the whole mask.
    """
    calls = (row.get("shapes") or () for row in settings.rows("inputs") or ())
    first: Iterator[Sequence[int]] = (next((shape for shape in call if len(shape) > 1), []) for call in calls)
    return any(_as_large(given, loaded) for given in first for loaded in sizes_of(loader))


def _as_large(given: Sequence[int], loaded: Sequence[int]) -> bool:
    """Return whether sizes are those of what was loaded: channels may be moved, and of tokens the last one is only a target."""
    pairs = zip(sorted(given), sorted(loaded), strict=False)
    return len(given) == len(loaded) > 0 and all(large - 1 <= size <= large for size, large in pairs)


def _shared(settings: RecordedSettings, others: Sequence[RecordedSettings], noted: str) -> dict[str, bool]:
    """Return whether all ranks have some of these checksums in common, of each loader of which they are known on this rank."""
    theirs = [checksums_of_loaders(each, noted) for each in others]
    return {
        made: all(numbers & each.get(made, frozenset()) for each in theirs)
        for made, numbers in checksums_of_loaders(settings, noted).items()
    }


def _given_data(settings: RecordedSettings) -> dict[tuple[object, object], frozenset[object]]:
    """Return the known checksums of what each network was given, none of one that is given the same in all of several calls."""
    noted = dict[tuple[object, object], list[object]]()
    for row in settings.rows("inputs") or ():
        sums = row.get("sums")
        if isinstance(sums, list):
            noted.setdefault((row.get("class"), row.get("place")), []).extend(each for each in sums if each is not None)
    return {call: frozenset(sums) for call, sums in noted.items() if len(set(sums)) > 1 or len(sums) == 1}


def _given_the_same(settings: RecordedSettings, others: Sequence[RecordedSettings]) -> bool | None:
    """Return whether all ranks give each of their networks the same, None where that is not known."""
    every = [_given_data(each) for each in (settings, *others)]
    of_call = [[sums[call] for sums in every if sums.get(call)] for call in every[0]]
    compared = [sums for sums in of_call if len(sums) == len(every)]
    return all(frozenset.intersection(*sums) for sums in compared) if compared else None


def _given_alike(settings: RecordedSettings, others: Sequence[RecordedSettings]) -> SameSamples | None:
    """Return the network that all ranks give the same in the same steps, where all of their networks are."""
    rows = calls_given_alike(settings, others)
    return SameSamples(max(rows, key=lambda row: row.get("rows") or 0), 1 + len(others), given=True) if rows else None


def calls_given_alike(settings: RecordedSettings, others: Sequence[RecordedSettings]) -> list[Row]:
    """Return the inputs of networks that all ranks give the same in the same steps, nothing where a rank gives one of them others.

    What is the same in all of its calls is a constant, or made up. Where a call does not tell, the ranks may have different data.
    """
    noted, theirs = _inputs(settings), [_inputs(each) for each in others]
    data = {call for call, sums in noted.items() if len(sums) > 1}
    seen = data and not any(None in sums for each in (noted, *theirs) for sums in each.values())
    if not seen or not all(noted.keys() == each.keys() for each in theirs):
        return []
    if not all(_alike_steps(sums, each[call]) for each in theirs for call, sums in noted.items()):
        return []
    return [row for row in settings.rows("inputs") or () if (row.get("class"), row.get("place")) in data]


def _alike_steps(sums: frozenset[object], theirs: frozenset[object]) -> bool:
    """Return whether two ranks gave a network the same; one of them may have been looked at in more steps."""
    both = sums & theirs
    return len(both) == min(len(sums), len(theirs)) and (len(both) > 1 or sums == theirs)


def _inputs(settings: RecordedSettings) -> dict[tuple[object, object], frozenset[object]]:
    """Return the checksums of what each network was given, by its class and the line that calls it."""
    rows = settings.rows("inputs") or ()
    noted = {(row.get("class"), row.get("place")): row.get("sums") for row in rows}
    return {call: frozenset(sums) for call, sums in noted.items() if isinstance(sums, list) and sums}


def place_of_call(case: Case) -> Row:
    """Return the line that calls the network that all ranks give the same."""
    same = same_samples(case, settings_of(case.profile))
    return {} if same is None else same.line


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


def settings_of_rank(case: Case, process: int) -> RecordedSettings:
    """Return what the probe of a process read, nothing where it had none."""
    records = (probe.get("settings") for probe in ids.records_of(case.profile.trace.capture.probe, process))
    return RecordedSettings(next((record for record in records if isinstance(record, dict)), {}))


def checksums_of_loaders(settings: RecordedSettings, name: str) -> dict[str, frozenset[int]]:
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
