"""Where the wait moves: remove the longest wait, then the longest that is left, until the step gains more than 1 %."""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.events.profile import NotRecorded, Profile
from nsysx.model import Column, TableSpec
from nsysx.replay.engine import Replay, replay_of

KEY = "wait_chain"
TITLE = "Where the wait moves"
COLUMNS = (
    Column("removed", "String", "", "the wait that goes, on top of all rows before"),
    Column("step_ns", "Int64", "ns", "the step then, replayed"),
    Column("saving_ns", "Int64", "ns", "gain over the unchanged replay, all rows so far together"),
    Column("moves_to", "String", "", "the longest wait that is left"),
    Column("wait_ns", "Int64", "ns", "how long it is then, per step"),
)
SHOWN = TableSpec(
    covers="replayed",
    place=50,
    intro=(
        "A replay of the step without its longest wait, then without the next as well: what that is worth, and which wait "
        "takes its place."
    ),
    first=("removed", "saving_ns", "step_ns", "moves_to", "wait_ns"),
)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per wait removed. A report without a trusted replay has no rows to give."""
    replay = replay_of(profile)
    if not isinstance(replay, Replay):
        raise NotRecorded(replay.reason)
    if not replay.trusted:
        raise NotRecorded(
            f"the unchanged replay misses the recorded step by {units.share(replay.error, 1)}: no claims are made"
        )
    sites = profile.wait_sites().group_by("site", maintain_order=True).agg("call")
    links = replay.chain({site: frozenset(calls) for site, calls in sites.iter_rows()})
    rows = [(m.site, m.step_ns, m.saving_ns, m.next_site, m.next_wait_ns) for m in links]
    return pl.DataFrame(
        rows,
        schema={
            "removed": pl.String,
            "step_ns": pl.Int64,
            "saving_ns": pl.Int64,
            "moves_to": pl.String,
            "wait_ns": pl.Int64,
        },
        orient="row",
    )
