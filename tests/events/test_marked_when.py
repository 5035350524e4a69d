"""When marks were on: at an instant, and from the start of a step to its end."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from nsysx.events.marked_when import Marks, switches

MARKS = Marks(np.array([100, 200, 300], np.int64), np.array([False, True, False]))


@pytest.mark.parametrize(("t", "on"), [(50, True), (100, False), (199, False), (200, True), (299, True), (300, False)])
def test_at_an_instant(t: int, on: bool) -> None:
    assert MARKS.at(np.array([t])).tolist() == [on]


@pytest.mark.parametrize(
    ("start", "end", "on"),
    [
        (0, 100, True),  # the switch at its end is that of the next step
        (0, 101, False),
        (200, 300, True),
        (200, 301, False),
        (199, 299, False),  # off when it began
        (210, 290, True),
        (50, 250, False),  # on at both ends, off in between
        (310, 900, False),
    ],
)
def test_a_step_in_which_marks_change_is_not_marked_throughout(start: int, end: int, on: bool) -> None:
    assert MARKS.throughout(np.array([start]), np.array([end])).tolist() == [on]


def test_only_processes_whose_marks_were_off_have_switches() -> None:
    said = [(1, 20, True), (1, 10, False), (2, 10, True), (2, 20, True)]
    rows = [{"process": p, "start_ns": t, "name": json.dumps({"marks": on})} for p, t, on in said]
    found = switches(pl.DataFrame([*rows, {"process": 3, "start_ns": 5, "name": '{"marks":1}'}]))
    assert list(found) == [1]
    assert (found[1].times.tolist(), found[1].on.tolist()) == ([10, 20], [False, True])
