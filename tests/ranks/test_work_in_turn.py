"""Ranks that have as much GPU work over all steps and not in each of them: the work is what they wait for, not their hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysx.model import Finding, Summary
from nsysx.pipeline import summarize
from nsysx.ranks import work_in_turn
from tests.ranks.test_straggler import job

MS = 1_000_000
#: The stream of the computation, on which the all-reduce of these jobs begins when that is done.
COMPUTES = 7
#: How long three ranks work in each step (ns): none is always the last, and all have as much in sum.
TURNS = [[(20, 30, 40)[(i + 2 * r) % 3] * MS for i in range(12)] for r in range(3)]
#: In each step one rank works for 40 ms, and all for 30 on average.
EVEN_SAVES = 10 * MS


def read(path: Path) -> tuple[list[Any], Finding, Summary]:
    summary = summarize([path])
    exposed = next(f for f in summary.findings or () if f.code == "NSX110")
    return list(summary.rows("ranks")), exposed, summary


def test_ranks_that_have_more_work_in_turn_are_told_to_even_out_each_step(tmp_path: Path) -> None:
    rows, exposed, summary = read(job(tmp_path / "j.sqlite", TURNS, stream=COMPUTES))
    assert [r["straggler"] for r in rows] == [False] * 3
    assert [r["turn_even_ns"] for r in rows] == pytest.approx([EVEN_SAVES] * 3, rel=0.03)
    for row in rows:
        assert 0 < row["turn_wait_ns"] <= row["exposed_wait_ns"] / row["steps"] + 1
    assert [way.name for way in exposed.remedies] == ["like-batches"]
    assert exposed.saving.likely_ns == pytest.approx(EVEN_SAVES, rel=0.03) and not exposed.saving.bound
    assert (
        summary.verdict is not None and "waiting for ranks with more GPU work in that step" in summary.verdict.sentence
    )


@pytest.mark.parametrize(
    ("own", "idle"),
    [
        (TURNS, "some range"),  # the hosts are late in turn, and what the GPUs compute is the same
        ([[30 * MS] * 12] * 3, ""),
        ([[20 * MS] * 12, [20 * MS] * 12, [40 * MS] * 12], ""),  # one is always the last: a straggler
    ],
    ids=["hosts", "equal", "straggler"],
)
def test_what_others_wait_for_is_not_always_work_in_turn(own: list[list[int]], idle: str, tmp_path: Path) -> None:
    rows, exposed, _ = read(job(tmp_path / "j.sqlite", own, idle=idle, stream=COMPUTES))
    assert {(r["turn_wait_ns"], r["turn_even_ns"]) for r in rows} == {(None, None)}
    assert "like-batches" not in [way.name for way in exposed.remedies]


def test_a_rank_with_more_work_that_waits_as_often_does_not_wait_for_work() -> None:
    """Two ranks, each with 20 or 30 ms of work; the one with less waits 10 ms, or in half of the steps the one with more."""
    work = np.array([[20, 30] * 4, [30, 20] * 4], np.float64)
    less, more = np.where(work == 20, 10.0, 0.0), np.where(work == 30, 10.0, 0.0)
    explained = work_in_turn.waits_for_work(work, less)
    assert explained is not None and (explained == less).all()
    late_at_random = np.where(np.arange(8) < 4, less, more)
    assert work_in_turn.waits_for_work(work, late_at_random) is None
    longer_than_work = 5 * less  # of 50 ms of waiting 10 are for work: something else holds the others up
    assert work_in_turn.waits_for_work(work, longer_than_work) is None
