"""Rows that a step picks from a table on the host and copies to the GPU, where all of the table would fit: features of nodes, of items.

An X-ray notes the pick with the size of the table. Such a pick calls nothing of CUDA: the CPU gathers rows from all over its memory, and
what it made is pageable.
"""

from __future__ import annotations

import math
import re

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import CodeLineRow, text_of, texts
from nsysx.events.narrowed_operators import sizes_of
from nsysx.events.operator_flow import flow_of
from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._handed_tables import is_written
from nsysx.findings._picks_then_copies import REMEDY, Pick, picked_in_two_lines, whole_bytes
from nsysx.findings._sharded_models import spare_bytes
from nsysx.model import Row

_NAME = r"(?:self\.)?[A-Za-z_][\w.]*(?:\[['\"]\w+['\"]\])?"
#: x[n_id].to(dev), feat.index_select(0, ids).cuda()
_PICKED = re.compile(
    rf"(?P<table>{_NAME})(?:\[(?P<by>[A-Za-z_][\w.]*)\]|\.index_select\(0,\s*(?P<numbers>[A-Za-z_][\w.]*)\))\s*"
    r"\.(?:to\(\s*(?P<device>[^,()]+(?:\([^()]*\))?)[^()]*\)|cuda\([^()]*\))"
)
_PICKS = re.compile(r"^aten::(index|index_select)$")


def _picks(profile: Profile) -> list[Pick]:
    """Return the picks of a step that call nothing of CUDA."""
    flow, code = flow_of(profile), profile.code()
    if flow is None or code is None:
        return []
    calls = profile.attributed.api_calls.filter(pl.col("thread") == flow.thread)["start_ns"].to_numpy()
    rows = [row for row in flow.outermost if _PICKS.match(flow.names[row])]
    calling = np.searchsorted(calls, flow.end_ns[rows]) > np.searchsorted(calls, flow.start_ns[rows])
    picks = list[Pick]()
    for row, calls_cuda in zip(rows, calling.tolist(), strict=True):
        where, sizes = code.where_of(int(code.at(flow.thread, flow.start_ns[[row]])[0])), sizes_of(flow.size[row])
        numbers = next((size for size in sizes[1:] if size), ())
        if where and not calls_cuda and sizes and len(sizes[0]) > 1 and numbers:
            file, line = str(where["file"]), int(where["line"])
            picks.append(Pick(file, line, math.prod(sizes[0]), sizes[0][0], math.prod(numbers)))
    return picks


def picked_on_gpu(case: Case, row: Row | CodeLineRow, copied_bytes: int) -> Fix | None:
    """Return the advice to keep on the GPU the table from which the line of a place (``row``) picks on the host; None for others.

    ``copied_bytes``: of one of its copies, their mean; of a line that copies none it is not known how large the table is.
    """
    file, line, settings = row.get("file"), row.get("line"), settings_of(case.profile)
    if settings is None or not file or not isinstance(line, int):
        return None
    source = texts(case.profile)
    text = _PICKED.search(text_of(source, str(file), line) or "")
    picks = [each for each in case.profile.once(_picks) if each[:2] == (file, line)]
    pick = max(picks, default=None)
    if text is None:
        return picked_before(case, row)
    if pick is None or pick.picked > pick.rows or is_written(source, text["table"]):
        return None
    # Steps pick unlike numbers of rows, and copies are known by their mean: a number of the table has the size that comes nearest.
    picked = sum(each.picked for each in picks) / len(picks)
    moved = picked * pick.table / pick.rows
    if not copied_bytes or not moved:
        return None
    whole = whole_bytes(pick, copied_bytes / moved)
    if spare_bytes(settings, whole) is None:
        return None
    table, numbers, device = text["table"], text["by"] or text["numbers"], (text["device"] or "'cuda'").strip()
    kept = _on_gpu(table)
    paste = (
        f"{kept} = {table}.to({device})  # once, before the loop: {units.size(whole)}\n"
        f"{kept}[{numbers}.to({device}, non_blocking=True)]  # in place of {text[0].strip()}"
    )
    return Fix.by_name(
        way(
            REMEDY,
            f"Keep {table} on the GPU, all of it ({units.size(whole)} fit), and copy the numbers of the rows alone: the CPU gathers "
            f"{units.count(round(picked))} of {units.count(pick.rows)} rows in each step and copies them from pageable memory",
            paste,
            f"{table} must stay as it is; each rank keeps one of its own.",
        )
    )


def picked_before(case: Case, row: Row | CodeLineRow) -> Fix | None:
    """Return the same for a line whose pick another line of the function copies, by the text of both."""
    file, line = row.get("file"), row.get("line")
    is_placed = isinstance(file, str) and isinstance(line, int)
    return picked_in_two_lines(case, str(file), int(line or 0), case.profile.once(_picks)) if is_placed else None


def _on_gpu(table: str) -> str:
    """Return a name beside that of a table: workers of a loader hold the table, too, and must not use the GPU."""
    holder, _, last = table.rpartition(".")
    word = re.findall(r"\w+", last)[-1]
    return f"{holder}.{word}_on_gpu" if holder == "self" and last == word else f"{word}_on_gpu"
