"""A run with two capture windows: where it is possible, what nsys is told, and with a real nsys what comes out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nsysx.errors import NsysxError
from nsysx.events import bare as bare_steps
from nsysx.inject.nsysx_probe import capture_range
from nsysx.pipeline import summarize
from nsysx.recording import capture, commands, environment, news, then_stop, window_plan, windows_link
from nsysx.recording.find_nsys import Nsys
from nsysx.recording.inbox import ReceivedSignal
from nsysx.recording.run_options import RunOptions, check_options
from nsysx.recording.run_outputs import Outputs
from tests.light_torch import TWO_RANKS, WITHOUT_META
from tests.recording.test_capture import FakeNsys
from tests.recording.test_run_e2e import nsys, profile  # noqa: F401 - fixtures

HELP = "\t--nvtx-capture=\n\t-o, --output=\n 'none', 'stop', 'repeat[:N]' or 'repeat-shutdown:N'.\n"
CAN = Nsys(Path("/n/nsys"), "2025.3.1", HELP, "")
WANTED = RunOptions(steps="windows")


def given(options: RunOptions = WANTED) -> dict[str, str]:
    users = dict(os.environ)
    return users | environment.probe_environment(options, users, Path("/nowhere"))


def test_nsys_is_told_of_the_range_and_the_program_of_both_windows() -> None:
    words = commands.profile_command(CAN, WANTED, Path("/t/r"), ["python"])
    assert words[-6:-3] == [
        "--capture-range=nvtx",
        "--nvtx-capture=capture-window@nsysx",
        "--capture-range-end=repeat:32",
    ]
    assert given()["NSYSX_STEPS"] == "windows" and given()["NSYS_NVTX_PROFILER_REGISTER_ONLY"] == "0"
    assert environment.is_declared("NSYS_NVTX_PROFILER_REGISTER_ONLY")


OURS = "CuptiSubscribeOnStart=true;CuptiFinalizeOnStop=true"


@pytest.mark.parametrize(
    ("options", "version", "users", "driver", "told"),
    [
        (WANTED, "2025.3.1", {}, "580.65.06", OURS),
        (WANTED, "2024.5.1.113", {}, "525.60.13", OURS),
        (
            WANTED,
            "2025.3.1",
            {"NSYS_CONFIG_DIRECTIVES": "AppLaunchTimeoutSec=240"},
            "580.65",
            f"AppLaunchTimeoutSec=240;{OURS}",
        ),
        (
            WANTED,
            "2025.3.1",
            {"NSYS_CONFIG_DIRECTIVES": "CuptiFinalizeOnStop=false;"},
            "580.65",
            "CuptiFinalizeOnStop=false;CuptiSubscribeOnStart=true",
        ),
        (WANTED, "2023.4.4.54", {}, "580.65.06", None),  # its CUPTI crashes where graphs are replayed
        (WANTED, "2025.3.1", {}, "470.82.01", None),  # nsys loads the CUPTI of CUDA 11
        (WANTED, "2025.3.1", {}, None, None),
        (RunOptions(steps="4:8"), "2025.3.1", {}, "580.65.06", None),  # cudaProfilerStart is seen by CUPTI alone
    ],
)
def test_cupti_leaves_the_program_between_windows_where_that_is_safe(
    options: RunOptions, version: str, users: dict[str, str], driver: str | None, told: str | None
) -> None:
    found = window_plan.detaching(options, replace(CAN, version=version), users, driver)
    assert found == ({} if told is None else {"NSYS_CONFIG_DIRECTIVES": told})
    assert environment.is_declared("NSYS_CONFIG_DIRECTIVES")


@pytest.mark.parametrize(
    ("command", "options", "nsys", "more", "why"),
    [
        (["python", "x.py"], replace(WANTED, probe=False), CAN, {}, "the probe is off"),
        (["python", "-I", "x.py"], WANTED, CAN, {}, "python -I keeps the probe out"),
        (["python", "x.py"], WANTED, replace(CAN, profile_help="-o"), {}, "nsys 2025.3.1 cannot record two windows"),
        (["python", "x.py"], replace(WANTED, nsys_args=("--duration=3",)), CAN, {}, "--nsys-arg says when to record"),
        (
            ["timeout", "9", "python", "x.py"],
            replace(WANTED, calibrate=True),
            CAN,
            {},
            "--calibrate goes with one window only",
        ),
    ],
)
def test_where_two_windows_cannot_be_everything_is_recorded(
    command: list[str],
    options: RunOptions,
    nsys: Nsys,  # noqa: F811
    more: dict[str, str],
    why: str,
) -> None:
    done, said = window_plan.decided(command, options, nsys, given() | more)
    assert (done.steps, said) == (None, why)


def test_any_command_has_two_windows_and_options_take_none_away() -> None:
    for command in (
        ["python", "x.py"],
        ["timeout", "9", "python", "x.py"],
        ["bash", "train.sh"],
        ["/nowhere/torchrun", "x.py"],
    ):
        assert window_plan.decided(command, RunOptions(), CAN, given()) == (WANTED, "")
    more = RunOptions(clocks=True, memory=True, gil=True, gpu_metrics=True)
    assert window_plan.decided(["python", "x.py"], more, CAN, given()) == (replace(more, steps="windows"), "")
    assert window_plan.decided(["python", "x.py"], RunOptions(steps="all"), CAN, given()) == (RunOptions(), "")


@pytest.mark.parametrize("steps", ["3:4", "auto", "manual"])
def test_a_window_that_opens_through_cuda_needs_a_driver_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: str
) -> None:
    wanted, code = RunOptions(steps=steps), tmp_path / "starts"
    stands_in = tmp_path / "python"
    stands_in.write_text(f"#!/bin/sh\nexit $(cat {code})\n")
    stands_in.chmod(0o755)
    monkeypatch.setattr(window_plan.sys, "executable", str(stands_in))
    for ends_with in ("0", "1", "139"):  # a driver that crashes is one
        code.write_text(ends_with)
        assert window_plan.decided(["python", "x.py"], wanted, CAN, given()) == (wanted, "")
    code.write_text("9")
    why = f"--steps {steps} needs CUDA, which does not start here"
    assert window_plan.decided(["python", "x.py"], wanted, CAN, given()) == (RunOptions(), why)


def test_a_driver_without_a_device_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks for it runs in a process that has a driver of these answers."""
    asks = window_plan._STARTS_CUDA.split("ctypes.CDLL")
    assert len(asks) == 2
    for answer, starts in (("lambda _flags: 0", True), ("lambda _flags: 100", False)):
        driver = f"(lambda _name: type('Driver', (), {{'cuInit': staticmethod({answer})}}))"
        monkeypatch.setattr(window_plan, "_STARTS_CUDA", asks[0] + driver + asks[1])
        assert window_plan.cuda_starts(os.environ) is starts


def test_the_cold_start_has_files_of_its_own(tmp_path: Path) -> None:
    outputs = Outputs.named(tmp_path / "r.sqlite")
    assert [path.name for path in outputs.cold] == ["r.cold.nsys-rep", "r.cold.sqlite"]
    outputs.cold[1].touch()
    assert outputs.taken()


PROGRAM = f"""
{WITHOUT_META}import time, torch
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
ends = []
for i in range(170):
    time.sleep(0.04)
    optimizer.zero_grad()
    loss = net(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    ends.append(time.perf_counter())
print(loss.item())
open("ends.txt", "w").write(" ".join(map(str, ends)))
"""


ENDLESS = (
    PROGRAM.split("for i in")[0]
    + """
try:
    while True:
        optimizer.zero_grad()
        net(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)
except KeyboardInterrupt:
    print("saved", flush=True)
    raise
"""
)


def test_a_run_with_two_windows_tells_the_bare_step(profile: Any, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "train.py"]
    bare = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    run = profile(*command)
    assert (run.code, run.out, run.err) == (bare.returncode, bare.stdout, bare.stderr)
    assert run.facts["files"]["cold"] == "r.cold.sqlite" and (tmp_path / "r.cold.nsys-rep").exists()
    [probe] = run.facts["probe"]
    first, end = probe["capture_steps"]
    ends = [float(word) for word in (tmp_path / "ends.txt").read_text().split()]
    told = probe["unrecorded_steps"]["lengths_ns"]
    # Its own clock times the same steps, which lie between the windows; those before the first end, too, to be sure.
    own = [(end - start) * 1e9 for start, end in pairwise(ends[:first])]
    assert min(own) <= sum(told) / len(told) <= max(own)
    trace = summarize([tmp_path / "r.sqlite"])
    numbers = [row["number"] for row in trace.steps.rows]
    assert numbers[-(end - first) :] == list(range(first, end)) and numbers[0] == 0
    steady = [row["number"] for row in trace.steps.rows if row["steady"]]
    assert steady and steady[0] >= first
    check = next(check for check in trace.quality if check.check == "windows")
    slower = len(bare_steps.slower_at_first(probe))  # on a busy machine the first may be
    assert f"{len(told) - slower} steps between them ran without the profiler" in check.detail
    assert json.loads((tmp_path / "r.run.json").read_text())["options"]["steps"] == "windows"


def test_then_stop_ends_the_command_after_its_last_window(profile: Any, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "train.py").write_text(ENDLESS)
    run = profile(sys.executable, "train.py", options=("--no-report", "--then", "stop"))
    assert (run.code, run.out) == (0, "saved\n")  # its own handler of Ctrl-C ran, and its signal is no failure
    assert run.facts["stopped"] is True and run.facts["exit_code"] == 128 + signal.SIGINT
    assert len(run.facts["probe"][0]["window_pauses_ns"]) == 2 and run.facts["files"]["cold"] == "r.cold.sqlite"


def test_a_terminal_is_told_when_a_window_has_closed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told, silent = news.News(tmp_path, shown=True), news.News(tmp_path, shown=False)
    (tmp_path / "probe-7.json").write_text("no JSON")
    for number, pauses in enumerate((None, [], [1], [1], [1, 2], [1, 2])):
        (tmp_path / "probe-9.json").write_text(json.dumps({"window_pauses_ns": pauses}))
        os.utime(tmp_path / "probe-9.json", ns=(number, number))
        told.look()
        silent.look()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(";")[0] for line in lines] == [
        "nsysx: the cold start is recorded",
        "nsysx: 24 steps are recorded",
    ]


class Patient:
    """A command that ignores Ctrl-C."""

    def __init__(self) -> None:
        self.got: list[int] = []

    def receive(self, received: ReceivedSignal) -> None:
        self.got.append(received.number)


def test_a_command_that_ignores_ctrl_c_gets_sigterm_after_a_while(tmp_path: Path, monkeypatch: Any) -> None:
    now = [0.0]
    monkeypatch.setattr(then_stop.time, "monotonic", lambda: now[0])
    patient, stopper = Patient(), then_stop.Stopper(tmp_path)
    seen = []
    for at in (0, 1, 2, 29, 31.5, 90):
        now[0] = at
        if at == 1:
            (tmp_path / capture_range.CLOSED).touch()
        stopper.look(patient)  # type: ignore[arg-type]
        seen.append(list(patient.got))
    assert seen == [[], [2], [2], [2], [2, 15], [2, 15]]
    assert stopper.ended(-15) and stopper.ended(130) and not stopper.ended(1)


@pytest.mark.parametrize("options", [replace(WANTED, steps="all"), replace(WANTED, per_rank=True)])
def test_then_stop_needs_a_window_of_one_program(options: RunOptions) -> None:
    with pytest.raises(NsysxError, match="--then does not go with"):
        check_options(replace(options, then="stop"))


@pytest.mark.parametrize(
    ("mode", "written", "said"),
    [
        ("two-no-second", {"r.nsys-rep", "r.sqlite"}, ""),
        ("two-full", {"r.nsys-rep", "r.sqlite"}, ""),
        ("two-no-export", {"r.nsys-rep", "r.cold.nsys-rep", "r.sqlite"}, "r.nsys-rep: export failed"),
        ("two-nothing", set(), "nsys wrote no report"),
    ],
)
def test_what_nsys_leaves_of_two_windows_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, written: set[str], said: str
) -> None:
    """It drops the second report, finds the disk full at the first window's end or altogether, or cannot export the second one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(windows_link.WindowsLink, "open", lambda *_: True)
    fake = FakeNsys(tmp_path / "fake").does(mode)
    command = [sys.executable, "-c", "print('own'); raise SystemExit(5)"]
    result = capture.run(command, RunOptions(nsys=fake.path, output=Path("r"), report=False))
    facts = json.loads((tmp_path / "r.run.json").read_text())
    assert result.exit_code == 5 and facts["exit_code"] == 5 and facts["options"]["steps"] == "windows"
    assert {path.name for path in result.written} == written | {"r.run.json"}
    assert facts["files"]["sqlite"] == ("r.sqlite" if written else None) and "cold" not in facts["files"]
    assert said in " ".join(problem.message for problem in result.problems) and bool(result.problems) == bool(said)


EXEC = f"""
{WITHOUT_META}import os, sys, torch
torch.set_num_threads(1)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for i in range(int(sys.argv[1])):
    net(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
if len(sys.argv) > 2:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, sys.argv[0], *sys.argv[2:]])
print("done")
raise SystemExit(6)
"""


def test_a_program_that_replaces_itself_between_the_windows(profile: Any, tmp_path: Path) -> None:  # noqa: F811
    """What it was keeps its record, and the page says what became of it."""
    (tmp_path / "x.py").write_text(EXEC)
    run = profile(sys.executable, "x.py", "40", "20")
    assert (run.code, run.out, run.err) == (6, "done\n", "")
    before, after = sorted(run.facts["probe"], key=lambda p: p["replaced"])
    assert before["pid"] == after["pid"] and (before["replaced"], after["replaced"]) == (False, True)
    assert after["window_pauses_ns"] is None and len(before["window_pauses_ns"]) == 1
    assert not after["ranges_pushed"]
    summary = summarize([tmp_path / "r.sqlite"])
    (check,) = [check for check in summary.quality if check.check == "windows"]
    assert "replaced itself by another one (exec), of which nothing was recorded" in check.detail


JOB = f"""
{WITHOUT_META}import os, time, torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
ends = []
for i in range(260):
    time.sleep(0.02)
    optimizer.zero_grad()
    net(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    ends.append(time.perf_counter())
open(f"ends{{dist.get_rank()}}.txt", "w").write(" ".join(map(str, ends)))
time.sleep(0.5); dist.destroy_process_group()  # gloo's threads may need the GIL: test_frameworks
"""


def test_ranks_pause_together_and_each_times_its_own_steps(profile: Any, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "job.py").write_text(JOB)
    run = profile(sys.executable, "-c", TWO_RANKS, "job.py")
    assert run.code == 0 and run.facts["files"]["cold"] == "r.cold.sqlite"
    ranks = sorted((p for p in run.facts["probe"] if p.get("rank") is not None), key=lambda p: p["rank"])
    first, end = ranks[0]["capture_steps"]
    assert ranks[1]["capture_steps"] == [first, end] and not ranks[0]["errors"] + ranks[1]["errors"]
    # One of them opens and closes for both, and the other one stands still as long.
    paused = [sum(p["window_pauses_ns"]) for p in ranks]
    assert len(ranks[1]["window_pauses_ns"]) == 2 and abs(paused[0] - paused[1]) < 0.5 * paused[0]
    longest = []
    for p in ranks:
        ends = [float(word) for word in (tmp_path / f"ends{p['rank']}.txt").read_text().split()]
        own = [(after - before) * 1e9 for before, after in pairwise(ends)]  # of steps 1, 2, ...
        told = p["unrecorded_steps"]["lengths_ns"]
        same = own[first - 2 - len(told) : first - 2]
        assert len(told) >= 8 and abs(sum(told) - sum(same)) < 0.1 * sum(same)
        longest.append(sorted(range(first - 1), key=lambda i: -own[i])[:3])
    assert set(longest[0]) & set(longest[1])  # a busy machine may hold one of them up for longer elsewhere
    trace = summarize([tmp_path / "r.sqlite"])
    (check,) = [check for check in trace.quality if check.check == "windows"]
    assert "the same steps by rank: 0 " in check.detail
    assert next(check for check in trace.quality if check.check == "probe ranges").status == "ok"
