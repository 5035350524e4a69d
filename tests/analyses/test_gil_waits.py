"""Waits for Python's lock: who had it, which line of it, and parts that sum to the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx import pipeline
from nsysx.analyses import gil_waits, gpu_ledger
from nsysx.events.profile import NotRecorded
from tests.findings import SAMPLED, US, Program, healthy

GIL = "GIL Trace"


def contended(program: Program, number: int) -> None:
    """A step of 3 ms of host code, for 2 of which another thread has Python's lock."""
    other = program.process.thread(107)
    begin = program.t
    program.main.add_range("Holding GIL", begin, begin + 500 * US, domain=GIL, registered=True)
    program.main.add_range("Waiting for GIL", begin + 500 * US, begin + 2_500 * US, domain=GIL, registered=True)
    other.add_range("Holding GIL", begin + 500 * US, begin + 2_500 * US, domain=GIL, registered=True)
    for at in range(500, 2_500, SAMPLED):
        other.sample(begin + at * US, ["/home/me/logger.py:3 write", "/home/me/logger.py:9 run"])
    program.main.add_range("Holding GIL", begin + 2_500 * US, begin + 3_000 * US, domain=GIL, registered=True)
    program.host(3_000)
    program.launch(50)
    program.sync()


def test_who_had_the_lock_and_what_it_ran(tmp_path: Path) -> None:
    program = Program()
    program.process.thread(107, "logger")
    program.steps(contended, 12)
    profile = pipeline.gather(program.report.write(tmp_path / "r.sqlite"), pipeline.ReadingOptions())
    table = gil_waits.table(profile)
    (ledger,) = gpu_ledger.table(profile).to_dicts()
    assert table["idle_ns"].sum() == ledger["idle_causes"]["host_code"]
    rows = {r["holder"]: r for r in table.to_dicts()}
    assert set(rows) == {"logger", gil_waits.FREE}
    assert rows["logger"]["idle_ns"] == profile.scope.steps * 2_000 * US
    assert (rows["logger"]["file"], rows["logger"]["line"]) == ("/home/me/logger.py", 3)


def test_the_lock_is_no_range_of_the_users(tmp_path: Path) -> None:
    program = Program().steps(contended, 12)
    profile = pipeline.gather(program.report.write(tmp_path / "r.sqlite"), pipeline.ReadingOptions())
    assert not [n for n in profile.ranges.ranges["label"].cast(str).to_list() if "GIL" in n]
    assert {r["holder"] for r in gil_waits.table(profile).to_dicts()} == {"thread 107", gil_waits.FREE}


def test_what_would_record_it(tmp_path: Path) -> None:
    profile = pipeline.gather(Program().steps(healthy).report.write(tmp_path / "r.sqlite"), pipeline.ReadingOptions())
    with pytest.raises(NotRecorded) as said:
        gil_waits.table(profile)
    assert "--gil" in said.value.fix
