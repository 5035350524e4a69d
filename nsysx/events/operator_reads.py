"""Sizes of an operator's tensors as they are read: one that is given twice is read once, one that was expanded is as small as before."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import cache

import numpy as np
import polars as pl

from nsysx.events.operator_flops import Shape, sizes
from nsysx.frames import lookup
from nsysx.frames.intervals import I64

_TEXT = re.compile(r", op_id = (\d{1,18})\b.*?sizes = (\[[\[\]\d, -]*\])(?:, input_op_ids = (\[.*\]))?")
_MADE = re.compile(r"\((\d{1,18}),(-?\d{1,9})\)")
#: Operators whose result is their first argument seen more often than it is there.
_EXPANDING = ("aten::expand", "aten::expand_as", "aten::broadcast_to", "aten::repeat_interleave")
#: Nodes of autograd that hand on the gradient of a sum, expanded.
_SPREADING = re.compile(r"^(Sum|Mean|Expand)Backward\d*$")


def read_once(rows: pl.DataFrame, used: I64) -> pl.Series:
    """Return, for the used rows of a layer of operators, the sizes of each argument as text: null for one that stands before already,
    the source's size for one that was expanded. Null where sizes were not recorded.
    """
    expanded = _expanded(rows)
    # Many operators have the same sizes, and most of them are given each tensor once.
    parsed, as_given = cache(sizes), cache(lambda text: json.dumps(sizes(text)))
    processes, texts = rows["process"][used].to_list(), rows["label"][used].cast(pl.String).to_list()
    read: list[str | None] = []
    for text, process in zip(texts, processes, strict=True):
        match = _TEXT.search(text or "")
        given = parsed(match[2]) if match else None
        if match is None or given is None:
            read.append(None)
            continue
        made = _MADE.findall(match[3] or "")
        again = _read(given, made, expanded.get(process, {})) if len(made) == len(given) else None
        read.append(as_given(match[2]) if again is None else json.dumps(again))
    return pl.Series("read", read, dtype=pl.String)


def _expanded(rows: pl.DataFrame) -> dict[int, dict[str, list[int]]]:
    """Return process -> op_id of what expands -> the size that it was given, [1] for a gradient that autograd spreads."""
    names, index = lookup.distinct(rows["name"])
    spreads = np.array([bool(_SPREADING.match(n or "")) for n in names], np.bool_)[index]
    wanted = np.array([n in _EXPANDING for n in names], np.bool_)[index] | spreads
    sources = defaultdict[int, dict[str, list[int]]](dict)
    some = rows.filter(pl.Series(wanted)).select("process", pl.col("label").cast(pl.String))
    for (process, text), spread in zip(some.iter_rows(), spreads[wanted].tolist(), strict=True):
        match = _TEXT.search(text or "")
        given = sizes(match[2]) if match else None
        if match and given:
            sources[process][match[1]] = [1] if spread else given[0]
    return sources


def _read(given: list[Shape], made: list[tuple[str, str]], expanded: dict[str, list[int]]) -> list[Shape | None] | None:
    """Return the sizes as they are read, None where they are read as ``given``; ``made``: which result of what each argument is, as torch
    writes the numbers, a negative one for none.
    """
    named = [source for source in made if source[1][0] != "-"]
    if len(set(named)) == len(named) and not any(number in expanded for number, _ in named):
        return None
    read: list[Shape | None] = []
    seen = set()
    for size, source in zip(given, made, strict=True):
        is_named = source[1][0] != "-"
        if is_named and (source, tuple(size)) in seen and size:
            read.append(None)
            continue
        seen.add((source, tuple(size)))
        smaller = expanded.get(source[0]) if is_named else None
        read.append(smaller if smaller is not None and size else size)
    return read
