"""Launches that go, and the host code that leads to them and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from nsysx.replay.chain import LAUNCH
from nsysx.replay.chain_columns import Columns
from nsysx.replay.removed_work import without_launches

COST = 5


def launches(gaps: Sequence[int]) -> Columns:
    """A launch behind each of these stretches of host code, of one GPU op each."""
    count = len(gaps)
    zeros, each = np.zeros(count, np.int64), np.arange(count, dtype=np.int64)
    return Columns(
        kind=zeros + LAUNCH, call=each, gap=np.array(gaps, np.int64), loading=zeros, cost=zeros + COST,
        waits=np.zeros(count, np.bool_), tail=zeros, target=zeros, stream=zeros, first_op=np.arange(count + 1, dtype=np.int64),
        op_item=each, op_stream=zeros, op_latency=zeros, op_pause=zeros, op_offset=zeros, op_duration=zeros, streams=1, limit=100,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "behind", "stays"),
    [
        (10, 24, 18),  # what is longer than usual between two launches goes
        (9, 9, 18),  # a launch that nothing led to: all host code is of the others
        (4, 6, 10),  # no more stays than there was
        (30, 0, 18),
        (0, 30, 18),
        (18, 18, 18),
        (10_000, 1_000_000, 910_000),  # a pause behind it is other host code
        (1_000_000, 10_000, 910_000),
        (200_000, 900_000, 900_000),  # on a slow host the shorter side goes
    ],
)
def test_host_code_around_a_launch_that_goes(before: int, behind: int, stays: int) -> None:
    gaps = [18] * 30 + [before, behind] + [18] * 30
    gone = np.arange(len(gaps)) == 30
    left = without_launches(launches(gaps), gone)
    assert left.gap.sum() == 60 * 18 + stays
    assert left.cost.sum() == COST * (len(gaps) - 1) and left.cost[30] == 0
    assert left.gap[:30].tolist() == [18] * 30 and left.gap[32:].tolist() == [18] * 30


def test_host_code_between_launches_that_go_goes_with_them() -> None:
    gaps = [18] * 10 + [18, 500, 500, 18] + [18] * 10
    gone = np.isin(np.arange(len(gaps)), (10, 11, 12))
    assert without_launches(launches(gaps), gone).gap.sum() == 21 * 18


def test_what_is_usual_is_that_of_the_launches_near_by() -> None:
    """Backward launches faster than forward does."""
    forward, backward = [40] * 100, [8] * 100
    gaps = [*forward, 50, 50, *forward, *backward, 10, 10, *backward]
    gone = np.isin(np.arange(len(gaps)), (100, 302))
    assert without_launches(launches(gaps), gone).gap.sum() == 201 * 40 + 201 * 8


def test_launches_of_which_all_go_leave_no_host_code_between_them() -> None:
    left = without_launches(launches([7, 18, 18]), np.ones(3, np.bool_))
    assert left.cost.sum() == 0 and left.gap.tolist() == [7, 0, 0]
