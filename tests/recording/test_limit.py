"""``--limit``: what it means, when it asks whom to end the recording, and with a real nsys that the program goes on."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysx.errors import NsysxError
from nsysx.inject.nsysx_probe.at_limit import BUSY, DRAINS, OPEN, REST, RESTS, WATCHES, is_open
from nsysx.inject.nsysx_probe.capture_range import CUT, LIMIT, STEPPED
from nsysx.pipeline import summarize
from nsysx.recording import environment, limit, limiter
from nsysx.recording.find_nsys import Nsys
from nsysx.recording.run_options import RunOptions, check_options
from tests.recording.test_run_e2e import nsys, profile  # noqa: F401 - fixtures


def test_a_limit_is_of_time_and_of_events() -> None:
    assert (
        limit.parsed("60") == (60.0, 5_000_000) and limit.parsed("1.5:70") == (1.5, 70) and limit.parsed("none") is None
    )
    for wrong in ("", "0", "60s", "5:0", "-1", ":5"):
        with pytest.raises(NsysxError, match="expected S, S:EVENTS or none"):
            check_options(RunOptions(limit=wrong))


@pytest.mark.parametrize(
    ("given", "steps", "words", "expected"),
    [
        (None, None, (), limit.DEFAULT),
        (None, "windows", (), limit.DEFAULT),
        (None, "all", (), None),
        (None, None, ("--duration=3",), None),  # nsys ends the recording
        ("9", "all", (), (9.0, 5_000_000)),
        ("none", None, (), None),
    ],
)
def test_what_was_asked_for_as_a_whole_has_a_limit_only_if_one_is_named(
    given: str | None, steps: str | None, words: tuple[str, ...], expected: object
) -> None:
    assert limit.limit_of_run(given, steps, words) == expected


@pytest.mark.parametrize("steps", ["3:5", "auto", "manual"])
def test_a_window_that_ends_by_itself_has_no_limit(steps: str) -> None:
    assert limit.limit_of_run(None, steps, ()) is None
    with pytest.raises(NsysxError, match="--limit does not go with --steps"):
        check_options(RunOptions(limit="60", steps=steps))


def test_the_probe_is_told_of_a_limit() -> None:
    def told(options: RunOptions) -> bool:
        return "NSYSX_LIMIT" in environment.probe_environment(options, {}, Path("/p"))

    assert told(RunOptions(steps="windows")) and told(RunOptions(limit="60"))
    assert not told(RunOptions(steps="windows", limit="none")) and not told(RunOptions(steps="3:5"))


class FakeProfile:
    """An nsys that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[list[str]] = []
        self.printed = ""
        self.process = SimpleNamespace(pid=7)

    def members(self) -> list[int]:
        return []

    def output(self) -> str:
        return self.printed

    def helper(self, words: list[str]) -> SimpleNamespace:
        self.told.append(words[1:])
        return SimpleNamespace(poll=lambda: None if not self.printed else 0, kill=list, wait=list)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(limiter.time, "monotonic", lambda: clock[0])
    return clock


def looks(folder: Path, now: list[float], *, windows: bool) -> tuple[limiter.Limiter, FakeProfile, Any]:
    """Return a limiter of 20 s, its nsys, and a function that looks at a time and returns the files about the limit."""
    fake, made = (
        FakeProfile(),
        limiter.Limiter(limit.RecordingLimit(20), folder, Nsys(Path("/n"), "1", "", ""), windows=windows),
    )

    def look(at: float) -> set[str]:
        now[0] = 100 + at
        made.look(fake)  # type: ignore[arg-type]
        return {path.name for path in folder.iterdir()} - {OPEN, STEPPED, f"{WATCHES}{os.getpid()}"}

    return made, fake, look


def locked(folder: Path) -> bool:
    """Return whether a program that is at rest would be held."""
    with (folder / REST).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_what_is_recorded_as_a_whole_is_ended_by_nsys(tmp_path: Path, now: list[float]) -> None:
    made, fake, look = looks(tmp_path, now, windows=False)
    assert is_open(str(tmp_path)) and not look(19) and not fake.told and not made.stopped
    assert look(20) == {REST} and fake.told == [["stop", "--session=profile-7"]] and made.stopped and locked(tmp_path)
    assert look(21) == {REST}
    fake.printed = "Generating '/tmp/x.qdstrm'"
    assert not look(22) and not is_open(str(tmp_path)) and len(fake.told) == 1
    assert made.end() == [{"after_s": 20.0, "by": "time", "window": False}]


@pytest.mark.parametrize("windows", [True, False])
def test_a_recording_ends_when_all_devices_are_at_rest(tmp_path: Path, now: list[float], *, windows: bool) -> None:
    _, fake, look = looks(tmp_path, now, windows=windows)
    (tmp_path / OPEN).touch()
    (tmp_path / f"{WATCHES}1").touch()  # process 1 runs on every machine
    (tmp_path / f"{WATCHES}{1 << 30}").touch()  # this one has ended
    look(0), look(20)
    files = look(20.2)
    assert REST in files and CUT not in files and not fake.told
    (tmp_path / f"{WATCHES}1").rename(tmp_path / f"{DRAINS}1")
    assert CUT not in look(60) and not fake.told  # it takes its time
    (tmp_path / f"{DRAINS}1").rename(tmp_path / f"{RESTS}1")
    assert (CUT in look(61)) == windows and bool(fake.told) is not windows and locked(tmp_path)
    (tmp_path / OPEN).unlink()
    fake.printed = "Generating "
    assert not look(62)  # all go on


@pytest.mark.parametrize(("sign", "after_s"), [(WATCHES, 6), (DRAINS, 76)])
def test_a_process_that_sees_nothing_or_a_device_that_never_rests_is_not_waited_for_any_longer(
    tmp_path: Path, now: list[float], sign: str, after_s: int
) -> None:
    _, _, look = looks(tmp_path, now, windows=True)
    (tmp_path / OPEN).touch()
    (tmp_path / f"{sign}1").touch()
    look(0)
    assert CUT not in look(20) and CUT not in look(20 + after_s - 2) and CUT in look(20 + after_s)


def test_where_one_device_cannot_come_to_rest_nobody_is_held(tmp_path: Path, now: list[float]) -> None:
    _, _, look = looks(tmp_path, now, windows=True)
    (tmp_path / OPEN).touch()
    (tmp_path / f"{RESTS}1").touch()
    (tmp_path / f"{BUSY}{os.getpid()}").touch()
    look(0)
    assert CUT in look(20) and not locked(tmp_path)


def test_a_window_without_steps_is_closed_at_once_and_the_next_one_has_its_own_time(
    tmp_path: Path, now: list[float]
) -> None:
    made, fake, look = looks(tmp_path, now, windows=True)
    assert not look(500)  # no window is open
    (tmp_path / OPEN).touch()
    assert not look(510) and not look(529)
    assert look(530) == {LIMIT, CUT, REST}
    (tmp_path / OPEN).unlink()  # who holds the range has closed it
    assert not look(531)
    (tmp_path / OPEN).touch()
    assert not look(540) and not look(559) and look(560) == {LIMIT, CUT, REST}
    assert not fake.told and not made.stopped and len(made.end()) == 2


def test_a_step_of_40_s_ends_before_its_window_does(tmp_path: Path, now: list[float]) -> None:
    _, _, look = looks(tmp_path, now, windows=True)
    (tmp_path / OPEN).touch()
    look(0)
    (tmp_path / STEPPED).touch()
    assert look(21) == {LIMIT} and look(40) == {
        LIMIT
    }  # it closes with the next step, at the latest after as long again
    assert look(42) == {LIMIT, CUT, REST}


def test_where_nobody_closes_the_window_nsys_ends_the_recording(tmp_path: Path, now: list[float]) -> None:
    made, fake, look = looks(tmp_path, now, windows=True)
    (tmp_path / OPEN).touch()
    look(0), look(21), look(40)
    assert not fake.told
    look(42)
    assert fake.told and made.stopped and locked(tmp_path)
    look(53)  # whatever nsys does, the program is not held any longer
    assert not (tmp_path / REST).exists()
    made.end()


def test_events_are_counted_by_what_nsys_has_written(
    tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "nsys-report-1.qdstrm"
    monkeypatch.setattr(limiter, "collected_by", lambda _: written)
    fake = FakeProfile()
    made = limiter.Limiter(limit.RecordingLimit(1e9, 1_000), tmp_path, Nsys(Path("/n"), "1", "", ""), windows=False)
    for size in (10_000, 43_000, 43_001):
        written.write_bytes(b"x" * size)
        assert not fake.told
        for _ in range(2):  # it finds the file first
            now[0] += 2
            made.look(fake)  # type: ignore[arg-type]
    assert made.reached == [{"after_s": made.reached[0]["after_s"], "by": "events", "window": False}] and fake.told
    assert "the limit of 1,000 events is reached: nothing more is recorded" in capsys.readouterr().err


def test_the_file_of_nsys_is_found_among_what_its_processes_have_open(tmp_path: Path) -> None:
    class Holder(FakeProfile):
        def members(self) -> list[int]:
            return [self.process.pid, holder.pid]

    path = tmp_path / "nsys-report-2.qdstrm"
    words = [
        sys.executable,
        "-S",
        "-c",
        "f = open(__import__('sys').argv[1], 'w'); print(1, flush=True); input()",
        str(path),
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        holder.stdout.readline()
        assert limiter.collected_by(Holder()) == path  # type: ignore[arg-type]
        holder.stdin.close()


# The program ends once its window is closed: that it ends at all shows that it went on.
UNTIL_CLOSED = """
import os, pathlib, time
while (pathlib.Path(os.environ["NSYSX_PROBE_DIR"]) / "window-open").exists():
    time.sleep(0.05)
print("went on")
raise SystemExit(3)
"""
UNTIL_REPORTED = """
import os, pathlib, time
while not (pathlib.Path(os.environ["NSYSX_PROBE_DIR"]).parent / "report.nsys-rep").exists():
    time.sleep(0.05)
print("went on")
raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("program", "words", "options"),
    [(UNTIL_CLOSED, (), ()), (UNTIL_CLOSED, ("env",), ()), (UNTIL_REPORTED, (), ("--steps", "all"))],
)
def test_a_program_without_steps_goes_on_after_the_limit(
    profile: Any,  # noqa: F811
    tmp_path: Path,
    program: str,
    words: tuple[str, ...],
    options: tuple[str, ...],
) -> None:
    (tmp_path / "serve.py").write_text(program)
    run = profile(*words, sys.executable, "serve.py", options=("--no-report", "--limit", "0.5", *options))
    assert (run.code, run.out, run.err) == (3, "went on\n", "")
    (reached,) = run.facts["limit"]["reached"]
    assert reached["by"] == "time" and reached["window"] == (not options) and run.facts["nsys"]["trouble"] is None
    assert any("the limit of 0.5 s is reached" in line for line in run.said)
    assert (tmp_path / "r.sqlite").exists()


LATE = """
import os, pathlib, time
is_open = (pathlib.Path(os.environ["NSYSX_PROBE_DIR"]) / "window-open").exists
while is_open():
    time.sleep(0.05)
import torch
torch.set_num_threads(1)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
again = 0
for _ in range(8_000):
    time.sleep(0.005)
    optimizer.zero_grad()
    net(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    again += is_open()
    if again and not is_open():
        break
"""


def test_steps_that_come_after_the_limit_are_measured_and_recorded(profile: Any, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "late.py").write_text(LATE)
    run = profile(sys.executable, "late.py", options=("--no-report", "--limit", "1"))
    [probe] = run.facts["probe"]
    assert probe["window_pauses_ns"][0] == 0 and len(probe["window_pauses_ns"]) == 2 and not probe["errors"]
    assert probe["unrecorded_steps"]["count"] >= 32
    summary = summarize([tmp_path / "r.sqlite"])
    assert {row["number"] for row in summary.steps.rows} >= set(range(*probe["capture_steps"]))
    checks = {check.check: check for check in summary.quality}
    assert "until steps repeated" in checks["limit"].detail and checks["limit"].status == "warn"
    assert checks["probe ranges"].status == "ok"
    # Nothing happens in the first window: once in fifty runs, on a busy machine, nsys wrote no report of it, and that is said.
    whole = (tmp_path / "r.cold.sqlite").exists()
    said = "stopped the program" if whole else "nsys wrote only one report"
    assert checks["windows"].detail.count(said) == 1, (checks["windows"], run.facts["nsys"])


def test_the_page_says_that_everything_was_recorded_up_to_the_limit() -> None:
    from nsysx.judging import window_checks

    for run in ({}, {"limit": None}, {"limit": {"reached": []}}, {"limit": {"reached": "x"}}):
        assert not window_checks.limit(run)
    (check,) = window_checks.limit({"limit": {"reached": [{"after_s": 33.2, "by": "events", "window": False}]}})
    assert "after 33.2 s (about as many events as it allows)" in check.detail and "--limit 600" in check.fix
