"""Which collectives of two ranks are the same, and what of a rank's communication nothing hides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysx.catalogue import DeviceActivity
from nsysx.events import ledger
from nsysx.frames.intervals import StepFunction
from nsysx.ranks.collect import _exposed
from nsysx.ranks.match import SEND_RECEIVE, Aligned, _hold_the_same_in_each_step, _pairs, align
from nsysx.ranks.rank_record import LedgerTiles

LONG = np.cumsum(np.random.default_rng(0).integers(50, 150, 2_000)).astype(np.int64)


@pytest.mark.parametrize("first", [0, 1, 700, 1_899, 1_900])
@pytest.mark.parametrize("clock", [-10, 0, 10])
def test_a_capture_that_holds_few_of_many_collectives_is_found_among_them(first: int, clock: int) -> None:
    """Whatever many are missing before and after it; clocks differ by less than collectives are apart."""
    short = LONG[first : first + 100] + clock
    a, b = _pairs(short, LONG)
    assert (a.tolist(), b.tolist()) == (list(range(100)), list(range(first, first + 100)))
    b, a = _pairs(LONG, short)
    assert (a.tolist(), b.tolist()) == (list(range(100)), list(range(first, first + 100)))


def test_communication_is_exposed_where_no_compute_runs() -> None:
    comm, compute = (1 << ledger.CLASSES.index(name) for name in (DeviceActivity.COMM, DeviceActivity.COMPUTE))
    labels = np.array([compute, comm, comm | compute, comm, 0, comm], np.int64)
    activity = StepFunction(np.arange(0, 70, 10), labels)
    start, end = _exposed(activity, None)
    assert (start.tolist(), end.tolist()) == ([10, 30, 50], [20, 40, 60])
    # An evaluation between two steps has collectives, too, and is no part of a step's ledger.
    steps = LedgerTiles(np.array([0, 36], np.int64), np.array([15, 70], np.int64), {}, {})
    start, end = _exposed(activity, steps)
    assert (start.tolist(), end.tolist()) == ([10, 36, 50], [15, 40, 60])


@pytest.mark.parametrize(
    ("kind", "pair", "one"), [("all-reduce", (), True), (SEND_RECEIVE, (0, 1), True), (SEND_RECEIVE, (), False)]
)
def test_a_name_of_nccl_is_enough_except_for_transfers_between_ranks_that_it_does_not_name(
    kind: str, pair: tuple[int, ...], one: bool
) -> None:
    """Two ranks on one clock whose kernels of one communicator never run at the same time."""

    def rank(late_ns: int) -> Any:
        series = SimpleNamespace(communicator="c", pair=pair, stream=7, kind=kind, kernel_kind=kind)
        start = np.arange(20, dtype=np.int64) * 100_000 + late_ns
        return SimpleNamespace(
            report=0,
            utc_epoch_ns=None,
            series=[series],
            belongs=np.zeros(20, np.int64),
            start_ns=start,
            end_ns=start + 10_000,
            seams=(),
        )

    groups = align([rank(0), rank(40_000)]).groups
    assert [sorted(group) for _, group in groups] == [[0, 1]] * one


@pytest.mark.parametrize("seams", [(), (1_000_000_000,)])
def test_a_rank_that_records_a_step_more_in_one_window_has_the_same_collectives_in_both(seams: tuple[int, ...]) -> None:
    """Two windows: in the second one a rank begins a step of five collectives earlier. Without its border no shift fits both."""

    def rank(more: int) -> Any:
        series = SimpleNamespace(communicator="c", pair=(), stream=7, kind="all-reduce", kernel_kind="all-reduce")
        first = np.arange(75, dtype=np.int64) * 1_000_000
        second = 2_000_000_000 + np.arange(-more, 80, dtype=np.int64) * 1_000_000
        start = np.concatenate([first, second])
        given = {"series": [series], "belongs": np.zeros(len(start), np.int64), "seams": seams}
        return SimpleNamespace(report=0, utc_epoch_ns=None, start_ns=start, end_ns=start + 500_000, **given)

    groups = align([rank(5), rank(0)]).groups
    assert len(groups) == bool(seams)
    for _, group in groups:
        assert group[1].tolist() == list(range(155))
        assert group[0].tolist() == [*range(75), *range(80, 160)]


@pytest.mark.parametrize(("missing", "same"), [(0, True), (1, False)])
def test_steps_that_hold_the_same_collectives_are_the_same_however_early_one_begins(
    missing: int, *, same: bool
) -> None:
    """Rank 1 begins its first of five steps 30 ms before rank 0, and waits; or it holds the collectives of one step later."""

    def rank(early_ns: int) -> Any:
        ends = np.arange(1, 7, dtype=np.int64) * 10_000_000
        start = ends - 10_000_000
        start[0] -= early_ns
        return SimpleNamespace(steps=6, tiles=LedgerTiles(start, ends, {}, {}), start_ns=ends - 1_000_000)

    ranks, rows = [rank(0), rank(30_000_000)], np.arange(6 - missing)
    aligned = Aligned(ranks, [0, 0], [None, None], [(SimpleNamespace(), {0: rows, 1: rows + missing})])  # type: ignore[list-item]
    assert _hold_the_same_in_each_step(aligned) is same
