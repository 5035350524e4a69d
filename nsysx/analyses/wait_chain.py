"""Where the wait moves: remove the longest wait, then the longest that is left, until the step is over 1 % shorter."""

from __future__ import annotations

from typing import Annotated, TypedDict

import polars as pl

from nsysx import units
from nsysx.events.profile import NotRecorded, Profile
from nsysx.frames import frame_columns
from nsysx.model import TableSpec
from nsysx.replay.engine import Replay, replay_of
from nsysx.rows import Of, TableOf, columns_of

KEY = "wait_chain"
TITLE = "Where the wait moves"


class ChainRow(TypedDict):
    """One wait that was removed."""

    removed: Annotated[str, Of("the wait removed, in addition to those of all rows before")]
    step_ns: Annotated[int, Of("the step without these waits, replayed", "ns")]
    saving_ns: Annotated[int, Of("saving over the unchanged replay, all rows so far together", "ns")]
    moves_to: Annotated[str | None, Of("the longest wait that is left", label="wait moves to")]
    wait_ns: Annotated[int, Of("how long that wait is then, per step", "ns", label="backlog waited")]


COLUMNS = columns_of(ChainRow)
ROWS: TableOf[ChainRow] = TableOf(KEY)
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
    return pl.DataFrame(rows, schema=frame_columns.schema(COLUMNS), orient="row")
