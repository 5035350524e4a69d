"""What the host of a rank takes for a step if it waits for nothing: neither for the GPU nor for another rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysx.pipeline import ReadingOptions, gather
from nsysx.replay import rank_alone
from tests.findings import Program

MS, LAUNCHES, COST_US = 1_000_000, 40, 40


def recorded(folder: Path, kernel_us: float, *, waits: bool = False) -> Path:
    """Steps of 40 launches that take 40 us each. ``waits``: each step ends with a wait for its kernels."""
    program = Program()

    def body(program: Program, number: int) -> None:
        for _ in range(LAUNCHES):
            program.launch(kernel_us, cost=COST_US)
        if waits:
            program.sync("cudaDeviceSynchronize_v3020")

    program.steps(body, 10)
    return program.report.write(folder / "r.sqlite")


@pytest.mark.parametrize(("kernel_us", "waits"), [(4, False), (4, True), (200, False), (200, True)])
def test_the_host_takes_as_long_whatever_the_gpu_computes(tmp_path: Path, kernel_us: float, waits: bool) -> None:
    """Tracing is a part of the recorded 41 us a launch: how large, is told with the report that was written."""
    profile = gather(recorded(tmp_path, kernel_us, waits=waits), ReadingOptions())
    (host_ns,) = rank_alone.hosts_ns(profile, 100 * MS).values()
    assert 0.6 * LAUNCHES * COST_US * 1_000 < host_ns < 1.1 * LAUNCHES * COST_US * 1_000


def test_no_host_takes_longer_than_the_step_that_was_measured(tmp_path: Path) -> None:
    profile = gather(recorded(tmp_path, 4), ReadingOptions())
    assert set(rank_alone.hosts_ns(profile, MS).values()) == {MS}
