"""Where the wait moves: remove the longest wait, then the longest that is left, until the step is over 1 % shorter."""

from __future__ import annotations

import polars as pl

from nsysx import units
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import declared
from nsysx.model import Column, TableSpec
from nsysx.replay.engine import Replay, replay_of

KEY = "wait_chain"
TITLE = "Where the wait moves"
COLUMNS = (
    Column("removed", "String", "", "the wait removed, in addition to those of all rows before"),
    Column("step_ns", "Int64", "ns", "the step without these waits, replayed"),
    Column("saving_ns", "Int64", "ns", "saving over the unchanged replay, all rows so far together"),
    Column("moves_to", "String", "", "the longest wait that is left", label="wait moves to"),
    Column("wait_ns", "Int64", "ns", "how long that wait is then, per step", label="backlog waited"),
)
SHOWN = TableSpec(
    covers="replayed",
    place=50,
    group="waiting",
    intro=(
        "The step replayed without its longest wait, then without the next as well: what that saves, and which wait takes "
        "its place."
    ),
    first=("removed", "saving_ns", "step_ns", "moves_to", "wait_ns"),
)


def table(profile: Profile) -> pl.DataFrame:
    """Return one row per wait removed. Raises NotRecorded without a trusted replay."""
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
    return pl.DataFrame(rows, schema=declared.schema(COLUMNS), orient="row")
