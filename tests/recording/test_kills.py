"""A wrapped run that is killed at random moments: nobody waits, and what became of the command is told."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
#: What has not ended by then hangs. Nothing here takes 10 s on a machine with nothing else to do; this one may be slow and busy.
PATIENCE_S = 600.0

#: Runs until it is told to stop; SECONDS at most.
PROGRAM = """
import os, sys, time
sys.path.insert(0, INJECT)
print("up", flush=True)
end = time.monotonic() + SECONDS
while time.monotonic() < end and not os.path.exists("stop"):
    time.sleep(0.01)
print("end", flush=True)
sys.exit(5)
""".replace("INJECT", repr(str(ROOT / "nsysx" / "inject")))


@pytest.fixture(scope="session")
def nsys() -> str:
    path = os.environ.get("NSYSX_TEST_NSYS", "")
    assert path and os.access(path, os.X_OK), "set NSYSX_TEST_NSYS to a real nsys"
    return path


def words_of(place: Path) -> str:
    """Return the command line of a process, which need not be UTF-8: other tests start such programs at the same time."""
    try:
        return os.fsdecode((place / "cmdline").read_bytes()).replace("\0", " ")
    except OSError:
        return ""


def processes(folder: Path, sessions: set[int]) -> dict[int, str]:
    """Return the processes that work in ``folder`` and the agents of an nsys that did; ``sessions`` remembers those."""
    everything = {int(place.name): place for place in Path("/proc").glob("[0-9]*")}
    found = {}
    for pid, place in everything.items():
        try:
            state = (place / "stat").read_bytes().rpartition(b")")[2].split()[0]
            if (place / "cwd").readlink() == folder and state != b"Z":
                found[pid] = words_of(place)
        except OSError:
            continue
    sessions |= {pid for pid, words in found.items() if "nsys profile " in words}
    names = {f"--session-name=profile-{pid} " for pid in sessions}
    return found | {
        pid: words for pid, place in everything.items() if any(name in (words := words_of(place)) for name in names)
    }


class Started:
    """A run in a group of its own, with its words in files."""

    def __init__(self, nsys: str, folder: Path, *, seconds: float = 300.0) -> None:
        folder.mkdir()
        self.folder = folder
        self.killed = 0
        self.sessions: set[int] = set()
        (folder / "program.py").write_text(PROGRAM.replace("SECONDS", str(seconds)))
        words = [
            sys.executable,
            "-m",
            "nsysx",
            "run",
            "--nsys",
            nsys,
            "--no-report",
            "-o",
            "r",
            sys.executable,
            "program.py",
        ]
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                words,
                cwd=folder,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def up(self) -> None:
        self.says("out", "up")

    def says(self, stream: str, text: str) -> None:
        """Wait until ``text`` is in the output ("out") or the talk ("err")."""
        end = time.monotonic() + PATIENCE_S
        while text not in (self.folder / stream).read_text():
            assert time.monotonic() < end and self.process.poll() is None, (self.folder / "err").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """Let the program come to its end."""
        (self.folder / "stop").touch()

    def kill(self, who: str, number: int) -> None:
        if who == "run":
            self.process.send_signal(number)
            return
        if who == "group":
            with contextlib.suppress(ProcessLookupError):  # it may be over
                os.killpg(self.process.pid, number)
            return
        found = processes(self.folder, self.sessions)
        for pid, words in found.items():
            agent = "--start-agent" in words
            if (who == "agent" and agent) or (who == "nsys" and "nsys profile " in words) or who == "all":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                    self.killed += 1

    def ends(self) -> tuple[int, str, str]:
        """Return exit code, output and talk; fails when it does not end in time."""
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            left = processes(self.folder, self.sessions)
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError(f"hangs: {(self.folder / 'err').read_text()} {left}") from None
        return code, (self.folder / "out").read_text(), (self.folder / "err").read_text()

    def left(self) -> dict[int, str]:
        """Return what is still there of it, after the time in which it may go."""
        end = time.monotonic() + PATIENCE_S
        while (found := processes(self.folder, self.sessions)) and time.monotonic() < end:
            time.sleep(0.1)
        return found


def fates(folder: Path) -> int | None:
    """Return what NAME.run.json says of the command's end."""
    run = folder / "r.run.json"
    return json.loads(run.read_text())["exit_code"] if run.is_file() else None


@pytest.mark.parametrize("who", ["agent", "nsys"])
def test_nsys_or_its_agent_is_killed_while_the_command_runs(nsys: str, tmp_path: Path, who: str) -> None:
    started = Started(nsys, tmp_path / "run")
    started.up()
    started.kill(who, signal.SIGKILL)
    assert started.killed
    if who == "nsys":
        started.says("err", "nsys has ended; the command goes on")
    started.stop()
    code, out, err = started.ends()
    assert (code, out) == (5, "up\nend\n"), err  # the command's own, to its end
    assert "the command itself ended with 5" in err
    assert fates(started.folder) == 5
    trouble = json.loads((started.folder / "r.run.json").read_text())["nsys"]["trouble"]
    # Where the command ends before nsys misses its agent, nsys alone knows what went wrong, and is quoted.
    assert "nsysx: error: nsys" in err and (trouble or "Agent") in err
    assert not started.left()


@pytest.mark.parametrize("who", ["agent", "nsys", "all"])
def test_a_scheduler_that_signals_everything_gets_a_whole_report(nsys: str, tmp_path: Path, who: str) -> None:
    started = Started(nsys, tmp_path / "run")
    started.up()
    started.kill(who, signal.SIGTERM)
    if who != "all":
        started.stop()
    code, _, err = started.ends()
    assert code == (-signal.SIGTERM if who == "all" else 5), err
    assert fates(started.folder) == (143 if who == "all" else 5)
    assert {path.name for path in started.folder.iterdir()} >= {"r.nsys-rep", "r.sqlite", "r.run.json"}
    assert "error" not in err


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM]


def one(nsys: str, folder: Path, seed: int) -> None:
    """Kill one run at a random moment and see that it ends, that its end is told, and that nothing of it stays."""
    chance = random.Random(seed)
    victims = [("run", chance.choice(SIGNALS)), ("group", chance.choice(SIGNALS)), ("all", signal.SIGTERM)]
    victims += [("agent", signal.SIGKILL), ("nsys", signal.SIGKILL)]
    who, number = victims[seed % len(victims)]
    started = Started(nsys, folder / str(seed), seconds=2.0)
    where = f"{who} {number.name} seed {seed}"
    time.sleep(chance.uniform(0.2, 6.0))
    started.kill(who, number)
    code, out, err = started.ends()
    told = fates(started.folder)
    assert "Traceback (most recent call last)" not in err or "KeyboardInterrupt" in err, (where, err)
    if "up" in out and told is None:
        # Either it was over, or it never was: then the run says so.
        assert "error" in err, (where, code, out, err)
    if told is not None:
        assert code in (told, 125, 128 + number, -number), (where, code, told, err)
        assert told in (5, 1, 128 + number), (where, told, err)
        assert told != 5 or "end" in out, (where, told, out, err)
    else:
        assert "nsysx: error: " in err or code == 128 + number or code == -number, (where, code, err)
    assert not (left := started.left()), (where, left)


def test_killed_at_random_moments(nsys: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("NSYSX_KILLS_SEED", "0"))
    count = int(os.environ.get("NSYSX_KILLS", "10"))
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda n: one(nsys, tmp_path, n), range(seed, seed + count)))
