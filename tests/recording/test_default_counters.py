"""Counters by default: who may have them, when they are sampled, and what of them an export keeps."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from nsysx.recording import commands, default_counters
from nsysx.recording.find_nsys import Nsys
from nsysx.recording.run_options import RunOptions
from tests.analyses.test_gpu_metrics import MS, NAMES, report, true

WINDOWS = RunOptions(steps="windows")


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    """Return the files of a machine whose driver gives its counters to everybody, as seen by an ordinary process."""
    parameters, status = tmp_path / "params", tmp_path / "status"
    parameters.write_text("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 0\n")
    status.write_text("Name:\tpython\nCapEff:\t00000000a80425fb\n")
    return parameters, status


def test_the_driver_says_who_may_have_the_counters(machine: tuple[Path, Path]) -> None:
    parameters, status = machine
    assert default_counters.refused(parameters, status) == ""
    parameters.write_text("RmProfilingAdminOnly: 1\n")
    why = default_counters.refused(parameters, status)
    assert why and "NVreg_RestrictProfilingToAdminUsers=0" in why, "no CAP_SYS_ADMIN, as in a container"
    status.write_text("CapEff:\t000001ffffffffff\n")
    assert default_counters.refused(parameters, status) == ""
    parameters.unlink()
    assert default_counters.refused(parameters, status) is None, "nobody is told of counters where there is no driver"


def test_they_are_sampled_in_two_windows_alone_and_where_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_counters, "refused", lambda: "")
    nsys = Nsys(Path("/n/nsys"), "1", "--gpu-metrics-devices= cuda-visible --gpu-metrics-frequency=", "")

    def words(options: RunOptions) -> list[str]:
        decided, why = default_counters.decided(options)
        assert why == ""
        made = commands.profile_command(nsys, decided, Path("/w/r"), ["cmd"])
        return [w for w in made if w.startswith("--gpu-metrics-frequency")]

    assert words(WINDOWS) == ["--gpu-metrics-frequency=2000"]
    assert words(replace(WINDOWS, gpu_metrics=True)) == ["--gpu-metrics-frequency=20000"]
    for other in ({"steps": None}, {"steps": "3:9"}, {"counters": False}, {"per_rank": True}):
        assert words(replace(WINDOWS, **other)) == [], other
    assert words(replace(WINDOWS, nsys_args=("--gpu-metrics-frequency=10",))) == ["--gpu-metrics-frequency=10"]


@pytest.mark.parametrize("why", ["administrators only", None])
def test_where_the_driver_refuses_nothing_else_changes(why: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_counters, "refused", lambda: why)
    decided, reason = default_counters.decided(WINDOWS)
    assert (decided, reason) == (replace(WINDOWS, counters=False), why or "")
    assert default_counters.frequency(decided) == 0


def test_an_export_keeps_the_counters_that_are_read_while_kernels_run(tmp_path: Path) -> None:
    path = report(true).write(tmp_path / "r.sqlite")

    def samples() -> list[tuple[int, int]]:
        with closing(sqlite3.connect(path)) as base:
            return base.execute("SELECT DISTINCT metricId, timestamp FROM GPU_METRICS").fetchall()

    before = samples()
    default_counters.keep_few(path, cold=False)
    after = samples()
    read = [i for i, name in enumerate(NAMES) if name.split()[0] not in ("SYS", "GR", "Compute", "PCIe")]
    links = {i for i, name in enumerate(NAMES) if name.startswith("PCIe")}
    assert {number for number, _ in after} == {*read, *links} and len(read) == 6
    assert 0 < 9 * sum(n in links for n, _ in after) < sum(n in read[:2] for n, _ in after) * 1.5, "of links one in ten"
    times = sorted({time for _, time in after})
    assert times == sorted({t for _, t in before if 10_000 <= t <= 23 * MS + 10_000}), (
        "from the first kernel to the last"
    )
    default_counters.keep_few(path, cold=True)
    assert samples() == []


@pytest.mark.parametrize(("share", "first"), [(1e3, 7_500 * MS), (0.0, 9_000 * MS)])
def test_of_a_long_recording_the_last_part_is_kept(
    share: float, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_counters, "COUNTERS_OF_EXPORT_SHARE", share)
    made = report(true)
    made.process(100).thread(100).launch(at=9_000 * MS, kernel="late", gpu_start=9_001 * MS, gpu_dur=MS)
    for at in range(6_000 * MS, 9_002 * MS, 500 * MS):
        made.sample(at, true(0))
    path = made.write(tmp_path / "r.sqlite")
    default_counters.keep_few(path, cold=False)
    with closing(sqlite3.connect(path)) as base:
        times = tuple(t for (t,) in base.execute("SELECT DISTINCT timestamp FROM GPU_METRICS ORDER BY 1"))
    assert times == tuple(range(first, 9_001 * MS, 500 * MS))
