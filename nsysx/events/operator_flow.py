"""Which calls of modules need the result of another call: from the operators of an X-ray step, each of which says what made its arguments.

An operator's text names, for each tensor that it is given, the operator that made it (``work_operators``). A tensor that is older than
the X-ray, or that no operator made, has no such name. A tensor that an operator writes in place is named after that from
then on. If it is a view the tensor viewed has the same, too; where that has no name it may be any of its size that is viewed later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
import polars as pl

from nsysx.events.event_bounds import MOST_FLOW_OPERATORS
from nsysx.events.layers import layer_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_beside import recorded_beside
from nsysx.frames.intervals import I64

T = TypeVar("T")

ID = r", op_id = (\d{1,18})\b"
MADE = r"input_op_ids = (\[.*\])"
#: The sizes of all arguments, and that of the first one.
SIZES = r"sizes = \[([\[\]\d, ]*)\]"
#: The sizes of each argument.
DIMENSIONS = re.compile(r"\[([\d, ]*)\]")
_EACH = re.compile(r"\((\d{1,18}),(-?\d{1,9})\)")
#: Operators whose result is a view of their first argument.
_VIEWS = re.compile(
    r"^aten::(select|slice|narrow|_?(unsafe_)?view(_as)?|reshape(_as)?|as_strided|(un)?squeeze|transpose|permute|numpy_T|[tT]|expand(_as)?|"
    r"chunk|(tensor_)?split(_with_sizes)?|unbind|(un)?flatten|movedim|swapaxes|diagonal|detach|alias)$"
)
#: Operators whose result is drawn.
_DRAWN = re.compile(r"rand|normal_|uniform|bernoulli|dropout|multinomial|exponential")
#: Operators that write into their first argument.
_IN_PLACE = re.compile(r"^aten::[a-z]\w*[^_]_$")
#: The operators of a flow, and those of one with collectives: the latter's results bear the number of the range within.
_TORCHS = r"^aten::"
_COLLECTIVE = r"^_?c10d(_functional)?::|^record_param_comms$"
#: Those of packages that make the same of the same, and draw nothing.
_PACKAGES = r"^torch_(scatter|sparse|spline_conv)::|^torch_cluster::(knn|radius|grid|nearest)$|^torchvision::"
WITH_COLLECTIVES = f"{_TORCHS}|{_COLLECTIVE}|{_PACKAGES}"


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module in an X-ray step: its path and class, when, on which thread, and the operators in it ([first, last))."""

    path: str
    cls: str
    thread: int
    start_ns: int
    end_ns: int
    first: int
    last: int


@dataclass(frozen=True)
class OperatorFlow:
    """Operators of one X-ray step on the thread that calls the modules, in order of time, and the calls of modules among them.

    ``number``: of each operator its own, ``made``: of each argument the number of the one that made it, -1 for one without a name.
    ``which``: of each argument which of that one's results it is, nothing where all are the first.
    ``start_ns`` and ``end_ns`` on ``thread``. ``size``: those of the arguments as text. ``calls``: outer ones before inner ones.
    ``operators``: the pattern of the names of its operators.
    ``sequence``: the number of the node of autograd that each would make next, -1 without one. ``read_later``: what operators of this
    thread read behind the step, numbers of operators; ``later_sizes``: of those that have dimensions. ``follows``: the operators of the
    step before it were recorded, too; ``precedes``: those of the step behind it were.
    """

    names: Sequence[str]
    number: Sequence[int]
    made: Sequence[tuple[int, ...]]
    size: Sequence[str]
    calls: tuple[ModuleCall, ...]
    thread: int = 0
    start_ns: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    end_ns: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    sequence: Sequence[int] = ()
    read_later: frozenset[int] = frozenset()
    later_sizes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    follows: bool = False
    precedes: bool = False
    which: Sequence[tuple[int, ...]] = ()
    operators: str = _TORCHS

    @cached_property
    def row_of(self) -> dict[int, int]:
        """The row of each operator by its number."""
        return {number: row for row, number in enumerate(self.number)}

    @cached_property
    def makers(self) -> list[list[int]]:
        """Of each operator the rows of those before it that made its arguments."""
        return [
            [self.row_of[number] for number in made if self.row_of.get(number, len(self.made)) < row]
            for row, made in enumerate(self.made)
        ]

    @cached_property
    def outermost(self) -> list[int]:
        """The rows of the operators that lie in no other."""
        return outermost_rows(self.start_ns, self.end_ns)

    @cached_property
    def outermost_spans(self) -> list[tuple[int, int]]:
        """Of each operator that lies in no other, in order: its row, and the row behind the last operator in it."""
        return list(zip(self.outermost, [*self.outermost[1:], len(self.names)], strict=True))

    def outermost_of(self, first: int, last: int) -> list[int]:
        """Return the rows among these ([first, last)) that lie in no other of them."""
        return [first + row for row in outermost_rows(self.start_ns[first:last], self.end_ns[first:last])]


def outermost_rows(start_ns: I64, end_ns: I64) -> list[int]:
    """Return those of some ranges of one thread, in order of time, that lie in no other of them."""
    outer: list[int] = []
    for row, start in enumerate(start_ns.tolist()):
        if not outer or start >= end_ns[outer[-1]]:
            outer.append(row)
    return outer


def is_collective(name: str) -> bool:
    """Return whether an operator is a collective, a send or a receive."""
    return re.match(_COLLECTIVE, name) is not None


@lru_cache(maxsize=4096)  # few names, each of thousands of operators
def is_view(name: str) -> bool:
    """Return whether the result of an operator is a view of its first argument."""
    return _VIEWS.match(name) is not None


def handed_from(flow: OperatorFlow, number: int, hands_on: Callable[[str], bool]) -> tuple[int, tuple[int, ...]]:
    """Return the operator (row of the flow) that made a tensor, -1 for none of it, behind those that hand their first argument on, and
    these, the last first.
    """
    between, maker = list[int](), flow.row_of.get(number, -1)
    while maker >= 0 and hands_on(flow.names[maker]) and flow.made[maker]:
        between.append(maker)
        maker = flow.row_of.get(flow.made[maker][0], -1)
    return maker, tuple(between)


def is_drawn(name: str) -> bool:
    """Return whether the result of an operator is drawn."""
    return _DRAWN.search(name) is not None


@lru_cache(maxsize=4096)  # few names, each of thousands of operators
def in_place(name: str) -> bool:
    """Return whether an operator writes into its first argument."""
    return _IN_PLACE.match(name) is not None


def once_of_flow(flow: OperatorFlow, profile: Profile, make: Callable[[OperatorFlow, Profile], T]) -> T:
    """Return ``make(flow, profile)``, made once for all who ask about the same flow with the same function."""
    made, key = profile.once(_made_of_flows), (id(flow), make)
    if key not in made:
        made[key] = flow, make(flow, profile)  # the flow is kept, so that no other has its place in memory
    value: T = made[key][1]
    return value


def _made_of_flows(
    profile: Profile,
) -> dict[tuple[int, Callable[[OperatorFlow, Profile], Any]], tuple[OperatorFlow, Any]]:
    return {}


def flow_of(profile: Profile) -> OperatorFlow | None:
    """Return the operators of an X-ray step of the shown process, None where none were recorded with what made their arguments."""
    return profile.once(_flow)


def _flow(profile: Profile) -> OperatorFlow | None:
    return next(flows_of(profile), None)


def flows_of(profile: Profile, operators: str = _TORCHS) -> Iterator[OperatorFlow]:
    """Yield the operators with such names of each X-ray step of the shown process, first that of ``flow_of``."""
    ranges = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process) & ~(pl.col("crossing") | pl.col("open") | pl.col("repeated"))
    )
    modules = ranges.filter((ranges["kind"] == "module") & ranges["own"])
    ops = ranges.filter((pl.col("kind") == "op") & pl.col("name").cast(pl.String).str.contains(operators))
    # A program of functions alone has no calls of modules: its operators are those of the thread that takes the steps.
    callers = modules if modules.height else ranges.filter((ranges["kind"] == "step") & ranges["own"])
    if not callers.height:
        return
    main = int(callers["thread"].mode().sort()[0])
    for start, end in _steps(profile, ranges, ops, main):
        inside = (pl.col("start_ns") >= start) & (pl.col("end_ns") <= end)
        called = modules.filter(inside)
        if modules.height and not called.height:
            continue
        thread = int(called["thread"].mode().sort()[0]) if called.height else main
        of_thread = pl.col("thread") == thread
        theirs = ops.filter(inside & of_thread).sort("start_ns")
        if not theirs.height or theirs.height > MOST_FLOW_OPERATORS:
            continue
        flow = _read(theirs, called.filter(of_thread))
        if flow is None:
            return
        before, behind = recorded_beside(ranges, ops.filter(of_thread), (start, end), theirs.height)
        readers = ops.filter(of_thread, pl.col("start_ns") >= end) if behind else ops.clear()
        later = _reads(readers)
        sizes = _sizes_read(readers, later.intersection(flow.number))
        yield replace(flow, read_later=later, later_sizes=sizes, follows=before, precedes=behind, operators=operators)


def operators_before(profile: Profile) -> OperatorFlow | None:
    """Return the operators of the thread of ``flow_of`` in the step before it, None where that was not recorded; without modules."""
    flow = flow_of(profile)
    if flow is None or not flow.follows:
        return None
    ranges = profile.ranges.ranges.filter((pl.col("process") == profile.process) & ~pl.col("repeated"))
    first = int(flow.start_ns[0])
    borders = ranges.filter((ranges["kind"] == "step") & ranges["own"] & (ranges["start_ns"] <= first))["start_ns"]
    begin = borders.sort()[-2] if len(borders) > 1 else first
    ops = ranges.filter((pl.col("kind") == "op") & pl.col("name").cast(pl.String).str.starts_with("aten::"))
    theirs = ops.filter(
        pl.col("thread") == flow.thread, pl.col("start_ns") >= begin, pl.col("end_ns") <= first, ~pl.col("crossing")
    )
    return _read(theirs.sort("start_ns"), ranges.clear()) if theirs.height else None


def _reads(ops: pl.DataFrame) -> frozenset[int]:
    """Return the numbers of the operators that made what these are given."""
    return frozenset(number for number, _ in results_given(ops["label"]))


def _sizes_read(ops: pl.DataFrame, made: frozenset[int]) -> dict[int, tuple[int, ...]]:
    """Return the sizes of what some operators made (numbers), as the first of these operators that is given it says."""
    label, sizes = ops["label"].cast(pl.String), dict[int, tuple[int, ...]]()
    if not made or not ops.height:
        return sizes
    theirs = label.filter(label.str.contains_any([f"({number}," for number in made])).unique(maintain_order=True)
    for each, given in zip(theirs.str.extract(SIZES, 1), theirs.str.extract(MADE, 1), strict=True):
        dimensions, makers = DIMENSIONS.findall(each or ""), results_in(given or "")
        if len(dimensions) != len(makers):
            continue
        for (number, which), size in zip(makers, dimensions, strict=True):
            if which == 0 and size and number in made:
                sizes.setdefault(number, tuple(map(int, re.findall(r"\d+", size))))
    return sizes


def results_given(labels: pl.Series) -> set[tuple[int, int]]:
    """Return the results that operators with these labels are given: the operator's number, and which. Loops take the same ones again and
    again: each is read once.
    """
    named = labels.cast(pl.String).str.extract(r"input_op_ids = (.*)").str.extract_all(r"\(\d+,\d+\)").explode()
    return {result for text in named.drop_nulls().unique().to_list() for result in results_in(text)}


def _steps(profile: Profile, ranges: pl.DataFrame, ops: pl.DataFrame, main: int) -> Iterator[tuple[int, int]]:
    """Return start and end of the steps that hold operators, first those that most calls of a thread (``main``) of other steps correspond
    to, the last one last: it may have been cut short.
    """
    if not ops.height:
        return
    steps = ranges.filter((ranges["kind"] == "step") & ranges["own"]).sort("start_ns")
    times = ops["start_ns"].sort().to_numpy()
    start, end = (steps[c].to_numpy() for c in ("start_ns", "end_ns"))
    held = np.flatnonzero(np.searchsorted(times, end) > np.searchsorted(times, start))
    like = np.empty(0, np.int64)
    if profile.ranges.repeats is not None:
        calls, repeated = profile.attributed.api_calls, profile.ranges.repeats.of
        repeated = repeated[(repeated >= 0) & (calls["thread"].to_numpy() == main)]
        like = np.sort(calls["start_ns"].to_numpy()[repeated])
    often = np.searchsorted(like, end[held]) - np.searchsorted(like, start[held])
    last = np.arange(len(held)) == len(held) - 1
    for row in held[np.lexsort((-held, last, -often))].tolist():
        yield int(start[row]), int(end[row])


def _read(ops: pl.DataFrame, modules: pl.DataFrame) -> OperatorFlow | None:
    text = ops["label"].cast(pl.String)
    numbers = text.str.extract(ID, 1).cast(pl.Int64, strict=False).fill_null(-1).to_list()
    made = text.str.extract(MADE, 1)
    if made.null_count() == len(made):
        return None
    names = ops["name"].cast(pl.String).to_list()
    starts, ends = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    sizes = text.str.extract(SIZES, 1).fill_null("").to_list()
    spans = list(zip(starts.tolist(), ends.tolist(), strict=True))
    results = [results_in(each or "") for each in made.to_list()]
    named = [tuple(number if which >= 0 else -1 for number, which in each) for each in results]
    given = _without_numbers(_passed_on(named, sizes, numbers, names, spans), sizes, numbers, names)
    layer = layer_of(modules)
    rows = layer.rows
    first = np.searchsorted(starts, rows["start_ns"].to_numpy())
    last = np.searchsorted(starts, rows["end_ns"].to_numpy())
    columns = rows.select(
        pl.col("name").cast(pl.String).fill_null(""),
        pl.col("cls").cast(pl.String).fill_null(""),
        "thread",
        "start_ns",
        "end_ns",
    )
    called = zip(columns.iter_rows(), first.tolist(), last.tolist(), strict=True)
    calls = tuple(
        ModuleCall(path, cls, thread=thread, start_ns=start, end_ns=end, first=a, last=b)
        for (path, cls, thread, start, end), a, b in called
        if b > a
    )
    return OperatorFlow(
        names,
        numbers,
        made=given,
        size=sizes,
        calls=calls,
        thread=int(ops["thread"][0]),
        start_ns=starts,
        end_ns=ends,
        sequence=ops["number"].to_list(),
        which=[tuple(which for _, which in each) for each in results],
    )


def results_in(text: str) -> list[tuple[int, int]]:
    """Return which operator made each argument (its number) and as which of its results, a negative one where torch names none."""
    return [(int(number), int(which)) for number, which in _EACH.findall(text)]


def _without_numbers(
    made: list[tuple[int, ...]], sizes: Sequence[str], numbers: Sequence[int], names: Sequence[str]
) -> list[tuple[int, ...]]:
    """Return what made the arguments of each operator, -1 for a number of Python that bears the name of what lay in its memory.

    It has no dimensions and the name of an operator before the flow, where most operators of the same name and sizes are given none.
    """
    alike: dict[tuple[str, str], list[int]] = {}
    for row, name in enumerate(names):
        alike.setdefault((name, sizes[row]), []).append(row)
    real, first = list(made), min((number for number in numbers if number >= 0), default=0)
    for (_, text), rows in alike.items():
        dimensions = DIMENSIONS.findall(text)
        for argument, size in enumerate(dimensions):
            if size or any(len(made[row]) != len(dimensions) for row in rows):
                continue
            older = [row for row in rows if 0 <= made[row][argument] < first]
            if older and 2 * sum(made[row][argument] < 0 for row in rows) > len(rows):
                for row in older:
                    real[row] = (*real[row][:argument], -1, *real[row][argument + 1 :])
    return real


def _passed_on(
    made: list[tuple[int, ...]],
    sizes: Sequence[str],
    numbers: Sequence[int],
    names: Sequence[str],
    spans: Sequence[tuple[int, int]],
) -> list[tuple[int, ...]]:
    """Return what made the arguments of each operator, -1 where a name is that of what lay in the memory of the argument before.

    An operator within another is given what that is given, or what was made in it; autocast calls one again with weights that it has kept.
    A tensor of some dimensions is no number elsewhere, nor is what was made within an operator and not returned by it. ``spans``: start and
    end of each.
    """
    row_of = {number: row for row, number in enumerate(numbers)}
    passed, around, arrays, outermost = list(made), list[int](), set[int](), list[int]()
    for row, (start, _) in enumerate(spans):
        while around and start >= spans[around[-1]][1]:
            around.pop()
        if around and names[around[-1]] != names[row]:
            outer, given = around[-1], passed[around[-1]]
            passed[row] = tuple(n if n in given or row_of.get(n, -1) > outer else -1 for n in made[row])
        around.append(row)
        outermost.append(around[0])
        makers = [row_of.get(n, row) for n in passed[row]]
        within = {numbers[maker] for maker in makers if outermost[maker] not in (maker, around[0])}
        dimensions = DIMENSIONS.findall(sizes[row])
        if len(dimensions) == len(made[row]):
            arrays.update(n for n, each in zip(passed[row], dimensions, strict=True) if each)
            passed[row] = tuple(
                n if each or (n not in arrays and n not in within) else -1
                for n, each in zip(passed[row], dimensions, strict=True)
            )
    return passed
