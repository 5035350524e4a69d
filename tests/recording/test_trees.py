"""Commands that start the program in a process of its own: with a real nsys, whichever process makes steps first has the windows."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from nsysx.inject.nsysx_probe import capture_range
from nsysx.pipeline import summarize
from nsysx.recording import then_stop
from tests.light_torch import WITHOUT_META
from tests.recording.test_run_e2e import nsys, profile  # noqa: F401 - fixtures

TRAIN = f"""
{WITHOUT_META}import os, sys, time, torch
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
steps, nap = int(sys.argv[1]), float(sys.argv[2])
for i in range(steps):
    time.sleep(nap)
    optimizer.zero_grad()
    net(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
print("trained", flush=True)
"""
#: Each start of the ranks has keys of its own in torchrun's store: with those of the ranks before them gloo sometimes connects to those
#: that have ended, and waits for good (torch 2.13, without nsysx in 2 of 3 runs).
RANKS = f"""
{WITHOUT_META}import os, sys, time, torch
from torch import distributed as dist
rank, start, at = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"], sys.argv[1]
torch.set_num_threads(1)
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, False)
dist.init_process_group("gloo", store=dist.PrefixStore(start, store), rank=rank, world_size=2)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for i in range(300):
    second = i > 30 and os.path.exists(os.environ["NSYSX_PROBE_DIR"] + "/window-open")
    if start == "0" and rank == 1 and (second if at == "second" else i == int(at)):
        os._exit(5)
    time.sleep(0.02)
    optimizer.zero_grad()
    net(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
os.write(1, b"rank %d of start %s trained\\n" % (rank, start.encode()))
time.sleep(0.5); dist.destroy_process_group()  # gloo's threads may need the GIL: test_frameworks
"""
SPAWNS = WITHOUT_META + "import subprocess, torch\nsys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))\n"
EXECS = WITHOUT_META + "import os, torch\nos.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n"
#: Both windows, and the longest that bare steps take between them: 3.5 s.
ENOUGH = ("train.py", "170", "0.04")


def folder_with(tmp_path: Path, **files: str) -> None:
    for name, text in {"train": TRAIN, "spawns": SPAWNS, "execs": EXECS, **files}.items():
        (tmp_path / f"{name}.py").write_text(text)


def of_steps(run: Any) -> list[dict[str, Any]]:
    """Return what the probes wrote of the processes that made steps."""
    return [p for p in run.facts["probe"] if p.get("steps") and p["steps"]["count"]]


PYTHON = sys.executable
#: On a busy machine two processes that load torch one after another have no step for long.
PATIENT = ("--no-report", "--limit", "600")


SHELL = f"{PYTHON} -c 1; {PYTHON} -c 'import torch'; {PYTHON} {' '.join(ENOUGH)}; exit $?"


@pytest.mark.parametrize(
    "command",
    [
        ("env", "A=1", "timeout", "600", "nice", "-n", "0", "bash", "-c", SHELL),
        (PYTHON, "spawns.py", "execs.py", *ENOUGH),
    ],
    ids=["wrappers and a shell", "spawns and execs"],
)
def test_a_program_in_any_tree_has_two_windows_and_bare_steps(
    profile: Any,  # noqa: F811
    tmp_path: Path,
    command: tuple[str, ...],
) -> None:
    folder_with(tmp_path)
    run = profile(*command, options=PATIENT)
    assert (run.code, run.out, run.err) == (0, "trained\n", "") and run.facts["files"]["cold"] == "r.cold.sqlite"
    (probe,) = of_steps(run)
    assert len(probe["window_pauses_ns"]) == 2 and probe["unrecorded_steps"]["count"] >= 8 and not probe["errors"]
    summary = summarize([tmp_path / "r.sqlite"])
    numbers = {row["number"] for row in summary.steps.rows}
    assert 0 in numbers and numbers >= set(range(*probe["capture_steps"]))
    checks = {check.check: check for check in summary.quality}
    assert "the cold start and steady steps" in checks["windows"].detail and checks["probe ranges"].status == "ok"
    own = {run.facts["nsys"]["range_holder"], run.facts["nsys"]["stand_in"]}
    assert not own & {process["pid"] for process in summary.capture.processes}


def test_of_two_trainings_at_once_one_has_the_windows_and_the_other_is_said(profile: Any, tmp_path: Path) -> None:  # noqa: F811
    folder_with(tmp_path)
    train = f"{PYTHON} {' '.join(ENOUGH)}"
    run = profile("bash", "-c", f"{train} & {train}; wait", options=PATIENT)
    first, other = sorted(of_steps(run), key=lambda p: p["windows_of"] is not None)
    assert len(first["window_pauses_ns"]) == 2 and other["windows_of"] == str(first["pid"])
    assert any(f"which are those of process {first['pid']}" in line for line in run.said)
    checks = {check.check: check for check in summarize([tmp_path / "r.sqlite"]).quality}
    assert "1 other process made steps, too" in checks["windows"].detail and checks["probe ranges"].status == "ok"


def test_who_ends_too_early_leaves_the_windows_to_the_next(profile: Any, tmp_path: Path) -> None:  # noqa: F811
    """The first has a window of its own that closed, and ends before its steps are measured."""
    folder_with(tmp_path)
    run = profile("bash", "-c", f"{PYTHON} train.py 40 0.01; {PYTHON} {' '.join(ENOUGH)}", options=PATIENT)
    before, after = sorted(of_steps(run), key=lambda p: len(p["window_pauses_ns"]))
    assert len(before["window_pauses_ns"]) == 1 and len(after["window_pauses_ns"]) == 2 and not after["windows_of"]
    assert any("left out: 1 of 3 recordings" in line for line in run.said)
    rows = summarize([tmp_path / "r.sqlite"]).steps.rows
    assert rows[0]["number"] == 0 and {row["number"] for row in rows} >= set(range(*after["capture_steps"]))


@pytest.mark.parametrize("at", ["10", "second"])
def test_ranks_that_are_started_anew_have_two_windows_and_bare_steps(profile: Any, tmp_path: Path, at: str) -> None:  # noqa: F811
    """One of those before ends in the first window, or in the second."""
    folder_with(tmp_path, ranks=RANKS)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--max-restarts", "1", "--nproc-per-node", "2")
    run = profile(PYTHON, *torchrun, "ranks.py", at, options=PATIENT)
    assert run.code == 0 and sorted(run.out.splitlines()) == [f"rank {r} of start 1 trained" for r in (0, 1)]
    ranks = [p for p in of_steps(run) if len(p["window_pauses_ns"]) == 2]
    assert len(ranks) == 2 and ranks[0]["capture_steps"] == ranks[1]["capture_steps"]
    for rank in ranks:
        assert rank["unrecorded_steps"]["count"] >= 8 and not rank["errors"]
    assert run.facts["files"]["cold"] == "r.cold.sqlite"
    numbers = {row["number"] for row in summarize([tmp_path / "r.sqlite"]).steps.rows}
    assert 0 in numbers and numbers >= set(range(*ranks[0]["capture_steps"]))


def test_then_stop_ends_the_process_that_made_the_steps_and_its_shell_goes_on(profile: Any, tmp_path: Path) -> None:  # noqa: F811
    folder_with(tmp_path)
    script = f"{PYTHON} train.py 100000 0.01 2> /dev/null; echo after $?; echo $$ > shell"
    run = profile("bash", "-c", script, options=(*PATIENT, "--then", "stop"))
    assert (run.code, run.out) == (0, f"after {128 + signal.SIGINT}\n") and run.facts["stopped"] is True
    (probe,) = of_steps(run)
    assert len(probe["window_pauses_ns"]) == 2 and not Path(f"/proc/{probe['pid']}").exists()


def test_a_process_that_a_command_leaves_behind_is_ended_and_waited_for(tmp_path: Path, monkeypatch: Any) -> None:
    """It ignores Ctrl-C, and its shell has ended: it gets SIGTERM in its turn."""
    import subprocess

    text = "import signal, time; signal.signal(2, signal.SIG_IGN); print(1, flush=True); time.sleep(99)"
    now = [0.0]
    monkeypatch.setattr(then_stop.time, "monotonic", lambda: now[0])
    with subprocess.Popen([PYTHON, "-S", "-c", text], stdout=subprocess.PIPE) as left:
        assert left.stdout is not None and left.stdout.readline()
        (tmp_path / capture_range.CLOSED).write_text(str(left.pid))
        stopper, shell = then_stop.Stopper(tmp_path), type("Shell", (), {"pid": os.getpid()})()
        stopper.look(shell)
        assert stopper.sent == [signal.SIGINT] and stopper.waits() and stopper.runs()
        now[0] = 31.0
        stopper.look(shell)
        assert stopper.sent == [signal.SIGINT, signal.SIGTERM]
        left.wait(timeout=300)
        assert not stopper.runs() and not stopper.waits() and stopper.ended(0) and not stopper.ended(3)


SPAWNED = f"""
{WITHOUT_META}import sys, time, torch
from torch import distributed as dist, multiprocessing
def work(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for i in range(300):
        time.sleep(0.02)
        optimizer.zero_grad()
        net(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    dist.barrier(); time.sleep(0.5)  # as above
    dist.destroy_process_group()
if __name__ == "__main__":
    multiprocessing.spawn(work, (sys.argv[1],), nprocs=2)
    print("trained")
"""


def test_ranks_that_a_program_starts_itself_have_the_same_two_windows(profile: Any, tmp_path: Path) -> None:  # noqa: F811
    """Nothing in their environment says what rank they are, as with mpirun, srun or Ray: they find each other in the store."""
    folder_with(tmp_path, spawned=SPAWNED)
    run = profile(PYTHON, "spawned.py", str(tmp_path / "store"), options=PATIENT)
    assert (run.code, run.out) == (0, "trained\n") and run.facts["files"]["cold"] == "r.cold.sqlite"
    ranks = of_steps(run)
    assert sorted(rank["rank"] for rank in ranks) == ["0", "1"] and not any(rank["errors"] for rank in ranks)
    assert ranks[0]["capture_steps"] == ranks[1]["capture_steps"] and all(
        len(rank["window_pauses_ns"]) == 2 and rank["unrecorded_steps"]["count"] >= 8 for rank in ranks
    )
