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

from nsysx.findings._finding_bounds import FEWEST_LABELS, FEWEST_NUMBERS, SHARED_LABELS, SHARED_NUMBERS
from nsysx.model import Row

#: Stands for a target that a loss ignores.
_IGNORED = "-"


class SharedTensors(NamedTuple):
    """The names of the tensors of a batch that are the same on all ranks, and of those that are not."""

    shared: tuple[str, ...]
    apart: tuple[str, ...]

    def sentence(self) -> str:
        """Return which tensors are the same, or that nothing but the datasets is."""
        if not self.shared:
            return "the datasets are the same on each, the batches are not"
        same = f"{_listed(self.shared)} {'is' if len(self.shared) == 1 else 'are'} the same on each"
        return f"{same}, {_listed(self.apart)} {'is' if len(self.apart) == 1 else 'are'} not" if self.apart else same


class _Part(NamedTuple):
    """One tensor of one batch; ``numbers``: the hashes of some of its numbers, none where they would tell nothing."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    numbers: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Return whether its numbers are whole ones."""
        return "int" in self.dtype

    @property
    def column(self) -> bool:
        """Return whether it has one number for each sample."""
        return sum(size > 1 for size in self.shape) <= 1


def sizes_of(loader: Row) -> list[list[int]]:
    """Return the sizes of the tensors of a loader's batches, as they are noted."""
    return [list(part.shape) for batch in _batches(loader.get("parts")) for part in batch]


def in_one(loaders: Sequence[Row]) -> Row:
    """Return the loaders that one line makes, as for each epoch, as one with the batches of all."""
    parts = [batch for row in loaders for batch in (row.get("parts") or ())]
    data = next((row["data"] for row in loaders if row.get("data")), None)
    return {**loaders[0], "parts": parts, "data": data}


def shared_tensors(loaders: Sequence[Row], *, drawn: bool) -> SharedTensors | None:
    """Return what all ranks have in common in the batches of a loader, None where that is not seen or the ranks may have data of their own.

    ``drawn``: the ranks are known to draw equal numbers of samples. Without that, floats may be drawn by equal generators for data of each
    rank, and whole numbers that differ tell of such data.
    """
    if not _one_dataset(loaders) or len({row.get("sampler_rank") for row in loaders}) > 1:
        return None
    shared, apart = _compared_tensors([_batches(row.get("parts")) for row in loaders])
    others = any(part.whole for part in apart)
    if not drawn:
        shared = {} if others else {part: share for part, share in shared.items() if part.whole}
    if not shared and not (drawn and apart and not others and _same_data(loaders)):
        return None
    return SharedTensors(tuple(map(_most, shared, shared.values())), tuple(part.name for part in apart))


def _most(part: _Part, share: float) -> str:
    return f"{'most of ' if share < SHARED_LABELS else ''}{_shown(part.name)}"


def _compared_tensors(ranks: Sequence[Sequence[Sequence[_Part]]]) -> tuple[dict[_Part, float], list[_Part]]:
    """Return the tensors of the batches of the first rank that all ranks have in common, with the share, and those that they have not."""
    shared: dict[_Part, float] = {}
    apart: list[_Part] = []
    for column in range(max(map(len, ranks[0]), default=0)):
        first, *others = ([batch[column] if column < len(batch) else None for batch in batches] for batches in ranks)
        part = next(part for part in first if part)
        shares = [_share(first, theirs) for theirs in others]
        seen = [share for share in shares if share is not None]
        if any(share < (SHARED_LABELS if part.column else SHARED_NUMBERS) for share in seen):
            apart.append(part)
        elif len(seen) == len(shares):
            shared[part] = min(seen)
    return shared, apart


def _batches(noted: object) -> list[list[_Part]]:
    """Return the tensors of each batch of a loader that was looked at."""
    batches = [batch if isinstance(batch, list) else [] for batch in (noted if isinstance(noted, list) else ())]
    return [[_part(part) for part in batch if isinstance(part, Mapping)] for batch in batches]


def _part(noted: Mapping[str, Any]) -> _Part:
    numbers, shape = noted.get("numbers"), noted.get("shape")
    hashes = tuple(numbers.split(",")) if isinstance(numbers, str) and numbers else ()
    sizes = tuple(shape) if isinstance(shape, list) else ()
    return _Part(str(noted.get("name")), str(noted.get("dtype")), sizes, hashes)


def _share(ours: Sequence[_Part | None], theirs: Sequence[_Part | None]) -> float | None:
    """Return which share of a tensor two ranks have in common in the same batches, of what is not so by chance.

    None where it could hardly be another one.
    """
    both = [(a, b) for a, b in zip(ours, theirs, strict=False) if a and b and a.numbers and b.numbers]
    unlike = _counted((x, y) for first, second in combinations(both, 2) for x in first for y in second)
    same = _counted(both)
    chance = unlike.alike / max(unlike.compared, 1)
    could_differ = same.compared * (1 - chance)
    fewest = FEWEST_LABELS if both and both[0][0].column else FEWEST_NUMBERS
    if not unlike.compared or could_differ < fewest:
        return None
    return (same.alike - same.compared * chance) / could_differ


class _Counted(NamedTuple):
    """How many numbers of several pairs of tensors were compared, and are alike."""

    alike: int
    compared: int


def _counted(pairs: Iterable[tuple[_Part, _Part]]) -> _Counted:
    """Count what is alike; targets that a loss ignores are not compared."""
    numbers = ((a, b) for first, second in pairs for a, b in zip(first.numbers, second.numbers, strict=False))
    answers = [a == b for a, b in numbers if _IGNORED not in (a, b)]
    return _Counted(sum(answers), len(answers))


def _one_dataset(loaders: Sequence[Row]) -> bool:
    """Return whether nothing tells that each rank has a dataset of its own; False where the datasets were not looked at."""
    facts = [facts for row in loaders if isinstance(facts := row.get("data"), Mapping)]
    if len(facts) < len(loaders):
        return False
    if not all(each.get(name) == facts[0].get(name) for each in facts for name in ("data", "columns", "texts")):
        return False
    # With equal data a seed, or the number of the rank, may be that of what augments them.
    return bool(facts[0].get("data")) or _alike(facts)


def _same_data(loaders: Sequence[Row]) -> bool:
    """Return whether the datasets of all ranks, which are one, are known to give the same for the same number of a sample."""
    facts = [row["data"] for row in loaders]
    return bool(facts[0].get("data")) and _alike(facts)


def _alike(facts: Sequence[Row]) -> bool:
    """Return whether datasets have the same options and look at no number of the rank."""
    return all(each.get("numbers") == facts[0].get("numbers") and not each.get("of_rank") for each in facts)


def _shown(name: str) -> str:
    """Return a tensor of a batch by its name, or its place."""
    return f"tensor {name}" if name.isdigit() else name


def _listed(names: Sequence[str]) -> str:
    shown = list(map(_shown, names))
    return ", ".join(shown[:-1]) + (" and " if shown[1:] else "") + shown[-1]
