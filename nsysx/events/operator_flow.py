"""Which calls of modules need the result of another call: from the operators of an X-ray step, each of which says what made its arguments.

An operator's text names, for each tensor that it is given, the operator that made it (``work_operators``). A tensor that is older than
the X-ray, or that no operator made, has no such name. A tensor that an operator writes in place is named after that from
then on. If it is a view the tensor viewed has the same, too; where that has no name it may be any of its size that is viewed later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events.event_bounds import MOST_FLOW_OPERATORS
from nsysx.events.layers import layer_of
from nsysx.events.profile import Profile

_ID = r", op_id = (\d{1,18})\b"
_MADE = r"input_op_ids = (\[.*\])"
#: The size of the first argument.
_SIZE = r"sizes = \[(\[[\d, ]*\])"
_EACH = re.compile(r"\((\d{1,18}),(-?\d{1,9})\)")
#: Operators whose result is a view of their first argument.
_VIEWS = re.compile(
    r"^aten::(select|slice|narrow|_?(unsafe_)?view(_as)?|reshape(_as)?|as_strided|(un)?squeeze|transpose|permute|numpy_T|[tT]|expand(_as)?|"
    r"chunk|(tensor_)?split(_with_sizes)?|unbind|(un)?flatten|movedim|swapaxes|diagonal|detach|alias)$"
)
#: Operators that write into their first argument.
_IN_PLACE = re.compile(r"^aten::[a-z]\w*[^_]_$")


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

    ``number``: of each operator its own, ``made``: the numbers of those that made its arguments, -1 for a first one without a name.
    ``size``: that of the first argument as text. ``calls``: outer ones before inner ones.
    """

    names: Sequence[str]
    number: Sequence[int]
    made: Sequence[tuple[int, ...]]
    size: Sequence[str]
    calls: tuple[ModuleCall, ...]


def flow_of(profile: Profile) -> OperatorFlow | None:
    """Return the operators of an X-ray step of the shown process, None where none were recorded with what made their arguments."""
    return profile.once(_flow)


def _flow(profile: Profile) -> OperatorFlow | None:
    ranges = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process) & ~(pl.col("crossing") | pl.col("open") | pl.col("repeated"))
    )
    modules = ranges.filter((pl.col("kind") == "module") & pl.col("own"))
    ops = ranges.filter((pl.col("kind") == "op") & pl.col("name").cast(pl.String).str.starts_with("aten::"))
    for start, end in _last_steps(ranges, ops):
        inside = (pl.col("start_ns") >= start) & (pl.col("end_ns") <= end)
        called = modules.filter(inside)
        if not called.height:
            continue
        thread = int(called["thread"].mode().sort()[0])
        theirs = ops.filter(inside & (pl.col("thread") == thread)).sort("start_ns")
        if not theirs.height or theirs.height > MOST_FLOW_OPERATORS:
            continue
        return _read(theirs, called.filter(pl.col("thread") == thread))
    return None


def _last_steps(ranges: pl.DataFrame, ops: pl.DataFrame) -> Iterator[tuple[int, int]]:
    """Return start and end of the steps that hold operators, the last but one first: the last one may have been cut short."""
    if not ops.height:
        return
    steps = ranges.filter((pl.col("kind") == "step") & pl.col("own")).sort("start_ns")
    times = ops["start_ns"].sort().to_numpy()
    start, end = (steps[c].to_numpy() for c in ("start_ns", "end_ns"))
    held = np.flatnonzero(np.searchsorted(times, end) > np.searchsorted(times, start))
    for row in [*held[-2:-1].tolist(), *held[-1:].tolist()]:
        yield int(start[row]), int(end[row])


def _read(ops: pl.DataFrame, modules: pl.DataFrame) -> OperatorFlow | None:
    text = ops["label"].cast(pl.String)
    numbers = text.str.extract(_ID, 1).cast(pl.Int64, strict=False).fill_null(-1).to_list()
    made = text.str.extract(_MADE, 1)
    if made.null_count() == len(made):
        return None
    given = [_makers(each or "") for each in made.to_list()]
    layer = layer_of(modules)
    rows, starts = layer.rows, ops["start_ns"].to_numpy()
    first = np.searchsorted(starts, rows["start_ns"].to_numpy())
    last = np.searchsorted(starts, rows["end_ns"].to_numpy())
    columns = rows.select(
        pl.col("name").cast(pl.String).fill_null(""),
        pl.col("cls").cast(pl.String).fill_null(""),
        "thread",
        "start_ns",
        "end_ns",
    )
    spans = zip(columns.iter_rows(), first.tolist(), last.tolist(), strict=True)
    calls = tuple(
        ModuleCall(path, cls, thread, start, end, a, b) for (path, cls, thread, start, end), a, b in spans if b > a
    )
    sizes = text.str.extract(_SIZE, 1).fill_null("").to_list()
    return OperatorFlow(ops["name"].cast(pl.String).to_list(), numbers, given, sizes, calls)


def _makers(text: str) -> tuple[int, ...]:
    pairs = [(int(number), int(result)) for number, result in _EACH.findall(text)]
    makers = tuple(number for number, result in pairs if result >= 0)
    return makers if not pairs or pairs[0][1] >= 0 else (-1, *makers)


def depth(flow: OperatorFlow, calls: Sequence[ModuleCall]) -> int:
    """Return how many of these calls, none of which lies in another, have to come one after the other: each needs what one before made."""
    reached = _Reached(flow)
    deepest, following = 0, 0
    for call in sorted(calls, key=lambda each: each.first):
        reached.until(following, call.first, 0)
        above = 1 + max((reached.of_arguments(row, call.first) for row in range(call.first, call.last)), default=0)
        reached.until(call.first, call.last, above)
        deepest, following = max(deepest, above), call.last
    return deepest


class _Reached:
    """How many calls each tensor needed so far: ``of`` the number of the operator that made it, or the size of one without a name.

    ``viewed``: of a view, by its number, what is viewed.
    """

    def __init__(self, flow: OperatorFlow) -> None:
        self.flow = flow
        self.of: dict[int | str, int] = {}
        self.viewed: dict[int, int | str] = {}

    def of_arguments(self, row: int, before: int = -1) -> int:
        """Return what the arguments of an operator needed; ``before``: only those made before that row."""
        flow, most = self.flow, 0
        for number in flow.made[row]:
            if number < 0:
                most = max(most, self.of.get(flow.size[row], 0) if _VIEWS.match(flow.names[row]) else 0)
            elif before < 0 or number < flow.number[before]:
                most = max(most, self.of.get(number, 0), self.of.get(self.viewed.get(number, number), 0))
        return most

    def until(self, first: int, last: int, least: int) -> None:
        """Go through the operators of these rows, which need ``least`` calls at least."""
        for row in range(first, last):
            name, number, made = self.flow.names[row], self.flow.number[row], self.flow.made[row]
            most = self.of[number] = max(least, self.of_arguments(row))
            if _VIEWS.match(name) and made:
                self.viewed[number] = self.flow.size[row] if made[0] < 0 else self.viewed.get(made[0], made[0])
            elif _IN_PLACE.match(name) and made and made[0] in self.viewed:
                viewed = self.viewed[made[0]]
                self.of[viewed] = max(self.of.get(viewed, 0), most)
