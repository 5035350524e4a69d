"""Tensors that are converted to another type only to be added to one of that type: the addition converts what it reads by itself.

``total.add_(x.float())`` writes all of x once more, and reads it back. Operators of torch that write in place take arguments of any type.
That is read from the operators of the X-ray steps, on every thread: hooks that add gradients up run on autograd's.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.events.operator_flow import ID, SIZES
from nsysx.events.profile import Profile

_CONVERTS = r"^aten::(to|_to_copy|type_as|type)$"
#: What takes an argument of any type beside a tensor that it writes into.
_WRITES_ANY = r"^aten::(add|sub|mul|div|copy)_$"
#: The gradient of a conversion: autograd makes it, and adds it up, whatever the program does.
_OF_AUTOGRAD = r"ToCopyBackward"
#: The second argument: the operator that made it, of which it is the first result.
_SECOND = r"input_op_ids = \[\(\d+,-?\d+\), \((\d{1,18}),0\)"
_SPANS = {"thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "adds": pl.Boolean}


def converted_addends(profile: Profile) -> pl.DataFrame:
    """Return the conversions of the X-ray steps that one such operator alone reads, and these (``adds``): thread, start_ns, end_ns."""
    every = profile.ranges.ranges.filter(
        (pl.col("process") == profile.process) & ~(pl.col("crossing") | pl.col("open") | pl.col("repeated"))
    )
    ranges = every.filter(every["kind"] == "op")
    name, text = ranges["name"].cast(pl.String), ranges["label"].cast(pl.String)
    size = text.str.extract(SIZES, 1).fill_null("").str.extract_all(r"\[[\d, ]*\]")
    ops = ranges["thread", "start_ns", "end_ns"].with_columns(
        number=text.str.extract(ID, 1).cast(pl.Int64, strict=False),
        given=text.str.extract(_SECOND, 1).cast(pl.Int64, strict=False),
        first=size.list.get(0, null_on_oob=True),
        second=size.list.get(1, null_on_oob=True),
    )
    adds = ops.filter(name.str.contains(_WRITES_ANY), pl.col("first") == pl.col("second"), pl.col("first") != "[]")
    # An optimizer asks for gradients of its parameters' type.
    phases = every.filter((pl.col("kind") == "phase") & pl.col("name").cast(pl.String).str.starts_with("optimizer"))
    adds = _outside(adds, phases)
    converts = ops.filter(name.str.contains(_CONVERTS))["thread", "start_ns", "end_ns", "number", "first"]
    converts = _outside(converts, ops.filter(name.str.contains(_OF_AUTOGRAD)))
    pairs = converts.join(
        adds.select("given", "first", "thread", add_ns="start_ns", added_ns="end_ns"),
        left_on=["number", "first", "thread"],
        right_on=["given", "first", "thread"],
        how="inner",
    ).filter(pl.col("end_ns") <= pl.col("add_ns"))
    if not pairs.height:
        return pl.DataFrame(schema=_SPANS)
    reads = text.str.extract(r"input_op_ids = (.*)").str.extract_all(r"\((\d+),\d+\)").explode()
    reads = reads.str.extract(r"(\d+)").cast(pl.Int64, strict=False).drop_nulls()
    often = reads.filter(reads.is_in(pairs["number"].implode())).value_counts(name="readers")
    alone = often.filter(often["readers"] == 1).to_series(0)
    pairs = pairs.filter(pl.col("number").is_in(alone.implode()))
    return pl.concat(
        [
            pairs.select("thread", "start_ns", "end_ns", adds=pl.lit(value=False)),
            pairs.select("thread", start_ns="add_ns", end_ns="added_ns", adds=pl.lit(value=True)),
        ]
    ).sort("thread", "start_ns")


def _outside(rows: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges that lie in none of some others, which may lie in each other."""
    ended = nodes.sort("thread", "start_ns").select(
        "thread", node_ns="start_ns", until_ns=pl.col("end_ns").cum_max().over("thread")
    )
    rows = rows.sort("start_ns").join_asof(
        ended.sort("node_ns"), left_on="start_ns", right_on="node_ns", by="thread", check_sortedness=False
    )
    return rows.filter(pl.col("until_ns").is_null() | (pl.col("until_ns") < pl.col("end_ns")))


def calls_within(profile: Profile, spans: pl.DataFrame) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], ...]:
    """Return of each API call of the report whether a conversion makes it, and whether an addition does, in this step or the X-ray's."""
    calls, repeats = profile.attributed.api_calls, profile.ranges.repeats
    thread, start = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    inside = np.zeros((2, calls.height), np.bool_)
    for (key,), theirs in spans.group_by("thread", maintain_order=True):
        rows = np.flatnonzero(thread == key)
        last = np.searchsorted(theirs["start_ns"].to_numpy(), start[rows], side="right") - 1
        within = (last >= 0) & (start[rows] < theirs["end_ns"].to_numpy()[last])
        adds = theirs["adds"].to_numpy()[last]
        inside[0][rows], inside[1][rows] = within & ~adds, within & adds
    like = np.arange(calls.height) if repeats is None else np.asarray(repeats.like)
    return tuple(each | ((like >= 0) & each[like]) for each in inside)
