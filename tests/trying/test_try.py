"""``nsysx try`` on real programs: real processes on the CPU, real changes, and changes that crash or compute something else."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nsysx.cli import try_
from nsysx.errors import NsysxError
from nsysx.reading.tried import beside as tried_beside
from nsysx.trying.try_options import TryOptions
from tests.light_torch import LIGHT_LINE, WITHOUT_META
from tests.samples import Samples

HEAD = (
    LIGHT_LINE
    + """
import sys, time, torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
"""
)
#: Many small parameters: an optimizer that goes from one to the next takes most of the step.
TRAIN = (
    HEAD
    + """
net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(60)])
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=False)
x = torch.randn(4, 8)
for i in range({steps}):
    opt.zero_grad(); loss = net(x).square().mean(); loss.backward(); opt.step()
open("ended", "w").close()
"""
)
#: The same, updated by hand: making an optimizer loads the compiler, which takes as long as loading torch.
BY_HAND = (
    HEAD
    + """
net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(60)])
x = torch.randn(4, 8)
for i in range({steps}):
    net(x).square().mean().backward()
    for p in net.parameters(): p.data -= 1e-3 * p.grad; p.grad = None
"""
)
#: Changes that misbehave: one file of the kind that stands in the probe's folder.
BAD = """
def nans(torch, watch):
    watch.took(here=False)
    square = torch.Tensor.square
    torch.Tensor.square = lambda self: square(self) * float("nan")
def never(torch, watch):
    watch.why_not = "there is no moon"
def greedy(torch, watch):
    watch.took(here=False)
    square = torch.Tensor.square
    torch.Tensor.square = lambda self: square(self) + torch.empty(1 << 60)
CHANGES = tuple(Change(f.__name__, f.__name__, "", f) for f in (nans, never, greedy))
"""


PYTHON = [sys.executable, "train.py"]
Try = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def tried(tmp_path: Path) -> Try:
    """Runs ``nsysx try`` on a program; returns its exit code, its JSON ({} without one) and what it said."""

    def run(program: str, *options: str, nsysx: Sequence[str] = ("-m", "nsysx")) -> tuple[int, dict[str, Any], str]:
        (tmp_path / "changes").mkdir(exist_ok=True)
        (tmp_path / "changes" / "bad.py").write_text(BAD)
        (tmp_path / "train.py").write_text(program.replace("{steps}", "400"))
        words = [sys.executable, *nsysx, "try", *options, "--json", "-", "--yes", "--", *PYTHON]
        environment = {**os.environ, "NSYSX_CHANGES": str(tmp_path / "changes"), "PYTHONPATH": str(Path.cwd())}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
        return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr

    return run


def trials_in(folder: Path) -> list[Path]:
    """Return the runs of a trial that are left in a folder; other tests have theirs elsewhere."""
    left = [p.parent for p in Path("/proc").glob("[0-9]*/environ") if b"NSYSX_TRIAL" in readable(p)]
    return [p for p in left if (p / "cwd").exists() and (p / "cwd").resolve() == folder.resolve()]


def readable(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_what_helps_wins_and_is_left_beside_the_report(tried: Try, tmp_path: Path, recorded: Samples) -> None:
    """The report of the program is found by its command, and its page shows what was measured."""
    shutil.copy(recorded.report("tiny_stack"), tmp_path / "mine.sqlite")
    (tmp_path / "mine.run.json").write_text(json.dumps({"command": PYTHON}))
    words = ("--change", "fused", "--change", "tf32")
    options = ("--steps", "10", "--pairs", "2", "--together", "--html", "page.html")
    long = TRAIN.replace("{steps}", "4000")  # the shorter a step, the more of them make a block
    code, result, said = tried(long, *words, *options)
    assert code == 0 and result["schema"] == "nsysx.try/1", said
    trials = {t["change"]: t for t in result["trials"]}
    fused = trials["fused"]
    assert fused["ratio"] < 1 and fused["verdict"] in ("faster", "cannot_tell"), fused  # others share the CPU
    assert (
        fused["within_a_run"]
        and fused["pairs"] == 8
        and fused["where"].endswith("train.py:7")
        and "fused=True" in fused["paste"]
    )
    assert fused["weights_difference"] < 1e-4 and fused["early_update_difference"] < 1e-3
    assert result["baseline"]["weights_difference"] in (None, 0), "asked only where those with a change differ"
    assert trials["tf32"]["verdict"] == "does_not_apply" and "no GPU" in trials["tf32"]["reason"]
    assert result["together"] is None, "one winner alone is not tried again"
    assert not (tmp_path / "ended").exists(), "each run is ended as soon as its steps are measured"
    assert not trials_in(tmp_path)
    assert "mine.sqlite was recorded of this command" in said
    assert json.loads((tmp_path / "mine.try.json").read_text()) == result
    page = (tmp_path / "page.html").read_text()
    assert "fused: " in page and "the program used no GPU" not in page
    (one,) = [t for t in tried_beside(tmp_path / "mine.sqlite") if t.change == "fused"]
    assert one.then_ns == round(fused["step_ns"])


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (WITHOUT_META + "import torch\nfor i in range(3): torch.ones(1)", "made no step"),
        (BY_HAND.replace("{steps}", "1"), "made 1 step,"),
        ("print('no torch')", "imports no torch"),
        ("raise ValueError('no data')", "ValueError: no data"),
        ("name = input('name? ')", "asks on stdin"),
        ("import time; time.sleep(3600)", "made no step within the budget. Give it more: --budget"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_said_in_one_line(tried: Try, program: str, expected: str) -> None:
    code, result, said = tried(program, "--change", "nothing", "--budget", "1s" if "3600" in program else "5m")
    assert code == 4 and not result
    error = [line for line in said.splitlines() if "error" in line]
    assert len(error) == 1 and expected in error[0], said
    assert "Traceback" not in said


#: A program that takes a lock file, or whose worker holds its port; the worker may have got away from those who would end it.
LOCKED = "import os, sys\nif os.path.exists('lock'): raise OSError('another one runs')\nopen('lock', 'w').close()\n"
LISTENS = """
import os, socket, subprocess, sys
port = socket.socket(); port.bind(("127.0.0.1", {port})); port.listen()
environ = {{}} if {away} else None
worker = subprocess.Popen(["sleep", "600"], pass_fds=[port.fileno()], start_new_session=True, env=environ, executable="/bin/sleep")
print(worker.pid, file=open("workers", "a"))
"""


@pytest.fixture
def port() -> int:
    """A port that nobody has, and that the system gives to nobody who asks for any: it begins to be held seconds later."""
    for number in itertools.count(20_000 + os.getpid() % 10_000):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", number))
            return number
    raise AssertionError


@pytest.mark.parametrize("why", ["another one runs", "Address already in use"])
def test_a_program_that_refuses_a_second_start_is_not_the_changes_fault(
    tried: Try, tmp_path: Path, port: int, why: str
) -> None:
    """A lock file that is left behind, a port that a worker still holds. What the first start gave is kept."""
    refuses = LOCKED if "runs" in why else LISTENS.format(port=port, away=True)
    try:
        code, result, said = tried(refuses + BY_HAND, "--change", "nothing", "--steps", "5")
    finally:
        for pid in readable(tmp_path / "workers").split():
            os.kill(int(pid), signal.SIGKILL)
    assert code == 4 and result["baseline"]["runs"] == 1 and result["trials"][0]["verdict"] == "cannot_tell"
    errors = [line for line in said.splitlines() if "error" in line]
    assert len(errors) == 1 and "ran once, but not again: OSError: " in errors[0] and why in errors[0], said
    assert errors[0].rstrip(".").endswith("train.py:2" if "runs" in why else "train.py:3")


def test_what_crashes_or_breaks_the_training_fails_and_a_worker_is_ended_before_the_next_start(
    tried: Try, tmp_path: Path, port: int
) -> None:
    """The worker holds the program's port: where it still lived, the second start would fail, whatever is changed."""
    program = LISTENS.format(port=port, away=False) + BY_HAND.replace("{steps}", "4000")
    names = ("nans", "never", "greedy")
    code, result, said = tried(
        program, *(word for name in names for word in ("--change", name)), "--steps", "5", "--pairs", "2"
    )
    trials = {t["change"]: t for t in result["trials"]}
    assert code == 0 and not result["stopped"], said
    assert trials["nans"]["verdict"] == "fails" and "finite" in trials["nans"]["reason"]
    assert trials["never"]["verdict"] == "does_not_apply" and trials["never"]["reason"] == "there is no moon"
    assert trials["greedy"]["verdict"] == "fails" and "allocate" in trials["greedy"]["reason"]
    line = next(n for n, text in enumerate(program.splitlines(), 1) if "backward" in text)
    assert trials["greedy"]["where"].endswith(f"train.py:{line}"), (
        "the program's line, not that of torch or of the change"
    )
    assert len(readable(tmp_path / "workers").split()) >= 4 and not trials_in(tmp_path)


def test_wrong_words_are_told(tried: Try) -> None:
    code, _, said = tried(TRAIN, "--change", "fussed")
    assert code == 2 and "Did you mean fused?" in said
    for word in ("0", "soon", "-3m", "9 days"):
        with pytest.raises(NsysxError, match="not a time"):
            _ = TryOptions(budget=word).budget_s
    assert [TryOptions(budget=word).budget_s for word in ("90s", "10m", "1.5", "1h")] == [90, 600, 90, 3600]
    bare = subprocess.run([sys.executable, "-m", "nsysx", "try"], capture_output=True, text=True, timeout=600)
    assert bare.returncode == 2 and "try needs a command" in bare.stderr


#: The command line on a machine that only runs programs: what reads reports is not installed.
WITHOUT_POLARS = "import sys; sys.modules['polars'] = None; from nsysx.__main__ import begin; begin()"


def test_an_interrupt_ends_the_run_and_prints_what_is_known(tmp_path: Path) -> None:
    """The first change is decided, it fails at once; in the run of the second one Ctrl-C comes."""
    program = 'import os; print(os.environ["NSYSX_CHANGE"], file=open("runs", "a"))\n' + BY_HAND
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "bad.py").write_text(BAD)
    (tmp_path / "train.py").write_text(program.replace("{steps}", "100000"))
    options = ["--change", "greedy", "--change", "nothing", "--steps", "5", "-y", "--json", "known.json"]
    words = [sys.executable, "-c", WITHOUT_POLARS, "try", *options, "--"]
    session = subprocess.Popen(
        [*words, *PYTHON], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "NSYSX_CHANGES": str(tmp_path / "changes")},
    )  # fmt: skip
    until = time.monotonic() + 600
    while time.monotonic() < until and b"nothing" not in readable(tmp_path / "runs"):
        time.sleep(0.1)
    session.send_signal(signal.SIGINT)
    out, said = session.communicate(timeout=600)
    assert session.returncode in (130, -signal.SIGINT), said
    assert "greedy: fails: " in out and "not tried: nothing" in out and "interrupted" in out + said
    known = json.loads((tmp_path / "known.json").read_text())
    assert known["interrupted"] and known["baseline"]["runs"] >= 1
    assert [t["verdict"] for t in known["trials"]] == ["fails", "cannot_tell"]
    assert not trials_in(tmp_path)


def test_only_the_first_signal_interrupts() -> None:
    """Linux tells of each thread of a parent that ends, and a user presses Ctrl-C again: none may interrupt the program's end."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    for first, later in itertools.permutations(numbers, 2):
        with try_._ended_by_signals():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(first)
            for number in (first, later):
                signal.raise_signal(number)
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_signal_that_is_ignored_interrupts_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with try_._ended_by_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


#: The command line on a clock of its own: the budget has passed once the program sleeps, however long it took to get there.
ON_A_CLOCK = """
import os, subprocess, time  # subprocess has its own clock
now = time.monotonic
time.monotonic = lambda: now() + 3600 * os.path.exists("sleeps")
from nsysx.__main__ import begin; begin()
"""


def test_a_trial_that_measures_nothing_leaves_what_was_tried_before(
    tried: Try, tmp_path: Path, recorded: Samples
) -> None:
    """The budget ends in the second start, of a change that cannot be turned off; the reading of the report counts, too."""
    shutil.copy(recorded.report("tiny_stack"), tmp_path / "mine.sqlite")
    (tmp_path / "mine.run.json").write_text(json.dumps({"command": PYTHON}))
    (tmp_path / "mine.try.json").write_text("what was tried before")
    slow = "import os, time\nif os.path.exists('second'): open('sleeps', 'w').close(); time.sleep(600)\nopen('second', 'w').close()\n"
    options = ("--change", "nans", "--steps", "5", "--budget", "50m", "--patience", "9000")
    code, result, said = tried(slow + TRAIN, *options, nsysx=("-c", ON_A_CLOCK))
    assert code == 4 and not result["trials"][0]["pairs"] and "budget was used up" in said, said
    assert (tmp_path / "mine.try.json").read_text() == "what was tried before"
