"""The line of Python of every call and GPU op, with the stack of lines above it, from the line ranges of an X-ray.

In its few steps an X-ray notes each line of the program's own code as a range on the thread that runs it, nested as the calls are
(``Ranges.lines``). There a call has the innermost line that is open on its thread when it begins. Calls of other steps inherit the
line of the call that they correspond to (``sequence``), and those that correspond to none the line that makes all calls around them.
What autograd's thread launches has the line of the forward operator
with the same sequence number, where operators were recorded, else the line that called backward; but where a node runs code of the
program (the backward of a Function, a hook, a forward that a checkpoint runs again), the line of that code. GPU work of a CUDA graph
has the line that captured its node, else the one that launched the graph.

Lines of installed packages belong to the program's own line that called them: ``Lines.own``. A function that ran more lines than an
X-ray notes is one range from there on, ``folded``: what it calls has the line that called it, and its time the shares of its lines.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import ids
from nsysx.catalogue import DeviceActivity
from nsysx.events import calls_between, thread_roles
from nsysx.events import sampled_stacks as stacks_room
from nsysx.events.attribute import Attributed, capture_calls
from nsysx.events.layers import Layer, layer_of
from nsysx.events.nvtx_ranges import Flags, Ranges
from nsysx.events.python_lines import place
from nsysx.frames import derived, frame_columns, lookup
from nsysx.frames.intervals import I64, StepFunction, nesting_by_thread
from nsysx.model import Row
from nsysx.reading.trace import Trace

_NOTHING = np.empty(0, np.int64)
PLACE = frame_columns.schema(derived.LINES, "file", "line", "function")


@dataclass(frozen=True)
class CodeLines:
    """Stacks by number; ``places`` are their lines: file, line, function.

    ``place`` and ``parent``: of each stack, the place of its innermost line and the stack above that, -1 for none. ``own``: of each
    stack, the one that ends with the program's own innermost line, -1 where all lines are of packages. ``folded``: which stacks end with
    a function, not with a line.
    ``call`` and ``op``: the stack of each API call and GPU op, -1 where it is not known. ``open``: thread -> the stack that was open
    at each instant of the X-ray, -1 for none. ``of``: the call that each call corresponds to, itself where it corresponds to none.
    """

    places: pl.DataFrame
    place: I64 = field(default_factory=lambda: _NOTHING)
    parent: I64 = field(default_factory=lambda: _NOTHING)
    own: I64 = field(default_factory=lambda: _NOTHING)
    folded: Flags = field(default_factory=lambda: np.empty(0, np.bool_))
    call: I64 = field(default_factory=lambda: _NOTHING)
    op: I64 = field(default_factory=lambda: _NOTHING)
    open: Mapping[int, StepFunction] = field(default_factory=dict)
    of: I64 = field(default_factory=lambda: _NOTHING)

    def places_of(self, stack: I64) -> I64:
        """Return the place of the program's own line of each stack, else of its innermost; -1 for none."""
        inner = np.append(self.own, -1)[stack]
        return np.append(self.place, -1)[np.where(inner >= 0, inner, stack)]

    def made_at(self, calls: pl.DataFrame, places: Sequence[int]) -> pl.DataFrame:
        """Return the rows of a frame whose ``call`` is made at one of some lines (rows of ``places``)."""
        there = np.isin(self.places_of(self.call[calls["call"].to_numpy()]), places)
        return calls.filter(pl.Series(there, dtype=pl.Boolean))

    def where(self, line_row: int) -> Row:
        """Return file and line of a row of ``places``; empty for -1, or where either is not known."""
        file, line, _ = self.places.row(line_row) if line_row >= 0 else (None, None, None)
        return {"file": file, "line": line} if file is not None and line is not None else {}

    def where_most(self, line_row: I64, weights: I64 | None = None) -> Row:
        """Return file and line of the row that comes most often, or with most of some weights; empty where all are -1."""
        there = line_row >= 0
        sums = np.bincount(line_row[there], None if weights is None else weights[there])
        return self.where(int(sums.argmax())) if len(sums) else {}

    def where_of(self, stack: int) -> Row:
        """Return file and line of the program's own line of a stack, else of its innermost; empty for -1, or where either is not known."""
        return self.where(int(self.places_of(np.array([stack]))[0]))

    def around(self, stack: int) -> list[int]:
        """Return a stack and those that it lies in, the innermost first; none for -1."""
        stacks = []
        while stack >= 0:
            stacks.append(stack)
            stack = int(self.parent[stack])
        return stacks

    def chain(self, stack: int) -> list[int]:
        """Return the places of a stack, outermost first."""
        return [int(self.place[each]) for each in reversed(self.around(stack))]

    def own_chain(self, stack: int) -> list[int]:
        """Return the places of a stack that are lines of the program itself, innermost first."""
        chain = []
        while stack >= 0 and (stack := int(self.own[stack])) >= 0:
            chain.append(int(self.place[stack]))
            stack = int(self.parent[stack])
        return chain

    def passing(self, stacks: I64, places: frozenset[int]) -> npt.NDArray[np.bool_]:
        """Return for each stack, -1 for none, whether it has one of these places in it."""
        distinct, number = np.unique(stacks, return_inverse=True)
        within = [s >= 0 and not places.isdisjoint(self.chain(int(s))) for s in distinct.tolist()]
        return np.array(within, np.bool_)[number]

    def lines_of_folded(self, stack: int) -> Flags:
        """Return which stacks pass through lines of the function with which a folded stack ends, called from the same line."""
        names = self.places["file"].to_list(), self.places["function"].to_list()
        same = np.array(
            [pair == tuple(n[self.place[stack]] for n in names) for pair in zip(*names, strict=True)], np.bool_
        )
        below: Flags = same[self.place] & (self.parent == self.parent[stack]) & ~self.folded
        while (more := below | (np.append(below, [False])[self.parent] & ~self.folded)).sum() > below.sum():
            below = more
        return below

    def at(self, thread: int, t: I64) -> I64:
        """Return the stack that was open on a thread at each instant of the X-ray, -1 for none."""
        if thread not in self.open:
            return np.full(len(t), -1)
        return self.open[thread].at(t).astype(np.int64)


def find(trace: Trace, ranges: Ranges, attributed: Attributed) -> CodeLines | None:
    """Return the lines of all calls and GPU ops, None where no X-ray noted any."""
    if not ranges.lines.height:
        return None
    xray = _stacks(noted(ranges, attributed.roles))
    calls = attributed.api_calls
    call, thread, start = np.full(calls.height, -1), calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    for key in xray.open:
        a, b = np.searchsorted(thread, [key, key + 1]).tolist()
        call[a:b] = xray.at(key, start[a:b])
    _backward(xray, ranges, attributed, call)
    like = np.arange(calls.height) if ranges.repeats is None else ranges.repeats.like
    noted_call, call = call, np.where(call >= 0, call, call[like])
    innermost = np.append(np.where(xray.own >= 0, xray.own, np.arange(len(xray.own))), -1)
    stands_for = calls_between.fill(innermost[noted_call], xray.parent, attributed, like, call)
    _without_new_messages(innermost, attributed, noted_call, call)
    op = np.append(call, -1)[attributed.gpu_ops["call"].fill_null(-1).to_numpy()]
    captured = _captured(trace, xray, attributed)
    if captured is not None:
        op = np.where(captured >= 0, captured, op)
    return replace(xray, call=call, op=op, of=np.where(call >= 0, stands_for, like))


def _without_new_messages(innermost: I64, attributed: Attributed, noted_call: I64, call: I64) -> None:
    """Take back from ``call`` what `calls_between` filled in for calls of communication at lines that call none in the X-ray.

    How often a line launches may depend on its data, what it is for does not: a message of every so many steps that no step of the
    X-ray holds is another line's.
    """
    comm = attributed.gpu_ops.filter(pl.col("cls") == DeviceActivity.COMM.value)["call"].drop_nulls()
    calls = np.unique(comm.to_numpy())
    sending = np.unique(innermost[noted_call[calls]])
    filled = calls[(noted_call[calls] < 0) & (call[calls] >= 0)]
    call[filled[~np.isin(innermost[call[filled]], sending)]] = -1


def noted(ranges: Ranges, roles: Mapping[int, str]) -> pl.DataFrame:
    """Return ``Ranges.lines`` with those that autograd's threads run within its nodes, in the same order. ``roles``: of threads."""
    engine = [thread for thread, role in roles.items() if role == thread_roles.AUTOGRAD]
    within = ranges.other_lines.filter(pl.col("thread").is_in(engine))
    if not within.height:
        return ranges.lines
    both = pl.concat([ranges.lines, within])
    return lookup.ordered(both, "start_ns", ["end_ns", "label"], group="thread", descending=[True, False])


#: What stands in front of the line of a function's definition where its range is that of all its lines.
_FOLD = re.compile(r":-(?=\d+ \S*$)")


def _stacks(rows: pl.DataFrame) -> CodeLines:
    """Return the stacks of line ranges, and which was open when; ``rows`` as `Ranges.lines`."""
    names, code = lookup.distinct(rows["label"])
    folds = np.array([_FOLD.search(name or "") is not None for name in names], np.bool_)
    described = [place(_FOLD.sub(":", name or "")) for name in names]
    library = np.array([stacks_room.is_library(file) for file, _, _ in described], np.bool_)
    thread, start, end = (rows[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    nests = nesting_by_thread(thread, start, end)
    parent = np.concatenate([n.parent for n in nests.values()])
    depth = np.concatenate([n.depth for n in nests.values()])
    stack_of, above, last = _numbered(parent, depth, code)
    inner = _innermost_own(above, ~library[last] & ~folds[last])
    stack_at = np.append(stack_of, -1)
    open_ = {t: StepFunction(n.top.times, stack_at[n.top.labels]) for t, n in nests.items()}
    places = pl.DataFrame(described, schema=PLACE, orient="row")
    return CodeLines(places, last, above, inner, folds[last], open=open_)


def _numbered(parent: I64, depth: I64, code: I64) -> tuple[I64, I64, I64]:
    """Return the stack of each range, and of each stack the one above it and its last code; those above come first."""
    stack_of = np.full(len(parent), -1)
    above, last, count, width = [], [], 0, int(code.max(initial=0)) + 1
    order = np.argsort(depth, kind="stable")
    borders = np.searchsorted(depth[order], np.arange(int(depth.max(initial=-1)) + 2)).tolist()
    for a, b in itertools.pairwise(borders):
        level = order[a:b]
        key = (np.append(stack_of, -1)[parent[level]] + 1) * width + code[level]
        distinct, index = np.unique(key, return_inverse=True)
        stack_of[level] = count + index
        above.append(distinct // width - 1)
        last.append(distinct % width)
        count += len(distinct)
    return stack_of, np.concatenate(above or [_NOTHING]), np.concatenate(last or [_NOTHING])


def _innermost_own(above: I64, of_program: Flags) -> I64:
    """Return of each stack the innermost one, itself or above, whose last line is the program's own; -1 where none is."""
    inner = np.where(of_program, np.arange(len(above)), -1)
    for _ in range(len(above)):
        free = np.flatnonzero((inner < 0) & (above >= 0))
        nearer = inner[above[free]]
        if not (nearer >= 0).any():
            break
        inner[free] = nearer
    return inner


def _backward(xray: CodeLines, ranges: Ranges, attributed: Attributed, call: I64) -> None:
    """Fill in ``call`` for what nodes of autograd launch, by sequence numbers, and for the rest of autograd's threads."""
    operators = ranges.ranges.filter((pl.col("kind") == "op") & ~pl.col("repeated") & ~pl.col("crossing"))
    rows = operators.filter(pl.col("number") >= 0)
    nodes = are_nodes(rows["name"])
    forward = _forward(xray, rows.filter(~nodes)) if rows.height else {}
    of_node = NodesAtWork(rows.filter(nodes), operators) if forward and nodes.any() else None
    calls = attributed.api_calls
    thread, start = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    waiting = _calling_backward(xray, attributed.roles)
    for key, role in attributed.roles.items():
        a, b = np.searchsorted(thread, [key, key + 1]).tolist()
        process = ids.process_of(key)
        if of_node is not None and process in forward:
            number, begun = of_node.at_work(key, start[a:b])
            numbered, stack = forward[process]
            nearest = np.minimum(np.searchsorted(numbered, number), len(numbered) - 1)
            inside = (call[a:b] >= 0) & (call[a:b] != xray.at(key, begun))  # a line that has begun within the node
            of_forward = (number >= 0) & (numbered[nearest] == number) & ~inside
            call[a:b] = np.where(of_forward, stack[nearest], call[a:b])
        if role == thread_roles.AUTOGRAD and process in waiting:
            call[a:b] = np.where(call[a:b] >= 0, call[a:b], xray.at(waiting[process], start[a:b]))


def are_nodes(names: pl.Series) -> Flags:
    """Return which of these operators are nodes of autograd."""
    distinct, index = lookup.distinct(names)
    return np.array(["Backward" in (n or "") and "::" not in (n or "") for n in distinct], np.bool_)[index]


#: How torch calls a node of autograd, with what it does to the node's gradients: adds them to others, or casts them.
_EVALUATION = "autograd::engine::evaluate_function"


def evaluations_among(operators: pl.DataFrame) -> Layer:
    """Return how torch's engine calls nodes, among operators of one process."""
    names, index = lookup.distinct(operators["name"])
    evaluates = np.array([(n or "").startswith(_EVALUATION) for n in names], np.bool_)[index]
    return layer_of(operators.filter(evaluates))


class NodesAtWork:
    """The nodes of autograd, each until torch is done with it."""

    def __init__(self, nodes: pl.DataFrame, operators: pl.DataFrame) -> None:
        self._nodes = layer_of(nodes)
        self._evaluations = evaluations_among(operators)
        thread, start = (self._nodes.rows[c].to_numpy() for c in ("thread", "start_ns"))
        #: Of each evaluation the number of its node, and -1 for none.
        self._numbers = np.full(self._evaluations.rows.height + 1, -1)
        for key in self._evaluations.threads:
            a, b = np.searchsorted(thread, [key, key + 1]).tolist()
            self._numbers[self._evaluations.at(key, start[a:b])] = self._nodes.rows["number"].to_numpy()[a:b]
        self._numbers[-1] = -1

    def at_work(self, thread: int, t: I64) -> tuple[I64, I64]:
        """Return the sequence number of the node that is at work on a thread at each instant, -1 for none, and when it began (ns).

        Where none is, the instant itself stands for its beginning.
        """
        node, evaluation = self._nodes.at(thread, t), self._evaluations.at(thread, t)
        number = np.append(self._nodes.rows["number"].to_numpy(), -1)[node]
        begun = np.append(self._nodes.rows["start_ns"].to_numpy(), -1)[node]
        evaluated: I64 = self._numbers[evaluation]
        evaluated_from = np.append(self._evaluations.rows["start_ns"].to_numpy(), -1)[evaluation]
        at_work, since = np.where(number >= 0, number, evaluated), np.where(number >= 0, begun, evaluated_from)
        return at_work, np.where(at_work >= 0, since, t)


def _calling_backward(xray: CodeLines, roles: Mapping[int, str]) -> dict[int, int]:
    """Return process -> the thread of the program on which most lines were noted: while autograd's thread works, it waits in one."""
    most: dict[int, int] = {}
    for thread, lines in xray.open.items():
        process = ids.process_of(thread)
        if roles.get(thread) == thread_roles.AUTOGRAD:
            continue
        if process not in most or len(lines.labels) > len(xray.open[most[process]].labels):
            most[process] = thread
    return most


def _forward(xray: CodeLines, rows: pl.DataFrame) -> dict[int, tuple[I64, I64]]:
    """Return process -> sequence numbers, sorted, and the stack of the last operator that carries each, which made the node."""
    parts: dict[int, list[tuple[I64, I64, I64]]] = {}
    for (thread,), part in rows.group_by("thread", maintain_order=True):
        key, start = int(str(thread)), part["start_ns"].to_numpy()
        stack = xray.at(key, start)
        there = stack >= 0
        parts.setdefault(ids.process_of(key), []).append((part["number"].to_numpy()[there], start[there], stack[there]))
    made = {}
    for process, of_threads in parts.items():
        number, start, stack = (np.concatenate([p[i] for p in of_threads]) for i in range(3))
        order = np.lexsort((start, number))
        last = np.append(np.diff(number[order]) != 0, True)[: len(order)]
        if last.any():
            made[process] = number[order][last], stack[order][last]
    return made


def _captured(trace: Trace, xray: CodeLines, attributed: Attributed) -> I64 | None:
    """Return the stack at which the node of each GPU op of a CUDA graph was captured, -1 for none; None without graphs."""
    ops = attributed.gpu_ops
    if not trace.graph_node.height or not ops["graph_node"].is_not_null().any():
        return None
    origin = capture_calls(trace, attributed.api_calls)
    thread, time = origin["thread"].to_numpy(), origin["time_ns"].to_numpy()
    stack = np.full(origin.height, -1)
    for key in xray.open:
        of_thread = np.flatnonzero(thread == key)
        stack[of_thread] = xray.at(key, time[of_thread])
    origin = origin.select("process", "graph_node", pl.Series("stack", stack))
    joined = ops["process", "graph_node"].join(origin, on=["process", "graph_node"], how="left", maintain_order="left")
    return joined["stack"].fill_null(-1).to_numpy()


def inherited(lines: CodeLines, chosen: Flags) -> pl.DataFrame:
    """Return call -> file, line, function of the chosen calls whose line is known, as ``python_lines``."""
    call = np.flatnonzero(chosen & (lines.call >= 0))
    of_call = lines.places_of(lines.call[call])
    return pl.concat([pl.DataFrame({"call": call}), lines.places[of_call]], how="horizontal")
