"""Tables of embeddings whose gradient has all rows anyhow: something else than a lookup, as a head with the same weight, adds to it.

Autograd adds up the gradients that a weight has from several nodes before it hands the sum to the weight. Where a lookup's gradient is
added to one that no lookup made, the weight is no table of which few rows are used: the other gradient fills them all.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nsysx.events.narrowed_operators import Size, sizes_of
from nsysx.events.operator_flow import ID, SIZES, results_in
from nsysx.events.profile import Profile
from nsysx.frames.intervals import interval_of

_OF_LOOKUP = r"^aten::_?embedding(_bag)?(_dense)?_backward$"
_SUM = r"^aten::add_?$"
#: It adds to the gradient of the backward before, which a lookup made, too.
_ACCUMULATES = "torch::autograd::AccumulateGrad"


def shared_tables(profile: Profile) -> frozenset[Size]:
    """Return the sizes of the weights whose gradient a backward of an X-ray step adds up of a lookup's and of another operator's."""
    return profile.once(_shared)


def _shared(profile: Profile) -> frozenset[Size]:
    chosen = (pl.col("kind") == "op") & (pl.col("process") == profile.process) & ~pl.col("repeated")
    ops = profile.ranges.ranges.filter(chosen).select(
        "thread", "start_ns", "end_ns", pl.col("name", "label").cast(pl.String)
    )
    ops = ops.filter(pl.col("name").str.contains(f"{_OF_LOOKUP}|{_SUM}") | (pl.col("name") == _ACCUMULATES))
    shared = set[Size]()
    for of_thread in ops.sort("start_ns").partition_by("thread"):
        shared |= _shared_of_thread(of_thread)
    return frozenset(shared)


def _shared_of_thread(ops: pl.DataFrame) -> set[Size]:
    adds_to_weight = ops.filter(ops["name"] == _ACCUMULATES)
    theirs = ops.filter(ops["name"] != _ACCUMULATES)
    spans = (adds_to_weight[column].to_numpy() for column in ("start_ns", "end_ns"))
    theirs = theirs.filter(pl.Series(interval_of(theirs["start_ns"].to_numpy(), *spans) < 0, dtype=pl.Boolean))
    of_lookups = theirs["name"].str.contains(_OF_LOOKUP).to_numpy()
    numbers = theirs["label"].str.extract(ID, 1).cast(pl.Int64, strict=False).fill_null(-1).to_numpy()
    looked_up, shared = set(numbers[of_lookups].tolist()), set[Size]()
    for row in np.flatnonzero(~of_lookups).tolist():
        label = theirs["label"][row]
        sizes = sizes_of(theirs["label"].str.extract(SIZES, 1)[row] or "")[:2]
        made = [number for number, which in results_in(label.partition("input_op_ids = ")[2])[:2] if which >= 0]
        if len(sizes) != 2 or sizes[0] != sizes[1] or not looked_up.intersection(made):
            continue
        if len(made) == 2 and looked_up.issuperset(made):
            looked_up.add(int(numbers[row]))  # one table, looked up twice
        else:
            shared.add(sizes[0])
    return shared
