"""Runs a test of one rank of a job in a process of its own, which ends without ending its process groups.

Who ends a group of gloo waits for its threads with the interpreter's lock, and they may wait for that lock to give back a tensor of
Python: one in fifty programs of a few steps hangs for good (torch 2.13, without the probe too), and a test worker with it.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]


def as_one_rank(body: Callable[[], None]) -> Callable[[], None]:
    """Make a test of a function that asserts something in a job of one rank."""

    @functools.wraps(body)
    def test() -> None:
        run = f"from tests.inject import own_process; own_process.run({body.__module__!r}, {body.__name__!r})"
        path = os.pathsep.join([str(ROOT), str(ROOT / "nsysx" / "inject")])
        done = subprocess.run(
            [sys.executable, "-c", run], cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    return test


def run(module: str, test: str) -> None:
    """Run what such a test is about, and leave."""
    code = 1
    try:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        getattr(importlib.import_module(module), test).__wrapped__()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
