"""A line that takes longer as recorded than the whole step does without a profiler is said to be as recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.findings.lined import Lined

pytestmark = pytest.mark.traced

SLOW, FEEDS = 7, 8
SOURCE = {SLOW: "batch = frames.astype(np.float32) / 255", FEEDS: "loss = step(batch)"}


def step_of(program: Lined, _: int) -> None:
    with program.line(SLOW):
        program.host(3_000)
    with program.line(FEEDS):
        program.launch(100)
    program.sync()


@pytest.mark.parametrize(("bare_us", "marked"), [(2_700, True), (3_100, False)])
def test_more_than_the_whole_step_is_as_recorded(tmp_path: Path, bare_us: int, marked: bool) -> None:
    program = Lined(SOURCE)
    bare = {"lengths_ns": [bare_us * 1_000] * 40, "where": "between the windows", "detached": True}
    program.probe["unrecorded_steps"] = bare
    findings = program.run(step_of).found(tmp_path, "NSX123")
    line = next(f for f in findings if f.where["line"] == SLOW)
    assert ("per step as recorded; " in line.title) == marked == ("per step as recorded, " in line.detail), line.title
