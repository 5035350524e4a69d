"""A terminal, a shell with job control and the wrapped command between them: it is as if the launcher were not there."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PS1": "$ ", "TERM": "dumb"}
#: What does not come by then does not come at all: the machine may be slow and busy.
PATIENCE_S = 600.0


@pytest.fixture(scope="session")
def nsys() -> str:
    path = os.environ.get("NSYSX_TEST_NSYS", "")
    assert path and os.access(path, os.X_OK), "set NSYSX_TEST_NSYS to a real nsys"
    return path


class Shell:
    """An interactive bash in a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], ENVIRONMENT)
        self.seen = ""

    def read(self, pattern: str, seconds: float = PATIENCE_S) -> str:
        """Read until ``pattern`` is there, and forget what was read."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < end, self.seen
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.seen += os.read(self.terminal, 4096).decode(errors="replace")
        self.seen = self.seen[found.end() :]
        return found[0]

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def end(self) -> None:
        """Hang up, which ends the shell and what it has started."""
        os.close(self.terminal)
        os.kill(self.pid, signal.SIGHUP)
        os.waitpid(self.pid, 0)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    opened = Shell(tmp_path)
    try:
        yield opened
    finally:
        opened.end()


WORKS = """
import os, sys, time
terminal = open("/dev/tty", "r+b", buffering=0)
with open("pid", "w") as file:
    file.write(str(os.getpid()))
own = (os.isatty(terminal.fileno()), os.getsid(0) == SHELL, os.tcgetpgrp(0) == os.getpgrp())
terminal.write(b"tty %d session %d foreground %d\\n" % own)
while not os.path.exists("stop"):
    time.sleep(0.05)
print("ended", oct(os.umask(0)), flush=True)
sys.exit(6)
"""


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def comes_to(pid: int, states: str) -> None:
    """Wait until a process is in one of the states: R, S, T as ``ps`` names them."""
    end = time.monotonic() + PATIENCE_S
    while state(pid) not in states:
        assert time.monotonic() < end, state(pid)
        time.sleep(0.02)


def test_job_control(nsys: str, tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "works.py").write_text(WORKS.replace("SHELL", str(shell.pid)))
    words = [sys.executable, "-m", "nsysx", "run", "--nsys", nsys, "--no-report", "-o", "r", sys.executable, "works.py"]
    shell.type(f"umask 027; {subprocess.list2cmdline(words)}\n")
    shell.read("tty 1 session 1 foreground 1")
    pid = int((tmp_path / "pid").read_text())
    for _ in range(2):
        shell.type("\x1a")  # Ctrl-Z
        shell.read("Stopped")
        comes_to(pid, "T")
        shell.type("echo and=$((40 + 2))\n")
        shell.read("and=42")
        shell.type("fg\n")
        comes_to(pid, "SR")
    shell.type("\x1a")
    shell.read("Stopped")
    shell.type("bg\n")
    comes_to(pid, "SR")
    shell.type("wait %1; echo code=$?\n")
    shell.read(re.escape("echo code=$?"))  # what is typed may come out in the middle of what the command writes
    (tmp_path / "stop").touch()
    shell.read("ended 0o27")
    shell.read("code=6")
    assert {path.name for path in tmp_path.iterdir()} >= {"r.nsys-rep", "r.sqlite", "r.run.json"}


def test_a_shell_as_the_command_has_its_own_jobs(nsys: str, tmp_path: Path, shell: Shell) -> None:
    words = [sys.executable, "-m", "nsysx", "run", "--nsys", nsys, "--no-report", "-o", "r", "bash", "--norc", "-i"]
    shell.type(subprocess.list2cmdline(words) + "\n")
    shell.read("records: ")
    shell.read(r"\$ $")
    shell.type("sh -c 'echo at=$((40 + 1)); exec sleep 60'\n")
    shell.read("at=41")
    shell.type("\x1a")
    shell.read("Stopped")
    shell.type("kill -9 %1; exec sh -c 'exit 3'\n")
    shell.read("wrote r")
    shell.type("echo code=$?\n")
    shell.read("code=3")


def test_a_pager_beside_it_keeps_the_terminal(nsys: str, tmp_path: Path, shell: Shell) -> None:
    words = [sys.executable, "-m", "nsysx", "run", "--nsys", nsys, "--no-report", "-o", "r", "echo", "text"]
    # It asks on the terminal once it has read the pipe: what is typed before may be taken by the shell.
    code = "text = input(); print('what' + '?', flush=True); print('read', text, open('/dev/tty').readline())"
    reader = [sys.executable, "-c", code]
    shell.type(f"{subprocess.list2cmdline(words)} 2>/dev/null | {subprocess.list2cmdline(reader)}; echo code=$?\n")
    shell.read(r"what\?")
    shell.type("typed\n")
    shell.read("read text typed")
    shell.read("code=0")
