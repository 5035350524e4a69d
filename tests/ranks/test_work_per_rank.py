"""What is done with all ranks of a job together is as much work for each rank, however many there are: counted in calls, not in time."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from nsysx.ranks import job_compared, match, one_job
from nsysx.ranks.rank_record import CollectiveSeries, LedgerTiles, Rank
from tests.counted_calls import calls_of
from tests.ranks.test_one_job import in_world, rank

STEPS, STEP_NS, US = 12, 1_000_000, 1_000
#: Ranks of a host, and how far the clocks of neighboring hosts are apart: by half of what a rank recorded.
ON_HOST, APART_NS = 4, STEPS * STEP_NS // 2
#: Few and many ranks; by how much the calls for each rank may grow between them.
FEW, MANY, GROWTH = 8, 64, 1.3


def hosts_apart(size: int, apart_ns: int = APART_NS, series: str = "world") -> list[Rank]:
    """Return ranks with an all-reduce in each step, which the last of them begins late; each host has a clock of its own."""
    tiles_start = np.arange(STEPS, dtype=np.int64) * STEP_NS
    tiles = LedgerTiles(tiles_start, tiles_start + STEP_NS, {"window_ns": np.full(STEPS, STEP_NS)}, {})
    whole = {
        "window_ns": STEPS * STEP_NS,
        **dict.fromkeys(("compute_ns", "comm_ns", "copy_ns", "memset_ns", "idle_ns", "hidden_comm_ns"), 0),
    }
    made = []
    for number in range(size):
        end = tiles_start + 900 * US
        start = end - (50 if number == size - 1 else 300 + number % 7) * US
        made.append(
            rank(
                number,
                number=number,
                host=f"node{number // ON_HOST}",
                utc_epoch_ns=number // ON_HOST * apart_ns,
                members=in_world(size),
                series=(CollectiveSeries(0, series, "allreduce", "allreduce"),),
                belongs=np.zeros(STEPS, np.int64),
                start_ns=start,
                end_ns=end,
                message_bytes=np.full(STEPS, 4096),
                exposed=(start, end),
                steps=STEPS,
                step_ns=STEP_NS,
                window=(0, STEPS * STEP_NS),
                parts=whole,
                tiles=tiles,
            )
        )
    return made


@pytest.mark.parametrize("apart_ns", [0, APART_NS])
def test_comparing_takes_as_many_calls_for_each_of_many_ranks_as_for_each_of_few(apart_ns: int) -> None:
    few, many = (calls_of(partial(job_compared.compare, hosts_apart(size, apart_ns))) / size for size in (FEW, MANY))
    assert many < GROWTH * few


def test_a_look_at_whether_ranks_are_one_job_takes_as_many_calls_for_each_of_many() -> None:
    few, many = (calls_of(partial(one_job.require, hosts_apart(size))) / size for size in (FEW, MANY))
    assert many < GROWTH * few


@pytest.mark.parametrize("apart_ns", [0, 100 * US, 400 * US, APART_NS, 9 * APART_NS])
@pytest.mark.parametrize("series", ["world", ""])
def test_ranks_that_cannot_overlap_are_left_out_and_the_clocks_are_the_same(
    apart_ns: int, series: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where ranks hold other numbers of collectives, and where NCCL names no communicator."""
    ranks = hosts_apart(14, apart_ns, series)
    for r in (3, 9):
        names = ("belongs", "start_ns", "end_ns", "message_bytes")
        ranks[r] = rank(**vars(ranks[r]) | {name: getattr(ranks[r], name)[2:] for name in names})
    found = match.align(ranks)
    if series and apart_ns == APART_NS:
        assert found.offset[4] == found.offset[0], "a host whose clock is far off ends its collectives with the first"
    monkeypatch.setattr(match._Stacked, "may_overlap", lambda stacked, offset, r: np.ones(len(offset), bool))
    every = match.align(ranks)
    assert (found.offset, found.correction) == (every.offset, every.correction)
    for (key, rows), (other_key, others) in zip(found.groups, every.groups, strict=True):
        assert key == other_key and {r: at.tolist() for r, at in rows.items()} == {
            r: at.tolist() for r, at in others.items()
        }
