"""Work of the backward for gradients of sizes that no optimizer steps by: from the operators of an X-ray step.

Where wrappers of ranks send gradients in buckets, what reads them has no name (`needless_gradients`). What an optimizer is given has one,
if the bucket's view is the gradient: what the wrapper's hook wrote into it. That holds where the gradients which are so named have as many
elements as optimizers hold. Else sizes tell: torch names the size of each gradient that it adds to a parameter, and those of all that an
optimizer updates. A size of which an optimizer updates none is that of parameters which no optimizer holds. The work that only leads to
such gradients is not needed, nor is what a backward does behind the last one that an optimizer holds.
"""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.event_bounds import MOST_FLOW_OPERATORS
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_flow import ID, SIZES, results_in
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.records import whole_number

#: The node that adds a gradient to its parameter, and how torch calls it, with the hooks of wrappers behind it.
_ACCUMULATES = "torch::autograd::AccumulateGrad"
_EVALUATES = f"autograd::engine::evaluate_function: {_ACCUMULATES}"
_OPERATORS = "^aten::"


@dataclass(frozen=True)
class UnheldGradients:
    """Of ``elements`` of the ``total`` elements with gradients optimizers update none.

    ``needless``: of each API call of the report, whether it launches work for these gradients alone. ``modules`` in whose backward these
    gradients are added to their parameters, and those of the gradients that are ``held``; empty where some have no such module, and where
    sizes tell.
    """

    elements: int
    total: int
    needless: Flags
    modules: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()


class _Span(NamedTuple):
    """An operator that lies in no other, or what adds a gradient to its parameter, and the size of the first that it is given.

    ``takes``: of each tensor that it is given the number of what made it, and the elements.
    """

    number: int
    thread: int
    start_ns: int
    end_ns: int
    takes: tuple[tuple[int, int], ...]
    size: tuple[int, ...]


def unheld_gradients(profile: Profile) -> UnheldGradients | None:
    """Return these gradients, None where operators do not tell the sizes of what optimizers update."""
    return profile.once(_find)


def _find(profile: Profile) -> UnheldGradients | None:
    ranges = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process) & ~(pl.col("crossing") | pl.col("open") | pl.col("repeated"))
    ).with_columns(pl.col("name", "label", "kind").cast(pl.String))
    ranges = ranges["thread", "start_ns", "end_ns", "kind", "own", "name", "label"]
    steps = ranges.filter((pl.col("kind") == "step") & pl.col("own"))["start_ns", "end_ns"].sort("start_ns")
    recorded = ranges.filter(pl.col("kind") == "op")
    adding = recorded.filter(pl.col("name") == _ACCUMULATES)
    if not adding.height or recorded.height > MOST_FLOW_OPERATORS:
        return None
    last_ns = int(adding["start_ns"].max() or 0)  # type: ignore[arg-type]
    step = steps.filter((steps["start_ns"] <= last_ns) & (steps["end_ns"] > last_ns))
    if step.height != 1:
        return None
    start, end = step.row(0)
    within = (pl.col("start_ns") >= start) & (pl.col("end_ns") <= end)
    theirs, marks = recorded.filter(within), ranges.filter(within & pl.col("own"))
    updated = _updated_sizes(theirs, marks.filter(pl.col("name") == "optimizer"))
    gradients = _spans(theirs.filter(pl.col("name") == _ACCUMULATES))
    backwards = marks.filter(pl.col("name") == "backward")["start_ns", "end_ns"].sort("start_ns").rows()
    named = _held_by_name(profile, theirs, marks, gradients, len(backwards))
    lost = [each for each in gradients if (each.size not in updated if named is None else each not in named)]
    if not backwards or not lost or len(lost) == len(gradients):
        return None
    calls = profile.attributed.api_calls
    needless = np.zeros(calls.height, np.bool_)
    called = calls["start_ns"].to_numpy(), calls["thread"].to_numpy()
    for thread, first_ns, end_ns in _needless_spans(theirs, lost, gradients, backwards):
        needless |= (called[0] >= first_ns) & (called[0] < end_ns) & (called[1] == thread)
    repeats = profile.ranges.repeats
    if repeats is not None:
        needless |= needless[repeats.like]
    elements, total = (sum(math.prod(each.size) for each in some) // len(backwards) for some in (lost, gradients))
    modules = None if named is None else [_modules(theirs, calls, some) for some in (lost, named)]
    return UnheldGradients(elements, total, needless, *(modules or ()))


def gradient_sizes(profile: Profile) -> set[tuple[int, ...]]:
    """Return the sizes of all gradients that are added to parameters, those of a step whose operators are recorded."""
    ranges = profile.ranges.ranges
    adding = ranges.filter(pl.col("process") == profile.process, pl.col("name").cast(pl.String) == _ACCUMULATES)
    texts = adding["label"].cast(pl.String).str.extract(SIZES, 1).drop_nulls().unique()
    return {size for text in texts for size in sizes_of(text)[:1]}


def _held_by_name(
    profile: Profile, recorded: pl.DataFrame, marks: pl.DataFrame, gradients: Sequence[_Span], backwards: int
) -> set[_Span] | None:
    """Return the gradients that optimizers are given, None where these are not as many numbers as optimizers hold."""
    settings = settings_of(profile)
    optimizers = (settings.rows("optimizers") if settings is not None else None) or ()
    elements = sum(whole_number(row.get("elements")) or 0 for row in optimizers)
    given = set[int]()
    for thread, start, end in marks.filter(pl.col("name") == "optimizer")["thread", "start_ns", "end_ns"].rows():
        inside = (pl.col("thread") == thread) & (pl.col("start_ns") >= start) & (pl.col("end_ns") <= end)
        for text in recorded.filter(inside)["label"].drop_nulls():
            given.update(maker for maker, which in results_in(text.partition("input_op_ids = ")[2]) if which >= 0)
    made = recorded.filter(pl.col("label").str.extract(ID, 1).cast(pl.Int64).is_in(sorted(given)))
    held = set[_Span]()
    for each, (thread, start, end) in zip(gradients, _evaluated(recorded, gradients), strict=True):
        inside = (made["thread"] == thread) & (made["start_ns"] >= start) & (made["end_ns"] <= end)
        if inside.any():
            held.add(each)
    whole = sum(math.prod(each.size) for each in held)
    return held if elements and whole == elements * max(backwards, 1) else None


def _evaluated(recorded: pl.DataFrame, gradients: Sequence[_Span]) -> list[tuple[int, int, int]]:
    """Return when (thread, start, end) each gradient is added, with what the wrapper's hook does with it."""
    outer = sorted(
        (each.thread, each.start_ns, each.end_ns) for each in _spans(recorded.filter(recorded["name"] == _EVALUATES))
    )
    spans = list[tuple[int, int, int]]()
    for each in gradients:
        row = bisect(outer, (each.thread, each.start_ns, each.end_ns)) - 1
        within = row >= 0 and outer[row][0] == each.thread and each.end_ns <= outer[row][2]
        spans.append(outer[row] if within else (each.thread, each.start_ns, each.end_ns))
    return spans


def _modules(recorded: pl.DataFrame, calls: pl.DataFrame, gradients: Iterable[_Span]) -> frozenset[str]:
    """Return the modules in whose backward gradients are added, none where that of one is not known."""
    modules = set[str]()
    start_ns, thread = calls["start_ns"].to_numpy(), calls["thread"].to_numpy()
    for on, first_ns, end_ns in _evaluated(recorded, list(gradients)):
        inside = (start_ns >= first_ns) & (start_ns < end_ns) & (thread == on)
        names = calls.filter(pl.Series(inside, dtype=pl.Boolean))["module"].cast(pl.String).unique().to_list()
        if len(names) != 1 or names[0] is None:
            return frozenset()
        modules.add(names[0])
    return frozenset(modules)


def _updated_sizes(recorded: pl.DataFrame, stepping: pl.DataFrame) -> set[tuple[int, ...]]:
    """Return the sizes of all tensors that operators are given while optimizers step."""
    sizes = set[tuple[int, ...]]()
    for thread, start, end in stepping["thread", "start_ns", "end_ns"].rows():
        inside = (pl.col("thread") == thread) & (pl.col("start_ns") >= start) & (pl.col("end_ns") <= end)
        for text in recorded.filter(inside)["label"].str.extract(SIZES, 1).drop_nulls().unique():
            sizes.update(sizes_of(text))
    return sizes


def _spans(recorded: pl.DataFrame) -> list[_Span]:
    """Return the operators that lie in no other, by thread and time. Numbers of Python bear the names of what lay in their memory."""
    spans, thread_before, until = list[_Span](), -1, -1
    ordered = recorded.sort("thread", "start_ns", "end_ns", descending=[False, False, True])
    for thread, start, end, text in ordered["thread", "start_ns", "end_ns", "label"].iter_rows():
        until = until if thread == thread_before else -1
        thread_before = thread
        number, given = re.search(ID, text or ""), re.search(SIZES, text or "")
        if start < until or number is None:
            continue
        until = end
        sizes, results = sizes_of(given[1]) if given else [], results_in(text.partition("input_op_ids = ")[2])
        given_sizes = sizes if len(sizes) == len(results) else [()] * len(results)
        takes = tuple(
            (maker, math.prod(size))
            for (maker, which), size in zip(results, given_sizes, strict=True)
            if which >= 0 and size
        )
        spans.append(_Span(int(number[1]), thread, start, end, takes, sizes[0] if sizes else ()))
    return spans


def _needless_spans(
    recorded: pl.DataFrame, lost: Sequence[_Span], gradients: Sequence[_Span], backwards: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """Return when (thread, start, end) work is done that is not needed without these gradients."""
    spans = list[tuple[int, int, int]]()
    outer = _spans(recorded.filter(recorded["name"] == _EVALUATES))
    added = {each.start_ns for each in lost}
    for each in outer:  # with what the wrapper's hook does with the gradient
        inner = [g for g in gradients if g.thread == each.thread and each.start_ns <= g.start_ns < each.end_ns]
        if inner and all(g.start_ns in added for g in inner):
            spans.append((each.thread, each.start_ns, each.end_ns))
    operators = _spans(recorded.filter(pl.col("name").str.contains(_OPERATORS)))
    inside = _outer_numbers(recorded, operators)
    needed_by = defaultdict[int, set[int]](set)  # number of an operator -> the starts of what takes its results
    lost_at = {(g.thread, g.start_ns) for g in lost}
    elements = dict[int, int]()
    for each in sorted([*operators, *gradients], key=lambda span: span.start_ns):
        for maker, count in each.takes:
            # A tensor may bear the name of another one that lay in its memory, seldom one of as many elements.
            if elements.setdefault(maker, count) == count:
                needed_by[inside.get(maker, maker)].add(each.start_ns)
    starts = sorted(spans)
    needless = added | {each.start_ns for each in operators if _lies_in(each, starts)}
    for start, end in backwards:
        theirs = [each for each in operators if start <= each.start_ns < end]
        threads = {g.thread for g in gradients if start <= g.start_ns < end}
        held = [g.end_ns for g in gradients if start <= g.start_ns < end and (g.thread, g.start_ns) not in lost_at]
        last = max(held, default=start)
        spans += [(thread, last, end) for thread in threads]
        for each in sorted(theirs, key=lambda span: -span.start_ns):
            takers = needed_by.get(each.number, set())
            if each.thread in threads and takers and takers <= needless:
                needless.add(each.start_ns)
                spans.append((each.thread, each.start_ns, each.end_ns))
    return spans


def _lies_in(each: _Span, spans: Sequence[tuple[int, int, int]]) -> bool:
    row = bisect(spans, (each.thread, each.start_ns, each.end_ns)) - 1
    return row >= 0 and spans[row][0] == each.thread and each.start_ns < spans[row][2]


def _outer_numbers(recorded: pl.DataFrame, operators: Sequence[_Span]) -> dict[int, int]:
    """Return number of an operator -> that of the outermost one in which it lies."""
    numbers = dict[int, int]()
    named = recorded.filter(pl.col("name").str.contains(_OPERATORS)).with_columns(
        pl.col("label").str.extract(ID, 1).cast(pl.Int64).alias("op_id")
    )
    for (thread,), inner in named.drop_nulls("op_id").group_by("thread"):
        theirs = [each for each in operators if each.thread == thread]
        starts = np.array([each.start_ns for each in theirs], np.int64)
        rows = np.searchsorted(starts, inner["start_ns"].to_numpy(), side="right") - 1
        numbers |= {n: theirs[row].number for n, row in zip(inner["op_id"].to_list(), rows.tolist(), strict=True)}
    return numbers
