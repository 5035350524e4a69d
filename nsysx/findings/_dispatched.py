"""Batches that one rank reads for all: the line that iterates a loader launches broadcasts of them, and every rank waits for one host."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses import lines
from nsysx.catalogue import Late
from nsysx.events.code_lines import CodeLines
from nsysx.findings._case import Case, Fix
from nsysx.findings._exposed_transfer import communication
from nsysx.findings._finding_bounds import DISPATCHED_BYTES
from nsysx.findings._rank_rows import rank_rows, straggler_of
from nsysx.model import Finding, Row
from nsysx.reading import nccl_notes

#: Why a rank is late that reads for all: by its host, whatever part of the breakdown that falls in.
_LATE_BY_HOST = (Late.HOST, Late.INPUT, Late.CALLS, Late.UNKNOWN)
#: A line that takes the next batch.
_TAKES_BATCH = re.compile(r"^(async\s+)?for\b.*\bin\b|\bnext\(")
_ACCELERATE = re.compile(r"/accelerate/data_loader\.py$")


def dispatched_batches(case: Case, file: str | None, line: int | None) -> Fix | None:
    """Return the advice for a line that takes the next batch and launches broadcasts of it; None for any other line."""
    code = case.profile.code()
    text = lines.text_of(lines.texts(case.profile), file, line) or ""
    if code is None or not _TAKES_BATCH.search(text):
        return None
    here = (
        code.places.with_row_index("row").filter((pl.col("file") == file) & (pl.col("line") == line))["row"].to_list()
    )
    sent = _broadcast_bytes(case, code, here)
    if sent < DISPATCHED_BYTES:
        return None
    fix = Fix.by_name("own-part-of-data")
    text = f"{fix.text}; {units.size(sent)} of each batch are broadcast here"
    if not _runs_accelerate(case, code, here):
        return fix.but(text=text)
    return fix.but(
        text=f"{text} (accelerate: dispatch_batches, its default for an IterableDataset)",
        paste="data = split_dataset_by_node(data, rank, world)  # and the loader not prepared, or dispatch_batches=False",
        condition="Each rank must cut the data itself: without that every rank reads all of it.",
    )


def read_by_one_rank(case: Case, finding: Finding) -> Finding | None:
    """Return a finding about a late rank whose host reads the batches of all, with the line that takes them; None where none is dispatched.

    What the rank is late by is what it reads for all, of which its own part stays: the saving is a bound.
    """
    rows = rank_rows(case)
    late = straggler_of(case)
    if finding.verdict != "found" or late is None or late["late_cause"] not in _LATE_BY_HOST:
        return None
    where = _dispatching_line(case)
    fix = dispatched_batches(case, where["file"], where["line"]) if where else None
    if fix is None:
        return None
    detail = f"{finding.detail} It reads the batches of all {len(rows)} ranks; each then reads its own part, which is left of it."
    saving = replace(finding.saving, bound=True)
    return fix.into(replace(finding, detail=detail, saving=saving, where={**finding.where, **where}))


def _dispatching_line(case: Case) -> Row:
    """Return file and line that take the next batch and launch broadcasts, those of most calls if there are several; {} for none."""
    code = case.profile.code()
    if code is None:
        return {}
    ops = communication(case).filter(pl.col("process") == case.process)
    places = code.places_of(code.op[ops["op"].to_numpy()])
    texts = lines.texts(case.profile)
    takes = [
        row
        for row in np.unique(places[places >= 0]).tolist()
        if (where := code.where(row)) and _TAKES_BATCH.search(lines.text_of(texts, where["file"], where["line"]) or "")
    ]
    return code.where_most(places[np.isin(places, takes)])


def _broadcast_bytes(case: Case, code: CodeLines, here: list[int]) -> float:
    """Return how many bytes a step is broadcast or scattered from these lines (rows of places), by what NCCL noted."""
    ops = communication(case).filter(pl.col("process") == case.process)
    ops = ops.filter(pl.Series(np.isin(code.places_of(code.op[ops["op"].to_numpy()]), here), dtype=pl.Boolean))
    members = nccl_notes.members(case.profile.trace).get(case.process, {})
    messages = nccl_notes.messages(case.profile.trace, ops, members)
    return sum(message.bytes or 0 for message in messages if message.kind == "broadcast") / max(case.steps, 1)


def _runs_accelerate(case: Case, code: CodeLines, here: list[int]) -> bool:
    """Return whether what these lines run is the loader of accelerate."""
    calls = code.call[code.made_at(case.calls, here)["call"].to_numpy()]
    files = code.places["file"].to_list()
    return any(
        _ACCELERATE.search((files[line_row] or "").replace("\\", "/"))
        for stack in np.unique(calls[calls >= 0]).tolist()
        for line_row in code.chain(stack)
    )
