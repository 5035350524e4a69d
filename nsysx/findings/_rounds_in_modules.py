"""Loops in a module that ask for the rows of one group in each round, by what they do with the rows.

Rows that are multiplied by weights of their group (experts) become one grouped product. Sums, means and maxima of the rows need no order
and no sizes: one call adds each row to its group. Any other loop works on all rows at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from nsysx.analyses.lines import texts
from nsysx.events.operator_flow import flow_of
from nsysx.findings._case import Case, Fix
from nsysx.findings._segments_in_text import SEGMENTS, in_names_of_line
from nsysx.findings._work_bounds import WORK_OF_ROUNDS_SHARE
from nsysx.frames import lookup

_REDUCES = re.compile(
    r"^aten::(sum|mean|amax|amin|max|min|prod|logsumexp|std|var|nansum|count_nonzero|norm|linalg_vector_norm)$"
)
_READS = re.compile(r"^aten::(nonzero|_local_scalar_dense|masked_select|_?unique\w*|bincount)$")
_MULTIPLIES = re.compile(r"^aten::(linear|matmul|mm|addmm|bmm|baddbmm|einsum|conv\w*|_grouped_mm)$")
_PRODUCTS = Fix.by_name("groups-at-once")
#: What is said where the rows are neither multiplied nor added up.
_ROWS = Fix(
    "Do all {count} rounds of {name} on all rows at once: a mask (torch.where), or each row's group as an index, instead of asking the GPU "
    "for the rows of each group",
    condition="What a round does must be an operation on whole tensors.",
)


def fix_of(case: Case, modules: Sequence[str], calls: Sequence[int], rounds: float) -> Fix:
    """Return the advice for a loop of modules (paths) that waits for sizes in ``calls``; ``rounds``: those of each in a step."""
    windows = _windows(case, calls)
    asked = rounds * windows.height
    products = case.ops.filter(
        (case.ops["family"].cast(pl.String) == "gemm").fill_null(value=False), case.ops["call"].is_not_null()
    )
    least = WORK_OF_ROUNDS_SHARE * rounds
    if (
        _inside(windows, products["call"]) >= WORK_OF_ROUNDS_SHARE * asked
        or _operators(case, modules, _MULTIPLIES) >= least
    ):
        return _PRODUCTS
    if _operators(case, modules, _REDUCES) < least:
        return _ROWS
    code = case.profile.code()
    where = {} if code is None else code.where_most(code.places_of(code.call[list(calls)]))
    return in_names_of_line(texts(case.profile), where.get("file"), where.get("line"), SEGMENTS)


def _windows(case: Case, calls: Sequence[int]) -> pl.DataFrame:
    """Return the first and the last call that waits in each module and step: a loop's rounds lie between, but for the last one."""
    api = case.profile.attributed.api_calls
    waits = pl.DataFrame({"call": pl.Series(list(calls), dtype=pl.Int64)}).sort("call")
    numbers = waits["call"].to_numpy()
    starts = case.profile.steps.cpu.filter(pl.col("process") == case.process)["start_ns"].sort().to_numpy()
    began = api["start_ns"].to_numpy()[numbers]
    waits = waits.with_columns(
        module=lookup.at(api["module"], numbers).cast(pl.String),
        step=pl.Series(np.searchsorted(starts, began, side="right")),
    )
    return waits.group_by("module", "step").agg(first=pl.col("call").min(), last=pl.col("call").max()).sort("first")


def _inside(windows: pl.DataFrame, calls: pl.Series) -> int:
    """Return how many calls are made in windows, which do not overlap: calls are numbered by thread and time."""
    first, last, call = windows["first"].to_numpy(), windows["last"].to_numpy(), calls.to_numpy()
    window = np.searchsorted(first, call, side="right") - 1
    return int(((window >= 0) & (call <= np.append(last, -1)[window])).sum())


def _operators(case: Case, modules: Sequence[str], names: re.Pattern[str]) -> int:
    """Return how many operators with such names a module's loop runs in an X-ray step, between the first and the last size that is read."""
    flow, most = flow_of(case.profile), 0
    for call in flow.calls if flow is not None else ():
        if flow is None or call.path not in modules:
            continue
        reads = [row for row in range(call.first, call.last) if _READS.match(flow.names[row])]
        if reads:
            inside = flow.outermost_of(reads[0], call.last)
            most = max(most, sum(1 for row in inside if names.match(flow.names[row]) and row <= reads[-1]))
    return most
