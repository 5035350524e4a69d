"""Why the allocator's cache is freed in steady steps: the program frees it itself, or a limit that was set leaves no room for it.

Else sizes change from step to step, or the device is full: that is what the rule says by default.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.catalogue import Call
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, calls_of, way
from nsysx.findings._finding_bounds import FREED_BY_PROGRAM_SHARE, NEAR_MEMORY_LIMIT_SHARE
from nsysx.model import Row
from nsysx.replay.engine import Edit, RemoveHost

_FREES = re.compile(r"\bempty_cache\(")
_COLLECTS = re.compile(r"\bgc\.collect\(")


class FreedByProgram(NamedTuple):
    """Lines that free the cache: the advice, where the first of them is, and what goes with them besides the memory calls."""

    fix: Fix
    where: Row
    edits: tuple[Edit, ...]


def freed_by_program(case: Case, calls: pl.DataFrame) -> FreedByProgram | None:
    """Return the lines of the program that make most of the calls that free memory, None where no line says that it empties the cache."""
    code, source = case.profile.code(), texts(case.profile)
    freed = calls.filter(calls["kind"] == Call.FREE)
    if code is None or not freed.height:
        return None
    of_text = [text_of(source, file, line) or "" for file, line in code.places["file", "line"].iter_rows()]
    emptying = [line_row for line_row, text in enumerate(of_text) if _FREES.search(text)]
    theirs = code.made_at(freed, emptying)
    if theirs.height < FREED_BY_PROGRAM_SHARE * freed.height:
        return None
    places = sorted(set(code.places_of(code.call[theirs["call"].to_numpy()]).tolist()))
    collects = any(
        _COLLECTS.search(text) for line_row, text in enumerate(of_text) if _beside(code.places, line_row, places)
    )
    lines = " and ".join(str(code.places["line"][line_row]) for line_row in places)
    where = "here" if len(places) == 1 else f"in lines {lines}"
    what = f"torch.cuda.empty_cache(){' and gc.collect()' if collects else ''}"
    text = f"Leave {what} out of the loop ({where}): the next phase allocates again what it gives back"
    costs = np.bincount(code.places_of(code.call[theirs["call"].to_numpy()]), theirs["ns"].to_numpy())
    fix = Fix.by_name(way("no-empty-cache", text, f"# delete {what} {where}"))
    return FreedByProgram(fix, code.where(int(costs.argmax())), (RemoveHost(calls_of(theirs)),) if collects else ())


def _beside(places: pl.DataFrame, line_row: int, others_of_it: list[int]) -> bool:
    """Return whether a line is in the function of some others."""
    return any(places.row(line_row)[::2] == places.row(other)[::2] for other in others_of_it)


def limited(case: Case) -> Fix | None:
    """Return the advice to raise the share of the memory that the process may use, where it uses nearly all of that; None else."""
    settings = settings_of(case.profile)
    memory = settings.record.get("memory") if settings is not None else None
    if not isinstance(memory, dict):
        return None
    share, whole, used = (memory.get(key) for key in ("share", "total_bytes", "reserved_peak_bytes"))
    if not (isinstance(share, float) and 0 < share < 1 and isinstance(whole, int) and isinstance(used, int)):
        return None
    if used < NEAR_MEMORY_LIMIT_SHARE * share * whole:
        return None
    text = (
        f"Let the process use more of the memory: set_per_process_memory_fraction({share:.3g}) leaves it {units.size(share * whole)} of "
        f"{units.size(whole)}, and each time that is full the allocator frees all that it keeps, waits and asks again"
    )
    return Fix.by_name(
        way("larger-memory-share", text, f"torch.cuda.set_per_process_memory_fraction(0.9)  # in place of {share:.3g}")
    )
