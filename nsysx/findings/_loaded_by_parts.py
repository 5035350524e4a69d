"""Batches that each rank of a group loads whole, because all of them compute with the same: ranks that share tensors or a sequence.

They must be given the same samples, so that a sampler of shares (``_same_samples``) is wrong for them. Yet one of them need not make what
another makes: each loads its part of every batch, and the GPUs gather the whole, which takes their links far less than samples take cores.
"""

from __future__ import annotations

from typing import NamedTuple

from nsysx import units
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings._case import Case, Fix, Saving, way
from nsysx.findings._finding_bounds import LATE_BATCH_TIMES
from nsysx.findings._ranks_apart import apart, forwards_alone, shares_forwards
from nsysx.findings._same_samples import checksums_of_loaders, same_samples, settings_of_rank
from nsysx.model import Row
from nsysx.records import whole_number
from nsysx.replay import peers


class LoadedWhole(NamedTuple):
    """The loader whose batches ``ranks`` ranks load alike, the shown one included."""

    loader: Row
    ranks: int

    @property
    def divides(self) -> bool:
        """Return whether each rank has as many samples of a batch; as far as that is known."""
        batch = whole_number(self.loader.get("batch_size"))
        return batch is None or not batch % self.ranks

    def sentence(self) -> str:
        """Return what was seen, without a full stop."""
        batch, sampler = whole_number(self.loader.get("batch_size")), self.loader.get("sampler")
        by = f" ({sampler})" if isinstance(sampler, str) and sampler else ""
        size = f"the same {units.count(batch)} samples" if batch else "the same samples"
        all_ranks = "2 ranks" if self.ranks == 2 else f"{self.ranks} ranks"
        return f"{all_ranks} that compute one forward together each load {size} for a batch{by}"

    def fix(self) -> Fix:
        """Return the advice to load parts, or, where a batch has too few samples for that, to load it once."""
        remedy = way("loaded-by-parts" if self.divides else "loaded-once")
        return Fix.by_name(way(remedy.name, f"{remedy.text}: {self.sentence()}"))


def loaded_whole(case: Case, settings: RecordedSettings | None) -> LoadedWhole | None:
    """Return the loader of the shown rank whose batches others load, too, to compute one forward with it; None where none is seen.

    Stages of a pipeline are left out: those in between need no samples.
    """
    if settings is None or settings.place("schedule") or same_samples(case, settings) is not None:
        return None
    if apart(case, settings) or forwards_alone(case, settings) or not shares_forwards(case, settings):
        return None
    drawn, held = (checksums_of_loaders(settings, noted) for noted in ("drawn", "batches"))
    others = [settings_of_rank(case, process) for process in peers.ranks(case.profile) if process != case.process]
    for made in drawn.keys() & held.keys():
        alike = sum(
            bool(
                drawn[made] & checksums_of_loaders(each, "drawn").get(made, frozenset())
                and held[made] & checksums_of_loaders(each, "batches").get(made, frozenset())
            )
            for each in others
        )
        if alike:
            loader = next(row for row in settings.rows("loaders") or () if row.get("made") == made)
            return LoadedWhole(loader, 1 + alike)
    return None


def as_parts_can(case: Case, worth: Saving, loaded: LoadedWhole) -> Saving:
    """Return what parts of batches save, by what a loader that is always ready saves (``worth``).

    Steps that wait for their batches last as long as one of these takes: ranks that each make a part of it give one so many times as often
    at best, as new workers do; cores that all of them share do not change that.
    """
    if worth.likely_ns is None or worth.bound:
        return worth
    best_ns = case.step_ns // loaded.ranks
    most = min(worth.likely_ns + (worth.error_ns or 0), case.step_ns - best_ns)
    least = min(max(0, case.step_ns - LATE_BATCH_TIMES * best_ns), most)
    if least >= worth.likely_ns - (worth.error_ns or 0):
        return worth
    why = (
        f"{loaded.ranks} ranks with a part each give a batch every {units.duration(best_ns)} at best, perhaps {LATE_BATCH_TIMES} times as "
        "late"
    )
    return Saving.between(least, most, why)
