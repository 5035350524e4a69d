"""Tensors that an object of the program keeps on the host and copies to the GPU in each step, though it could keep them there.

A copy has no name in a capture: that the same bytes move again is read from the line, which copies an attribute that no line of the step
assigns or writes, and from copies of the same size in each step.
"""

from __future__ import annotations

import re

import polars as pl

from nsysx.analyses.lines import CodeLineRow, text_of, texts
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._handed_tables import OF_A_STEP, SAME_BYTES, handed_tables, is_written
from nsysx.findings._picked_tables import picked_on_gpu
from nsysx.findings._unpinned_batches import function_of, moves_all
from nsysx.model import Row

#: An attribute of an object, or a constant of a module, that a line moves to a device.
_MOVED = re.compile(r"\b(self(?:\.[a-z_]\w*)+|[A-Z][A-Z_\d]{2,})\.(?:to|cuda)\(")


def kept_on_gpu(case: Case, row: Row, copies: pl.DataFrame) -> Fix | None:
    """Return the advice to keep on the GPU what the copies of a place (``row``, with ``op``) bring there in each step, None for others."""
    source = texts(case.profile)
    moved = _MOVED.search(text_of(source, row["file"], row["line"]) or "") if row["direction"] == "HtoD" else None
    if row["direction"] == "HtoD" and moved is None:
        return handed_tables(case, row["file"], row["line"], copies["call"].drop_nulls())
    if moved is None or OF_A_STEP.search(moved[1].rpartition(".")[2]):
        return None
    if moves_all(function_of(case, copies)):  # all of an object goes, as of a batch that has a method for that
        return None
    sizes = case.ops.filter(case.ops["op"].is_in(copies["op"].implode())).group_by("bytes").len()
    if not sizes.height or (sizes["len"] % case.steps != 0).any() or is_written(source, moved[1]):
        return None
    name = moved[1].rpartition(".")[2].lower()
    paste = f'self.register_buffer("{name}", {name}, persistent=False)  # once, in __init__; model.to(device) moves it'
    text = f"Keep {moved[1]} on the GPU: it is copied there in each step, and no line of a step changes it"
    return Fix.by_name(way("kept-constant", text, paste, SAME_BYTES))


def table_of_line(case: Case, row: CodeLineRow, calls: pl.Series) -> Fix | None:
    """Return the advice to keep on the GPU a table from which a line picks on the host, or that it copies whole; ``calls``: the line's."""
    picked = picked_on_gpu(case, row, round(row["copy_bytes"] / max(row["copies"], 1)))
    return picked or handed_tables(case, row["file"], row["line"], calls)
