"""What the machine may do to ``nsysx run``: full and deleted folders, an nsys that hangs. One line, soon, and the command runs."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nsysx.errors import NsysxError
from nsysx.recording import capture, machine_checks
from nsysx.recording.find_nsys import Nsys, ask, find_nsys
from nsysx.recording.recording_bounds import HELPER_IDLE_S
from nsysx.recording.run_options import RunOptions
from tests.recording.test_as_bare import under
from tests.recording.test_capture import FakeNsys, command, fake, here
from tests.recording.test_run_e2e import CAPTURED, ENVIRONMENT, nsys, results

__all__ = ["fake", "here", "nsys"]  # the fixtures


def done(words: list[str], folder: Path | None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, env=ENVIRONMENT | environment, capture_output=True, text=True, timeout=600)


# --- the temporary folder ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "missing"])
def test_a_temporary_folder_that_takes_nothing(nsys: str, tmp_path: Path, kind: str) -> None:
    """Nsys alone would not start the command; it works in the folder of the results, and the command keeps its TMPDIR."""
    place = Path("/sys") if kind == "full" else tmp_path / "missing"  # nothing can be written to /sys, not even by root
    run = done(under(nsys, ["printenv", "TMPDIR"]), tmp_path, TMPDIR=str(place))
    assert (run.returncode, run.stdout) == (0, f"{place}\n"), run.stderr
    assert results(tmp_path) == CAPTURED


def test_an_nsys_that_holds_what_all_others_wait_for(nsys: str, tmp_path: Path) -> None:
    """One that was stopped, or hangs, would hold every other nsys of the machine for good."""
    place = tmp_path / "nvidia" / "nsight_systems"
    place.mkdir(parents=True)
    name = f"NSys-SessionManager.lock-{Path('/proc/self/ns/pid').stat().st_ino}-2023.4.4"
    with (place / name).open("wb") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        run = done(under(nsys, ["printenv", "TMPDIR"]), tmp_path, TMPDIR=str(tmp_path))
    assert (run.returncode, run.stdout) == (0, f"{tmp_path}\n"), run.stderr
    assert results(tmp_path) == CAPTURED


@pytest.mark.parametrize(("answer", "held"), [("nsys did nothing for 4 s", True), ("error: no such option", False)])
def test_doctor_says_what_is_left_of_an_nsys_that_was_killed(
    monkeypatch: pytest.MonkeyPatch, answer: str, held: bool
) -> None:
    """Seen with 172 sessions that were killed: each nsys that came later gave up after 30 s, and none held the lock."""
    monkeypatch.setattr(machine_checks, "ask", lambda command: (127, answer))
    (check,) = machine_checks.records(Nsys(Path("/opt/nsys"), "2023.4.4"), sys.executable)
    assert (check.status, "remove /tmp/nvidia/nsight_systems" in check.fix) == ("fail", held)


# --- nsys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [".", "..", "sub"])
def test_an_nsys_named_by_a_path_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    made = FakeNsys(tmp_path / "place")
    (tmp_path / "place" / "sub").mkdir()
    at = {".": made.folder, "..": made.folder / "sub", "sub": tmp_path}[where]
    named = {".": Path("./nsys"), "..": Path("../nsys"), "sub": Path("place/nsys")}[where]
    monkeypatch.chdir(at)
    chosen = find_nsys(named)
    assert chosen.path.is_absolute(), "the command may change its folder"
    assert chosen.path.samefile(made.path)


def test_a_path_typed_from_here_reaches_nsys(tmp_path: Path) -> None:
    made = FakeNsys(tmp_path / "fake")
    words = [sys.executable, "-m", "nsysx", "run", "--nsys", "./nsys", "--no-report", "-o", "../r", "echo", "ran"]
    run = done(words, made.folder)
    assert (run.returncode, run.stdout) == (0, "ran\n"), run.stderr
    assert (tmp_path / "r.sqlite").exists()


def test_an_nsys_that_hangs_is_refused_within_seconds(tmp_path: Path) -> None:
    hangs = tmp_path / "nsys"
    hangs.write_text("#!/bin/sh\nsleep 600\n")
    hangs.chmod(0o755)
    began = time.monotonic()
    with pytest.raises(NsysxError, match="it hangs"):
        find_nsys(hangs)
    assert HELPER_IDLE_S <= time.monotonic() - began < 500, "by itself it would have lasted for ten minutes"


def test_a_helper_that_works_is_waited_for() -> None:
    busy = "import time\nend = time.monotonic() + 6\nwhile time.monotonic() < end: pass\nprint('done')"
    assert ask([sys.executable, "-c", busy]) == (0, "done")
    assert ask([sys.executable, "-c", "import os; print('x' * 200_000)"])[1] == "x" * 200_000


@pytest.mark.parametrize(
    ("mode", "code", "ended_by"),
    [("no-start", "raise SystemExit(7)", 0), ("no-start", "import os; os.kill(os.getpid(), 15)", 15)],
)
def test_a_command_runs_although_nsys_does_not_start(
    fake: FakeNsys, here: Path, capfd: pytest.CaptureFixture[str], mode: str, code: str, ended_by: int
) -> None:
    fake.does(mode)
    result = capture.run(command("open('ran', 'a').write('x')\n" + code), RunOptions(nsys=fake.path))
    assert (result.exit_code, result.ended_by) == (128 + ended_by if ended_by else 7, ended_by)
    assert (here / "ran").read_text() == "x", "once"
    assert (result.problems, result.written) == ([], [])
    said = [line for line in capfd.readouterr().err.splitlines() if "warning: nsys did not start" in line]
    assert len(said) == 1
    assert "Local Endpoint is not available" in said[0]
    assert {path.name for path in here.iterdir()} == {"ran"}


# --- folders ----------------------------------------------------------------------------------------------------------


def in_a_deleted_folder(words: list[str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "gone").mkdir()
    shell = ["/bin/sh", "-c", 'cd gone && rmdir ../gone && exec "$@"', "sh", *words]
    return done(shell, tmp_path)


def test_a_deleted_working_folder(nsys: str, tmp_path: Path) -> None:
    name = tmp_path / "r"
    words = [sys.executable, "-m", "nsysx", "run", "--nsys", nsys, "--no-report", "-o", str(name), "--", "echo", "ran"]
    run = in_a_deleted_folder(words, tmp_path)
    assert (run.returncode, run.stdout) == (0, "ran\n"), run.stderr
    assert results(tmp_path) == CAPTURED


def test_a_deleted_working_folder_takes_no_results(nsys: str, tmp_path: Path) -> None:
    run = in_a_deleted_folder(under(nsys, ["echo", "ran"]), tmp_path)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (125, "", 1)
    assert "the working folder has been deleted" in run.stderr


def test_a_folder_of_results_that_is_deleted_meanwhile(nsys: str, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    words = [sys.executable, "-m", "nsysx", "run", "--nsys", nsys, "--no-report", "-o", "place/r", "--"]
    run = done([*words, "sh", "-c", "rm -r place; echo ran; exit 3"], tmp_path)
    assert (run.returncode, run.stdout) == (3, "ran\n"), run.stderr
    assert "Traceback" not in run.stderr
    assert "nsysx: error: " in run.stderr
    assert not os.path.lexists(tmp_path / "place")


@pytest.mark.parametrize("name", ["a b:50%p %h\nü'\"$(x);*", "-x", "x" * 200])
def test_results_with_odd_names(nsys: str, tmp_path: Path, name: str) -> None:
    words = [
        sys.executable,
        "-m",
        "nsysx",
        "run",
        "--nsys",
        nsys,
        "--no-report",
        f"--output={name}",
        "--",
        "echo",
        "ran",
    ]
    run = done(words, tmp_path)
    assert (run.returncode, run.stdout) == (0, "ran\n"), run.stderr
    assert {path.name for path in tmp_path.iterdir()} == {name + end for end in (".nsys-rep", ".sqlite", ".run.json")}
