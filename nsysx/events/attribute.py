"""Which step, phase and module a call and its GPU work belong to, each with the grade of the evidence.

Grades: ``thread``, the range open on the launching thread at the start of the call; ``seq``, the autograd sequence number that
ties a backward op to its forward op; ``sequence``, the call repeats that of a marked step (``events.sequence``); ``time``,
only the time inside somebody's backward range; ``none``. Nothing is dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from nsysx import ids
from nsysx.events import thread_roles
from nsysx.events.batch_waits import batch_waits
from nsysx.events.correlate import Correlated, Threads
from nsysx.events.event_bounds import LOOKUP_BLOCK_ROWS, MARKED, MOST_NODE_COPIES, REPEATED, UNMATCHED
from nsysx.events.layers import LAYER, PATHLESS, Layer, layer_of, module_layer, paths, root_names
from nsysx.events.nvtx_ranges import Flags, Ranges
from nsysx.frames import frame_columns, lookup
from nsysx.frames.intervals import I64, Labels
from nsysx.reading.load import Trace

#: From the best evidence to none.
GRADES = ("thread", "seq", "sequence", "time", "none")
_THREAD, _SEQ, _SEQUENCE, _TIME, _NONE = range(len(GRADES))

#: Phases without modules: what lies in them needs no marks to be known.
_WITHOUT_MODULES = ("data", "h2d", "clip", "optimizer", "zero_grad")


#: What the column module says of what lies in a step, and in no phase and no module of it.
IN_STEP = "(step, outside modules)"


def outside_in(phase: str) -> str:
    """Return what the column module says of what lies in a phase, and in no module."""
    return PATHLESS.format(phase)


@dataclass(frozen=True)
class Attributed:
    """``api_calls`` and ``gpu_ops`` with phase, module, cls, grade and recompute; ``modules`` is the tree.

    ``modules``: module, cls, parent (module, null at a root), calls (number of forward ranges), first_ns.
    ``outside`` holds the names in the column module that stand for what lies outside all modules, ``roots`` those of modules
    that have no path and go by their class. ``phase_spans``: process, thread, start_ns, end_ns, phase: innermost phases, and waits
    for batches where no range marks loading (``batch_waits``), disjoint per thread. ``roles``: thread -> what it is for (``thread_roles``).
    """

    api_calls: pl.DataFrame
    gpu_ops: pl.DataFrame
    modules: pl.DataFrame
    phase_spans: pl.DataFrame
    threads: Threads
    outside: frozenset[str] = frozenset()
    roots: frozenset[str] = frozenset()
    roles: Mapping[int, str] = field(default_factory=dict)

    @property
    def without_path(self) -> frozenset[str]:
        """The names in the column module that are not the path of a module."""
        return self.outside | self.roots


def _phase_spans(layer: Layer) -> pl.DataFrame:
    parts = []
    names = layer.rows["name"].cast(pl.String)
    for thread, nest in layer.threads.items():
        open_ = np.flatnonzero((nest.top.labels >= 0) & (nest.top.times[1:] > nest.top.times[:-1]))
        parts.append(
            pl.DataFrame(
                {
                    "process": np.full(len(open_), ids.process_of(thread)),
                    "thread": np.full(len(open_), thread),
                    "start_ns": nest.top.times[:-1][open_],
                    "end_ns": nest.top.times[1:][open_],
                    "phase": lookup.at(names, nest.top.labels[open_].astype(np.int64)),
                },
                schema=_SPANS,
            )
        )
    return pl.concat([pl.DataFrame(schema=_SPANS), *parts])


_SPANS = frame_columns.schema(frame_columns.PHASE_SPANS)


class _Finder:
    """Answers (thread, instant) -> module row, phase, grade."""

    def __init__(self, ranges: Ranges, roles: Mapping[int, str], backward: Mapping[int, tuple[I64, I64]]) -> None:
        self.roles = roles
        self.modules = module_layer(ranges)
        rows = ranges.ranges[LAYER]
        kind, here = rows["kind"], ~ranges.ranges["crossing"]
        self.phases = layer_of(rows.filter(here & (kind == "phase")))
        self.ops = layer_of(rows.filter(here & (kind == "op") & (rows["number"] >= 0)))
        self.steps = layer_of(rows.filter(here & (kind == "step")))
        names, index = lookup.distinct(self.phases.rows["name"])
        self.phase_names = ["backward", *sorted({n for n in names if n} - {"backward"})]
        # Work outside every module is named by its phase.
        self.outside = [*map(outside_in, self.phase_names), IN_STEP]
        number = {name: i for i, name in enumerate(self.phase_names)}
        # One place more than there are rows: -1, no row, is the last.
        self.phase_of_row = np.append(np.array([number.get(n or "", -1) for n in names], np.int32)[index], np.int32(-1))
        self.keys, self.key_of_row = paths(self.modules)
        self._key = np.append(self.key_of_row, -1).astype(np.int32)
        self._backward = np.append((self.modules.rows["kind"] == "backward_module").to_numpy(), False)
        self._recompute = np.append(self.modules.rows["recompute"].to_numpy().astype(np.bool_), False)
        self.backward = backward
        self.seq_module = self._sequence_modules()

    def _sequence_modules(self) -> dict[int, tuple[I64, I64]]:
        """Return, per process, sequence numbers and the module row of the last forward op that carries each."""
        by_process: dict[int, list[tuple[I64, Labels]]] = {}
        start, number = (self.ops.rows[c].to_numpy() for c in ("start_ns", "number"))
        first = 0
        for thread, nest in self.ops.threads.items():
            of_thread = slice(first, first + len(nest.parent))
            first = of_thread.stop
            if thread not in self.modules.threads:
                continue
            module = self.modules.at(thread, start[of_thread])
            in_module = module >= 0
            by_process.setdefault(ids.process_of(thread), []).append((number[of_thread][in_module], module[in_module]))
        result = {}
        for process, parts in by_process.items():
            numbers, row = (np.concatenate([p[i] for p in parts]) for i in range(2))
            order = np.argsort(numbers, kind="stable")
            last = np.append(np.diff(numbers[order]) != 0, True)[: len(order)]
            if last.any():
                result[process] = (numbers[order][last], row[order][last])
        return result

    def find(self, thread: I64, t: I64) -> pl.DataFrame:
        """Return one row per (thread, instant): phase, module (null for none), grade, recompute.

        Rows must be grouped by thread.
        """
        n = len(t)
        phase, key = np.empty(n, np.int32), np.empty(n, np.int32)
        grade, recompute = np.empty(n, np.int8), np.empty(n, np.bool_)
        borders = [0, *(np.flatnonzero(thread[1:] != thread[:-1]) + 1).tolist(), n]
        for a, b in itertools.pairwise(borders):
            for first in range(a, b, LOOKUP_BLOCK_ROWS):
                rows = slice(first, min(first + LOOKUP_BLOCK_ROWS, b))
                self._look_up(int(thread[a]), t[rows], phase[rows], key[rows], grade[rows], recompute[rows])
        return pl.DataFrame(
            {
                "phase": lookup.named(self.phase_names, phase),
                "module": lookup.named([*self.keys.to_list(), *self.outside], key),
                "grade": lookup.named(GRADES, grade),
                "recompute": recompute,
            }
        )

    def _look_up(self, thread: int, t: I64, phase: Labels, key: Labels, grade: Labels, recompute: Flags) -> None:
        """Fill in what was open on ``thread`` at each instant."""
        module = self.modules.at(thread, t)
        step = self.steps.at(thread, t) >= 0
        phase[:] = self.phase_of_row[self.phases.at(thread, t)]
        seq = self._by_sequence(thread, t, module)
        if seq is not None:
            module = np.where(seq >= 0, seq, module)
        is_backward = self._backward[module]
        if seq is not None:
            is_backward |= seq >= 0
        on_thread = (module >= 0) | (phase >= 0) | step
        grade[:] = np.where(on_thread, _THREAD, _NONE)
        if seq is not None:
            grade[seq >= 0] = _SEQ
        # Another thread of the process is inside a backward range: then autograd's threads work for it.
        bare = np.flatnonzero(phase < 0)
        helps = self.roles.get(thread) == thread_roles.AUTOGRAD
        if len(bare) and helps and ids.process_of(thread) in self.backward:
            start, reach = self.backward[ids.process_of(thread)]
            i = np.searchsorted(start, t[bare], side="right") - 1
            helping = bare[(i >= 0) & (reach[np.maximum(i, 0)] > t[bare])]
            is_backward[helping] = True
            grade[helping] = np.where(grade[helping] == _NONE, _TIME, grade[helping])
        phase[is_backward] = self.phase_names.index("backward")
        key[:] = self._key[module]
        free = np.flatnonzero(key < 0)
        key[free] = len(self.keys) + np.where(
            phase[free] >= 0, phase[free], np.where(step[free], len(self.phase_names), -1 - len(self.keys))
        )
        recompute[:] = self._recompute[module]

    def _by_sequence(self, thread: int, t: I64, module: Labels) -> I64 | None:
        """Return the module row that the sequence number of the open op leads to, -1 for none; None where there are no ops."""
        if not self.seq_module or thread not in self.ops.threads:
            return None
        module_rows = np.full(len(t), -1, np.int64)
        op = self.ops.at(thread, t)
        open_ = np.flatnonzero((module < 0) & (op >= 0))
        if len(open_) and ids.process_of(thread) in self.seq_module:
            numbers = self.ops.rows["number"].to_numpy()[op[open_]]
            numbered, row = self.seq_module[ids.process_of(thread)]
            nearest = np.minimum(np.searchsorted(numbered, numbers), len(numbered) - 1)
            module_rows[open_] = np.where(numbered[nearest] == numbers, row[nearest], -1)
        return module_rows

    def tree(self) -> pl.DataFrame:
        """Return the module tree: module, cls, parent, calls, first_ns. The parent is where it is mostly called from."""
        rows, key = self.modules.rows, self.key_of_row
        if not rows.height:
            return pl.DataFrame(schema=frame_columns.schema(frame_columns.MODULES))
        parents = self.modules.parents()
        forward = ~(self._backward | self._recompute)[:-1]
        above = np.append(key, -1)[parents]
        frame = pl.DataFrame({"key": key, "row": np.arange(len(key)), "start_ns": rows["start_ns"], "forward": forward})
        modules = frame.group_by("key").agg(
            pl.col("row").min(),
            pl.col("forward").sum().cast(pl.Int64).alias("calls"),
            pl.col("start_ns").min().alias("first_ns"),
        )
        modules = modules.with_columns(lookup.at(rows["cls"], modules["row"].to_numpy()).cast(pl.String).alias("cls"))
        called = forward & (above != key)
        callers = pl.DataFrame({"key": key[called], "above": above[called]}).group_by("key", "above").len()
        callers = callers.with_columns(lookup.at(self.keys, callers["above"].to_numpy()).alias("parent"))
        callers = callers.sort("key", "len", "parent", descending=[False, True, False], nulls_last=True)
        modules = modules.join(callers.unique("key", keep="first", maintain_order=True), on="key", how="left")
        return modules.with_columns(lookup.at(self.keys, modules["key"].to_numpy()).alias("module"))[
            "module", "cls", "parent", "calls", "first_ns"
        ].sort("first_ns", "module")


def capture_calls(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return graph_node -> (process, thread, time) of the call that captured the node.

    A graph launch is one call for all its kernels; what a node is for shows at capture time. Instantiation clones nodes, so
    the way back to the original is followed first. A clone may stand twice, created and then cloned: only one row knows its
    original.
    """
    nodes = trace.graph_node.sort("start_ns").unique(["process", "node"], keep="first", maintain_order=True)
    back = {
        (p, n): (p, o)
        for p, n, o in trace.graph_node["process", "node", "original_node"].iter_rows()
        if o not in (None, 0, n)
    }
    origin = []
    for process, node in nodes["process", "node"].iter_rows():
        key, hops = (process, node), 0
        while key in back and hops < MOST_NODE_COPIES:
            key, hops = back[key], hops + 1
        origin.append(key[1])
    first = nodes.select("process", pl.col("node").alias("origin"), "thread", pl.col("start_ns").alias("time_ns"))
    return (
        nodes.select("process", pl.col("node").alias("graph_node"))
        .with_columns(pl.Series("origin", origin, dtype=pl.Int64))
        .join(first, on=["process", "origin"], how="inner")
        .drop("origin")
    )


def _graded(placed: pl.DataFrame, ranges: Ranges) -> pl.DataFrame:
    """Say which calls owe their module to a marked step, and that those which repeat none have no module."""
    if ranges.repeats is None:
        return placed
    states = ranges.repeats.calls
    free = lookup.coded(placed["phase"], dict.fromkeys(_WITHOUT_MODULES, 1)) < 0
    code = lookup.coded(placed["grade"], {grade: i for i, grade in enumerate(GRADES)})
    code[free & (states == REPEATED) & (code <= _SEQUENCE)] = _SEQUENCE
    unknown = free & (states == UNMATCHED)
    code[unknown] = _NONE
    module = placed["module"].set(pl.Series(unknown), None) if unknown.any() else placed["module"]
    return placed.with_columns(module, lookup.named(GRADES, code).alias("grade"))


def between_calls(ranges: Ranges, attributed: Attributed, thread: I64, t: I64) -> pl.Series:
    """Return the module in which each thread was at an instant without a call; null where that is not known.

    In a step without marks the borders of modules are known by its calls alone: there the call before and the one after
    must lie in the same module.
    """
    calls = attributed.api_calls
    order = np.lexsort((t, thread))
    backward = thread_roles.backwards(ranges)
    in_order = _Finder(ranges, attributed.roles, backward).find(thread[order], t[order])["module"].cast(pl.String)
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    exact: pl.Series = in_order.gather(back)
    if ranges.repeats is None or not calls.height:
        return exact
    # Calls are sorted by thread, then by start: the place of (thread, t) among them is that of the thread and t in it.
    threads, start = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    first, last = np.searchsorted(threads, thread, side="left"), np.searchsorted(threads, thread, side="right")
    places = [
        a + np.searchsorted(start[a:b], instants, side="right") for a, b, instants in zip(first, last, t, strict=True)
    ]
    after = np.array(places, np.int64)
    before = after - 1
    inside = (before >= first) & (after < last)
    row = np.where(inside, before, 0), np.where(inside, after, 0)
    modules = [calls["module"].gather(r).cast(pl.String) for r in row]
    free = ~inside | (ranges.repeats.calls[row[0]] != MARKED) | (ranges.repeats.calls[row[1]] != MARKED)
    sure = pl.Series(~free) | (pl.Series(inside) & (modules[0] == modules[1]).fill_null(False))
    chosen: pl.Series = modules[0].zip_with(pl.Series(free), exact).set(~sure, None)
    return chosen


def attribute(trace: Trace, correlated: Correlated, ranges: Ranges) -> Attributed:
    """Give every API call and GPU op its phase, module and grade. Rows in = rows out, in the same order."""
    calls = correlated.api_calls
    backward = thread_roles.backwards(ranges)
    roles = thread_roles.roles(calls, trace.thread_name, ranges, backward)
    finder = _Finder(ranges, roles, backward)
    tree = finder.tree()
    fields = ("phase", "module", "grade", "recompute")
    calls = calls.hstack(_graded(finder.find(calls["thread"].to_numpy(), calls["start_ns"].to_numpy()), ranges))
    row = lookup.filled(correlated.gpu_ops["call"], -1)
    ops = correlated.gpu_ops.with_columns(lookup.at(calls[f], row).alias(f) for f in fields)
    if ops["graph_node"].is_not_null().any() and trace.graph_node.height:
        origin = capture_calls(trace, calls).sort("thread", "time_ns")
        found_at = finder.find(origin["thread"].to_numpy(), origin["time_ns"].to_numpy())
        captured = pl.concat(
            [
                origin["process", "graph_node"],
                found_at.select(pl.col(f).alias(f"_{f}") for f in fields),
            ],
            how="horizontal",
        )
        ops = ops.join(captured, on=["process", "graph_node"], how="left", maintain_order="left")
        better = pl.col("_grade").is_not_null() & (pl.col("_grade").cast(pl.String) != "none")
        ops = ops.with_columns(pl.when(better).then(pl.col(f"_{f}")).otherwise(pl.col(f)).alias(f) for f in fields)
        ops = ops.drop(f"_{f}" for f in fields)
    ops = ops.with_columns(
        pl.col("grade").fill_null(pl.lit("none", dtype=pl.Categorical)), pl.col("recompute").fill_null(False)
    )
    marked = _phase_spans(finder.phases)
    return Attributed(
        calls,
        ops,
        modules=tree,
        phase_spans=pl.concat([marked, batch_waits(trace, correlated, marked)]),
        threads=correlated.threads,
        outside=frozenset(finder.outside),
        roots=root_names(finder.modules),
        roles=roles,
    )
