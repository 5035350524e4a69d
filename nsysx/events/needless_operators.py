"""Operators of an X-ray step that could be left out: of whose results nothing is made, and those that make the same in each step.

Both work on the outermost operators. A tensor of no dimensions may be a number of Python, which bears the name of whatever lay in its
place before: as an argument it says nothing about where a result comes from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import OperatorFlow, in_place, is_collective, is_drawn, is_view
from nsysx.events.operator_names import begins_gradients, writes_lists

#: Operators that take a part which Python's numbers may choose anew in each step.
_PART = re.compile(r"^aten::(select|slice|narrow|as_strided|split\w*|chunk|unbind|roll|tensor_split)$")
#: Operators that draw which rows a step takes.
_CHOSEN = re.compile(r"::(randint|randperm|multinomial)\w*$")
#: Operators that write the same number each time.
_SAME_NUMBER = re.compile(r"^aten::((new_)?(zeros|ones)(_like)?|zero_)$")
#: Operators that may write a number of Python.
_NUMBERED = re.compile(r"::(lift_fresh|scalar_tensor|(new_)?full|full_like|fill_?)$")
#: Operators that make a batch ready for a network.
_PREPARES = re.compile(
    r"^aten::(_?to(_copy)?|contiguous|clone|float|half|bfloat16|(true_)?div|mul|sub|add|neg|clamp|flip|pad|constant_pad_nd|std|var|mean|"
    r"std_mean|var_mean|eq|ne|lt|gt|le|ge|logical_not|bitwise_not|one_hot|rsub)$"
)
#: Operators whose result has dimensions if an argument has, and those that only make room or look at all of a tensor in another shape.
_KEEPS_DIMENSIONS = re.compile(
    r"^aten::(_?to(_copy)?|clone|copy|contiguous|type_as|relu|gelu|silu|sigmoid|tanh|add|sub|rsub|mul|(true_)?div|pow|exp|log|sqrt|rsqrt|neg|"
    r"abs|sin|cos|clamp|where|masked_fill|reciprocal|eq|ne|lt|gt|le|ge|bitwise_\w+|logical_\w+|fill|embedding|index_select|linear|(add)?mm|bmm|"
    r"baddbmm|t|transpose|permute|expand|unsqueeze|slice|cat|stack|_?(log_)?softmax|(native_)?layer_norm|_?convolution|cumsum|sort|argsort|"
    r"arange|index_(add|copy|put)|scatter\w*|tril|triu)_?$"
)
_MAKES_ROOM = re.compile(r"^aten::(new_)?(empty(_like|_strided)?|resize_)$")
_RESHAPES = re.compile(r"^aten::(_?(unsafe_)?view|reshape|(un)?flatten|squeeze|detach|alias)$")
#: Operators that wrappers of ranks let write into tensors that are given.
_WRITES_GIVEN = re.compile(r"^aten::(split_with_sizes_copy|_chunk_cat)$")
#: Which argument of an operator with weights is the data.
_DATA_OF = {
    "linear": 0, "conv1d": 0, "conv2d": 0, "conv3d": 0, "convolution": 0, "embedding": 1, "embedding_bag": 1, "addmm": 1, "layer_norm": 0,
    "lstm": 0, "gru": 0, "matmul": 0, "batch_norm": 0,
}  # fmt: skip


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
    flow: OperatorFlow,
    trained: Sequence[bool],
    to_host: Sequence[bool],
    elsewhere: Collection[int] = (),
    *,
    unfollowed: bool = False,
) -> tuple[list[int], list[int]]:
    """Return the outermost operators (rows) of whose results nothing is made that a gradient, the host or a later step reads, and
    those that only the host reads number by number, of what is trained.

    ``to_host``: operators that copy more than a number to the host; ``elsewhere``: numbers of operators whose results others are given
    that are not of the flow. Both are empty where no later step was recorded that reads anything, but for ``unfollowed``.
    """
    if not (flow.read_later or unfollowed):
        return [], []
    outer, size = outer_operators(flow), len(flow.names)
    learns = outer.within(trained, size)
    kept = kept_operators(flow, outer, learns, to_host, elsewhere)
    reads = outer.within((flow.names[row].endswith(("::item", "::_local_scalar_dense")) for row in range(size)), size)
    needed, read = before(outer.makers, kept), before(outer.makers, kept | reads)
    logged = read & ~needed & behind(outer.sources, learns)
    return [outer.rows[i] for i in np.flatnonzero(~read)], [outer.rows[i] for i in np.flatnonzero(logged)]


def kept_operators(
    flow: OperatorFlow, outer: OuterOperators, learns: Flags, to_host: Sequence[bool], elsewhere: Collection[int]
) -> Flags:
    """Return which outermost operators make what a gradient, the host, a rank, an older tensor or a later step takes.

    ``learns``: those that are trained; ``to_host`` and ``elsewhere``: as for ``unread_operators``.
    """
    size = len(flow.names)
    kept = learns | outer.into_older | outer.within(to_host, size)
    kept |= outer.within((writes_lists(name) or is_collective(name) for name in flow.names), size)
    kept |= outer.within((_WRITES_GIVEN.match(name) is not None for name in flow.names), size)
    kept |= np.array([begins_gradients(flow.names[row]) for row in outer.rows], np.bool_)
    kept |= outer.within((number in flow.read_later or number in elsewhere for number in flow.number), size)
    return kept


def fixed_operators(
    flow: OperatorFlow,
    trained: Sequence[bool],
    copied: Sequence[bool],
    *,
    gives_gradients: Sequence[bool] | None = None,
    changing: Sequence[bool] = (),
    to_host: Sequence[bool] = (),
    weights: Collection[Size] = (),
    counted: Sequence[bool] = (),
    written_out: Sequence[bool] = (),
    same_parts: Sequence[bool] = (),
) -> tuple[list[int], list[int]]:
    """Return the outermost operators (rows) that make the same in each step, of those that are needed for what the step's data makes, and
    the others of them: nothing is known to take their results, which a gradient or a later step may.

    They begin with tensors that were there before the step before this, or with nothing. In the call of a network that is trained these may
    be its weights, read without gradients: none is of the size of a tensor that goes into what is trained, or that an optimizer writes.
    ``copied``: operators that copy from the host, ``to_host``: to it. ``gives_gradients``: as ``trained``, without those before a function
    that has a gradient of its own. ``changing``: operators that are given other sizes in other steps. ``weights``: the sizes of all that
    gradients are added to, nothing where these are not known: all that goes into what is trained may be one then. ``counted``: operators
    of lines that name what counts steps; ``written_out``: of lines in which all numbers are written as such; ``same_parts``: of lines that
    take the same parts in each step.
    None where no earlier step was recorded: what has no name may be of the step before then.
    """
    if not flow.follows:
        return [], []
    flow = replace(flow, made=_without_numbers(flow))
    outer, size = outer_operators(flow), len(flow.names)
    outer = replace(
        outer, makers=_with_writes(flow, outer, outer.makers), sources=_with_writes(flow, outer, outer.sources)
    )
    in_module, in_trained, taught_elsewhere = _of_modules(flow, trained)
    learns = outer.within(trained if gives_gradients is None else gives_gradients, size)
    brought = outer.within(copied, size) & ~_of_nothing(flow, outer)
    changes = learns | brought | outer.older | outer.into_older
    changes |= outer.within((is_drawn(name) for name in flow.names), size)
    same = np.array([_SAME_NUMBER.match(flow.names[row]) is not None for row in outer.rows], np.bool_)
    # What reads a number on its way (unique, bincount) reads the same one from the same, and what makes room for it writes no other.
    numbered = np.array([_NUMBERED.search(flow.names[row]) is not None for row in outer.rows], np.bool_) & ~same
    changes |= numbered & ~np.array([any(written_out[row : row + 1]) for row in outer.rows], np.bool_)
    changes |= np.array([any(counted[row : row + 1]) for row in outer.rows], np.bool_)
    parts = np.array([_PART.match(flow.names[row]) is not None and not in_module[row] for row in outer.rows], np.bool_)
    parts &= ~np.array([any(same_parts[row : row + 1]) for row in outer.rows], np.bool_)
    sends = np.array([is_collective(flow.names[row]) for row in outer.rows], np.bool_)
    optimized = {
        each for row in outer.rows if writes_lists(flow.names[row]) for each in sizes_of(flow.size[row]) if each
    }
    of_trained = [weights] if weights else [outer.unnamed[i] for i in np.flatnonzero(learns)]
    may_be = frozenset[Size](optimized).union(*of_trained)
    may_read = np.array([not may_be.isdisjoint(sizes) for sizes in outer.unnamed], np.bool_)
    of_trained_or_none = outer.within(in_trained, size) | ~in_module[outer.rows]
    changes |= parts | (of_trained_or_none & may_read) | outer.within(taught_elsewhere, size)
    # Shards of weights are sent as they are, and buffers that are kept are filled by others.
    changes |= sends & np.array([bool(sizes) for sizes in outer.unnamed], np.bool_)
    written = _sizes_written(flow, outer).union(*(outer.unnamed[index] for index in np.flatnonzero(sends)))
    changes |= np.array([not written.isdisjoint(sizes) for sizes in outer.unnamed], np.bool_)
    fixed = ~behind(outer.makers, changes)
    if len(changing):  # what chooses others in another step is made of other numbers there
        fixed = ~behind(outer.makers, ~fixed | before(outer.makers, fixed & outer.within(changing, size)))
    fixed = _unwritten(flow, outer, fixed, sends)
    chosen = outer.within((_CHOSEN.search(name) is not None for name in flow.names), size)
    data = behind(outer.sources, (brought | outer.older | parts | chosen) & ~learns)
    if learns.any() and not (data & before(outer.makers, learns)).any():
        data = learns  # the same data in each step, a graph or a field: all is made of that
    of_rows = np.array([any(len(each) > 1 for each in sizes_of(flow.size[row])) for row in outer.rows], np.bool_)
    from_host = behind(outer.sources, brought & of_rows) & ~learns
    fixed &= ~_of_one_batch(flow, outer, learns, may_be if weights else optimized, from_host)
    joined = fixed & before(outer.makers, data & ~fixed)
    if len(to_host):  # the same numbers are read, to make what is joined
        reads = fixed & outer.within(to_host, size)
        joined |= fixed & before(outer.makers, reads & behind(outer.makers, joined))
    rows = np.array(outer.rows)
    return rows[fixed & joined].tolist(), rows[fixed & ~joined].tolist()


def _without_numbers(flow: OperatorFlow) -> list[tuple[int, ...]]:
    """Return what made the arguments of each operator, -1 for a number of Python that bears the name of what had dimensions for sure."""
    sizes = list(map(sizes_of, flow.size))

    def has_dimensions(row: int) -> bool:
        name, given = flow.names[row], sizes[row]
        if _RESHAPES.match(name):
            return bool(given) and math.prod(given[0]) != 1
        if name in ("aten::select", "aten::unbind"):
            return bool(given) and len(given[0]) > 1
        return bool(
            _MAKES_ROOM.match(name) or (_KEEPS_DIMENSIONS.match(name) and (any(given) or name == "aten::arange"))
        )

    arrays = {number for number, row in flow.row_of.items() if has_dimensions(row)}
    return [
        tuple(n if each or n not in arrays else -1 for n, each in zip(made, given, strict=True))
        if len(made) == len(given)
        else made
        for made, given in zip(flow.made, sizes, strict=True)
    ]


def _of_nothing(flow: OperatorFlow, outer: OuterOperators) -> Flags:
    """Return what the step's own operators made of numbers of Python alone, on the host, too: no memory that something else fills."""
    result = np.zeros(len(outer.rows), np.bool_)
    for index, row in enumerate(outer.rows):
        given = outer.older[index] or outer.unnamed[index] or _MAKES_ROOM.match(flow.names[row])
        result[index] = not given and all(result[maker] for maker in outer.makers[index])
    return result


def _with_writes(flow: OperatorFlow, outer: OuterOperators, makers: list[list[int]]) -> list[list[int]]:
    """Return ``makers`` of the outermost operators, with the last one before them that wrote into a tensor whose view they are given.

    A view has a name of its own: what is written into it (``table[:, 0] = column``) does not give the tensor viewed another one.
    """
    whole, wrote, result = list[int](), dict[int, int](), list[list[int]]()
    for index, row in enumerate(outer.rows):
        first = _first_maker(flow, outer, row)
        writes = in_place(flow.names[row])
        whole.append(whole[first] if first is not None and (writes or is_view(flow.names[row])) else index)
        before = {wrote[whole[maker]] for maker in outer.makers[index] if whole[maker] in wrote}
        result.append(sorted({*makers[index], *before}))
        if writes and first is not None:
            wrote[whole[index]] = index
    return result


def _sizes_written(flow: OperatorFlow, outer: OuterOperators) -> set[Size]:
    """Return the sizes of the tensors from before the step that it writes into, and of those whose parts it writes into."""
    written = set[Size]()
    for index in np.flatnonzero(outer.into_older).tolist():
        row: int | None = outer.rows[index]
        while row is not None:
            written.update(sizes_of(flow.size[row])[:1])
            maker = _first_maker(flow, outer, row)
            row = outer.rows[maker] if maker is not None and is_view(flow.names[outer.rows[maker]]) else None
    return written - {()}


def _unwritten(flow: OperatorFlow, outer: OuterOperators, fixed: Flags, sends: Flags) -> Flags:
    """Return which of the fixed operators' results stay as they are: into none is written what is not fixed, as sums into zeros."""
    kept = fixed.copy()
    for index, row in enumerate(outer.rows):
        if kept[index] or not (in_place(flow.names[row]) or sends[index]):
            continue
        while (target := _first_maker(flow, outer, row)) is not None and kept[target]:
            kept[target] = False
            row = outer.rows[target]
            if not is_view(flow.names[row]):
                break
    return ~behind(outer.makers, ~kept)


def _first_maker(flow: OperatorFlow, outer: OuterOperators, row: int) -> int | None:
    """Return the place in ``outer`` of what made the first argument of an operator (row), None for what is older."""
    maker = flow.row_of.get(flow.made[row][0], row) if flow.made[row] else row
    return int(np.searchsorted(outer.rows, maker, side="right")) - 1 if maker < row else None


def _of_one_batch(
    flow: OperatorFlow, outer: OuterOperators, learns: Flags, weights: Collection[Size], from_host: Flags
) -> Flags:
    """Return the operators that make the input of a network ready, or something of its batch, where that comes under no name in each step.

    It may be one batch that a benchmark takes again and again, or one of some that wait on the GPU: made of a tensor with as many rows as
    the network's own input has, or only converted, scaled and turned on the way into it. Where an input of the
    network comes ``from_host``, the batch does, and what lies on the GPU is none of it.
    """
    roots = [frozenset[Size]()] * len(outer.rows)
    prepares = np.zeros(len(outer.rows), np.bool_)
    for index, row in enumerate(outer.rows):
        makers = outer.makers[index]
        roots[index] = outer.unnamed[index].union(*(roots[maker] for maker in makers))
        name = flow.names[row]
        prepares[index] = bool(is_view(name) or _PREPARES.match(name)) and all(prepares[maker] for maker in makers)
    taken, comes, ready = set[int](), False, np.zeros(len(outer.rows), np.bool_)
    for index in np.flatnonzero(learns).tolist():
        row = outer.rows[index]
        argument = _DATA_OF.get(flow.names[row].removeprefix("aten::"))
        sizes, made = sizes_of(flow.size[row]), flow.made[row]
        if argument is None or len(sizes) <= argument or len(made) != len(sizes):
            continue
        if made[argument] < 0 and sizes[argument] and sizes[argument] not in weights:
            taken.add(sizes[argument][0])
        made_of = flow.row_of.get(made[argument], len(flow.names))
        if made_of < row and from_host[np.searchsorted(outer.rows, made_of, side="right") - 1]:
            comes = True
        made_ready = [maker for maker in outer.makers[index] if prepares[maker]]
        taken.update(size[0] for maker in made_ready for size in roots[maker] if size)
        ready[made_ready] = True
    of_input = np.array([not comes and any(size[0] in taken for size in sizes if size) for sizes in roots], np.bool_)
    return of_input | (before(outer.makers, ready) & prepares)


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
