"""Layers of ranges: which range of a kind is open on a thread at an instant, and the paths of those that nest."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import polars as pl

from nsysx.events.event_bounds import LONGEST_RANGE_PATH
from nsysx.events.nvtx_ranges import Ranges
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, Labels, Nesting, nesting_by_thread


@dataclass(frozen=True)
class Layer:
    """Ranges of some kinds as one nesting per thread; labels are rows of ``rows``."""

    rows: pl.DataFrame
    threads: dict[int, Nesting]

    def at(self, thread: int, t: I64) -> Labels:
        """Return the row of the innermost range open on ``thread`` at each instant, -1 for none."""
        if thread not in self.threads:
            return np.broadcast_to(np.int32(-1), len(t))
        return self.threads[thread].top.at(t)

    def parents(self) -> I64:
        """Return each row's enclosing row, -1 for none."""
        parts = [n.parent for n in self.threads.values()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def depths(self) -> I64:
        """Return how many ranges each row is nested in."""
        parts = [n.depth for n in self.threads.values()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


#: What a layer keeps of a range.
LAYER = ("process", "thread", "start_ns", "end_ns", "label", "kind", "name", "cls", "number", "recompute")


def layer_of(rows: pl.DataFrame) -> Layer:
    """Return ranges, with at least the columns of LAYER, as a layer: sorted by thread, the outer of two before the inner."""
    rows = lookup.ordered(rows[LAYER], "start_ns", ["end_ns", "label"], group="thread", descending=[True, False])
    thread, start, end = (rows[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    return Layer(rows, nesting_by_thread(thread, start, end))


def backward_ranges(ranges: Ranges) -> pl.DataFrame:
    """Turn ``bwd`` marks into ranges: each lasts until the next one of its thread or the end of its backward phase."""
    marks = ranges.marks.filter(pl.col("kind") == "backward_module")
    if not marks.height:
        return marks
    phases = ranges.ranges.filter((pl.col("kind") == "phase") & (pl.col("name") == "backward")).sort("start_ns")
    process, thread, start = (marks[c].to_numpy() for c in ("process", "thread", "start_ns"))
    last = np.iinfo(np.int64).max
    following = np.append(start[1:], last)
    following[np.append(thread[1:] != thread[:-1], True)] = last
    end = start.copy()
    for key in np.unique(process).tolist():
        of_phase = phases.filter(pl.col("process") == key)
        i = np.searchsorted(of_phase["start_ns"].to_numpy(), start, side="right") - 1
        in_phase = (process == key) & (i >= 0)
        end[in_phase] = np.minimum(of_phase["end_ns"].to_numpy()[i[in_phase]], following[in_phase])
        # A mark outside every backward phase is nobody's backward.
        end[in_phase & (end < start)] = start[in_phase & (end < start)]
    inside = np.flatnonzero(end > start)
    return marks.with_columns(pl.Series("end_ns", end))[inside]


#: What has no module path goes by another name in parentheses: a root module by its class, other work by its phase.
PATHLESS = "({})"


def bare(name: str) -> str:
    """Return the class or the phase that stands in the column module for what has no path; a path as it is."""
    return name[1:-1] if name == PATHLESS.format(name[1:-1]) else name


def _root_name(cls: str | None) -> str:
    return PATHLESS.format(cls)


def root_names(layer: Layer) -> frozenset[str]:
    """Return what the modules without a path are called: by their class."""
    rows = layer.rows
    roots = rows["cls"].filter(_are_modules(rows) & ((rows["name"] == "") | rows["name"].is_null()))
    return frozenset(_root_name(cls) for cls in roots.unique().cast(pl.String))


def _are_modules(rows: pl.DataFrame) -> pl.Series:
    """Return which ranges are those of modules."""
    return (rows["kind"] == "module") | (rows["kind"] == "backward_module")


def paths(layer: Layer) -> tuple[pl.Series, I64]:
    """Return the module names that occur and each row's index into them.

    A module range is named by its path (the root by its class); any other range by the path of ranges that it is nested in.
    """
    rows, parents = layer.rows, layer.parents()
    alone = _are_modules(rows).to_numpy()
    names, name = lookup.distinct(rows["name"])
    classes, cls = lookup.distinct(rows["cls"])
    # The root has no path.
    code = np.where(alone & np.array([not n for n in names])[name], len(names) + cls, name)
    words = [*names, *map(_root_name, classes)]
    if alone.all():
        used, key = np.unique(code, return_inverse=True)
        return _merged([words[i] for i in used.tolist()], key)
    made = _Paths(words)
    out = np.full(rows.height, -1, np.int64)
    depth = layer.depths()
    by_depth = np.argsort(depth, kind="stable")
    borders = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2)).tolist()
    for first, behind in itertools.pairwise(borders):
        level = by_depth[first:behind]
        above = np.where(alone[level] | (parents[level] < 0), -1, out[np.maximum(parents[level], 0)])
        out[level] = made.paths_below(above, code[level])
    # One name may have come up at several depths.
    return _merged(made.paths, out)


#: The one entry for what lies deeper than the longest path that is continued.
_DEEPER = "(nested deeper)"


class _Paths:
    """The paths of nested ranges, made level by level. ``last`` of a path that is too long is the one for all below, else -1."""

    def __init__(self, words: list[str | None]) -> None:
        self.words = words
        self.paths: list[str | None] = []
        self.last = np.empty(0, np.int64)

    def paths_below(self, above: I64, code: I64) -> I64:
        """Return the path of each range with the path above it (-1: none) and its own word."""
        out = np.where(above < 0, -1, np.append(self.last, -1)[above])
        free = np.flatnonzero(out < 0)
        if len(free):
            part = pl.DataFrame({"above": above[free], "code": code[free]})
            new = part.unique(maintain_order=True)
            new = new.with_columns(pl.Series("path", self._add(new), dtype=pl.Int64))
            out[free] = part.join(new, on=["above", "code"], how="left", maintain_order="left")["path"].to_numpy()
        return out

    def _add(self, new: pl.DataFrame) -> list[int]:
        """Make the paths of rows of above and code, and return their numbers."""
        numbers, last = [], []
        for above, code in new.iter_rows():
            word = self.words[code]
            path = word if above < 0 or word is None else f"{self.paths[above]} / {word}"
            number = len(self.paths)
            numbers.append(number)
            self.paths.append(path)
            if path is not None and len(path) > LONGEST_RANGE_PATH:
                self.paths.append(f"{path} / {_DEEPER}")
                last += [number + 1, number + 1]
            else:
                last.append(-1)
        self.last = np.concatenate((self.last, np.array(last, np.int64)))
        return numbers


def _merged(words: list[str | None], index: I64) -> tuple[pl.Series, I64]:
    """Return the distinct words, and the index that was into ``words`` as one into them."""
    number_of: dict[str | None, int] = {}
    row = np.array([number_of.setdefault(word, len(number_of)) for word in words], np.int64)
    return pl.Series("key", list(number_of), dtype=pl.String), row[index]


#: The ranges of modules that the probe marked.
BY_PROBE = pl.col("own") & pl.col("kind").is_in(["module", "backward_module"])


def module_layer(ranges: Ranges) -> Layer:
    """Return the ranges that name modules: the probe's where there are any, else whatever the user wrote."""
    rows = ranges.ranges
    by_probe = rows["own"] & _are_modules(rows) & ~rows["crossing"]
    if by_probe.any():
        return layer_of(pl.concat([rows[LAYER].filter(by_probe), backward_ranges(ranges)[LAYER]]))
    rows = rows.filter(~rows["crossing"])
    named = rows.filter(pl.col("kind").is_in(["module", "range", "phase"]))
    outer = _outer_ops(rows.filter(pl.col("kind") == "op"))
    return layer_of(pl.concat([named[LAYER], outer[LAYER]]))


def _outer_ops(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost autograd ops that are not the backward of an earlier op on another thread.

    Those are left to the sequence number, which ties them to the forward op and so to its module.
    """
    if not ops.height:
        return ops
    layer = layer_of(ops)
    outer = layer.rows.filter(pl.Series(layer.parents() < 0))
    first = ops.sort("start_ns").group_by("process", "number").agg(pl.col("thread").first().alias("_first"))
    later = (pl.col("number") >= 0) & (pl.col("_first") != pl.col("thread"))
    return outer.join(first, on=["process", "number"], how="left", maintain_order="left").filter(~later).drop("_first")
