"""Small tensors of a batch that a line moves to the GPU one by one: a copy for each field of each sample, as targets of detection have.

Each is a call of its own, and before it a file of shared memory and a pinned block of its own. Put together by field, there are as many
copies as fields, and parts of what was put together are views that launch nothing.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from nsysx import units
from nsysx.catalogue import Call
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.findings._work_bounds import FIELDS_OF_BATCH, MANY_FIELD_COPIES, SMALL_FIELD_BYTES

NAME = "fields-at-once"
#: A line that moves tensors that are there, or calls what does. A number of Python, and an array, have remedies of their own.
_MOVES = re.compile(r"\.(to|cuda)\(|\b\w*(to_device|move|to_cuda|to_gpu|prepare_inputs?)\w*\(")
_MAKES = re.compile(r"\b(as_?tensor|tensor|from_numpy|frombuffer)\(|\w*Tensor\(")


def fields_at_once(case: Case, text: str, calls: pl.Series) -> Fix | None:
    """Return the advice for a line whose calls copy many small tensors to the GPU, one after the other; None for any other line.

    Where the GPU is given work between two of them, each is of a batch of its own.
    """
    if case.stepless or not _MOVES.search(text) or _MAKES.search(text):
        return None
    copies = case.ops.filter(
        (pl.col("op_kind") == "memcpy")
        & (pl.col("name") == "HtoD")
        & pl.col("call").is_in(calls.drop_nulls().implode())
    )
    often = copies.height / case.steps
    median = float(copies["bytes"].median() or 0)  # type: ignore[arg-type]
    if often < MANY_FIELD_COPIES or median > SMALL_FIELD_BYTES or _apart(case, copies) > MOST_SHARE:
        return None
    remedy = way(NAME)
    text = f"{remedy.text}: here {often:.0f} copies {case.per}, half of them of {units.size(median)} or less"
    return Fix.by_name(way(NAME, text))


def left_of(case: Case, calls: pl.Series) -> float:
    """Return the share of these calls' copies that stays, if each field of a batch is one copy."""
    copies = case.calls.filter(case.calls["call"].is_in(calls.implode()) & (case.calls["kind"] == Call.COPY)).height
    return min(1.0, FIELDS_OF_BATCH * case.steps / max(copies, 1))


def _apart(case: Case, copies: pl.DataFrame) -> float:
    """Return the share of copies, but for the first of each step, before which kernels were launched since the one before."""
    calls = case.calls.sort("start_ns").select("call", launched=pl.col("kind").is_in(Call.LAUNCHES).cum_sum())
    launched = copies.join(calls, on="call", how="inner").sort("call")["launched"].to_numpy()
    between = int(np.count_nonzero(np.diff(launched))) - round(case.steps) + 1
    return max(between, 0) / max(len(launched) - round(case.steps), 1)
