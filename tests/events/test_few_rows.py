"""What is asked of few calls and answered by a look at few: the same as a plain walk over all of them says."""

from __future__ import annotations

import random

import numpy as np
import polars as pl
import pytest

from nsysx.catalogue import Call
from nsysx.events import one_time, wait_parts
from nsysx.events.attribute import Attributed
from nsysx.findings import _names

_KINDS = {
    "cudaLaunchKernel": Call.LAUNCH,
    "cudaMemcpyAsync": Call.COPY,
    "cudaStreamSynchronize": Call.SYNC,
    "cudaDeviceSynchronize": Call.SYNC,
    "cuLibraryLoadData": Call.LOAD,
    "cudaEventQuery": Call.EVENT,
}


def _calls(rng: random.Random, count: int) -> pl.DataFrame:
    """Return calls of two threads, some inside others, sorted by thread and start."""
    rows = []
    for _ in range(count):
        name, start = rng.choice(list(_KINDS)), rng.randrange(0, 400_000, 1_000)
        rows.append((rng.randrange(2), start, start + rng.randrange(0, 30_000, 500), name))
    rows.sort(key=lambda r: (r[0], r[1], -r[2]))
    columns = {"thread": 0, "start_ns": 1, "end_ns": 2, "name": 3}
    frame = pl.DataFrame({c: [r[i] for r in rows] for c, i in columns.items()})
    kinds = pl.Series("kind", [_KINDS[n] for n in frame["name"]], dtype=pl.String)
    return frame.with_columns(pl.col("name").cast(pl.Categorical), kinds.cast(pl.Categorical), process=pl.lit(7))


@pytest.mark.parametrize("seed", range(20))
def test_the_site_of_a_wait_is_the_copy_right_before_it(seed: int) -> None:
    """A synchronize of a stream within 20 us of the copy before it, on one thread, is at the place of the copy."""
    rng = random.Random(seed)
    calls = _calls(rng, 40)
    chosen = sorted(rng.sample(range(40), 12))
    rows = calls.rows(named=True)
    expected = []
    for i in chosen:
        before = rows[i - 1] if i else None
        same = before is not None and before["kind"] == Call.COPY and before["thread"] == rows[i]["thread"]
        near = before is not None and rows[i]["start_ns"] - before["end_ns"] <= 20_000
        expected.append(i - 1 if same and near and rows[i]["name"] == "cudaStreamSynchronize" else i)
    assert wait_parts._sites(calls, np.array(chosen, np.int64)).tolist() == expected


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("loads", [0, 3])
def test_loading_begins_where_the_last_call_before_it_ended(seed: int, loads: int) -> None:
    """The outermost call around a load begins where what came before ended, events aside; calls behind the last load count for nothing."""
    calls = _calls(random.Random(seed), 40)
    others = calls.filter(pl.col("kind") != Call.LOAD)
    calls = pl.concat([others, calls.filter(pl.col("kind") == Call.LOAD).head(loads)])
    nothing = pl.DataFrame()
    pauses = pl.DataFrame(schema={"process": pl.Int64, "kind": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64})
    begin, end = one_time.spans(7, Attributed(calls, nothing, nothing, nothing, {}), pauses)
    reach, root, expected = 0, None, []
    for row in calls.sort("start_ns", "end_ns").rows(named=True):
        if reach <= row["start_ns"]:
            root = row, (min(reach, row["start_ns"]) if reach > 0 else row["start_ns"])
        if row["kind"] == Call.LOAD:
            assert root is not None or reach > row["start_ns"]
            around, since = root or (row, row["start_ns"])
            expected.append((since, max(around["end_ns"], row["end_ns"])))
        reach = max(reach, row["end_ns"] if row["kind"] != Call.EVENT else 0)
    assert sorted(zip(begin.tolist(), end.tolist(), strict=True)) == sorted(expected)


@pytest.mark.parametrize("seed", range(20))
def test_the_nearest_chosen_call_is_of_the_same_thread(seed: int) -> None:
    """Before and behind each place lies the nearest chosen call, none (-1) where that is of another thread."""
    rng = random.Random(seed)
    chosen = np.array([rng.random() < 0.3 for _ in range(30)])
    thread = np.sort(np.array([rng.randrange(3) for _ in range(30)]))
    places = [rng.randrange(30) for _ in range(8)]

    def of_thread(row: int, place: int) -> int:
        return row if row >= 0 and thread[row] == thread[place] else -1

    before = [of_thread(max((r for r in range(p) if chosen[r]), default=-1), p) for p in places]
    behind = [of_thread(min((r for r in range(p, 30) if chosen[r]), default=-1), p) for p in places]
    found = _names._nearest_calls(chosen, thread, np.array(places, np.int64))
    assert [f.tolist() for f in found] == [before, behind]
