"""How many steps of the probe a step of another source holds."""

from __future__ import annotations

import polars as pl
import pytest

from nsysx.events.steps import _timed


def steps(count: int) -> pl.DataFrame:
    rows = [{"process": 1, "start_ns": 100 * i, "end_ns": 100 * i + 100, "steady": True} for i in range(count)]
    return pl.DataFrame(rows)


def marks(*begun: int) -> pl.DataFrame:
    return pl.DataFrame([{"process": 1, "kind": "step", "own": True, "start_ns": ns} for ns in begun])


@pytest.mark.parametrize(
    ("begun", "held"),
    [
        ((0, 50, 100, 150, 200, 250), 2),
        ((0, 50, 100, 150, 200, 250, 290), 2),  # one more in front of the last end does not count
        ((0, 50, 100, 200, 250), 0),  # they differ
    ],
)
def test_the_last_step_may_hold_one_more(begun: tuple[int, ...], held: int) -> None:
    assert _timed(steps(3), marks(*begun), "optimizer") == held


def test_one_step_alone_counts_what_it_holds() -> None:
    assert _timed(steps(1), marks(0, 30, 60), "optimizer") == 3
