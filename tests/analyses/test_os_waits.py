"""Calls of the operating system in the GPU's idle time: parts that sum to the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx import pipeline
from nsysx.analyses import gpu_ledger, os_waits
from nsysx.events.profile import NotRecorded
from tests.findings import US, Program, healthy


def reading(program: Program, number: int) -> None:
    """A step whose thread reads for 2 ms, with a call inside, and computes for 1 ms, while the GPU idles."""
    program.main.osrt("read", program.t, 2_000 * US)
    program.main.osrt("futex", program.t + 100 * US, 50 * US)
    program.host(3_000)
    with program.range("forward"), program.range("net:Net"):
        program.launch(50)
    program.sync()


def test_the_parts_sum_to_the_ledger(tmp_path: Path) -> None:
    program = Program().steps(reading, 12)
    program.process.thread(107).osrt("poll", 0, program.t)  # another thread's wait is not the launching one's
    profile = pipeline.gather(program.report.write(tmp_path / "r.sqlite"), pipeline.ReadingOptions())
    table = os_waits.table(profile)
    (ledger,) = gpu_ledger.table(profile).to_dicts()
    assert table["idle_ns"].sum() == ledger["idle_causes"]["host_code"]
    by_name = {r["name"]: r for r in table.to_dicts()}
    assert set(by_name) == {"read", os_waits.NO_CALL}
    assert by_name["read"]["idle_ns"] == profile.scope.steps * 2_000 * US
    assert (by_name["read"]["kind"], by_name["read"]["module"]) == ("file or socket", "net")
    assert by_name["read"]["calls"] == profile.scope.steps


def test_the_longest_idle_time_comes_first_and_equal_ones_in_order_of_names(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        for name, us in (("write", 200), ("poll", 600), ("accept", 200), ("read", 900)):
            program.main.osrt(name, program.t, us * US)
            program.host(us)
        with program.range("forward"), program.range("net:Net"):
            program.launch(50)
        program.sync()

    profile = pipeline.gather(Program().steps(body, 12).report.write(tmp_path / "r.sqlite"), pipeline.ReadingOptions())
    names = [name for name in os_waits.table(profile)["name"] if name != os_waits.NO_CALL]
    assert names == ["read", "poll", "accept", "write"]


def test_what_would_record_it(tmp_path: Path) -> None:
    program = Program().steps(healthy)
    profile = pipeline.gather(program.report.write(tmp_path / "r.sqlite"), pipeline.ReadingOptions())
    with pytest.raises(NotRecorded) as said:
        os_waits.table(profile)
    assert said.value.fix == "nsysx run --osrt"


def test_a_stall_in_a_call_is_named(tmp_path: Path) -> None:
    def body(program: Program, number: int) -> None:
        for _ in range(20):
            program.launch(5)
        program.main.osrt("read", program.t, 1_900 * US)
        program.host(2_000)
        program.launch(500)
        program.sync()

    finding = Program().steps(body, 12).finding(tmp_path, "NSX114")
    assert "of that is spent in read (file or socket)" in finding.detail
