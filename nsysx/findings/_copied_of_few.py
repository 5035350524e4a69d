"""Large tensors of two values that each batch brings to the GPU: masks and one-hot labels, which few numbers of the batch tell.

Workers make them, hand them over, and a copy of each step moves them; what they are made of is thousands of times as small. By the
batches that the probe has looked at: some numbers of the tensor are no more than two values, in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from nsysx import units
from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, ops_of, way
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.findings._work_bounds import LARGE_OF_FEW_BYTES
from nsysx.model import Row
from nsysx.replay.engine import RemoveOps

#: Bytes of a number of each kind.
_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "float32": 4,
    "int32": 4,
    "float64": 8,
    "int64": 8,
}


def told_by_few(case: Case, row: Row, copies: pl.DataFrame) -> tuple[Fix, RemoveOps] | None:
    """Return the advice to make on the GPU what these copies (``op``) bring, and what goes then; None where most of it are data."""
    if row["direction"] != "HtoD" or not case.program.torch or case.stepless:
        return None
    large = dict(_of_two_values(case))
    theirs = case.ops.filter(case.ops["op"].is_in(copies["op"].implode()) & case.ops["bytes"].is_in(list(large)))
    moved = int(theirs["bytes"].sum())
    if not large or moved < MOST_SHARE * (row["bytes"] or 0):
        return None
    remedy = way("made-from-few")
    names = sorted({large[size] for size in theirs["bytes"].to_list()})
    have, size = "has" if len(names) == 1 else "have", units.size(moved / case.steps)
    seen = f"{' and '.join(names)} {have} two values, and {size} of it are copied {case.per}"
    return Fix.by_name(way(remedy.name, f"{remedy.text}: {seen}")), RemoveOps(ops_of(theirs))


def _of_two_values(case: Case) -> Iterator[tuple[int, str]]:
    """Yield bytes, and shape in words, of each large tensor of the batches that has two values in all of them that were looked at."""
    settings = settings_of(case.profile)
    for loader in (settings.rows("loaders") if settings is not None else None) or ():
        batches = [
            [part for part in batch if isinstance(part, Mapping)] for batch in loader.get("parts") or () if batch
        ]
        if not batches:
            continue
        for number, part in enumerate(batches[0]):
            alike = [batch[number] for batch in batches if number < len(batch)]
            if len(alike) == len(batches) and all(map(_has_two_values, alike)):
                for each in alike:
                    yield _bytes(each), f"a tensor of {' x '.join(map(str, part['shape']))} {part['dtype']}"


def _has_two_values(part: Mapping[str, Any]) -> bool:
    shape = part.get("shape") or ()
    return part.get("numbers") == "" and sum(size > 1 for size in shape) > 1 and _bytes(part) >= LARGE_OF_FEW_BYTES


def _bytes(part: Mapping[str, Any]) -> int:
    return math.prod(part.get("shape") or (0,)) * _BYTES.get(str(part.get("dtype")), 0)
