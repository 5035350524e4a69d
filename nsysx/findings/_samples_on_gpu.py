"""Samples that the dataset itself moves to the GPU and works on there, one by one, so that no worker can make them.

Copies and kernels of a few microseconds for each sample stand between what the CPU does for it, and the loop waits for all of them. Workers
cannot take that over: a process that was forked may not use the GPU of the one that forked it.
"""

from __future__ import annotations

import re
from pathlib import PurePath

import numpy as np
import polars as pl

from nsysx import units
from nsysx.analyses.lines import text_of, texts
from nsysx.findings import _line_remedies
from nsysx.findings._case import Case, Fix, way
from nsysx.findings._needs import LOADER
from nsysx.findings._work_bounds import FEWEST_SAMPLES_ON_GPU
from nsysx.model import Row
from nsysx.records import whole_number

ON_CPU = "samples-on-cpu"
#: What moves a tensor to a device, and the line that does nothing else.
_MOVES = re.compile(r"\.(to|cuda)\(")


def samples_on_gpu(case: Case, loader: Row) -> Fix | None:
    """Return the advice for a loader without workers whose dataset launches kernels for each sample, None where it does not."""
    batch = whole_number(loader.get("batch_size"))
    if loader.get("workers") or batch is None or batch < FEWEST_SAMPLES_ON_GPU:
        return None
    work = _work_of_samples(case)
    kernels, copies = ((work["op_kind"] == kind).sum() / case.steps for kind in ("kernel", "memcpy"))
    if kernels < batch:
        return None
    remedy = way(ON_CPU)
    most = longest_place(work)
    above_all = f", {PurePath(most[0]).name}:{most[1]} above all" if most else ""
    copied = f" and {copies:.0f} copies" if copies >= batch else ""
    launched = f"here {kernels:.0f} kernels{copied} {case.per} are launched for {units.several(batch, 'sample')}"
    text = f"{remedy.text}: {launched}, one by one{above_all}"
    return Fix.by_name(way(ON_CPU, text, _paste(case, work, batch)), needs=(LOADER,))


def longest_place(work: pl.DataFrame) -> tuple[str, int] | None:
    """Return file and line that launch most of some work, None where none is known."""
    lined = work.filter(pl.col("file").is_not_null() & pl.col("line").is_not_null())
    if not lined.height:
        return None
    most = lined.group_by("file", "line").len().sort("len", "file", "line", descending=[True, False, False])
    file, line, _ = most.row(0)
    return str(file), int(line)


def where_on_gpu(case: Case) -> dict[str, object]:
    """Return the place that launches most for the samples, empty where no line is known."""
    most = longest_place(_work_of_samples(case))
    return {} if most is None else {"file": most[0], "line": most[1]}


def _work_of_samples(case: Case) -> pl.DataFrame:
    """Return the kernels, and the copies to the GPU, that are launched while the loop waits for its batch, with their lines."""
    chosen = (case.ops["op_kind"] == "kernel") | ((case.ops["op_kind"] == "memcpy") & (case.ops["name"] == "HtoD"))
    work = case.timed_ops(chosen, "op", "op_kind", "phase").filter(pl.col("phase") == "data")
    code = case.profile.code()
    places = np.full(work.height, -1) if code is None else code.places_of(code.op[work["op"].to_numpy()])
    where = [{} if code is None or row < 0 else code.where(row) or {} for row in places.tolist()]
    return work.with_columns(
        pl.Series("file", [each.get("file") for each in where], dtype=pl.String),
        pl.Series("line", [each.get("line") for each in where], dtype=pl.Int64),
    )


def _paste(case: Case, work: pl.DataFrame, batch: int) -> str:
    """Return what is to be pasted: with the line that works on each sample, where it is known."""
    most = longest_place(work.filter(work["op_kind"] == "kernel"))
    text = (text_of(texts(case.profile), *most) or "").strip() if most else ""
    done = (
        f"# here, for all samples at once: {_line_remedies.quoted(text)}" if text and not _MOVES.search(text) else "..."
    )
    return (
        f"loader = DataLoader(data, {batch}, num_workers=8, pin_memory=True, persistent_workers=True)  # of tensors on the CPU\n"
        f'batch = batch.to("cuda", non_blocking=True)  # in the loop\n{done}'
    )
