"""Tensors that a loop fills part by part while gradients run through the parts: backward then copies all of the gradient for each part.

A write into a view of a tensor makes one node of autograd for the tensor (CopySlices in torch/csrc/autograd/functions/tensor.cpp), which
copies the whole gradient, takes the part out of the copy and zeroes it there. What joins parts hands on views of the gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx.events.narrowed_operators import Size
from nsysx.events.nvtx_ranges import Flags
from nsysx.events.operator_bounds import FEWEST_GROWING_CATS, NODES_OF_WRITE
from nsysx.events.operator_flow import OperatorFlow, flow_of
from nsysx.events.profile import Profile
from nsysx.events.result_readers import ResultReaders
from nsysx.events.tensor_versions import fills, is_room, passes
from nsysx.events.trained_operators import trained_of
from nsysx.frames.intervals import I64

_COPY, _CLONE, _NODE = "aten::copy_", "aten::clone", "torch::autograd::CopySlices"


class WrittenParts(NamedTuple):
    """A tensor made in a step of which parts are written one by one, rows of the flow: its size, that of a part, where these differ.

    ``stacked``: a part lacks that dimension. ``read``: single parts are read on the way. ``clones``: rows that copy it before a write.
    """

    rows: tuple[int, ...]
    size: Size
    part: Size
    dimension: int
    stacked: bool
    read: bool
    clones: frozenset[int] = frozenset()


def written_parts(profile: Profile) -> list[WrittenParts]:
    """Return such tensors of an X-ray step whose parts make up all of them, or all but one part."""
    return profile.once(_of_report)


def _of_report(profile: Profile) -> list[WrittenParts]:
    flow = flow_of(profile)
    return [] if flow is None or _COPY not in flow.names else written_in(flow, trained_of(profile))


def written_in(flow: OperatorFlow, trained: Flags) -> list[WrittenParts]:
    """Return such tensors of a flow; ``trained``: which of its operators are."""
    writes, clones = dict[int, list[int]](), dict[int, set[int]]()
    for row in flow.outermost:
        if flow.names[row] == _COPY and trained[row]:
            number, copied = _base_of(flow, flow.made[row][0])
            clones.setdefault(number, set()).update(copied)
            if is_room(flow, number):
                writes.setdefault(number, []).append(row)
    often = {number: rows for number, rows in writes.items() if len(rows) >= FEWEST_GROWING_CATS}
    if not often:
        return []
    readers = ResultReaders(flow)
    of_each = (_parts_of(readers, number, rows, frozenset(clones[number])) for number, rows in often.items())
    return [parts for parts in of_each if parts is not None]


def _base_of(flow: OperatorFlow, number: int) -> tuple[int, set[int]]:
    """Return the number of the operator that made what a view lies in, or what that is a clone of, and the clones."""
    clones = set[int]()
    while (row := flow.row_of.get(number)) is not None and (passes(flow, row) or flow.names[row] == _CLONE):
        if flow.names[row] == _CLONE:
            clones.add(row)
        number = flow.made[row][0]
    return number, clones


def _parts_of(readers: ResultReaders, number: int, rows: list[int], clones: frozenset[int]) -> WrittenParts | None:
    """Return what is known of a tensor and its writes, None where its parts are no rows of it, or something reads more of it meanwhile."""
    size, written = readers.results.get(number), {size for row in rows for size in readers.sizes[row][:2]}
    sources = {readers.flow.row_of.get(number) for row in rows for number in readers.flow.made[row][1:2]}
    repeated = any(row is not None and readers.flow.names[row] == "aten::expand" for row in sources)
    if size is None or len(written) != 1 or repeated:
        return None
    (part,) = written
    stacked, dimensions = len(part) < len(size), _differing(size, part)
    missing = math.prod(size) - len(rows) * math.prod(part)
    if len(dimensions) != 1 or not 0 <= missing <= math.prod(part):
        return None
    read = _reads_meanwhile(readers, number, part, rows[-1], clones)
    return None if read is None else WrittenParts(tuple(rows), size, part, dimensions[0], stacked, read, clones)


def _differing(size: Size, part: Size) -> list[int]:
    """Return in which dimension a part is shorter than the whole, or which one it lacks: of several that may be, the first."""
    if len(size) == len(part):
        return [d for d, (a, b) in enumerate(zip(size, part, strict=True)) if a != b]
    return [d for d in range(len(size)) if size[:d] + size[d + 1 :] == part][:1]


def _reads_meanwhile(readers: ResultReaders, number: int, part: Size, last: int, clones: frozenset[int]) -> bool | None:
    """Return whether parts are read before the last write (row), None where more than a part is, but by what is cloned to be written."""
    flow, read = readers.flow, False
    newest = flow.number[max(clones)] if clones else number
    waiting = [(number, number)]  # what is read, and the version that it is of
    while waiting:
        given, version = waiting.pop()
        for row in readers.readers.get(given, set()):
            if fills(flow.names[row]) and row >= 0 and given not in flow.made[row][1:]:
                continue
            if row in clones:
                waiting.append((flow.number[row], flow.number[row]))
            elif row < 0 or row >= last:
                if version != newest:
                    return None
            elif passes(flow, row):
                waiting.append((flow.number[row], version))
            elif math.prod(readers.results.get(given, ())) > math.prod(part):
                return None
            else:
                read = True
    return read


def writes_of_calls(profile: Profile) -> I64:
    """Return of each API call of the report which of the writes of `written_parts` (row) it copies the gradient for; -1 for none."""
    flow, calls = flow_of(profile), profile.attributed.api_calls
    row_of_call = np.full(calls.height, -1)
    rows = sorted(row for parts in written_parts(profile) for row in parts.rows)
    if flow is None or not rows:
        return row_of_call
    ranges = profile.ranges.ranges.filter((pl.col("process") == profile.process) & ~pl.col("repeated"))
    nodes = ranges.filter((pl.col("kind") == "op") & (pl.col("name").cast(pl.String) == _NODE)).sort("start_ns")
    steps = ranges.filter((ranges["kind"] == "step") & ranges["own"]).sort("start_ns")
    inside = [
        nodes.filter((pl.col("start_ns") >= start) & (pl.col("end_ns") <= end))
        for start, end in steps["start_ns", "end_ns"].iter_rows()
    ]
    numbers = np.array([flow.sequence[row] for row in rows])
    writes = [_writes_of(each["number"].to_numpy(), numbers, rows) for each in inside]
    # Each X-ray step runs the same writes in the same order: the flow's own says which they are.
    like = next((each for each in writes if (each >= 0).any()), np.empty(0, np.int64))
    thread, called = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    for each in inside:
        if each.height != len(like) or not each.height:
            continue
        for key in each["thread"].unique().to_list():
            chosen = (each["thread"] == key).to_numpy()
            start, end = (each[column].to_numpy()[chosen] for column in ("start_ns", "end_ns"))
            a, b = np.searchsorted(thread, [key, key + 1])  # calls are sorted by thread and time
            nth = np.searchsorted(start, called[a:b], side="right") - 1
            within = (nth >= 0) & (called[a:b] < end[np.maximum(nth, 0)])
            row_of_call[a:b] = np.where(within, like[chosen][nth], row_of_call[a:b])
    repeats = profile.ranges.repeats
    return row_of_call if repeats is None else np.where(row_of_call >= 0, row_of_call, row_of_call[repeats.like])


def _writes_of(nodes: I64, numbers: I64, rows: list[int]) -> I64:
    """Return which write made each node (by their numbers): the last before it; -1 for another one's."""
    nth = np.searchsorted(numbers, nodes, side="right") - 1
    near = (nth >= 0) & (nodes - numbers[np.maximum(nth, 0)] < NODES_OF_WRITE)
    return np.where(near, np.array(rows)[nth], -1)
