"""Parts that torch.compile makes of a compiled region: they are modules of torch's own, and go by the name of the region's module.

Where DistributedDataParallel is around a region, torch cuts its graph at the borders of buckets, and calls the parts as modules
(``WrapperModule``) within one of the whole (``GraphModule``): names that no program has. Earlier probes marked them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from nsysx.events.nvtx_ranges import Flags, Ranges
from nsysx.frames import lookup
from nsysx.frames.intervals import I64, nesting_by_thread

#: What torch calls the classes of such parts; their path is the class, with a number where several live.
_OF_TORCH = r"^(?:WrapperModule|GraphModule)(?:#\d+)?$"
#: How the text of a compiled region says that it is one.
_REGION = r" compiled(?: |$)"


def by_region(ranges: Ranges) -> Ranges:
    """Return the ranges without the parts of regions: the region's range holds their calls, and their marks of backward have its name.

    A mark belongs to the last call of its part before it that no other mark belongs to. Where marks outnumber calls they keep their names.
    """
    by_probe = ranges.ranges.filter(pl.col("own") & (pl.col("kind") == "module") & ~pl.col("crossing"))
    part = lookup.matching(by_probe["name"], _OF_TORCH)
    if not part.any():
        return ranges
    region = _regions(by_probe, part)
    inside = part & (region >= 0)
    calls = by_probe.filter(pl.Series(inside))
    marks = _renamed(calls, by_probe[region[inside]], ranges.marks)
    kept = ranges.ranges.join(calls.select("range"), on="range", how="anti", maintain_order="left")
    return replace(ranges, ranges=kept.drop("range").with_row_index("range"), marks=marks)


def _regions(by_probe: pl.DataFrame, part: Flags) -> I64:
    """Return the row of the compiled region that each part lies in, -1 for none."""
    thread, start, end = (by_probe[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    parent = np.concatenate([n.parent for n in nesting_by_thread(thread, start, end).values()])
    above = np.where(part, parent, -1)
    while (inner := (above >= 0) & part[above]).any():
        above = np.where(inner, parent[above], above)
    compiled = lookup.matching(by_probe["label"], _REGION)
    return np.where((above >= 0) & compiled[above], above, -1)


def _renamed(calls: pl.DataFrame, regions: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """Return the marks with those of parts named after the regions of their calls; ``regions`` has the region of each call."""
    names, classes, labels = (regions[c].cast(pl.String).to_list() for c in ("name", "cls", "label"))
    called: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for row, (process, name, end) in enumerate(
        calls.select("process", pl.col("name").cast(pl.String), "end_ns").iter_rows()
    ):
        called.setdefault((process, name), []).append((end, row))
    backward = marks.with_row_index("row").filter(pl.col("kind") == "backward_module")
    of_part: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for row, process, name, marked_ns in backward.select(
        "row", "process", pl.col("name").cast(pl.String), "start_ns"
    ).iter_rows():
        if (process, name) in called:
            of_part.setdefault((process, name), []).append((marked_ns, row))
    named: dict[int, int] = {}
    for key, theirs in of_part.items():
        pairs = _last_first(called[key], theirs)
        named |= pairs if len(pairs) == len(theirs) else {}
    new = {
        column: [values[named[row]] if row in named else old for row, old in enumerate(marks[column].cast(pl.String))]
        for column, values in (("name", names), ("cls", classes), ("label", [f"bwd {text}" for text in labels]))
    }
    return marks.with_columns(pl.Series(column, values).cast(marks[column].dtype) for column, values in new.items())


def _last_first(calls: list[tuple[int, int]], marks: list[tuple[int, int]]) -> dict[int, int]:
    """Return mark -> call: backward comes to the last call first. Both are (ns, row); marks without a call left are not in it."""
    pairs: dict[int, int] = {}
    waiting: list[int] = []
    for _, is_mark, row in sorted([*((ns, False, row) for ns, row in calls), *((ns, True, row) for ns, row in marks)]):
        if not is_mark:
            waiting.append(row)
        elif waiting:
            pairs[row] = waiting.pop()
    return pairs
