"""Reductions over the ranks of which only the sum is read: what is added can be added first, and then reduced once.

``all_reduce(a) + all_reduce(b)`` is ``all_reduce(a + b)``. In a forward the program adds them; in a backward autograd does, where several
layers are given one input, each of which reduces the gradient of it: the engine runs ``aten::add`` and then ``aten::add_`` for each
further gradient of a tensor. So the operators of all threads of an X-ray step are looked at, autograd's among them.
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.code_lines import are_nodes
from nsysx.events.event_bounds import MOST_FLOW_OPERATORS
from nsysx.events.message_calls import with_messages
from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.operator_flow import ID, MADE, SIZES, outermost_rows, results_in
from nsysx.events.profile import Profile

#: Reductions whose result has the number of what they were given first, and those that have one, with what waits for it.
_IN_PLACE = re.compile(r"^(c10d::(allreduce_|_reduce_scatter_base_)|_c10d_functional::all_reduce_)$")
_WAITS = re.compile(r"^_c10d_functional::(wait_tensor|_wrap_tensor_autograd)$")
_FUNCTIONAL = re.compile(r"^_c10d_functional::(all_reduce|reduce_scatter_tensor)$")
#: Operators of any library. A function of autograd that Python defines, and the node of one, may launch kernels without any.
_OPERATORS, _ENGINE, _FUNCTIONS = r"^[^:]+::", r"^(torch::)?autograd::", r"^[^:]*[^:\d]$"
_ADDS = re.compile(r"^aten::add_?$")
#: What hands on all numbers of a tensor, in another shape, type or place, or times a number of Python's.
_HANDS_ON = re.compile(
    r"^aten::(_?(unsafe_)?view(_as)?|reshape(_as)?|_reshape_alias|(un)?flatten|(un)?squeeze|transpose|permute|movedim|numpy_T|[tT]|mT|mH|"
    r"adjoint|alias|to|_to_copy|contiguous|clone|type_as)$"
)
#: What a function may call besides, that hands on its input: it makes a tensor to receive into.
_BESIDE = re.compile(r"^(aten::(detach|as_strided|(new_)?empty\w*|copy_)|c10d::\w+|_c10d_functional::\w+)$")
_TIMES = re.compile(r"^aten::(mul|div)_?$")
#: Reductions of which a sum is none of sums.
_OTHER_THAN_SUMS = r"_(Min|Max|MinMax|Prod)_"


class Reduction(NamedTuple):
    """A reduction in an X-ray step: the instant on a ``thread`` at which a line of the program asks for it.

    In backward that is the call in forward of the function of autograd whose node reduces. ``function``: its name, if in forward it only
    hands on its input, or what all ranks have of that; else "".
    """

    thread: int
    start_ns: int
    function: str = ""


class AddedReductions(NamedTuple):
    """``groups`` of reductions, in X-ray steps, of each of which the sum is all that is read; ``sums``: thread and instant of each sum.

    ``ops``: the GPU ops of steady steps that correspond to them, ``needless``: of these all but one of each group.
    """

    groups: tuple[tuple[Reduction, ...], ...] = ()
    ops: frozenset[int] = frozenset()
    needless: frozenset[int] = frozenset()
    sums: tuple[tuple[int, int], ...] = ()


class BothWays(NamedTuple):
    """Those of forward (or outside of both), and those of backward."""

    forward: AddedReductions = AddedReductions()
    backward: AddedReductions = AddedReductions()


def added_reductions(profile: Profile) -> BothWays:
    """Return the reductions of the shown process of which only the sum is read; none where no X-ray says what made what."""
    return profile.once(_find)


class _OneReduced(NamedTuple):
    """A reduction with what it has in common with those that it could be one with: name, sizes, ranks, bytes, the backward that it is in.

    ``row``: that of its operator; ``call``: the API call that launches it.
    """

    row: int
    same: tuple[object, ...]
    call: int
    back: bool

    @property
    def scattered_back(self) -> bool:
        """Whether it is a reduce-scatter of a backward."""
        return self.back and "reduce_scatter" in str(self.same[0])


def _find(profile: Profile) -> BothWays:
    if profile.trace.nccl is None or profile.ranges.repeats is None:
        return BothWays()
    ops = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process) & (pl.col("kind") == "op"),
        ~(pl.col("crossing") | pl.col("open") | pl.col("repeated")),
    )
    name = ops["name"].cast(pl.String)
    if not name.str.contains("c10d").any():
        return BothWays()
    functions = ops.filter((pl.col("number") >= 0) & name.str.contains(_FUNCTIONS))
    ops = ops.filter(name.str.contains(_OPERATORS) & ~name.str.contains(_ENGINE)).sort("thread", "start_ns")
    if ops.height > MOST_FLOW_OPERATORS:
        return BothWays()
    search = _SumSearch(ops, functions)
    sent = list(_sent(profile, search))
    if len(sent) < 2:
        return BothWays()
    of_sum: dict[int, list[_OneReduced]] = defaultdict(list)
    for each in sent:
        for row in search.sums(each.row):
            of_sum[row].append(each)
    # A sum holds all that those before it hold: the last one that several go into is that of the whole group.
    groups, sum_of = dict[tuple[int, ...], tuple[_OneReduced, ...]](), dict[tuple[int, ...], int]()
    grouped = set[int]()
    for row in sorted(of_sum, key=lambda row: (-len(of_sum[row]), row)):
        alike: dict[tuple[object, ...], list[_OneReduced]] = defaultdict(list)
        for each in of_sum[row]:
            if each.row not in grouped:
                alike[each.same].append(each)
        for theirs in alike.values():
            if len(theirs) > 1:
                grouped.update(each.row for each in theirs)
                rows = tuple(each.row for each in theirs)
                groups[rows], sum_of[rows] = tuple(theirs), row
    calls = _FunctionCalls(functions, ops)
    forward, backward = (
        _in_steady_steps(profile, search, calls, [(sum_of[r], g) for r, g in groups.items() if g[0].back == back])
        for back in (False, True)
    )
    return BothWays(forward, backward)


def _sent(profile: Profile, search: _SumSearch) -> Iterator[_OneReduced]:
    """Yield the sums over the ranks among the operators, with the messages that NCCL notes of them."""
    begun = _backwards(profile)
    messages = profile.once(with_messages).filter(
        pl.col("bytes").is_not_null() & ~pl.col("name").str.contains(_OTHER_THAN_SUMS)
    )
    columns = ("call_start_ns", "communicator", "bytes", "call", "phase", "recompute")
    of_thread = {
        int(str(thread)): list(part[columns].sort("call_start_ns").iter_rows())
        for (thread,), part in messages.group_by("thread", maintain_order=True)
    }
    for row in search.reductions:
        sent = of_thread.get(search.thread[row], [])
        first, last = (bisect_left(sent, each[row], key=itemgetter(0)) for each in (search.start_ns, search.end_ns))
        if last - first != 1:
            continue
        _, communicator, size, call, phase, again = sent[first]
        back = phase == "backward" and not again
        backward = int(np.searchsorted(begun, search.start_ns[row])) if back else 0
        same = search.names[row], tuple(search.sizes(row)[:1]), communicator, size, backward
        yield _OneReduced(row, same, call, back)


def _backwards(profile: Profile) -> list[int]:
    """Return when the backwards of the shown process begin."""
    phases = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process) & (pl.col("kind") == "phase") & (pl.col("name") == "backward")
    )
    return sorted(phases["start_ns"].to_list())


class _FunctionCalls:
    """Functions of autograd, in forward, and their nodes, in backward, which carry the same number."""

    def __init__(self, functions: pl.DataFrame, operators: pl.DataFrame) -> None:
        nodes = are_nodes(functions["name"])
        self._nodes, self._operators = functions.filter(nodes), operators
        called = functions.filter(~nodes).sort("start_ns").unique("number", keep="first", maintain_order=True)
        columns = ("number", "thread", "start_ns", "end_ns", "name")
        self._called = {number: call for number, *call in called[columns].iter_rows()}

    def asked(self, thread: int, start_ns: int) -> Reduction:
        """Return when the program asks for what is reduced at an instant on a thread."""
        around = _on(self._nodes, thread).filter(pl.col("start_ns") <= start_ns, pl.col("end_ns") > start_ns)
        call = self._called.get(around["number"][-1]) if around.height else None
        if call is None:
            return Reduction(thread, start_ns)
        of_call, begin, end, name = call
        inside = _on(self._operators, of_call).filter(pl.col("start_ns").is_between(begin, end, closed="left"))
        only = all(_HANDS_ON.match(each) or _BESIDE.match(each) for each in inside["name"].cast(pl.String).unique())
        return Reduction(of_call, begin, name if only else "")


def _on(ranges: pl.DataFrame, thread: int) -> pl.DataFrame:
    return ranges.filter(ranges["thread"] == thread)


def _in_steady_steps(
    profile: Profile, search: _SumSearch, functions: _FunctionCalls, by_sum: Sequence[tuple[int, Sequence[_OneReduced]]]
) -> AddedReductions:
    repeats, steady = profile.ranges.repeats, profile.steady_ops
    if not by_sum or repeats is None:
        return AddedReductions()
    sums, groups = zip(*by_sum, strict=True)
    asked = [tuple(functions.asked(search.thread[e.row], search.start_ns[e.row]) for e in group) for group in groups]
    # What is scattered in backward was gathered in forward, by a function that can be called once, too, where it is known.
    told = [n for n, each in enumerate(asked) if not groups[n][0].scattered_back or all(e.function for e in each)]
    like = np.append(repeats.like, -1)[steady["call"].fill_null(-1).to_numpy()]
    every, more = ([each.call for n in told for each in groups[n][begin:]] for begin in (0, 1))
    ops = steady["op"].to_numpy()
    return AddedReductions(
        tuple(asked[n] for n in told),
        frozenset(ops[np.isin(like, every)].tolist()),
        frozenset(ops[np.isin(like, more)].tolist()),
        tuple((search.thread[sums[n]], search.start_ns[sums[n]]) for n in told),
    )


class _SumSearch:
    """Operators of all threads, by thread and time: what each is given, and who reads what it makes.

    ``functions`` of Python are no operators; what one is given and no operator in it, its own kernels may read.
    """

    def __init__(self, ops: pl.DataFrame, functions: pl.DataFrame) -> None:
        text = ops["label"].cast(pl.String)
        self.names: list[str] = ops["name"].cast(pl.String).to_list()
        self.thread, self.start_ns, self.end_ns = (ops[c].to_list() for c in ("thread", "start_ns", "end_ns"))
        self.number = text.str.extract(ID, 1).cast(pl.Int64, strict=False).fill_null(-1).to_list()
        self._made = text.str.extract(MADE, 1).fill_null("").to_list()
        self._sizes = text.str.extract(SIZES, 1).fill_null("").to_list()
        self._readers = self._read(ops)
        self._read_by_functions = self._read_alone(functions)
        self.reductions = [
            row for row, name in enumerate(self.names) if _IN_PLACE.match(name) or _FUNCTIONAL.match(name)
        ]

    def sizes(self, row: int) -> list[Size]:
        """Return the sizes of the arguments of an operator."""
        return sizes_of(self._sizes[row])

    def makers_of(self, row: int) -> list[int]:
        """Return the numbers of what made the arguments of an operator, -1 for one without a name."""
        return [number if which >= 0 else -1 for number, which in results_in(self._made[row])]

    def _read(self, ops: pl.DataFrame) -> dict[int, list[int]]:
        """Return of each number the outermost operators that read it, in order of time."""
        outer = np.full(ops.height, -1)
        threads = ops["thread"].to_numpy()
        borders = [0, *(np.flatnonzero(np.diff(threads)) + 1).tolist(), ops.height]
        start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
        for a, b in itertools.pairwise(borders):
            rows = outermost_rows(start[a:b], end[a:b])
            outer[a:b] = a + np.repeat(rows, np.diff([*rows, b - a]))
        numbers = (
            pl.Series(self._made, dtype=pl.String)
            .str.extract_all(r"\((\d{1,18}),\d")
            .list.eval(pl.element().str.extract(r"(\d+)", 1).cast(pl.Int64))
        )
        read = pl.DataFrame({"number": numbers, "row": outer, "start": start[outer]}).explode("number").drop_nulls()
        read = read.unique(["number", "row"]).sort("start", "row").group_by("number").agg("row")
        return dict(read.iter_rows())

    def _read_alone(self, functions: pl.DataFrame) -> dict[int, list[int]]:
        """Return of each number when functions read it that no operator in them reads."""
        made = functions["label"].cast(pl.String).str.extract(MADE, 1).fill_null("")
        read = dict[int, list[int]]()
        for thread, start, end, text in zip(
            *(functions[c] for c in ("thread", "start_ns", "end_ns")), made, strict=True
        ):
            for number in {number for number, which in results_in(text) if which >= 0}:
                readers = self._readers.get(number, ())
                if not any(self.thread[r] == thread and start <= self.start_ns[r] < end for r in readers):
                    read.setdefault(number, []).append(start)
        return read

    def _behind(self, number: int, when_ns: int) -> list[int]:
        """Return the outermost operators that read what has this number from an instant on; none where a function reads it, too."""
        if any(start >= when_ns for start in self._read_by_functions.get(number, ())):
            return []
        return [row for row in self._readers.get(number, ()) if self.start_ns[row] >= when_ns]

    def _next(self, number: int, when_ns: int) -> set[int]:
        """Return what reads a result, past what waits for that or wraps it: such a tensor may have either number."""
        waiting, readers = [number], set[int]()
        while waiting:
            for row in self._behind(waiting.pop(), when_ns):
                if _WAITS.match(self.names[row]):
                    waiting.append(self.number[row])
                else:
                    readers.add(row)
        return readers

    def sums(self, row: int) -> list[int]:
        """Return the sums (rows), in order, into which alone goes what came with a reduction."""
        given, sums = self.makers_of(row), list[int]()
        # What is reduced in place keeps its number, or is named after the reduction, which returns it.
        numbers = {*given[:1], self.number[row]} if _IN_PLACE.match(self.names[row]) else {self.number[row]}
        when = self.end_ns[row]
        while numbers:
            readers = set[int]().union(*(self._next(number, when) for number in numbers if number >= 0))
            if len(readers) != 1:
                break
            (reader,) = readers
            if _ADDS.match(self.names[reader]):
                sums.append(reader)
            elif not self._hands_on(reader):
                break
            numbers, when = {self.number[reader]}, self.start_ns[reader]
        return sums

    def _hands_on(self, row: int) -> bool:
        name, given = self.names[row], self.makers_of(row)
        scaled = _TIMES.match(name) and len(given) > 1 and given[1] < 0 and math.prod(self.sizes(row)[1]) == 1
        return bool(_HANDS_ON.match(name) or scaled)
