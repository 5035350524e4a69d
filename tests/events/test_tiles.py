"""Tiles where the windows of two reports meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.pipeline import ReadingOptions, gather
from tests.findings import DOMAIN, Program
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


@pytest.mark.parametrize(("rarely", "apart"), [(False, 0), (True, 2)], ids=["the same, slower", "something else"])
def test_what_launches_as_much_behind_each_step_is_the_loop_however_long_it_takes(
    rarely: bool, apart: int, tmp_path: Path
) -> None:
    """Behind each step the host works and launches: twice it takes three times as long, and that is no evaluation."""
    program = Program()
    for number in range(14):
        begin = program.t
        program.launch(200)
        program.sync()
        program.main.add_range(f"step {number}", begin, program.t, domain=DOMAIN)
        slow = number in (4, 9)
        program.host(900 if slow else 300)
        for _ in range(12 if slow and rarely else 2):
            program.launch(20)
        program.sync()
    program.summary(tmp_path)
    given = gather(next(tmp_path.glob("*.sqlite")), ReadingOptions())
    assert given.steps.between.height == apart


def test_a_step_begins_with_what_it_launches_first_though_another_stream_runs_ahead(tmp_path: Path) -> None:
    """The host is far ahead; a small kernel of each step runs at once on a stream of its own, long before the step's other work."""

    def body(program: Program, _number: int) -> None:
        program.launch(900, stream=7)
        program.launch(100, stream=7)
        program.launch(50, stream=13)

    Program().steps(body, 12).summary(tmp_path)
    tiles = gather(next(tmp_path.glob("*.sqlite")), ReadingOptions()).steps.gpu.sort("index")
    assert (tiles["end_ns"] - tiles["start_ns"])[:-1].to_list() == [1000 * US] * 11
