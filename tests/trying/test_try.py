"""``nsysx try`` on real programs: real processes on the CPU, real changes, and changes that hang, crash or compute something else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HEAD = """
import sys, time, torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
"""
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
LOADER = (
    HEAD
    + """
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 400
    def __getitem__(self, i):
        time.sleep(0.005)
        return torch.full((4,), float(i))
net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=1e-6)
for batch in torch.utils.data.DataLoader(Slow(), batch_size=4):
    opt.zero_grad(); net(batch).mean().backward(); opt.step()
"""
)
#: A network of the program's own: of a bare `nn.Sequential`, whose forward is torch's, `compile()` compiles nothing (torch 2.13).
NET = """
class Net(nn.Module):
    def __init__(self, parts):
        super().__init__(); self.parts = nn.ModuleList(parts)
    def forward(self, x):
        for part in self.parts: x = part(x).relu()
        return x
net = Net("""
OWN = TRAIN.replace("net = nn.Sequential(*", NET).replace("range(60)", "range(6)")
#: Changes that misbehave: one file of the kind that stands in the probe's folder.
BAD = """
import time
def hang(torch, watch):
    watch.took(here=False)
    watch.at_step.setdefault(12, []).append(lambda: time.sleep(600))
def crash(torch, watch):
    watch.took(here=False)
    step = torch.optim.Optimizer.zero_grad
    def zero_grad(self, *args, **kwargs):
        raise RuntimeError("output of a CUDA graph overwritten")
    torch.optim.Optimizer.zero_grad = zero_grad
def nans(torch, watch):
    watch.took(here=False)
    square = torch.Tensor.square
    torch.Tensor.square = lambda self: square(self) * float("nan")
def never(torch, watch):
    watch.why_not = "there is no moon"
CHANGES = tuple(Change(f.__name__, f.__name__, "", f) for f in (hang, crash, nans, never))
"""


Try = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def tried(tmp_path: Path) -> Try:
    """Runs ``nsysx try`` on a program; returns its exit code, its JSON ({} without one) and what it said."""

    def run(program: str, *options: str, timeout: float = 400) -> tuple[int, dict[str, Any], str]:
        (tmp_path / "changes").mkdir(exist_ok=True)
        (tmp_path / "changes" / "bad.py").write_text(BAD)
        (tmp_path / "train.py").write_text(textwrap.dedent(program).replace("{steps}", "400"))
        words = [
            sys.executable,
            "-m",
            "nsysx",
            "try",
            *options,
            "--json",
            "-",
            "--yes",
            "--",
            sys.executable,
            "train.py",
        ]
        environment = {**os.environ, "NSYSX_CHANGES": str(tmp_path / "changes"), "PYTHONPATH": str(Path.cwd())}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=timeout)
        return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr

    return run


def only(result: dict[str, Any]) -> dict[str, Any]:
    [trial] = result["trials"]
    return dict(trial)


def test_a_fused_optimizer_is_faster_and_no_change_is_not(tried: Try, tmp_path: Path) -> None:
    words = ("--change", "fused", "--change", "nothing,gc-freeze", "--steps", "30", "--pairs", "3")
    code, result, _ = tried(TRAIN, *words)
    trial, nothing = result["trials"]
    assert code == 0 and result["schema"] == "nsysx.try/1"
    assert trial["ratio"] < 0.8 and trial["verdict"] in ("faster", "cannot_tell"), (
        trial
    )  # other processes share the CPU
    assert trial["pairs"] == 3 and result["baseline"]["runs"] == 7
    assert trial["where"].endswith("train.py:7") and "fused=True" in trial["paste"]
    assert trial["weights_difference"] < 1e-4 and result["baseline"]["weights_difference"] == 0
    assert nothing["verdict"] in ("same", "cannot_tell") and nothing["weights_difference"] == 0, nothing
    assert not (tmp_path / "ended").exists(), "each run is ended as soon as its steps are measured"


def test_workers_are_faster_than_a_slow_sample(tried: Try, tmp_path: Path) -> None:
    code, result, _ = tried(LOADER, "--change", "loader-workers", "--steps", "20", "--pairs", "2")
    trial = only(result)
    assert code == 0 and trial["ratio"] < 0.7 and trial["verdict"] in ("faster", "cannot_tell"), trial
    assert trial["weights_difference"] == 0, "the batches are the same"
    assert not trials_in(tmp_path), "workers are ended, too"


def trials_in(folder: Path) -> list[Path]:
    """Return the runs of a trial that are left in a folder; other tests have theirs elsewhere."""
    left = [p.parent for p in Path("/proc").glob("[0-9]*/environ") if b"NSYSX_TRIAL" in readable(p)]
    return [p for p in left if (p / "cwd").exists() and (p / "cwd").resolve() == folder.resolve()]


def readable(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_changes_that_hang_crash_or_break_the_training_never_win(tried: Try) -> None:
    names = ("hang", "crash", "nans", "never", "tf32", "foreach,never")
    words = [word for name in names for word in ("--change", name)]
    code, result, _ = tried(TRAIN, *words, "--steps", "10", "--patience", "8", "--pairs", "2", "--budget", "9")
    trials = {t["change"]: t for t in result["trials"]}
    assert code == 0
    assert trials["hang"]["verdict"] == "fails" and "no step for 8 s" in trials["hang"]["reason"]
    assert trials["crash"]["verdict"] == "fails"
    assert trials["crash"]["reason"] == "RuntimeError: output of a CUDA graph overwritten"
    assert trials["crash"]["where"].endswith("train.py:10"), (
        "the line of the program, not that of torch or of the change"
    )
    assert trials["nans"]["verdict"] == "fails" and "finite" in trials["nans"]["reason"]
    assert trials["never"]["verdict"] == "does_not_apply" and trials["never"]["reason"] == "there is no moon"
    assert trials["tf32"]["verdict"] == "does_not_apply" and "no GPU" in trials["tf32"]["reason"]
    assert trials["foreach,never"]["verdict"] == "does_not_apply"


def test_a_compiled_network_pays_or_says_why_not(tried: Try) -> None:
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.fail("compile is not tested: torch.compile on the CPU needs a C++ compiler, and there is none here")
    code, result, said = tried(OWN, "--change", "compile", "--steps", "20", "--pairs", "2", timeout=300)
    trial = only(result)
    assert code == 0 and trial["verdict"] in ("faster", "same", "slower", "cannot_tell"), (trial, said)
    assert trial["start_ns"] > 1e8, "compiling takes its time in the first step"
    assert trial["weights_difference"] < 1e-3


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import torch\nfor i in range(3): torch.ones(1)", "made no step"),
        (TRAIN.replace("{steps}", "1"), "made 1 step,"),
        ("print('no torch')", "imports no torch"),
        ("import torch\nraise ValueError('no data')", "ValueError: no data"),
        ("import torch\nname = input('name? ')", "asks on stdin"),
        (
            "import os, sys\nif os.path.exists('lock'): sys.exit('another one runs')\nopen('lock', 'w').close()\n" + TRAIN,
            "ran once, but not again",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_said_in_one_line(tried: Try, program: str, expected: str) -> None:
    code, result, said = tried(program, "--change", "nothing")
    assert code == 4 and not result
    error = [line for line in said.splitlines() if "error" in line]
    assert len(error) == 1 and expected in error[0], said
    assert "Traceback" not in said


def test_wrong_words_are_told(tried: Try) -> None:
    code, _, said = tried(TRAIN, "--change", "fussed")
    assert code == 2 and "Did you mean fused?" in said
    bare = subprocess.run([sys.executable, "-m", "nsysx", "try"], capture_output=True, text=True, timeout=60)
    assert bare.returncode == 2 and "try wants a command" in bare.stderr


def test_an_interrupt_ends_the_run_and_prints_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("{steps}", "100000"))
    words = [sys.executable, "-m", "nsysx", "try", "--change", "nothing", "--pairs", "9", "-y", "--"]
    session = subprocess.Popen(
        [*words, sys.executable, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )  # fmt: skip
    time.sleep(12)
    session.send_signal(signal.SIGINT)
    out, said = session.communicate(timeout=30)
    assert session.returncode in (130, -signal.SIGINT), said
    assert "nothing: " in out and "interrupted" in out + said
    assert not trials_in(tmp_path)
