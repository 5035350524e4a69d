"""Operators of an X-ray step that could be left out: of whose results nothing is made, and those that make the same in each step.

Both work on the outermost operators. A tensor of no dimensions may be a number of Python, which bears the name of whatever lay in its
place before: as an argument it says nothing about where a result comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import OperatorFlow, in_place, is_drawn, is_view
from nsysx.events.operator_names import begins_gradients, writes_lists

#: Operators that take a part which Python's numbers may choose anew in each step.
_PART = re.compile(r"^aten::(select|slice|narrow|as_strided|split\w*|chunk|unbind|roll|tensor_split)$")
#: Operators that draw which rows a step takes.
_CHOSEN = re.compile(r"::(randint|randperm|multinomial)\w*$")
#: Operators that write the same number each time.
_SAME_NUMBER = re.compile(r"^aten::((new_)?(zeros|ones)(_like)?|zero_)$")
#: Operators that may write a number of Python.
_NUMBERED = re.compile(r"::(lift_fresh|scalar_tensor|full|full_like|fill_?|item|_local_scalar_dense)$")


@dataclass(frozen=True)
class OuterOperators:
    """The outermost operators: rows of the flow; of each the places in ``rows`` of those that made its arguments.

    ``sources``: the same without arguments of no dimensions. ``older``: it is given a tensor, of some dimensions, with the name of an
    operator that is not among those of the step. ``unnamed``: the sizes of those without any name. ``into_older``: it writes into a
    tensor from before.
    """

    rows: list[int]
    makers: list[list[int]]
    sources: list[list[int]]
    older: Flags
    unnamed: list[frozenset[Size]]
    into_older: Flags

    def within(self, flags: Iterable[bool], size: int) -> Flags:
        """Return for each of them whether it, or an operator in it, has a flag; ``size``: of all operators."""
        sums = np.concatenate([[0], np.cumsum(np.fromiter(flags, np.bool_, size))])
        borders = np.array([*self.rows, size])
        flagged: Flags = np.diff(sums[borders]) > 0
        return flagged


def outer_operators(flow: OperatorFlow) -> OuterOperators:
    """Return the outermost operators of a step."""
    rows = flow.outermost
    # Results of lists bear the numbers of the operators within that made each of them.
    outer_of = np.searchsorted(rows, np.arange(len(flow.names)), side="right") - 1
    index_of = dict(zip(flow.number, outer_of.tolist(), strict=True))
    makers, sources = list[list[int]](), list[list[int]]()
    older, into_older = (np.zeros(len(rows), np.bool_) for _ in range(2))
    of_older = np.zeros(len(rows), np.bool_)  # a view of a tensor from before
    unnamed = list[frozenset[Size]]()
    for index, row in enumerate(rows):
        made, sizes = flow.made[row], sizes_of(flow.size[row])
        aligned = len(made) == len(sizes)
        before = [index_of.get(number, len(rows)) for number in made]
        makers.append([p for p in before if p < index])
        sources.append([p for i, p in enumerate(before) if p < index and not (aligned and not sizes[i])])
        unnamed.append(frozenset(size for size, number in zip(sizes, made, strict=False) if size and number < 0))
        older[index] = any(
            number >= 0 and before[i] >= index for i, number in enumerate(made) if not aligned or sizes[i]
        )
        from_before = bool(made) and (before[0] >= index or bool(of_older[before[0]]))
        of_older[index] = from_before and is_view(flow.names[row])
        into_older[index] = from_before and in_place(flow.names[row])
    return OuterOperators(rows, makers, sources, older, unnamed, into_older)


def behind(sources: Sequence[Sequence[int]], begun: Flags) -> Flags:
    """Return what is made of some operators' results, themselves included."""
    reached: Flags = begun.copy()
    for index, makers in enumerate(sources):
        reached[index] |= any(reached[maker] for maker in makers)
    return reached


def before(makers: Sequence[Sequence[int]], begun: Flags) -> Flags:
    """Return what some operators are made of, themselves included."""
    reached: Flags = begun.copy()
    for index in range(len(makers) - 1, -1, -1):
        if reached[index]:
            reached[makers[index]] = True
    return reached


def unread_operators(
    flow: OperatorFlow, trained: Sequence[bool], to_host: Sequence[bool]
) -> tuple[list[int], list[int]]:
    """Return the outermost operators (rows) of whose results nothing is made that a gradient, the host or a later step reads, and
    those that only the host reads number by number, of what is trained.

    ``to_host``: operators that copy more than a number to the host. Both are empty where no later step was recorded.
    """
    if not flow.read_later:
        return [], []
    outer, size = outer_operators(flow), len(flow.names)
    learns = outer.within(trained, size)
    kept = learns | outer.into_older | outer.within(to_host, size)
    kept |= outer.within((writes_lists(name) for name in flow.names), size)
    kept |= np.array([begins_gradients(flow.names[row]) for row in outer.rows], np.bool_)
    kept |= outer.within((number in flow.read_later for number in flow.number), size)
    reads = outer.within((flow.names[row].endswith(("::item", "::_local_scalar_dense")) for row in range(size)), size)
    needed, read = before(outer.makers, kept), before(outer.makers, kept | reads)
    logged = read & ~needed & behind(outer.sources, learns)
    return [outer.rows[i] for i in np.flatnonzero(~read)], [outer.rows[i] for i in np.flatnonzero(logged)]


def fixed_operators(flow: OperatorFlow, trained: Sequence[bool], copied: Sequence[bool]) -> list[int]:
    """Return the outermost operators (rows) that make the same in each step, of those that are needed for what the step's data makes.

    They begin with tensors that were there before the step before this, or with nothing. In the call of a network that is trained these may
    be its weights, read without gradients: none is of the size of a tensor that goes into what is trained. ``copied``: operators that copy
    from the host.
    None where no earlier step was recorded: what has no name may be of the step before then.
    """
    if not flow.follows:
        return []
    outer, size = outer_operators(flow), len(flow.names)
    in_module, in_trained, taught_elsewhere = _of_modules(flow, trained)
    changes = outer.within(trained, size) | outer.within(copied, size) | outer.older | outer.into_older
    changes |= outer.within((is_drawn(name) for name in flow.names), size)
    same = np.array([_SAME_NUMBER.match(flow.names[row]) is not None for row in outer.rows], np.bool_)
    changes |= outer.within((_NUMBERED.search(name) is not None for name in flow.names), size) & ~same
    parts = np.array([_PART.match(flow.names[row]) is not None and not in_module[row] for row in outer.rows], np.bool_)
    learns = outer.within(trained, size)
    weights = frozenset[Size]().union(*(outer.unnamed[i] for i in np.flatnonzero(learns)))
    may_read = np.array([not weights.isdisjoint(sizes) for sizes in outer.unnamed], np.bool_)
    changes |= parts | (outer.within(in_trained, size) & may_read) | outer.within(taught_elsewhere, size)
    into = (
        sizes_of(flow.size[row])[:1]
        for row, writes in zip(outer.rows, outer.into_older.tolist(), strict=True)
        if writes
    )
    written = {each for sizes in into for each in sizes if each}
    changes |= np.array([not written.isdisjoint(sizes) for sizes in outer.unnamed], np.bool_)
    fixed = ~behind(outer.makers, changes)
    chosen = outer.within((_CHOSEN.search(name) is not None for name in flow.names), size)
    data = behind(outer.sources, (outer.within(copied, size) | outer.older | parts | chosen) & ~learns)
    if learns.any() and not (data & before(outer.makers, learns)).any():
        data = learns  # the same data in each step, a graph or a field: all is made of that
    joined = before(outer.makers, data & ~fixed)
    return [outer.rows[i] for i in np.flatnonzero(fixed & joined)]


def joined_operators(flow: OperatorFlow, rows: Sequence[int]) -> list[list[int]]:
    """Return these outermost operators (rows) in groups of those that are made of each other, in order."""
    outer, group = outer_operators(flow), dict[int, int]()
    chosen = set(np.searchsorted(outer.rows, rows).tolist())
    for index in sorted(chosen):
        theirs = {group[maker] for maker in outer.makers[index] if maker in chosen}
        group[index] = min(theirs, default=index)
        group.update({each: group[index] for each, number in group.items() if number in theirs})
    groups: dict[int, list[int]] = {}
    for index, number in sorted(group.items()):
        groups.setdefault(number, []).append(outer.rows[index])
    return list(groups.values())


def _of_modules(flow: OperatorFlow, trained: Sequence[bool]) -> tuple[Flags, Flags, Flags]:
    """Return which operators lie in a call of a module, in one that is trained, and in one of a module that another call trains alone."""
    inside, learns, taught_elsewhere = (np.zeros(len(flow.names), np.bool_) for _ in range(3))
    taught = {(call.path, call.cls) for call in flow.calls if any(trained[call.first : call.last])}
    for call in flow.calls:
        inside[call.first : call.last] = True
        if any(trained[call.first : call.last]):
            learns[call.first : call.last] = True
        elif (call.path, call.cls) in taught:
            taught_elsewhere[call.first : call.last] = True
    return inside, learns, taught_elsewhere
