"""An optimizer of torch that reads a value back for each parameter: its learning rate, or its count of steps, is a tensor on the GPU.

With such a rate it does not take its parameters together (foreach), unless it is fused or capturable: it goes over them one by one, and
reads the size of each update.
"""

from __future__ import annotations

import polars as pl

from nsysx.events.recorded_settings import settings_of
from nsysx.findings._case import Case, Fix, calls_of, ops_of, way
from nsysx.findings._finding_bounds import MOST_SHARE
from nsysx.findings._needs import FUSABLE
from nsysx.records import count_or_zero
from nsysx.replay.engine import Edit, Fuse, RemoveOps, RemoveWaits


def reads_by_parameter(case: Case, calls: frozenset[int]) -> int:
    """Return how many values of parameters an optimizer reads in a step by these calls, 0 where they are of something else."""
    settings = settings_of(case.profile)
    rows = (settings.rows("optimizers") if settings else None) or ()
    parameters = sum(count_or_zero(row.get("parameters")) for row in rows)
    if (
        case.program.optimizer not in ("loop", "foreach")
        or case.program.optimizer_class not in FUSABLE
        or not parameters
    ):
        return 0
    theirs = _updates(case).filter(pl.col("call").is_in(list(calls)))
    each = round(len(calls) / max(case.steps, 1))
    return each if theirs.height >= MOST_SHARE * len(calls) and 2 * each >= parameters else 0


def fix_of_rates(case: Case, reads: int) -> Fix:
    """Return the advice where so many values are read in a step."""
    text = (
        f"Give the optimizer fused=True, and a number as its learning rate: it reads back a value of each parameter ({reads} in a step), "
        "as its learning rate, or its count of steps, is a tensor on the GPU"
    )
    paste = (
        f"optimizer = torch.optim.{case.program.optimizer_class}(model.parameters(), lr=rate(0), fused=True)  # a number\n"
        'for group in optimizer.param_groups: group["lr"] = rate(step)  # computed on the host, each step'
    )
    return Fix.by_name(way("fused", text, paste))


def all_reads(case: Case) -> int:
    """Return how many values of parameters the update reads in a step, 0 where it reads none."""
    return reads_by_parameter(case, calls_of(case.ops.filter(_read_in(_updates(case)))))


def edits_of_fused(case: Case) -> tuple[Edit, ...]:
    """Return the edits after which the update is one launch and reads nothing."""
    updates = _updates(case)
    reads, calls = case.ops.filter(_read_in(updates)), calls_of(updates)
    return RemoveWaits(calls), RemoveOps(ops_of(reads)), Fuse(calls - calls_of(reads))


def _read_in(updates: pl.DataFrame) -> pl.Expr:
    """Return the copies to the host that these calls make."""
    return (
        (pl.col("op_kind") == "memcpy") & (pl.col("name") == "DtoH") & pl.col("call").is_in(updates["call"].to_list())
    )


def _updates(case: Case) -> pl.DataFrame:
    return case.calls.filter((pl.col("phase").cast(pl.String) == "optimizer").fill_null(value=False))
