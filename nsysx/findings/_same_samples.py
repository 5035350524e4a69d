"""Ranks that draw the same samples: each loads what the others load, or trains on it.

A loader's probe notes a checksum of the numbers of the samples that it draws in the step that is watched, the same step on each rank.
Where those are not known, a line that takes a rank's part of each batch tells that the rank has loaded more. Ranks of
DistributedDataParallel share the data, so equal draws are a sampler that knows nothing of ranks. Ranks that share tensors or a sequence
read the same samples and must: nothing is said of jobs without DDP.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from nsysx import ids, units
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _costly_jobs
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._flow_work import in_short
from nsysx.findings._shares_of_ranks import cut_after_loading
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.replay import peers


class SameSamples(NamedTuple):
    """The loader whose samples ``ranks`` ranks all draw; ``cut``: the line at which each then takes its part, empty where none is seen."""

    loader: Row
    ranks: int
    cut: Row = MappingProxyType({})

    def sentence(self) -> str:
        """Return what was seen, without a full stop."""
        batch = whole_number(self.loader.get("batch_size"))
        size = f"the same {units.count(batch)} samples for a batch" if batch else "the same samples"
        sampler = self.loader.get("sampler")
        by = f" ({sampler})" if isinstance(sampler, str) and sampler else ""
        if self.cut:
            whole = f"{units.count(batch)} samples" if batch else "all samples"
            return f"each rank loads {whole} of a batch{by} and then takes its part of them, at {in_short(self.cut)}"
        ranks = "both ranks" if self.ranks == 2 else f"all {self.ranks} ranks"
        return f"{ranks} draw {size}{by}"

    def fix(self) -> Fix:
        """Return the advice to share the samples."""
        share = way("own-samples")
        return Fix.by_name(share, text=f"{share.text}: {self.sentence()}")


def same_samples(case: Case, settings: RecordedSettings | None) -> SameSamples | None:
    """Return the loader of the shown rank whose samples every rank draws, None where one draws others, or it is not known."""
    if settings is None or _costly_jobs.ddp(settings) is None:
        return None
    drawn = _draws(settings)
    others = [_draws(_settings(case, process)) for process in peers.ranks(case.profile) if process != case.process]
    cut = cut_after_loading(case.profile, settings) if others else None
    for made, numbers in drawn.items():
        if others and all(numbers & each.get(made, frozenset()) for each in others):
            loader = next(row for row in settings.rows("loaders") or () if row.get("made") == made)
            return SameSamples(loader, 1 + len(others), cut.where if cut and cut.loader is loader else {})
    if cut is None or drawn or not cut.loader.get("workers"):
        return None
    return SameSamples(cut.loader, 1 + len(others), cut.where)


def drawn_alike(case: Case, settings: RecordedSettings) -> str:
    """Return that the ranks draw the same samples, "" where they do not."""
    same = same_samples(case, settings)
    return same.sentence() if same else ""


def _settings(case: Case, process: int) -> RecordedSettings:
    records = (probe.get("settings") for probe in ids.records_of(case.profile.trace.capture.probe, process))
    return RecordedSettings(next((record for record in records if isinstance(record, dict)), {}))


def _draws(settings: RecordedSettings) -> dict[str, frozenset[int]]:
    """Return what each loader has drawn, by the line that makes it."""
    draws: dict[str, frozenset[int]] = {}
    for row in settings.rows("loaders") or ():
        made, numbers = row.get("made"), row.get("drawn")
        if isinstance(made, str) and isinstance(numbers, list) and numbers:
            draws[made] = draws.get(made, frozenset()) | {number for number in numbers if isinstance(number, int)}
    return draws
