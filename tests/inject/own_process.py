"""Runs a test of one rank of a job in a process of its own, which ends without ending its process groups.

Who ends a group of gloo waits for its threads with the interpreter's lock, and they may wait for that lock to give back a tensor of
Python: one in fifty programs of a few steps hangs for good (torch 2.13, without the probe too), and a test worker with it.

Each is a fork of one process that has imported torch and the tests, which take ten times as long as most of them.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 300


def as_one_rank(body: Callable[[], None]) -> Callable[[], None]:
    """Make a test of a function that asserts something in a job of one rank."""

    @functools.wraps(body)
    def test() -> None:
        forks = _forks()
        assert forks.stdin is not None and forks.stdout is not None
        with tempfile.NamedTemporaryFile() as said:
            forks.stdin.write(json.dumps([body.__module__, body.__name__, said.name]) + "\n")
            forks.stdin.flush()
            assert forks.stdout.readline() == "0\n", said.read().decode(errors="replace")

    return test


@functools.cache
def _forks() -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "nsysx" / "inject")])
    forks = subprocess.Popen(
        [sys.executable, "-c", "from tests.inject import own_process; own_process.serve()"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    atexit.register(forks.communicate)  # ends it
    return forks


def serve() -> None:
    """Fork for each line of stdin, [module, test, file for what it says], and answer with the exit status."""
    for line in sys.stdin:
        module, test, said = json.loads(line)
        imported = importlib.import_module(module)
        child = os.fork()
        if child == 0:
            for stream in (1, 2):
                os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND), stream)
            _run(getattr(imported, test).__wrapped__)
        print(_ended(child), flush=True)


def _ended(child: int) -> int:
    """Return the exit status of a process, which is killed when its time is over."""
    until = time.monotonic() + LONGEST_S
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)


def _run(test: Callable[[], None]) -> None:
    """Run what such a test is about, and leave."""
    code = 1
    try:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        test()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
