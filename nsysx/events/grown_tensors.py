"""Tensors that grow: each version is a copy of the one before it with a little added, or with a little written into it.

Operators name what made each of their arguments, and sizes tell how much of what one writes stood in the last one already. Of
concatenations two forms are one: ``x = torch.cat([x, new])``, whose argument is the result of the cat before (or a view that drops its
oldest rows), and a list that is put together anew each time it has become longer, ``torch.stack(history)``, whose arguments are those of
the cat before and new ones. Other forms are of ``tensor_versions``.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_bounds import (
    COPIED_AGAIN_SHARE,
    FEWEST_GROWING_CATS,
    GROWING_WEIGHTS_SHARE,
    RECURRING_MODULES_SHARE,
)
from nsysx.events.operator_flow import OperatorFlow, flow_of, operators_before
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders
from nsysx.events.tensor_versions import Result, Version, VersionsInOrder, fills, is_part, makes_versions, passes
from nsysx.events.trained_operators import trained_of

#: Operators that make each row of a result of one row of their first argument.
_ROW_BY_ROW = re.compile(r"^aten::(linear|matmul|mm|layer_norm|rms_norm)$")


class GrownTensor(NamedTuple):
    """A tensor of which longer versions are made. ``copied``: of each operator that makes one (outermost row of the flow) the share of
    what it writes that stood in the one before it, 0 for the first one.

    ``read``: something else than the next version reads what is made on the way. ``kept``: it goes on from the step before. ``bounded``:
    its oldest rows are dropped. ``size``: that of the last one, and ``dimension``: in which it grows; None where sizes do not tell.
    ``in_front``: what is new comes before what is there.
    ``made_contiguous``: something calls contiguous() on it, which is no copy of what a cat makes.
    ``differentiated``: gradients run through what is added. ``saved``: operators with gradients read it, which autograd may keep it for.
    ``read_alone``: of the operators that take single new parts of it (rows) the share that these are not; nothing reads more.
    ``form``: as of most versions, ``versions``: how many of them the step makes. ``computed_again``: of the operators that compute each row
    of a version by itself, as linear layers do, with the same weights each time, the share of the rows that were in the one before.
    """

    copied: dict[int, float]
    read: bool
    kept: bool
    bounded: bool
    size: Size | None
    dimension: int | None
    in_front: bool = False
    made_contiguous: bool = False
    differentiated: bool = False
    saved: bool = False
    read_alone: dict[int, float] | None = None
    form: str = "cat"
    versions: int = 0
    computed_again: Mapping[int, float] = MappingProxyType({})


class _Link(NamedTuple):
    """A version that goes on from another one: ``copied`` numbers of what it holds stood there, some are ``dropped``.

    ``in_front``: what it adds comes before them.
    """

    before: Version
    copied: int
    dropped: bool
    in_front: bool


@dataclass
class _Chain:
    """Versions of one tensor, in order, and how each but the first goes on from the one before."""

    versions: list[Version]
    links: list[_Link] = field(default_factory=list)

    @property
    def here(self) -> list[Version]:
        """Those of this step."""
        return [version for version in self.versions if version.here]

    @property
    def kept(self) -> bool:
        """Whether it goes on from the step before."""
        return not self.versions[0].here

    def rows(self) -> set[int]:
        """The rows of the operators of this step that make them."""
        return {row for version in self.here for row in (version.row, *version.beside)}


class _VersionReads(NamedTuple):
    """Rows of outermost operators (-1: behind the step): those that read versions, that hand them on, and that take a small part."""

    others: set[int]
    passed: set[int]
    small: set[int]


def grown_tensors(profile: Profile) -> list[GrownTensor]:
    """Return the tensors of an X-ray step of which each version is copied from the one before it."""
    return profile.once(_of_report)


def _of_report(profile: Profile) -> list[GrownTensor]:
    flow = flow_of(profile)
    if flow is None or not makes_versions(flow):
        return []
    return grown_in(flow, profile.once(operators_before), trained_of(profile))


def grown_in(flow: OperatorFlow, before: OperatorFlow | None, trained: Flags) -> list[GrownTensor]:
    """Return the tensors that grow in a flow; ``before``: the operators of the step before, ``trained``: which operators are."""
    order = VersionsInOrder(flow, before)
    chains = [chain for chain in _chains(order) if _is_growth(chain)]
    if not chains:
        return []
    readers = _VersionReaders(flow, before)
    grown = (_grown(chain, readers, trained) for chain in chains if not _is_structure(chain, flow))
    return [tensor for tensor in grown if tensor is not None]


def _grown(chain: _Chain, readers: _VersionReaders, trained: Flags) -> GrownTensor | None:
    """Return what is known of a tensor, None where its versions have to be."""
    flow, here, kept = readers.flow, chain.here, chain.kept
    between, last = readers.of_versions(here[:-1], chain), readers.of_versions(here[-1:], chain)
    others = between.others | (readers.of_earlier(chain).others if kept else set())
    read = bool(others) or (kept and any(row >= 0 for row in last.others))
    if _weights_grow(others, readers):
        return None
    differentiated = any(trained[version.row] for version in here)
    reading = [row for row in others | (last.others if kept else set()) if row >= 0]
    saved = any(trained[row] for row in reading)
    form = Counter(version.form for version in chain.versions).most_common(1)[0][0]
    dropped = sum(link.dropped for link in chain.links)
    bounded, in_front = 2 * dropped > len(chain.links), chain.links[-1].in_front
    if form == "written" and (kept or differentiated or saved or _read_later(chain, readers)):
        return None  # what reads a version, or keeps it for the backward, needs it as it was
    if differentiated and (kept or (read and bounded)):
        return None
    copied = {version.row: 0.0 for version in here[:1]}
    for version, link in zip(chain.versions[1:], chain.links, strict=True):
        if version.here:
            only_old = version.form == "room"  # new rows are written by others
            copied[version.row] = 1.0 if only_old else link.copied / max(version.written, 1)
            copied |= dict.fromkeys(version.beside, 1.0)
    contiguous = any(flow.names[row] == "aten::contiguous" for row in between.passed)
    alone = None if others or not between.small else readers.shares_of(between.small)
    return GrownTensor(
        copied, read or bool(alone and not differentiated), kept, bounded, *_size(chain, readers), in_front, contiguous,
        differentiated, saved, alone if differentiated else None, form, len(here), _computed_again(chain, readers),
    )  # fmt: skip


def _is_growth(chain: _Chain) -> bool:
    """Return whether cats copy again and again what stood there: many of one step, or each step those of the step before."""
    here = chain.here
    if not here or not chain.links or (len(here) < FEWEST_GROWING_CATS and not chain.kept):
        return False
    copied = sum(link.copied for link in chain.links)
    return copied >= COPIED_AGAIN_SHARE * sum(version.written for version in chain.versions[1:])


def _is_structure(chain: _Chain, flow: OperatorFlow) -> bool:
    """Return whether other modules run before each cat: layers of a network that each add their own part, not the rounds of a loop."""
    calls = sorted(flow.calls, key=lambda call: call.first)
    first, rows = [call.first for call in calls], [version.row for version in chain.here]
    borders = [bisect_left(first, row) for row in rows]
    rounds = [frozenset(call.path for call in calls[a:b]) for a, b in pairwise(borders)]
    often = Counter(path for each in rounds for path in each)
    return sum(n for n in often.values() if n > 1) < RECURRING_MODULES_SHARE * sum(often.values())


def _weights_grow(rows: set[int], readers: _VersionReaders) -> bool:
    """Return whether what reads the versions is given something older than the step that is larger each time, as weights of layers are."""
    flow, sizes = readers.flow, dict[tuple[str, int], list[Size]]()
    for row in rows - {-1}:
        arguments = list(zip(flow.made[row], readers.sizes[row], strict=False))
        for n, (number, size) in enumerate(arguments):
            if size and number not in flow.row_of:
                sizes.setdefault((flow.names[row], n), []).append(size)
    return any(
        len(each) > 1 and len(set(each)) > GROWING_WEIGHTS_SHARE * max(len(each), len(rows) / 2)
        for each in sizes.values()
    )


def _computed_again(chain: _Chain, readers: _VersionReaders) -> dict[int, float]:
    """Return of the operators that compute each row by itself the share of rows that were in the version before; none of few."""
    flow = readers.flow
    versions = chain.here if chain.kept else chain.here[1:]  # of the first one nothing was computed before
    reads = readers.of_versions(versions, chain)
    handing = {version.number for version in versions} | {flow.number[row] for row in reads.passed}
    rows = [
        row
        for row in sorted(reads.others - {-1})
        if _ROW_BY_ROW.match(flow.names[row])
        and flow.made[row][0] in handing
        and all(readers.is_older(number) for number in flow.made[row][1:])
    ]
    features = {readers.sizes[row][0][-1:] for row in rows}
    if len(rows) < FEWEST_GROWING_CATS or len(features) > 1 or chain.versions[-1].form == "written":
        return {}
    new = readers.new_of(chain)
    return {row: max(0.0, 1 - new / max(math.prod(readers.sizes[row][0]), 1)) for row in rows}


def _read_later(chain: _Chain, readers: _VersionReaders) -> bool:
    """Return whether something reads a version once the next one has been made."""
    return any(
        -1 in (rows := readers.of_versions([a], chain).others | readers.of_versions([a], chain).small)
        or max(rows, default=0) > b.row
        for a, b in pairwise(chain.versions)
        if a.here
    )


def _size(chain: _Chain, readers: _VersionReaders) -> tuple[Size | None, int | None]:
    """Return the size of the last version, and the dimension in which it puts tensors together: where they differ."""
    last = chain.versions[-1]
    if last.form != "cat":
        size = readers.results.get(last.number)
        longer = [d for d, (a, b) in enumerate(zip(last.sizes[0], size or (), strict=False)) if b > a]
        return size, longer[0] if longer else None
    sizes = last.sizes
    differing = [d for d, lengths in enumerate(zip(*sizes, strict=False)) if len(set(lengths)) > 1]
    if len(set(map(len, sizes))) > 1 or len(differing) != 1:
        return None, None
    d = differing[0]
    return (*sizes[0][:d], sum(size[d] for size in sizes), *sizes[0][d + 1 :]), d


class _VersionReaders(ResultReaders):
    """Who reads the versions of a tensor, past views of them."""

    def __init__(self, flow: OperatorFlow, before: OperatorFlow | None) -> None:
        super().__init__(flow)
        self._before = before

    def of_versions(self, versions: Sequence[Version], chain: _Chain) -> _VersionReads:
        """Return who reads some versions, but those who make the others."""
        return self._of_numbers([version.number for version in versions], chain.rows(), self.new_of(chain))

    def new_of(self, chain: _Chain) -> int:
        """Return how many numbers each version adds at least."""
        return min(
            (v.written - link.copied for v, link in zip(chain.versions[1:], chain.links, strict=True)), default=0
        )

    def _of_numbers(self, numbers: Sequence[int], skipped: set[int], new: int) -> _VersionReads:
        reads, waiting = _VersionReads(set(), set(), set()), list(numbers)
        while waiting:
            number = waiting.pop()
            for row in self.readers.get(number, set()) - skipped - reads.others - reads.passed - reads.small:
                if row >= 0 and fills(self.flow.names[row]) and number not in self.flow.made[row][1:]:
                    continue
                if row < 0 or not passes(self.flow, row):
                    reads.others.add(row)
                    continue
                result = self.results.get(self.flow.number[row])
                if is_part(self.flow.names[row]) and result is not None and 0 < math.prod(result) <= new:
                    if not self._only_filled(row):
                        reads.small.add(row)
                    continue
                reads.passed.add(row)
                waiting.append(self.flow.number[row])
        return reads

    def is_older(self, number: int) -> bool:
        """Return whether a tensor, or what it is a view of, was made before the step."""
        row = self.flow.row_of.get(number)
        while row is not None and passes(self.flow, row):
            row = self.flow.row_of.get(self.flow.made[row][0])
        return row is None

    def _only_filled(self, row: int) -> bool:
        """Return whether a part is taken only to be written."""
        number = self.flow.number[row]
        rows = self.readers.get(number, set())
        return all(r >= 0 and fills(self.flow.names[r]) and number not in self.flow.made[r][1:] for r in rows)

    def of_earlier(self, chain: _Chain) -> _VersionReads:
        """Return who reads in this step what the last version of the step before made."""
        numbers, before = {next(v.number for v in reversed(chain.versions) if not v.here)}, self._before
        if before is not None:
            for row in before.outermost:
                if before.made[row] and before.made[row][0] in numbers and passes(before, row):
                    numbers.add(before.number[row])
        others, passed = set[int](), set[int]()
        for row, end in self.flow.outermost_spans:
            if row in chain.rows() or numbers.isdisjoint(n for inner in range(row, end) for n in self.flow.made[inner]):
                continue
            if passes(self.flow, row):
                passed.add(row)
                numbers.add(self.flow.number[row])
            else:
                others.add(row)
        return _VersionReads(others, passed, set())

    def shares_of(self, rows: set[int]) -> dict[int, float]:
        """Return of parts that are taken (rows) the share of the whole that they are not."""
        return {
            row: 1 - math.prod(self.results[self.flow.number[row]]) / max(math.prod(self.sizes[row][0]), 1)
            for row in rows
        }


def _chains(order: VersionsInOrder) -> list[_Chain]:
    """Return the versions that go on from each other, in chains."""
    links, chain_of, chains = _Links(order), dict[int, _Chain](), list[_Chain]()
    for version in order:
        link = links.link_of(version)
        chain = None if link is None else chain_of.get(link.before.number)
        if link is None or chain is None or chain.versions[-1] is not link.before:
            chains.append(_Chain([version]))
            chain_of[version.number] = chains[-1]
            continue
        chain.versions.append(version)
        chain.links.append(link)
        chain_of[version.number] = chain
    return [chain for chain in chains if chain.links]


class _Links:
    """What each version goes on from, in order of time."""

    def __init__(self, order: VersionsInOrder) -> None:
        self._order = order
        self._by_number = dict[int, Version]()
        self._last_with = dict[Result, Version]()

    def link_of(self, version: Version) -> _Link | None:
        """Return what the next version goes on from."""
        if version.form == "written":
            before = self._by_number.get(version.given[0][0])
            link = before and _Link(before, version.written - version.new, dropped=False, in_front=False)
        else:
            link = self._appended(version) or self._put_together_again(version)
        self._by_number[version.number] = version
        if version.form == "cat":
            self._last_with |= dict.fromkeys(version.given, version)
        return link

    def _appended(self, version: Version) -> _Link | None:
        """Return what a version goes on from, where it is given another one, or most of it."""
        links = list[_Link]()
        for i, (result, size) in enumerate(zip(version.given, version.sizes, strict=True)):
            before = self._by_number.get(self._order.maker(*result, parts=True)[0])
            copied = math.prod(size)
            if before is not None and copied >= COPIED_AGAIN_SHARE * before.written:
                links.append(_Link(before, copied, dropped=copied < before.written, in_front=i > 0))
        return max(links, key=lambda link: link.copied, default=None)

    def _put_together_again(self, version: Version) -> _Link | None:
        """Return what a cat goes on from, where it is given the same as another one and something new, behind or before it."""
        for step in (1, -1):  # read backwards, what is put in front is put behind
            given, numbers = version.given[::step], list(map(math.prod, version.sizes))[::step]
            first = next((i for i, (number, _) in enumerate(given) if number >= 0), 0)
            before = self._last_with.get(given[first]) if given[first][0] >= 0 else None
            if before is None:
                continue
            earlier = before.given[::step]
            dropped = earlier.index(given[first]) - first
            common, added = len(earlier) - dropped, len(given) - len(earlier) + dropped
            if 0 <= dropped <= added and 0 < common < len(given) and earlier[dropped:] == given[:common]:
                return _Link(before, sum(numbers[:common]), dropped=dropped > 0, in_front=step < 0)
        return None
