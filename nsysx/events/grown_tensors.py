"""Tensors that grow by concatenation: each cat copies what the one before it made, and adds a little to it.

Operators name what made each of their arguments, and sizes tell how much of what a cat writes stood in the last one already. Two forms are
one: ``x = torch.cat([x, new])``, whose argument is the result of the cat before (or a view that drops its oldest rows), and a list that is
put together anew each time it has become longer, ``torch.stack(history)``, whose arguments are those of the cat before and new ones.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_bounds import COPIED_AGAIN_SHARE, FEWEST_GROWING_CATS, RECURRING_MODULES_SHARE
from nsysx.events.operator_flow import OperatorFlow, flow_of, is_view, operators_before
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders
from nsysx.events.trained_operators import trained_of

#: Operators that put tensors together.
_CATS = re.compile(r"^aten::(cat|concat|concatenate|([hvd]|row_|column_)?stack)$")
#: Views that are a part of a tensor, or one of several, and what hands a tensor on if it has nothing to convert.
_PARTS = re.compile(r"^aten::(select|slice|narrow|as_strided|chunk|(tensor_)?split(_with_sizes)?|unbind|diagonal)$")
_HANDS_ON = re.compile(r"^aten::(contiguous|to|type_as|resolve_conj|resolve_neg)$")
#: A result: the number of the operator that made it, and which of its results it is.
Result = tuple[int, int]


class GrownTensor(NamedTuple):
    """A tensor that cats make longer. ``copied``: of each cat (outermost row of the flow) the share of what it writes that stood in the one
    before it, 0 for the first one.

    ``read``: something else than the next cat reads what is made on the way. ``kept``: it goes on from the step before. ``bounded``: its
    oldest rows are dropped. ``size``: what the last cat makes, and ``dimension``: in which it grows; None where sizes do not tell.
    ``in_front``: what is new comes before what is there.
    ``made_contiguous``: something calls contiguous() on it, which is no copy of what a cat makes.
    """

    copied: dict[int, float]
    read: bool
    kept: bool
    bounded: bool
    size: Size | None
    dimension: int | None
    in_front: bool = False
    made_contiguous: bool = False


class _Cat(NamedTuple):
    """A cat: its row among the outermost operators of its flow (``here``: not of the step before), its number, and what it is given."""

    row: int
    here: bool
    number: int
    given: tuple[Result, ...]
    sizes: tuple[Size, ...]

    @property
    def written(self) -> int:
        """How many numbers it writes."""
        return sum(map(math.prod, self.sizes))


class _Link(NamedTuple):
    """A cat that goes on from another one: ``copied`` numbers of what it writes stood there, some are ``dropped``.

    ``in_front``: what it adds comes before them.
    """

    before: _Cat
    copied: int
    dropped: bool
    in_front: bool


@dataclass
class _Chain:
    """Cats of one tensor, in order, and how each but the first goes on from the one before."""

    cats: list[_Cat]
    links: list[_Link] = field(default_factory=list)


def grown_tensors(profile: Profile) -> list[GrownTensor]:
    """Return the tensors of an X-ray step that grow by concatenation, but those through which gradients run and that are read."""
    return profile.once(_of_report)


def _of_report(profile: Profile) -> list[GrownTensor]:
    flow = flow_of(profile)
    if flow is None or not any(map(_CATS.match, flow.names)):
        return []
    return grown_in(flow, profile.once(operators_before), trained_of(profile))


def grown_in(flow: OperatorFlow, before: OperatorFlow | None, trained: Flags) -> list[GrownTensor]:
    """Return the tensors that grow in a flow; ``before``: the operators of the step before, ``trained``: which operators are."""
    chains = [chain for chain in _CatsInOrder(flow, before).chains() if _is_growth(chain)]
    if not chains:
        return []
    readers, grown = ResultReaders(flow), list[GrownTensor]()
    for chain in chains:
        if _is_structure(chain, flow):
            continue
        here = [cat for cat in chain.cats if cat.here]
        between, handed_on = _readers(here[:-1], here, readers)
        kept = not chain.cats[0].here
        read = bool(between) or (kept and any(row >= 0 for row in _readers(here[-1:], here, readers)[0]))
        # Autograd keeps what is read of a tensor for the backward: nothing may be written into it in between.
        differentiated = any(trained[cat.row] for cat in here) or any(r >= 0 and trained[r] for r in between)
        if read and differentiated:
            continue
        copied = {cat.row: 0.0 for cat in here[:1]}
        copied |= {
            cat.row: link.copied / max(cat.written, 1)
            for cat, link in zip(chain.cats[1:], chain.links, strict=True)
            if cat.here
        }
        dropped = sum(link.dropped for link in chain.links)
        contiguous = any(flow.names[row] == "aten::contiguous" for row in handed_on)
        bounded, in_front = 2 * dropped > len(chain.links), chain.links[-1].in_front
        grown.append(GrownTensor(copied, read, kept, bounded, *_size(chain), in_front, contiguous))
    return grown


def _is_growth(chain: _Chain) -> bool:
    """Return whether cats copy again and again what stood there: many of one step, or each step those of the step before."""
    here = [cat for cat in chain.cats if cat.here]
    kept = not chain.cats[0].here
    if not here or not chain.links or (len(here) < FEWEST_GROWING_CATS and not kept):
        return False
    copied = sum(link.copied for link in chain.links)
    return copied >= COPIED_AGAIN_SHARE * sum(cat.written for cat in chain.cats[1:])


def _is_structure(chain: _Chain, flow: OperatorFlow) -> bool:
    """Return whether other modules run before each cat: layers of a network that each add their own part, not the rounds of a loop."""
    calls = sorted(flow.calls, key=lambda call: call.first)
    first, rows = [call.first for call in calls], [cat.row for cat in chain.cats if cat.here]
    borders = [bisect_left(first, row) for row in rows]
    rounds = [frozenset(call.path for call in calls[a:b]) for a, b in pairwise(borders)]
    often = Counter(path for each in rounds for path in each)
    return sum(n for n in often.values() if n > 1) < RECURRING_MODULES_SHARE * sum(often.values())


def _readers(cats: Sequence[_Cat], chain: Sequence[_Cat], readers: ResultReaders) -> tuple[set[int], set[int]]:
    """Return the outermost operators (-1: one behind the step) that read what cats made, but the cats of their chain; and those that hand
    it on to them.
    """
    others, passed = set[int](), set[int]()
    waiting, skipped = [cat.number for cat in cats], {cat.row for cat in chain}
    while waiting:
        for row in readers.readers.get(waiting.pop(), set()) - skipped - others - passed:
            if row >= 0 and _passes(readers.flow, row):
                passed.add(row)
                waiting.append(readers.flow.number[row])
            else:
                others.add(row)
    return others, passed


def _passes(flow: OperatorFlow, row: int) -> bool:
    """Return whether an operator's result lies where its first argument does."""
    return bool(flow.made[row]) and _may_pass(flow.names[row]) and not _copies(flow, row)


def _may_pass(name: str) -> bool:
    return is_view(name) or _HANDS_ON.match(name) is not None


def _copies(flow: OperatorFlow, row: int) -> bool:
    """Return whether an operator that may hand on a tensor holds one that does not."""
    inner, end = row + 1, flow.end_ns[row]
    while inner < len(flow.names) and flow.start_ns[inner] < end:
        if not _may_pass(flow.names[inner]):
            return True
        inner += 1
    return False


def _size(chain: _Chain) -> tuple[Size | None, int | None]:
    """Return the size of what the last cat makes, and the dimension in which it puts tensors together: where they differ."""
    sizes = chain.cats[-1].sizes
    differing = [d for d, lengths in enumerate(zip(*sizes, strict=False)) if len(set(lengths)) > 1]
    if len(set(map(len, sizes))) > 1 or len(differing) != 1:
        return None, None
    d = differing[0]
    return (*sizes[0][:d], sum(size[d] for size in sizes), *sizes[0][d + 1 :]), d


class _CatsInOrder:
    """The cats of a flow, and of the step before, by what each goes on from."""

    def __init__(self, flow: OperatorFlow, before: OperatorFlow | None) -> None:
        self._flows = [each for each in (before, flow) if each is not None]
        self._flow = flow
        self._by_number = dict[int, _Cat]()
        self._last_with = dict[Result, _Cat]()
        #: Tensors of which no operator is known are told apart by their sizes.
        self._unknown = dict[Size, int]()

    def chains(self) -> list[_Chain]:
        """Return the cats that go on from each other, in chains."""
        chain_of, chains = dict[int, _Chain](), list[_Chain]()
        for cat in self._cats():
            link = self._appended(cat) or self._put_together_again(cat)
            self._by_number[cat.number] = cat
            self._last_with |= dict.fromkeys(cat.given, cat)
            chain = None if link is None else chain_of.get(link.before.number)
            if link is None or chain is None or chain.cats[-1] is not link.before:
                chains.append(_Chain([cat]))
                chain_of[cat.number] = chains[-1]
                continue
            chain.cats.append(cat)
            chain.links.append(link)
            chain_of[cat.number] = chain
        return [chain for chain in chains if chain.links]

    def _cats(self) -> Iterator[_Cat]:
        for flow in self._flows:
            for row in flow.outermost:
                if not _CATS.match(flow.names[row]):
                    continue
                sizes = sizes_of(flow.size[row])
                if len(sizes) != len(flow.made[row]):
                    continue
                which = flow.which[row] if flow.which else [0] * len(sizes)
                given = [
                    (
                        self._maker(number, part)
                        if number >= 0
                        else (-1, self._unknown.setdefault(size, len(self._unknown))),
                        size,
                    )
                    for number, part, size in zip(flow.made[row], which, sizes, strict=True)
                    if size
                ]
                if len(given) > 1:
                    results, tensors = zip(*given, strict=True)
                    yield _Cat(row, flow is self._flow, flow.number[row], results, tensors)

    def _operator(self, number: int) -> tuple[OperatorFlow, int] | None:
        """Return the flow of an operator and its row, None for one of neither."""
        return next(
            ((flow, flow.row_of[number]) for flow in self._flows if number in flow.row_of and number >= 0), None
        )

    def _maker(self, number: int, which: int, *, parts: bool = False) -> Result:
        """Return what made a tensor, past what hands it on as a whole; ``parts``: or a part of it, too."""
        while (operator := self._operator(number)) is not None:
            flow, row = operator
            if not _passes(flow, row) or (_PARTS.match(flow.names[row]) and not parts):
                break
            number, which = flow.made[row][0], flow.which[row][0] if flow.which else 0
        return number, which

    def _appended(self, cat: _Cat) -> _Link | None:
        """Return what a cat goes on from, where it is given the result of another one, or most of it."""
        links = list[_Link]()
        for i, (result, size) in enumerate(zip(cat.given, cat.sizes, strict=True)):
            before = self._by_number.get(self._maker(*result, parts=True)[0])
            copied = math.prod(size)
            if before is not None and copied >= COPIED_AGAIN_SHARE * before.written:
                links.append(_Link(before, copied, dropped=copied < before.written, in_front=i > 0))
        return max(links, key=lambda link: link.copied, default=None)

    def _put_together_again(self, cat: _Cat) -> _Link | None:
        """Return what a cat goes on from, where it is given the same as another one and something new, behind or before it."""
        for step in (1, -1):  # read backwards, what is put in front is put behind
            given, numbers = cat.given[::step], list(map(math.prod, cat.sizes))[::step]
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
