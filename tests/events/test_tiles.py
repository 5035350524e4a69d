"""Tiles where the windows of two reports meet."""

from __future__ import annotations

from pathlib import Path

from nsysx.pipeline import ReadingOptions, gather
from tests.reading.test_joined_windows import MS, STEP, US, part, written


def test_the_first_window_ends_its_last_step_even_where_the_second_follows_as_soon_as_a_step(tmp_path: Path) -> None:
    written(tmp_path)
    at = 3 * MS + 40 * MS + 8 * STEP
    part(100, 12, at=at + 200 * US, extra_domain=True).write(tmp_path / "r.sqlite")
    given = gather(tmp_path / "r.sqlite", ReadingOptions())
    tiles = given.steps.gpu.sort("index")
    waits = tiles["start_ns"][1:] - tiles["end_ns"][:-1]
    assert given.trace.seams
    assert [n for n, wait in enumerate(waits) if wait] == [7], "every other step lasts until the next one"
    assert tiles["end_ns"][7] < given.trace.seams[0] <= tiles["start_ns"][8]
