"""Tensors of batches that several ranks have in common while others differ: labels and numbers of items of samples that each rank augments.

A probe notes hashes of some numbers of each tensor, in the same steps on each rank. How many of them are alike in two different batches is
chance: padding, few classes, what is the same in every batch. A tensor is shared if most of what could differ does not. What random masks,
noise and negatives change is another part of the batch, or a smaller one of a tensor.

Ranks with a dataset each may have equal numbers of samples, and labels in the same order. What the datasets hold in memory tells them
apart, and a dataset that looks at the number of its rank is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from nsysx.events.recorded_settings import RecordedSettings, file_and_line
from nsysx.findings._finding_bounds import FEWEST_COULD_DIFFER, SHARED_COLUMN, SHARED_NUMBERS
from nsysx.findings._flow_work import in_short
from nsysx.model import Row

#: Letters of one hash, and what stands for a target that is ignored.
_HASH, _IGNORED = 4, "----"
#: Dimensions of tokens: what is one number for each sample may be drawn for it.
_TOKENS = 2


class SharedTensors(NamedTuple):
    """The names of the tensors of a batch that are the same on all ranks, and of those that are not."""

    same: tuple[str, ...]
    own: tuple[str, ...]

    def sentence(self) -> str:
        """Return which tensors are the same."""
        same = f"{_listed(self.same)} of each batch {'is' if len(self.same) == 1 else 'are'} the same"
        return f"{same}, {_listed(self.own)} {'is' if len(self.own) == 1 else 'are'} not" if self.own else same


class _Part(NamedTuple):
    """One tensor of one batch; ``numbers``: the hashes of some of its numbers, none where they would tell nothing."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    numbers: tuple[str, ...]


def sizes_of(loader: Row) -> list[list[int]]:
    """Return the sizes of the tensors of a loader's batches, as they are noted."""
    return [list(part.shape) for batch in _batches(loader.get("parts")) for part in batch]


def shared_tensors(loaders: Sequence[Row], *, drawn: bool) -> SharedTensors | None:
    """Return what all ranks have in common in the batches of a loader, None where that is not seen or the ranks may have data of their own.

    ``drawn``: the ranks are known to draw equal numbers of samples. Without that, floats may be drawn by equal generators for data of each
    rank, and whole numbers that differ tell of such data.
    """
    if not _one_dataset(loaders) or len({row.get("sampler_rank") for row in loaders}) > 1:
        return None
    same, own = _compared_tensors([_batches(row.get("parts")) for row in loaders])
    telling = [part for part in same if drawn or _whole_numbers(part)]
    if not telling or (not drawn and any(map(_whole_numbers, own))):
        return None
    return SharedTensors(tuple(each.name for each in telling), tuple(each.name for each in own))


def shared_targets(ranks: Sequence[RecordedSettings]) -> SharedTensors | None:
    """Return what all ranks have in common of the targets of their losses and the tokens that their networks are given.

    None where that is not seen, or any of it differs: numbers of samples or of noise levels may come of equal generators.
    """
    same: list[str] = []
    own: list[str] = []
    for kind, least in (("targets", 1), ("inputs", _TOKENS)):
        noted = [
            {(row.get("class"), row.get("place")): row.get("parts") for row in each.rows(kind) or ()} for each in ranks
        ]
        for called, parts in noted[0].items():
            alike, other = _compared_tensors([_batches(parts), *(_batches(each.get(called)) for each in noted[1:])])
            where = in_short(file_and_line(called[1])) or "a line"
            same += [
                f"{_shown(part.name)} at {where}" for part in alike if _whole_numbers(part) and len(part.shape) >= least
            ]
            if any(_whole_numbers(part) and len(part.shape) >= least for part in other):
                return None
            own += [f"what {called[0]} is given" for part in other if not _whole_numbers(part)]
    return SharedTensors(tuple(dict.fromkeys(same)), tuple(dict.fromkeys(own))) if same else None


def _compared_tensors(ranks: Sequence[Sequence[Sequence[_Part]]]) -> tuple[list[_Part], list[_Part]]:
    """Return the tensors of the batches of the first rank that all ranks have in common, and those that they have not."""
    mine, *others = ranks
    same: list[_Part] = []
    own: list[_Part] = []
    for place in range(max(map(len, mine), default=0)):
        answers = [_agrees(_at(mine, place), _at(theirs, place)) for theirs in others]
        part = next(part for part in _at(mine, place) if part)
        if all(answers):
            same.append(part)
        elif False in answers:
            own.append(part)
    return same, own


def _batches(noted: object) -> list[list[_Part]]:
    """Return the tensors of each batch of a loader, or of each call, that was looked at."""
    batches = [batch if isinstance(batch, list) else [] for batch in (noted if isinstance(noted, list) else ())]
    return [[_part(part) for part in batch if isinstance(part, Mapping)] for batch in batches]


def _part(noted: Mapping[str, Any]) -> _Part:
    numbers, shape = str(noted.get("numbers") or ""), noted.get("shape")
    hashes = tuple(numbers[at : at + _HASH] for at in range(0, len(numbers), _HASH))
    sizes = tuple(shape) if isinstance(shape, list) else ()
    return _Part(str(noted.get("name")), str(noted.get("dtype")), sizes, hashes)


def _at(batches: Sequence[Sequence[_Part]], place: int) -> list[_Part | None]:
    """Return the tensor at a place of each batch, None where there is none."""
    return [batch[place] if place < len(batch) else None for batch in batches]


def _agrees(mine: Sequence[_Part | None], theirs: Sequence[_Part | None]) -> bool | None:
    """Return whether two ranks have a tensor in common in the same batches, None where it could hardly be another one."""
    both = [(a, b) for a, b in zip(mine, theirs, strict=False) if a and b and a.numbers and b.numbers]
    seen = _counted((x, y) for first, second in combinations(both, 2) for x in first for y in second)
    found = _counted(both)
    chance = seen.alike / max(seen.compared, 1)
    could_differ = found.compared * (1 - chance)
    if not seen.compared or could_differ < FEWEST_COULD_DIFFER:
        return None
    column = all(sum(size > 1 for size in part.shape) < _TOKENS for part, _ in both)
    shared = (found.alike - found.compared * chance) / could_differ
    return shared >= (SHARED_COLUMN if column else SHARED_NUMBERS)


class _Counted(NamedTuple):
    """How many numbers of several pairs of tensors were compared, and are alike."""

    alike: int
    compared: int


def _counted(pairs: Iterable[tuple[_Part, _Part]]) -> _Counted:
    """Count what is alike; targets that a loss ignores are not compared."""
    alike = compared = 0
    for one, other in pairs:
        both = [(a, b) for a, b in zip(one.numbers, other.numbers, strict=False) if _IGNORED not in (a, b)]
        compared += len(both)
        alike += sum(a == b for a, b in both)
    return _Counted(alike, compared)


def _whole_numbers(part: _Part) -> bool:
    return "int" in part.dtype


def _one_dataset(loaders: Sequence[Row]) -> bool:
    """Return whether nothing tells that each rank has a dataset of its own; False where the datasets were not looked at."""
    facts = [facts for row in loaders if isinstance(facts := row.get("data"), Mapping)]
    if len(facts) < len(loaders):
        return False
    if not all(each.get(name) == facts[0].get(name) for each in facts for name in ("data", "columns", "texts")):
        return False
    options = all(each.get("numbers") == facts[0].get("numbers") for each in facts)
    # With equal data a seed, or the number of the rank, may be that of what augments them.
    return bool(facts[0].get("data")) or (options and not any(each.get("of_rank") for each in facts))


def _shown(name: str) -> str:
    """Return a tensor of a batch by its name, or its place."""
    return f"tensor {name}" if name.isdigit() else name


def _listed(names: Sequence[str]) -> str:
    shown = list(map(_shown, names))
    return ", ".join(shown[:-1]) + (" and " if shown[1:] else "") + shown[-1]
