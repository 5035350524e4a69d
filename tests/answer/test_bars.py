"""Bars whose parts are their whole, also where what is drawn does not fit together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysx.answer import bars, clock_bars
from nsysx.model import Summary
from tests.render import factory


@pytest.mark.parametrize(
    ("reading", "kernel", "copies", "parts"),
    [
        (100, 60, 10, {"kernels": 60, "copies": 10, "waits": 30}),
        (100, 150, 10, {"kernels": 100}),
        (100, 60, 70, {"kernels": 60, "copies": 40}),
    ],
)
def test_what_is_in_a_window_is_no_longer_than_it(
    reading: float, kernel: float, copies: float, parts: dict[str, float]
) -> None:
    bar = clock_bars._window_bar("place 1 of 3", clock_bars._Window(reading, kernel, copies))
    assert {p.label: p.ns for p in bar.parts} == parts
    assert sum(p.ns for p in bar.parts) == bar.total_ns == reading


def test_without_work_in_the_shown_step_recorded_work_is_told_as_recorded() -> None:
    summary: Summary = factory.summary()
    assert summary.verdict.parts and bars._to_shown(summary) > 0
    assert bars._to_shown(replace(summary, verdict=replace(summary.verdict, parts={}))) == 1.0
