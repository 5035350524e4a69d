"""Blocking calls in the steady steps by call site, with what they waited for and the GPU idle time that they cause."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx.analyses.helpers import shared_columns
from nsysx.analyses.helpers.analysis_bounds import MOST_REPLAYED_ITEMS
from nsysx.events.profile import NotRecorded, Profile
from nsysx.model import TableSpec
from nsysx.replay.engine import RemoveWaits, Replay, replay_of
from nsysx.rows import Of, TableOf, columns_of, names

KEY = "waits"
TITLE = "Waits"


class WaitRow(TypedDict):
    """One call site that blocks; null where the report does not hold it."""

    api: Annotated[str, Of("API function that blocks", label="call")]
    calls: Annotated[int, Of("calls in the steady steps", sums="scope")]
    total_ns: Annotated[int, Of("duration, summed: backlog + own op + host", "ns", sums="scope")]
    backlog_ns: Annotated[
        int | None, Of("waiting for GPU work queued before the call; null without GPU rows", "ns", sums="scope")
    ]
    own_op_ns: Annotated[int | None, Of("its own copy or memset; null likewise", "ns", sums="scope", label="own work")]
    host_ns: Annotated[int | None, Of("everything else; null likewise", "ns", sums="scope", label="host cost")]
    idle_caused_ns: Annotated[
        int | None,
        Of(
            "idle time of the shown device that began while the launching thread was in this call; null likewise",
            "ns",
            sums="scope",
            label="GPU idle caused",
        ),
    ]
    module: Annotated[str | None, Of("innermost module at the call, in parentheses what lies outside modules")]
    phase: Annotated[str | None, Of("phase at the call")]
    thread_role: shared_columns.ThreadRole
    file: shared_columns.File
    line: shared_columns.Line
    function: Annotated[str | None, Of("its function, null when not recorded")]
    saving_ns: Annotated[
        int | None,
        Of(
            "what a replayed step saves without the wait, times the steady steps; null when not computed, or not replayed",
            "ns",
            sums="scope",
        ),
    ]
    moves_to: Annotated[
        str | None,
        Of("where the wait moves if it is removed, by the replay; null when not computed", label="wait moves to"),
    ]


COLUMNS = columns_of(WaitRow)
ROWS: TableOf[WaitRow] = TableOf(KEY)
SHOWN = TableSpec(
    covers="steady",
    place=40,
    group="waiting",
    intro=(
        "Places where the CPU stood still for the GPU. A long wait is only a symptom: while the GPU is busy it costs nothing. "
        "What counts is the GPU idle time that a wait causes, and its saving. Total = backlog + own work + host cost."
    ),
    first=names("api file total_ns idle_caused_ns saving_ns module calls backlog_ns own_op_ns host_ns phase"),
    bar="total_ns",
    terms=("api",),
)


_SITE = ["api", "module", "phase", "thread_role", "file", "line", "function"]


def require(profile: Profile) -> None:
    """Raise NotRecorded where there is no such table."""
    if not profile.recorded("runtime"):
        raise NotRecorded("no CUDA API call was recorded", "-t cuda")


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per call site, longest first. Only the sites that wait longest have a saving."""
    require(profile)
    ns = pl.col("end_ns") - pl.col("start_ns")
    # Only GPU rows show what a call waited for: without them it is unknown, not 0.
    split = [pl.col(c).sum() for c in ("backlog_ns", "own_op_ns", "host_ns", "idle_caused_ns")]
    if not profile.attributed.gpu_ops.height:
        split = [pl.lit(None, dtype=pl.Int64).alias(e.meta.output_name()) for e in split]
    grouped = (
        profile.wait_sites()
        .group_by(_SITE)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            ns.sum().alias("total_ns"),
            *split,
            pl.col("call").alias("_calls"),
        )
        .sort("total_ns", *_SITE, descending=[True] + [False] * len(_SITE), nulls_last=True)
    )
    saving: list[int | None] = [None] * grouped.height
    moves_to: list[str | None] = [None] * grouped.height
    replay = replay_of(profile)
    if isinstance(replay, Replay) and replay.trusted:
        covered = set(profile.steady_calls.filter(replay.covered(profile.steady_calls))["call"].to_list())
        for i, calls in enumerate(grouped["_calls"].head(max(MOST_REPLAYED_ITEMS // (3 * replay.items), 1)).to_list()):
            if covered.isdisjoint(calls):  # in steps that are not replayed, its worth is unknown
                continue
            outcome = replay.saving(RemoveWaits(frozenset(calls)))
            saving[i], moves_to[i] = round(profile.scope.total(outcome.saving_ns)), outcome.moves_to
    return grouped.drop("_calls").with_columns(
        pl.Series("saving_ns", saving, dtype=pl.Int64), pl.Series("moves_to", moves_to, dtype=pl.String)
    )
