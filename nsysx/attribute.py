"""Which step, phase and module a call and its GPU work belong to, each with the grade of the evidence.

Grades: ``thread``, the range open on the launching thread at the start of the call; ``seq``, the autograd sequence number that
ties a backward op to its forward op; ``time``, only the time inside somebody's backward range; ``none``. Nothing is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nsysx import columns
from nsysx.correlate import Correlated
from nsysx.intervals import I64, Nesting, StepFunction, nesting
from nsysx.load import Trace
from nsysx.ranges import Ranges

GRADES = ("thread", "seq", "time", "none")


@dataclass(frozen=True)
class Attributed:
    """``api_calls`` and ``gpu_ops`` with phase, module, cls, grade and recompute; ``modules`` is the tree.

    ``modules``: module, cls, parent (module, null at a root), calls (number of forward ranges), inclusive_cpu_ns, first_ns.
    ``phase_spans``: process, thread, start_ns, end_ns, phase: innermost phases, disjoint per thread. ``threads`` as in
    Correlated.
    """

    api_calls: pl.DataFrame
    gpu_ops: pl.DataFrame
    modules: pl.DataFrame
    phase_spans: pl.DataFrame
    threads: dict[int, StepFunction]


@dataclass(frozen=True)
class _Layer:
    """Ranges of some kinds as one nesting per thread; labels are rows of ``rows``."""

    rows: pl.DataFrame
    threads: dict[int, tuple[int, Nesting]]

    def at(self, thread: int, t: I64) -> I64:
        """Return the row of the innermost range open on ``thread`` at each instant, -1 for none."""
        if thread not in self.threads:
            return np.full(len(t), -1, np.int64)
        offset, nest = self.threads[thread]
        label = nest.top.at(t)
        return np.where(label >= 0, label + offset, -1)

    def parents(self) -> I64:
        """Return each row's enclosing row, -1 for none."""
        parts = [np.where(n.parent >= 0, n.parent + offset, -1) for offset, n in self.threads.values()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def depths(self) -> I64:
        """Return how many ranges each row is nested in."""
        parts = [n.depth for _, n in self.threads.values()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _layer(rows: pl.DataFrame) -> _Layer:
    rows = rows.sort("thread", "start_ns", "end_ns", "label", descending=[False, False, True, False])
    threads: dict[int, tuple[int, Nesting]] = {}
    offset = 0
    for (thread,), part in rows.group_by("thread", maintain_order=True):
        threads[thread] = (offset, nesting(part["start_ns"].to_numpy(), part["end_ns"].to_numpy()))
        offset += part.height
    return _Layer(rows, threads)


def _backward_marks(ranges: Ranges) -> pl.DataFrame:
    """Turn ``bwd`` marks into ranges: each lasts until the next one of its thread or the end of its backward phase."""
    marks = ranges.marks.filter(pl.col("kind") == "backward_module")
    if not marks.height:
        return marks
    phases = ranges.ranges.filter((pl.col("kind") == "phase") & (pl.col("name") == "backward"))
    marks = marks.sort("thread", "start_ns").with_columns(pl.col("start_ns").shift(-1).over("thread").alias("next_ns"))
    marks = marks.sort("start_ns").join_asof(
        phases.select(
            "process", pl.col("start_ns").alias("phase_start_ns"), pl.col("end_ns").alias("phase_end_ns")
        ).sort("phase_start_ns"),
        left_on="start_ns",
        right_on="phase_start_ns",
        by="process",
        check_sortedness=False,
    )
    inside = pl.col("phase_end_ns") > pl.col("start_ns")
    return (
        marks.filter(inside)
        .with_columns(pl.min_horizontal("next_ns", "phase_end_ns").alias("end_ns"))
        .drop("next_ns", "phase_start_ns", "phase_end_ns")
    )


def _keys(layer: _Layer) -> tuple[pl.Series, I64]:
    """Return the module names that occur and each row's index into them.

    A module range is named by its path (the root by its class); any other range by the path of ranges that it is nested in.
    """
    rows, parents = layer.rows, layer.parents()
    own = pl.when(pl.col("name") == "").then(pl.format("({})", "cls")).otherwise(pl.col("name"))
    names = rows.select(pl.when(pl.col("kind").is_in(["module", "backward_module"])).then(own).alias("key"))["key"]
    if not names.null_count():
        keys = names.unique(maintain_order=True)
        index = pl.DataFrame({"key": keys, "i": np.arange(len(keys))})
        joined = rows.select(names).join(index, on="key", how="left", maintain_order="left")
        return keys, joined["i"].to_numpy()
    keys = pl.Series("key", [], dtype=pl.String)
    out = np.full(rows.height, -1, np.int64)
    alone = names.is_not_null().to_numpy()
    label = pl.DataFrame({"own": names, "plain": rows["name"]}).select(pl.coalesce("own", "plain").alias("own"))["own"]
    depth = layer.depths()
    for level in range(int(depth.max()) + 1):
        mine = np.flatnonzero(depth == level)
        above = np.where(alone[mine] | (parents[mine] < 0), -1, out[np.maximum(parents[mine], 0)])
        part = pl.DataFrame({"above": above, "own": label.gather(mine)})
        known = part.unique(maintain_order=True)
        known = (
            known.with_columns(columns.at(keys, known["above"].to_numpy()).alias("path"))
            .with_columns(
                pl.when(pl.col("path").is_null())
                .then("own")
                .otherwise(pl.format("{} / {}", "path", "own"))
                .alias("key")
            )
            .with_row_index("i", offset=len(keys))
        )
        out[mine] = part.join(known, on=["above", "own"], how="left", maintain_order="left")["i"].to_numpy()
        keys = pl.concat([keys, known["key"]])
    # One name may have come up at several depths.
    distinct = keys.unique(maintain_order=True)
    return distinct, pl.DataFrame({"key": keys.gather(out)}).join(
        pl.DataFrame({"key": distinct, "i": np.arange(len(distinct))}), on="key", how="left", maintain_order="left"
    )["i"].to_numpy()


def _module_layer(ranges: Ranges) -> _Layer:
    """Return the ranges that name modules: the probe's where there are any, else whatever the user wrote."""
    rows = ranges.ranges.filter(~pl.col("crossing")).drop("range")
    own = rows.filter(pl.col("own") & pl.col("kind").is_in(["module", "backward_module"]))
    if own.height:
        return _layer(pl.concat([own, _backward_marks(ranges).select(own.columns)]))
    named = rows.filter(pl.col("kind").is_in(["module", "range", "phase"]))
    return _layer(pl.concat([named, _outer_ops(rows.filter(pl.col("kind") == "op"))]))


def _outer_ops(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost autograd ops that are not the backward of an earlier op on another thread.

    Those are left to the sequence number, which ties them to the forward op and so to its module.
    """
    if not ops.height:
        return ops
    layer = _layer(ops)
    outer = layer.rows.filter(pl.Series(layer.parents() < 0))
    first = ops.sort("start_ns").group_by("process", "number").agg(pl.col("thread").first().alias("_first"))
    later = (pl.col("number") >= 0) & (pl.col("_first") != pl.col("thread"))
    return outer.join(first, on=["process", "number"], how="left", maintain_order="left").filter(~later).drop("_first")


def _phase_spans(layer: _Layer) -> pl.DataFrame:
    parts = []
    names = layer.rows["name"].to_list()
    for thread, (offset, nest) in layer.threads.items():
        open_ = nest.top.labels >= 0
        parts.append(
            pl.DataFrame(
                {
                    "thread": np.full(int(open_.sum()), thread),
                    "start_ns": nest.top.times[:-1][open_],
                    "end_ns": nest.top.times[1:][open_],
                    "phase": [names[i + offset] for i in nest.top.labels[open_].tolist()],
                },
                schema={"thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "phase": pl.String},
            )
        )
    empty = pl.DataFrame(schema={"thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "phase": pl.String})
    spans = pl.concat([empty, *parts])
    return spans.filter(pl.col("end_ns") > pl.col("start_ns")).with_columns(
        (pl.col("thread") // (1 << 24)).alias("process")
    )


class _Finder:
    """Answers (thread, instant) -> module row, phase, grade."""

    def __init__(self, ranges: Ranges) -> None:
        self.modules = _module_layer(ranges)
        self.keys, self.key_of_row = _keys(self.modules)
        rows = ranges.ranges.filter(~pl.col("crossing"))
        self.phases = _layer(rows.filter(pl.col("kind") == "phase"))
        self.phase_names = ["backward", *(p for p in self.phases.rows["name"].unique().sort() if p != "backward")]
        number = {name: i for i, name in enumerate(self.phase_names)}
        self.phase_codes = np.array([number[p] for p in self.phases.rows["name"].to_list()], np.int64)
        self.ops = _layer(rows.filter((pl.col("kind") == "op") & (pl.col("number") >= 0)))
        self.steps = _layer(rows.filter(pl.col("kind") == "step"))
        self.backward = {
            process: part.select("start_ns", "end_ns", "thread").sort("start_ns")
            for (process,), part in rows.filter((pl.col("kind") == "phase") & (pl.col("name") == "backward")).group_by(
                "process"
            )
        }
        self.seq_module = self._sequence_modules()

    def _sequence_modules(self) -> dict[int, tuple[I64, I64]]:
        """Return, per process, sequence numbers and the module row of the last forward op that carries each."""
        found: dict[int, list[tuple[I64, I64]]] = {}
        for thread, (offset, nest) in self.ops.threads.items():
            if thread not in self.modules.threads:
                continue
            part = self.ops.rows.slice(offset, len(nest.parent))
            module = self.modules.at(thread, part["start_ns"].to_numpy())
            known = module >= 0
            found.setdefault(thread // (1 << 24), []).append((part["number"].to_numpy()[known], module[known]))
        result = {}
        for process, parts in found.items():
            number, row = (np.concatenate([p[i] for p in parts]) for i in range(2))
            order = np.argsort(number, kind="stable")
            last = np.append(np.diff(number[order]) != 0, True)[: len(order)]
            if last.any():
                result[process] = (number[order][last], row[order][last])
        return result

    def find(self, process: I64, thread: I64, t: I64) -> pl.DataFrame:
        """Return one row per (thread, instant): phase, module (null for none), grade, recompute.

        Rows must be grouped by thread.
        """
        n = len(t)
        module, phase = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
        step, seq = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        borders = np.flatnonzero(np.diff(thread)) + 1
        for a, b in zip([0, *borders.tolist()], [*borders.tolist(), n], strict=True):
            if a == b:
                continue
            of, at = int(thread[a]), t[a:b]
            module[a:b], phase[a:b] = self.modules.at(of, at), self.phases.at(of, at)
            step[a:b] = self.steps.at(of, at) >= 0
            op = self.ops.at(of, at)
            open_ = np.flatnonzero((module[a:b] < 0) & (op >= 0))
            if len(open_) and self.seq_module:
                numbers = self.ops.rows["number"].to_numpy()[op[open_]]
                rows = np.full(len(numbers), -1, np.int64)
                if of // (1 << 24) in self.seq_module:
                    known, row = self.seq_module[of // (1 << 24)]
                    place = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
                    rows = np.where(known[place] == numbers, row[place], -1)
                module[a + open_] = rows
                seq[a + open_] = rows >= 0
        backward = self._in_backward(process, thread, t)
        kinds = self.modules.rows["kind"].to_numpy() if self.modules.rows.height else np.empty(0, object)
        is_backward = (module >= 0) & (kinds[np.maximum(module, 0)] == "backward_module") if len(kinds) else module >= 0
        by_phase = np.append(self.phase_codes, -1)[phase]
        code = np.where(is_backward | seq | ((phase < 0) & backward), self.phase_names.index("backward"), by_phase)
        on_thread = (module >= 0) | (phase >= 0) | step
        grade = np.where(seq, 1, np.where(on_thread, 0, np.where(backward, 2, 3)))
        recompute = self.modules.rows["recompute"].to_numpy() if len(kinds) else np.zeros(0, np.bool_)
        key = np.where(module >= 0, self.key_of_row[np.maximum(module, 0)], -1) if len(kinds) else module
        # Work outside every module is named by its phase, in parentheses.
        outside = [*(f"({p})" for p in self.phase_names), "(step, outside modules)"]
        fallback = np.where(code >= 0, len(self.keys) + code, np.where(step, len(self.keys) + len(outside) - 1, -1))
        return pl.DataFrame(
            {
                "phase": columns.named(self.phase_names, code),
                "module": columns.named([*self.keys.to_list(), *outside], np.where(key >= 0, key, fallback)),
                "grade": columns.named(GRADES, grade),
                "recompute": (module >= 0) & recompute[np.maximum(module, 0)] if len(kinds) else np.zeros(n, np.bool_),
            }
        )

    def _in_backward(self, process: I64, thread: I64, t: I64) -> npt.NDArray[np.bool_]:
        """Return whether another thread of the process is inside a backward range: then this one works for it."""
        inside = np.zeros(len(t), np.bool_)
        for key, spans in self.backward.items():
            mine = np.flatnonzero(process == key)
            start = spans["start_ns"].to_numpy()
            reach = np.maximum.accumulate(spans["end_ns"].to_numpy())
            i = np.searchsorted(start, t[mine], side="right") - 1
            inside[mine] = (i >= 0) & (reach[np.maximum(i, 0)] > t[mine])
        return inside

    def tree(self) -> pl.DataFrame:
        """Return the module tree: module, cls, parent, calls, first_ns. The parent is where it is mostly called from."""
        rows = self.modules.rows
        parents = self.modules.parents()
        forward = (rows["kind"] != "backward_module").to_numpy() & ~rows["recompute"].to_numpy().astype(bool)
        key = self.key_of_row
        above = np.where(parents >= 0, key[np.maximum(parents, 0)] if len(key) else -1, -1)
        frame = rows.select(
            pl.Series("key", key), pl.Series("above", above), "cls", "start_ns", pl.Series("forward", forward)
        )
        modules = frame.group_by("key").agg(
            pl.col("cls").first(),
            pl.col("forward").sum().cast(pl.Int64).alias("calls"),
            pl.col("start_ns").min().alias("first_ns"),
        )
        callers = frame.filter(pl.col("forward") & (pl.col("above") != pl.col("key"))).group_by("key", "above").len()
        callers = callers.with_columns(columns.at(self.keys, callers["above"].to_numpy()).alias("parent"))
        callers = callers.sort("key", "len", "parent", descending=[False, True, False], nulls_last=True)
        modules = modules.join(callers.unique("key", keep="first", maintain_order=True), on="key", how="left")
        return (
            modules.with_columns(columns.at(self.keys, modules["key"].to_numpy()).alias("module"))
            .select("module", "cls", "parent", "calls", "first_ns")
            .sort("first_ns", "module")
        )


def _capture_calls(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return graph_node -> (process, thread, time) of the call that captured the node.

    A graph launch is one call for all its kernels; what a node is for shows at capture time. Instantiation clones nodes, so
    the way back to the original is followed first. A clone may stand twice, created and then cloned: only one row knows its
    original.
    """
    nodes = trace.graph_node.sort("start_ns").unique(["process", "node"], keep="first", maintain_order=True)
    back = {
        (p, n): (p, o)
        for p, n, o in trace.graph_node.select("process", "node", "original_node").iter_rows()
        if o not in (None, 0, n)
    }
    origin = []
    for process, node in nodes.select("process", "node").iter_rows():
        key, hops = (process, node), 0
        while key in back and hops < 16:
            key, hops = back[key], hops + 1
        origin.append(key[1])
    first = nodes.select("process", pl.col("node").alias("origin"), "thread", pl.col("start_ns").alias("time_ns"))
    return (
        nodes.select("process", pl.col("node").alias("graph_node"))
        .with_columns(pl.Series("origin", origin, dtype=pl.Int64))
        .join(first, on=["process", "origin"], how="inner")
        .drop("origin")
    )


def attribute(trace: Trace, correlated: Correlated, ranges: Ranges) -> Attributed:
    """Give every API call and GPU op its phase, module and grade. Rows in = rows out, in the same order."""
    finder = _Finder(ranges)
    calls = correlated.api_calls
    found = finder.find(*(calls[c].to_numpy() for c in ("process", "thread", "start_ns")))
    tree = finder.tree()
    fields = ("phase", "module", "grade", "recompute")
    calls = pl.concat([calls, found.select(fields)], how="horizontal")
    row = correlated.gpu_ops["call"].fill_null(-1).to_numpy()
    ops = correlated.gpu_ops.with_columns(columns.at(calls[f], row).alias(f) for f in fields)
    if ops["graph_node"].is_not_null().any() and trace.graph_node.height:
        origin = _capture_calls(trace, calls).sort("thread", "time_ns")
        at = finder.find(*(origin[c].to_numpy() for c in ("process", "thread", "time_ns")))
        captured = pl.concat(
            [
                origin.select("process", "graph_node"),
                at.select(pl.col(f).alias(f"_{f}") for f in fields),
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
    return Attributed(calls, ops, tree, _phase_spans(finder.phases), correlated.threads)
