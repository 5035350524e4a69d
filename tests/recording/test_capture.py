"""Finding nsys and building commands: pure. What nsys may do wrong: a fake nsys that does it."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nsysx.errors import NsysxError
from nsysx.inject.nsysx_probe.bootstrap import FORKED
from nsysx.recording import (
    calibration_run,
    capture,
    clock_sampler,
    commands,
    environment,
    find_nsys,
    inbox,
    install_nsys,
    machine_checks,
    nsys_process,
    per_rank,
    reports,
    run_options,
    run_outputs,
    run_record,
    typed_command,
    window_plan,
)
from nsysx.recording.find_nsys import Nsys
from nsysx.recording.inbox import Inbox
from nsysx.recording.probes import read_probe
from nsysx.recording.run_options import RunOptions
from nsysx.recording.run_outputs import Outputs
from nsysx.recording.stand_in_link import StandIn

PROFILE_HELP = """
	--cuda-graph-trace=<granularity>[:<launch origin>]
	-o, --output=
"""
NEW = Nsys(Path("/n/nsys"), "2025.3.1", PROFILE_HELP, "--include-json=\n-q, --quiet=\n")
OLD = Nsys(Path("/o/nsys"), "2022.1.1", "-o, --output=", "")

FAKE = """#!{python} -S
import os, pathlib, sys
here = pathlib.Path(__file__).parent
mode = (here / "mode").read_text() if (here / "mode").exists() else ""
words = sys.argv[1:]
with (here / "calls").open("a") as calls:
    calls.write(("help" if "--help" in words else words[0]) + "\\n")
value = lambda name: next((w.split("=", 1)[1] for w in words if w.startswith(name + "=")), None)
if words == ["--version"]:
    if mode == "wrapper":
        sys.exit("nsys is not installed")
    print("NVIDIA Nsight Systems version {version}-123v0")
elif words[1:] == ["--help"] or words[0] == "status":
    print("--cuda-graph-trace=  --quiet=  --gpu-metrics-devices=  --gpu-metrics-frequency=")
    if mode.startswith("two-"):
        print("--nvtx-capture=  repeat[:N]")
elif words[0] == "export":
    if mode == "no-export" or (mode == "flaky-export" and (here / "calls").read_text().count("export") == 1):
        print("Importer error")
        sys.exit(1)
    if mode == "hanging-export" and (here / "calls").read_text().count("export") == 1:
        import time
        time.sleep(600)
    if mode == "two-no-export" and words[-1].endswith("r.nsys-rep"):
        print("Importer error")
        sys.exit(1)
    import sqlite3
    base = sqlite3.connect(value("--output"))
    base.execute("CREATE TABLE StringIds (id)")
    base.close()
    if mode == "full-disk":
        os.truncate(value("--output"), int(here.joinpath("size").read_text()))
elif words[0] == "stop":
    (here / "told").touch()
elif words[0] == "profile":
    print("Collecting data...")
    print("WARNING: CPU sampling is off", file=sys.stderr)
    if mode == "hang" or (mode == "hangs-once" and (here / "calls").read_text().count("profile") == 1):
        import time
        time.sleep(600)
    if mode == "refuses" and any("--gpu-metrics" in word for word in words):
        print("Illegal --gpu-metrics-devices argument: 0.\\nInsufficient privilege: ERR_NVGPUCTRPERM\\n\\nusage: nsys profile")
        sys.exit(1)
    if mode == "no-start" or (mode == "flaky" and (here / "calls").read_text().count("profile") == 1):
        print("Local Endpoint is not available")
        sys.exit(1)
    command = words[next(place for place, word in enumerate(words[1:], 1) if not word.startswith("-")) :]
    if mode == "leaves":
        (here / "pid").write_text(str(os.getpid()))
        os.spawnv(os.P_NOWAIT, command[0], command)
        while not (here / "runs").exists():
            os.sched_yield()
        sys.exit(1)
    code = os.waitstatus_to_exitcode(os.spawnv(os.P_WAIT, command[0], command) << 8)
    if mode == "crash":
        os.abort()
    if mode == "no-end":
        import time
        time.sleep(600)
    if mode == "ends-when-told":
        import time
        while not (here / "told").exists():
            time.sleep(0.5)
    if mode == "killed":  # and its agent wakes up now and then
        agent = "import time\\nwhile True:\\n t = time.process_time()\\n while time.process_time() < t + 0.012: pass\\n time.sleep(0.4)"
        name = f"--session-name=profile-{{os.getpid()}}"
        child = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", agent, name])
        while name not in pathlib.Path(f"/proc/{{child}}/cmdline").read_text():  # on a busy machine it has not begun yet
            os.sched_yield()
        os.kill(os.getpid(), 9)
    if mode == "agent-stays":
        agent = "import time; time.sleep(600)"
        name = f"--session-name=profile-python-{{os.getpid()}}"  # as nsys 2022 names it
        os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", agent, name, str(here)])
    if mode == "no-import":
        raw = pathlib.Path(__file__).parent / "nsys-report-1.qdstrm"
        raw.write_text("collected")
        print(f"Generating '{{raw}}'")
        sys.exit(code)
    if mode.startswith("two-"):  # a full disk leaves an empty first report, or none at all
        texts = {{"two-no-second": ["report"], "two-full": ["", "report"], "two-no-export": ["cold", "steady"]}}.get(mode, [])
        for number, text in enumerate(texts, 1):
            pathlib.Path(value("--output") + f".{{number}}.nsys-rep").write_text(text)
        if not texts:
            print("No space left on device", file=sys.stderr)
    elif mode != "no-report":
        report = value("--output").replace("%%", "%") + ".nsys-rep"
        pathlib.Path(report).write_text("report")
        print("Generated:\\n    " + report, flush=True)
    if mode == "dies-late":
        agent = "import time; time.sleep(600)"
        os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", agent, f"--session-name=profile-{{os.getpid()}}", str(here)])
        os.kill(os.getpid(), 11)
    if mode == "stays-late":
        import time
        time.sleep(600)
    sys.exit(code)
"""


class FakeNsys:
    def __init__(self, folder: Path, version: str = "2024.1.1") -> None:
        folder.mkdir(parents=True)
        self.folder, self.path = folder, folder / "nsys"
        self.path.write_text(FAKE.format(python=sys.executable, version=version))
        self.path.chmod(0o755)

    def does(self, mode: str) -> FakeNsys:
        (self.folder / "mode").write_text(mode)
        return self

    def calls(self, verb: str) -> int:
        return (self.folder / "calls").read_text().split().count(verb)


@pytest.fixture
def fake(tmp_path: Path) -> FakeNsys:
    return FakeNsys(tmp_path / "fake")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


# --- commands and environment -------------------------------------------------------------------------------------------


def test_default_command() -> None:
    words = commands.profile_command(NEW, RunOptions(), Path("/w/report"), ["cmd", "-o", "x"])
    assert words == [
        "/n/nsys",
        "profile",
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--cuda-graph-trace=node",
        "--force-overwrite=true",
        "--output=/w/report",
        "cmd",
        "-o",
        "x",
    ]


def test_options_become_words() -> None:
    options = RunOptions(memory=True, graphs="graph", osrt=True, mpi=True, steps="3:5", nsys_args=("--a=1", "--b=2"))
    words = commands.profile_command(NEW, options, Path("/w/report"), ["cmd"])
    assert words[-3:] == ["--a=1", "--b=2", "cmd"]
    assert {
        "--trace=cuda,nvtx,osrt,mpi",
        "--sample=none",
        "--cuda-memory-usage=true",
        "--cuda-graph-trace=graph",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
    } <= set(words)


@pytest.mark.parametrize(("steps", "traced"), [("3:5", "cuda-sw,nvtx"), (None, "cuda,nvtx")])
def test_a_window_is_traced_by_software_where_nsys_could_choose_the_hardware(steps: str | None, traced: str) -> None:
    """Hardware tracing has the times of kernels when the program ends: of a window it would lose them."""
    newest = replace(NEW, profile_help=f"{PROFILE_HELP} 'cuda', 'cuda-hw', 'cuda-sw', 'nvtx'")
    words = commands.profile_command(newest, RunOptions(steps=steps), Path("/w/report"), ["cmd"])
    assert f"--trace={traced}" in words


def test_pythons_lock_becomes_a_word() -> None:
    nsys = replace(NEW, profile_help=f"{PROFILE_HELP} 'python-gil'")
    options = RunOptions(gil=True)
    commands.check_nsys(nsys, options)
    words = commands.profile_command(nsys, options, Path("/w/report"), ["cmd"])
    assert "--trace=cuda,nvtx,python-gil" in words
    assert "--include-json=true" in commands.export_command(nsys, Path("r"), Path("s"))


@pytest.mark.parametrize(
    ("options", "said"),
    [(RunOptions(gil=True), "Python's lock")],
)
def test_an_nsys_that_cannot_is_refused_before_anything_runs(
    options: RunOptions, said: str, fake: FakeNsys, here: Path
) -> None:
    with pytest.raises(NsysxError, match=said) as refused:
        capture.run(command("open('ran', 'w')"), replace(options, nsys=fake.path))
    assert refused.value.hint
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    ("helps", "words"),
    [
        ("--gpu-metrics-devices= all, cuda-visible, none --gpu-metrics-frequency=",
         ["--gpu-metrics-devices=cuda-visible", "--gpu-metrics-frequency=20000"]),
        ("--gpu-metrics-device= --gpu-metrics-frequency=", ["--gpu-metrics-device=all", "--gpu-metrics-frequency=20000"]),
        ("--gpu-metrics-device=", ["--gpu-metrics-device=all"]),
        ("--cuda-graph-trace=", []),
    ],
)  # fmt: skip
def test_gpu_metrics_by_what_this_nsys_calls_them(helps: str, words: list[str]) -> None:
    nsys = Nsys(Path("/n/nsys"), "1", helps, "")
    asked = commands.profile_command(nsys, RunOptions(gpu_metrics=True), Path("/w/r"), ["cmd"])
    assert [word for word in asked if "gpu-metrics" in word] == words
    assert not any(
        "gpu-metrics" in word for word in commands.profile_command(nsys, RunOptions(), Path("/w/r"), ["cmd"])
    )


def test_refused_gpu_metrics_stop_nothing_and_are_told_once(
    fake: FakeNsys, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.does("refuses")
    result = capture.run(command("open('ran', 'a').write('x')"), RunOptions(nsys=fake.path, gpu_metrics=True))
    assert (result.exit_code, result.problems) == (0, [])
    assert (here / "ran").read_text() == "x", "the command runs once"
    assert fake.calls("profile") == 2
    assert capfd.readouterr().err.count("ERR_NVGPUCTRPERM; recording without") == 1
    told = json.loads(result.outputs.run.read_text())
    assert told["gpu_metrics"] == {
        "refused": "Illegal --gpu-metrics-devices argument: 0. Insufficient privilege: ERR_NVGPUCTRPERM",
        "hz": None,
    }
    assert not any("--gpu-metrics" in word for word in told["nsys"]["command"])


def test_gpu_metrics_that_work_are_asked_for_once(fake: FakeNsys, here: Path) -> None:
    result = capture.run(command("pass"), RunOptions(nsys=fake.path, gpu_metrics=True))
    told = json.loads(result.outputs.run.read_text())
    assert told["gpu_metrics"] == {"refused": None, "hz": 20_000}
    assert "--gpu-metrics-devices=all" in told["nsys"]["command"]


def test_an_old_nsys_gets_only_what_it_knows() -> None:
    words = commands.profile_command(OLD, RunOptions(), Path("/w/report"), ["cmd"])
    assert not [word for word in words if "graph-trace" in word or "backtrace" in word]
    assert "--sample=none" in words
    assert "--include-json=true" not in commands.export_command(OLD, Path("r"), Path("s"))
    assert "--include-json=true" in commands.export_command(NEW, Path("r"), Path("s"))


@pytest.mark.parametrize(
    ("helps", "option", "known"),
    [
        ("--cuda-graph-trace=<g>", "--cuda-graph-trace", True),
        ("--cuda-graph-trace-x=", "--cuda-graph-trace", False),
        ("x--quiet", "--quiet", False),
    ],
)
def test_ability_is_read_as_a_whole_word(helps: str, option: str, known: bool) -> None:
    assert Nsys(Path("n"), "1", profile_help=helps).profile_has(option) is known


def test_percent_in_a_folder_is_not_a_pattern() -> None:
    assert "--output=/w/50%%p/report" in commands.profile_command(NEW, RunOptions(), Path("/w/50%p/report"), ["cmd"])


def test_environment() -> None:
    added = environment.probe_environment(
        RunOptions(depth=2, only="a b", source=("extra", "!mine"), texts=False, steps="1:3"),
        {"PYTHONPATH": "/their own"},
        Path("/p"),
        inject=Path("/in ject"),
    )
    assert added == {
        "PYTHONPATH": "/in ject:/their own",
        "NSYSX_PROBE_DIR": "/p",
        "NSYSX_DEPTH": "2",
        "NSYSX_ONLY": "a b",
        "NSYSX_XRAY": "all",
        "NSYSX_SOURCE": "extra:!mine",
        "NSYSX_NO_SOURCE": "1",
        "NSYSX_STEPS": "1:3",
    }


@pytest.mark.parametrize("before", [{}, {"PYTHONPATH": ""}])
def test_no_empty_entry_in_pythonpath(before: dict[str, str]) -> None:
    # An empty entry would mean the current folder.
    added = environment.probe_environment(RunOptions(), before, Path("/p"), inject=Path("/i"))
    assert added["PYTHONPATH"] == "/i"


def test_no_probe_leaves_the_path_alone() -> None:
    assert environment.probe_environment(RunOptions(probe=False), {}, Path("/p")) == {"NSYSX_PROBE": "0"}


def test_a_colon_cannot_stand_in_pythonpath() -> None:
    with pytest.raises(NsysxError, match="--no-probe") as caught:
        environment.probe_environment(RunOptions(), {}, Path("/p"), inject=Path("/a:b/inject"))
    assert caught.value.exit_code == 125


@pytest.mark.parametrize("steps", ["", "3", "5:5", "6:5", "-1:5", "a:b", "1:2:3", " 1:2"])
def test_bad_steps(steps: str) -> None:
    with pytest.raises(NsysxError) as caught:
        run_options.check_steps(steps)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["python", "train.py", "--epochs", "2"], "train"),
        (["/usr/bin/python3.12", "-u", "a/b/train.py"], "train"),
        (["python", "-m", "torch.distributed.run", "train.py"], "train"),
        (["python", "-c", "1"], "python"),
        (["torchrun", "--nproc-per-node=2", "train.py"], "train"),
        (["./go.sh"], "go"),
        (["bash", "go.sh"], "bash"),
        (["python", "-m"], "python"),
    ],
)
def test_default_name(words: list[str], name: str) -> None:
    assert run_outputs.default_name(words) == name


@pytest.mark.parametrize("name", ["out", "out.nsys-rep", "out.sqlite", "out.html", "out.run.json"])
def test_output_name_with_any_ending(name: str) -> None:
    assert [path.name for path in Outputs.named(Path("/x") / name).all()] == [
        "out.nsys-rep",
        "out.sqlite",
        "out.html",
        "out.run.json",
        "out.cold.nsys-rep",
        "out.cold.sqlite",
    ]


def test_the_default_name_never_collides(here: Path) -> None:
    assert run_outputs.free_outputs(here, "train").report.name == "train.nsys-rep"
    (here / "train.html").touch()
    (here / "train-2.sqlite").symlink_to("nowhere")
    assert run_outputs.free_outputs(here, "train").report.name == "train-3.nsys-rep"


@pytest.mark.parametrize("folder", [None, "there"])
def test_what_is_to_be_overwritten_keeps_the_default_name(here: Path, folder: str | None) -> None:
    output = here / folder if folder else None
    (output or here).mkdir(exist_ok=True)
    ((output or here) / "train.sqlite").touch()
    names = [
        run_outputs.wanted_outputs(["python", "train.py"], RunOptions(output=output, force=force)).sqlite.name
        for force in (False, True)
    ]
    assert names == ["train-2.sqlite", "train.sqlite"]


# --- finding nsys -------------------------------------------------------------------------------------------------------


def test_the_newest_installed_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for version in ("2024.10.1", "2024.9.2", "2023.4.4"):
        FakeNsys(tmp_path / "opt" / version / "bin", version)
    FakeNsys(tmp_path / "opt" / "2099.1" / "bin", "2099.1").does("wrapper")
    assert find_nsys.find_nsys(places=[f"{tmp_path}/opt/*/bin/nsys"]).version == "2024.10.1"


def test_path_comes_before_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = FakeNsys(tmp_path / "mine", "2023.1.1")
    FakeNsys(tmp_path / "opt" / "bin", "2024.1.1")
    monkeypatch.setenv("PATH", str(mine.folder))
    places = [f"{tmp_path}/opt/*/nsys"]
    assert find_nsys.find_nsys(places=places).path == mine.path
    mine.does("wrapper")  # CUDA's script of that name, with no Nsight Systems behind it
    assert find_nsys.find_nsys(places=places).version == "2024.1.1"


def test_no_nsys_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(find_nsys, "_installed_by_user", list)
    with pytest.raises(NsysxError, match=r"neither on PATH.*--nsys PATH") as caught:
        find_nsys.find_nsys(places=[])
    assert (caught.value.exit_code, caught.value.slug) == (125, "nsys-missing")


@pytest.mark.parametrize("broken", ["/no/such/nsys", "/bin/true", "/etc/passwd", "/tmp"])
def test_a_named_nsys_that_is_none(broken: str) -> None:
    with pytest.raises(NsysxError) as caught:
        find_nsys.find_nsys(Path(broken))
    assert caught.value.slug == "nsys-broken"


# --- before the command starts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code", "hint"),
    [
        ("no-such-command", 127, "PATH"),
        ("./no/such", 127, "PATH"),
        ("script.py", 127, "nsysx run -- python script.py 'a b'"),
        ("./script.py", 126, "nsysx run -- python ./script.py 'a b'"),
        ("./script.sh", 126, "chmod"),
        ("script.sh", 127, "./script.sh"),
        ("./folder", 126, "folder"),
    ],
)
def test_commands_that_cannot_run(here: Path, fake: FakeNsys, name: str, code: int, hint: str) -> None:
    (here / "folder").mkdir()
    for script in ("script.py", "script.sh"):
        (here / script).write_text("")
    with pytest.raises(NsysxError) as caught:
        capture.run([name, "a b"], RunOptions(nsys=fake.path))
    assert caught.value.exit_code == code
    assert hint in str(caught.value)


@pytest.mark.parametrize("ending", ["nsys-rep", "sqlite", "html", "run.json"])
def test_refuses_to_overwrite_before_anything_runs(here: Path, fake: FakeNsys, ending: str) -> None:
    (here / f"r.{ending}").write_text("precious")
    with pytest.raises(NsysxError, match="--force") as caught:
        capture.run(command("open('ran', 'w')"), RunOptions(output=Path("r"), nsys=fake.path))
    assert caught.value.exit_code == 125
    assert sorted(path.name for path in here.iterdir()) == [f"r.{ending}"]


def test_refuses_a_missing_folder_before_anything_runs(here: Path, fake: FakeNsys) -> None:
    with pytest.raises(NsysxError, match="does not exist"):
        capture.run(command("open('ran', 'w')"), RunOptions(output=Path("no/r"), nsys=fake.path))
    assert not list(here.iterdir())


def test_refuses_a_folder_that_takes_no_files(here: Path, fake: FakeNsys) -> None:
    with pytest.raises(NsysxError, match="cannot write there"):
        capture.run(command("open('ran', 'w')"), RunOptions(output=Path("/proc/r"), nsys=fake.path))
    assert not list(here.iterdir())


# --- what nsys may do wrong -----------------------------------------------------------------------------------------------


def run(fake: FakeNsys, code: str = "pass", **options: object) -> capture.RunResult:
    return capture.run(command(code), RunOptions(output=Path("r"), nsys=fake.path, **options))  # type: ignore[arg-type]


def test_all_goes_well(here: Path, fake: FakeNsys, capfd: pytest.CaptureFixture[str]) -> None:
    result = run(fake, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (result.exit_code, result.problems) == (3, [])
    assert [note.partition(":")[0] for note in result.notes] == ["no ranges from the probe"]
    said = capfd.readouterr()
    talk, rest = [line for line in said.err.splitlines() if line.startswith("nsysx: ")], said.err.splitlines()[1:]
    assert (said.out, len(talk), rest) == ("out\n", 1, ["err"])  # one line before, and nothing of what the fake says
    assert sorted(path.name for path in here.iterdir()) == ["r.nsys-rep", "r.run.json", "r.sqlite"]
    facts = json.loads((here / "r.run.json").read_text())
    assert facts["schema"] == "nsysx.run/1"
    assert (facts["exit_code"], facts["target_started"]) == (3, True)
    assert [process["backend"] for process in facts["probe"]] == ["off"]  # it looked, and there was no profiler
    assert facts["files"] == {"report": "r.nsys-rep", "sqlite": "r.sqlite", "html": None}
    assert facts["nsys"]["said"] == ["WARNING: CPU sampling is off"]
    assert facts["wall_ns"] > 0


def test_force_replaces_all(here: Path, fake: FakeNsys) -> None:
    for ending in ("nsys-rep", "sqlite", "run.json", "html"):
        (here / f"r.{ending}").write_text("old")
    assert run(fake, force=True).exit_code == 0
    # The page of the earlier run must not stay beside the new capture.
    assert sorted(path.name for path in here.iterdir()) == ["r.nsys-rep", "r.run.json", "r.sqlite"]
    assert b"old" not in [path.read_bytes() for path in here.iterdir()]


@pytest.mark.parametrize(("exits", "code"), [(0, 125), (3, 3)])
def test_nsys_exits_well_but_wrote_nothing(here: Path, fake: FakeNsys, exits: int, code: int) -> None:
    result = run(fake.does("no-report"), f"raise SystemExit({exits})")
    assert result.exit_code == code
    assert [problem.slug for problem in result.problems] == ["nsys-no-report"]
    assert [path.name for path in here.iterdir()] == ["r.run.json"]


def test_nsys_that_never_starts_the_command_is_tried_twice(here: Path, fake: FakeNsys) -> None:
    result = run(fake.does("no-start"), "open('ran', 'a').write('x')")
    assert (result.exit_code, fake.calls("profile")) == (0, 2)
    assert (here / "ran").read_text() == "x", "the command runs once, without nsys"


def test_an_nsys_that_refuses_our_users_argument_runs_nothing(here: Path, fake: FakeNsys) -> None:
    result = run(fake.does("no-start"), "open('ran', 'w')", nsys_args=("--typo",))
    assert result.exit_code == 125
    assert "Local Endpoint is not available" in str(result.problems[0])
    assert not list(here.iterdir())


def test_a_fault_before_the_command_started_is_repeated(here: Path, fake: FakeNsys) -> None:
    result = run(fake.does("flaky"), "open('ran', 'a').write('x')")
    assert (result.exit_code, result.problems) == (0, [])
    assert (here / "ran").read_text() == "x"


def test_a_failing_command_is_never_repeated(here: Path, fake: FakeNsys) -> None:
    assert run(fake, "open('ran', 'a').write('x'); raise SystemExit(1)").exit_code == 1
    assert (here / "ran").read_text() == "x"


def test_nsys_dies(here: Path, fake: FakeNsys) -> None:
    result = run(fake.does("crash"))
    assert result.exit_code == 125
    assert result.problems[0].slug == "nsys-no-report"


def test_a_failed_export_keeps_the_report(here: Path, fake: FakeNsys) -> None:
    result = run(fake.does("no-export"))
    assert result.exit_code == 125
    assert "nsys export" in str(result.problems[0])
    assert "Importer error" in str(result.problems[0])
    assert sorted(path.name for path in here.iterdir()) == ["r.nsys-rep", "r.run.json"]


@pytest.mark.parametrize("mode", ["flaky-export", "hanging-export"])
def test_an_export_that_fails_once_is_repeated(
    here: Path, fake: FakeNsys, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_process, "NSYS_IDLE_S", 2.0)
    result = run(fake.does(mode))
    assert (result.exit_code, result.problems, fake.calls("export")) == (0, [], 2)
    assert sorted(path.name for path in here.iterdir()) == ["r.nsys-rep", "r.run.json", "r.sqlite"]


@pytest.mark.parametrize("size", [0, 100, 4096])
def test_an_export_that_is_cut_short(here: Path, fake: FakeNsys, size: int) -> None:
    # A full disk: nsys exits with 0 and leaves what there was room for.
    (fake.folder / "size").write_text(str(size))
    result = run(fake.does("full-disk"))
    assert (result.exit_code, [problem.slug for problem in result.problems]) == (125, ["nsys-export"])
    assert sorted(path.name for path in here.iterdir()) == ["r.nsys-rep", "r.run.json"]
    assert json.loads((here / "r.run.json").read_text())["exit_code"] == 0  # the command's own


def test_a_name_taken_meanwhile_loses_nothing(here: Path, fake: FakeNsys) -> None:
    result = run(fake, "open('r.sqlite', 'w').write('theirs')")
    assert (result.exit_code, len(result.notes)) == (0, 2)
    assert "another name" in result.notes[0]
    assert (here / "r.sqlite").read_text() == "theirs"
    assert sorted(path.name for path in here.iterdir()) == ["r-2.nsys-rep", "r-2.run.json", "r-2.sqlite", "r.sqlite"]
    assert json.loads((here / "r-2.run.json").read_text())["files"]["sqlite"] == "r-2.sqlite"


def test_no_room_for_what_could_not_be_imported(here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reports.shutil, "move", full)
    result = run(fake.does("no-import"))
    assert "nsys-report-1.qdstrm" in str(result.problems[0])
    assert (fake.folder / "nsys-report-1.qdstrm").read_text() == "collected"
    assert [path.name for path in here.iterdir()] == ["r.run.json"]


def test_a_failed_export_does_not_hide_the_exit_code(here: Path, fake: FakeNsys) -> None:
    assert run(fake.does("no-export"), "raise SystemExit(7)").exit_code == 7


def test_a_folder_with_every_odd_character(tmp_path: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b%p$(x) 'q' ü:c"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert run(fake).exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["r.nsys-rep", "r.run.json", "r.sqlite"]


def test_the_command_gets_default_signals(here: Path, fake: FakeNsys) -> None:
    # Python ignores SIGPIPE for itself; what is ignored would stay so over exec.
    code = "import pathlib; print(pathlib.Path('/proc/self/status').read_text(), file=open('status', 'w'))"
    result = capture.run(
        ["/bin/sh", "-c", "cat /proc/self/status > status"], RunOptions(output=Path("r"), nsys=fake.path)
    )
    assert result.exit_code == 0, code
    ignored = next(line for line in (here / "status").read_text().splitlines() if line.startswith("SigIgn"))
    internal = 0b11 << 31  # 32 and 33 belong to the C library, which resets them itself
    # What nohup, or a shell that runs in the background, wants ignored stays so.
    kept = [n for n in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT) if signal.getsignal(n) is signal.SIG_IGN]
    given = sum(1 << n - 1 for n in kept)
    assert int(ignored.split()[1], 16) & ~internal == given


def test_results_are_private_while_they_are_made(here: Path, fake: FakeNsys) -> None:
    run(
        fake,
        "import os, pathlib; open('mode', 'w').write(str([oct(p.stat().st_mode) for p in pathlib.Path().glob('.nsysx-*')]))",
    )
    assert (here / "mode").read_text() == str([oct(stat.S_IFDIR | 0o700)])
    assert not list(here.glob(".nsysx-*"))


def test_nsys_arg_cannot_move_the_output(here: Path, fake: FakeNsys) -> None:
    for word in ("-o", "-ox", "--output=x"):
        with pytest.raises(NsysxError, match="-o"):
            run(fake, nsys_args=(word,))


def test_what_nsys_cannot_import_is_kept(here: Path, fake: FakeNsys) -> None:
    result = run(fake.does("no-import"))
    assert (result.exit_code, result.problems[0].slug) == (125, "nsys-import")
    assert (here / "r.qdstrm").read_text() == "collected"


@pytest.mark.parametrize(
    ("importer", "fault"),
    [
        (None, "no importer in"),
        ("#!/bin/sh\necho libdw.so.1: cannot open >&2; exit 127", "does not run (libdw.so.1: cannot open)"),
        ("#!/bin/sh\necho fine", ""),
    ],
)
def test_an_importer_that_does_not_work_is_found_before(tmp_path: Path, importer: str | None, fault: str) -> None:
    fake = FakeNsys(tmp_path / "copy" / "target-linux-x64")
    if importer:
        (tmp_path / "copy" / "host-linux-x64").mkdir()
        (tmp_path / "copy" / "host-linux-x64" / "QdstrmImporter").write_text(importer)
        (tmp_path / "copy" / "host-linux-x64" / "QdstrmImporter").chmod(0o755)
    link = tmp_path / "bin" / "nsys"
    link.parent.mkdir()
    link.symlink_to(fake.path)
    for path in (fake.path, link):
        assert fault in find_nsys.importer_fault(path)
        assert bool(fault) == bool(find_nsys.importer_fault(path))
        if fault:
            with pytest.raises(NsysxError) as caught:
                find_nsys.find_nsys(path)
            assert fault in str(caught.value)


def test_halves_that_were_linked_together(tmp_path: Path) -> None:
    fake = FakeNsys(tmp_path / "compute" / "target-linux-x64")
    (tmp_path / "compute" / "linux-desktop-x64").mkdir()
    importer = tmp_path / "compute" / "linux-desktop-x64" / "QdstrmImporter"
    importer.write_text("#!/bin/sh")
    importer.chmod(0o755)
    assert "side by side" in find_nsys.importer_fault(fake.path)
    together = tmp_path / "together"
    together.mkdir()
    (together / "target-linux-x64").symlink_to(fake.folder)
    (together / "host-linux-x64").symlink_to(importer.parent)
    assert find_nsys.importer_fault(together / "target-linux-x64" / "nsys") == ""


def test_steps_that_never_came(here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the probe says of a window that came and could not open, as with a torch that is built without CUDA, goes before."""
    monkeypatch.setattr(window_plan, "cuda_starts", lambda _environment: True)
    result = run(fake.does("no-report"), steps="3:5")
    assert result.exit_code == 125 and "--steps 3:5 never opened" in str(result.problems[0])
    says = {"pid": 1, "errors": ["cudaProfilerStart was not called: this torch is built without CUDA"]}
    write = f"import os; open(os.environ['NSYSX_PROBE_DIR'] + '/probe-1.json', 'w').write({json.dumps(says)!r})"
    (problem,) = run(fake, write, steps="3:5", force=True).problems
    assert "the window --steps 3:5 needs CUDA, and this torch is built without CUDA" in str(problem)
    assert "Leave --steps out" in (problem.hint or "")


def test_damaged_probe_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "probe-2.json").write_text('{"pid": 2}')
    (tmp_path / "probe-3.json").write_text('{"pid": ')
    (tmp_path / "probe-4.json").write_bytes(b"\xff")
    (tmp_path / "probe-5.json").write_text("[]")
    (tmp_path / "probe-1.json").write_text('{"pid": 1}')
    assert read_probe(tmp_path) == [{"pid": 1}, {"pid": 2}]


def test_dry_run_runs_nothing_and_prints_what_runs(here: Path, fake: FakeNsys) -> None:
    text = capture.dry_run(command("open('ran', 'a').write('x')"), RunOptions(nsys=fake.path, depth=3))
    assert "export NSYSX_DEPTH=3" in text
    assert f"{fake.path} profile --trace=cuda,nvtx" in text
    assert (fake.calls("profile"), list(here.iterdir())) == (0, [])
    # Whoever takes the lines gets the report and its export under the names that `run` would have given them.
    done = subprocess.run(["/bin/sh", "-e", "-c", text], cwd=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ((here / "ran").read_text(), fake.calls("profile"), fake.calls("export")) == ("x", 1, 1)
    assert {"python.nsys-rep", "python.sqlite"} <= {path.name for path in here.iterdir()}


@pytest.mark.parametrize(
    ("words", "options", "code"),
    [
        (["no-such"], {}, 127),
        (["true"], {"output": Path("no/r")}, 125),
        (["true"], {"steps": "5:3"}, 2),
        (["true"], {"only": "["}, 2),
        (["torchrun", "x.py"], {"per_rank": True}, 2),
    ],
)
def test_dry_run_checks_what_it_can(
    here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch, words: list[str], options: dict[str, object], code: int
) -> None:
    (here / "torchrun").write_text("#!/bin/sh\n")
    (here / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    with pytest.raises(NsysxError) as caught:
        capture.dry_run(words, RunOptions(nsys=fake.path, **options))  # type: ignore[arg-type]
    assert caught.value.exit_code == code


@pytest.mark.parametrize("pattern", ["[", "(", "*", "a{2,1}"])
def test_a_pattern_that_is_none_is_refused_with_the_reason(here: Path, fake: FakeNsys, pattern: str) -> None:
    with pytest.raises(NsysxError, match="not a regular expression") as caught:
        run(fake, only=pattern)
    assert caught.value.exit_code == 2
    assert not list(here.iterdir())


def test_a_folder_as_output_takes_the_results(here: Path, fake: FakeNsys) -> None:
    (here / "results").mkdir()
    for number in ("", "-2"):
        result = capture.run(command("pass"), RunOptions(output=Path("results"), nsys=fake.path))
        assert result.exit_code == 0
        assert [path.name for path in result.written] == [
            f"python{number}.{e}" for e in ("nsys-rep", "sqlite", "run.json")
        ]
    assert [path.name for path in here.iterdir()] == ["results"]


def test_wrote_names_only_what_this_run_wrote(here: Path, fake: FakeNsys) -> None:
    for ending in ("nsys-rep", "sqlite", "run.json", "html"):
        (here / f"r.{ending}").write_text("old")
    result = run(fake.does("no-report"), force=True)
    assert [path.name for path in result.written] == ["r.run.json"]
    result = run(fake.does("no-start"), force=True)
    assert (result.exit_code, result.written) == (0, [])


@pytest.mark.parametrize(
    ("words", "how"),
    [
        (["python", "-I", "x.py"], "python -I"),
        (["python3.12", "-uE", "-m", "x"], "python -E"),
        (["python", "-W", "ignore", "-S", "x.py"], "python -S"),
        (["python", "-c", "-I"], ""),
        (["python", "x.py", "-I"], ""),
        (["python", "-u", "-X", "dev", "x.py", "-E"], ""),
        (["env", "-i", "python", "x.py"], "env -i"),
        (["env", "A=1", "python", "-I", "x.py"], "python -I"),
        (["env", "A=1", "python", "x.py"], ""),
        (["torchrun", "-I"], ""),
    ],
)
def test_what_keeps_the_probe_out_is_known_before(words: list[str], how: str) -> None:
    assert str(typed_command.keeps_probe_out(words) or "") == how


@pytest.mark.parametrize(
    ("probes", "reason", "fix"),
    [
        ([{"ranges": {"step": 3}}, {"ranges": {}, "reason": "torch was not imported", "lacks": "torch"}], None, ""),
        (
            [{"ranges": {"step": 0, "info": 2, "gc": 54}, "ranges_pushed": 56}],
            "no step and no module was seen",
            "doctor",
        ),
        (
            [{"ranges_pushed": 0, "reason": "torch was not imported", "lacks": "torch"}],
            "torch was not imported",
            "of your own",
        ),
        (
            [{"ranges_pushed": 0, "reason": "no NVTX backend: no nvtx", "lacks": "nvtx"}],
            "no NVTX backend: no nvtx",
            "pip install nvtx",
        ),
        ([{"ranges_pushed": 0, "reason": None, "errors": ["step: KeyError"]}], "step: KeyError", "doctor"),
        ([], "no Python with the probe", "NVTX"),
        # Of a process that did not exit through Python only the counts of its start are known.
        (
            [
                {"backend": "nvtx", "ended": True, "ranges": {"step": 0}},
                {"backend": "nvtx", "ended": False, "ranges": {"step": 0}},
            ],
            None,
            "",
        ),
        (
            [
                {"backend": "off", "reason": "torch was not imported", "lacks": "torch"},
                {"backend": "off", "reason": FORKED},
            ],
            FORKED,
            "spawn",
        ),
        (
            [{"backend": "nvtx", "ended": True, "ranges": {"step": 0}, "forks": 2}],
            "outside of 2 forked processes",
            "spawn",
        ),
    ],
)
def test_why_there_are_no_ranges(probes: list[dict[str, object]], reason: str | None, fix: str) -> None:
    told = run_record.probe_off(probes, ["python", "x.py"], RunOptions())
    assert (told is None) == (reason is None)
    if told is not None:
        assert str(reason) in told["reason"] and fix in told["fix"]


def test_the_profile_of_the_machine_goes_into_the_record(
    here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        calibration_run, "profile_of_machine", lambda version: {"schema": "nsysx.tracing_costs/1", "nsys": version}
    )
    run(fake)
    facts = json.loads((here / "r.run.json").read_text())
    assert facts["machine_profile"] == {"schema": "nsysx.tracing_costs/1", "nsys": "2024.1.1"}


def test_bytes_that_are_no_text_reach_the_command(here: Path, fake: FakeNsys) -> None:
    odd = os.fsdecode(b"a\xff\xfeb")
    code = "import os, sys; open('seen', 'wb').write(os.fsencode(sys.argv[1]))"
    result = capture.run([*command(code), odd], RunOptions(output=Path("r"), nsys=fake.path))
    assert (result.exit_code, (here / "seen").read_bytes()) == (0, b"a\xff\xfeb")
    assert json.loads((here / "r.run.json").read_text())["command"][-1] == r"a\xff\xfeb"


def test_results_have_the_users_modes(here: Path, fake: FakeNsys) -> None:
    before = os.umask(0o027)
    try:
        run(fake, "open('made', 'w')")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in here.iterdir()} == {0o640}


TARGETS = """Debian http://mirror.example/debian bookworm-updates
Debian http://mirror.example/debian bookworm
Other http://other.example/apt stable
"""
URIS = "'http://mirror.example/debian/dists/trixie/InRelease' mirror_dists_trixie_InRelease 0\n"


@pytest.mark.parametrize(
    ("targets", "uris", "found"),
    [
        (TARGETS, "", ("http://mirror.example/debian", "bookworm")),
        ("", URIS, ("http://mirror.example/debian/", "trixie")),
        ("Ubuntu http://x.example/ubuntu noble\n", "", None),
        ("", "", None),
    ],
)
def test_the_mirror_is_that_of_the_machine(targets: str, uris: str, found: tuple[str, str] | None) -> None:
    assert install_nsys.mirror_of(targets, uris) == found


def test_an_installed_nsys_is_found_without_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(find_nsys, "importer_fault", lambda path: "")
    mine = FakeNsys(find_nsys.user_folder() / "target-linux-x64", "2099.1.1")
    assert find_nsys.find_nsys(places=[]).path == mine.path
    beside = FakeNsys(tmp_path / ".tools" / "nsys" / "target-linux-x64", "2099.2.1")
    assert find_nsys.find_nsys(places=[]).path == beside.path


def test_an_nsys_that_does_nothing_is_not_waited_for(
    here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nsys_process, "NSYS_IDLE_S", 1.0)
    began = time.monotonic()
    result = run(fake.does("hang"), "open('ran', 'a').write('x'); raise SystemExit(5)")
    assert time.monotonic() - began < 500, "by itself it would have lasted for ten minutes"
    assert (result.exit_code, result.problems) == (5, [])
    assert capfd.readouterr().err.count("nsys did not start (nsys does nothing after ") == 1
    assert [(path.name, path.read_text()) for path in here.iterdir()] == [("ran", "x")]


@pytest.mark.usefixtures("here")
def test_an_nsys_that_does_nothing_once_leaves_no_fault(fake: FakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_process, "NSYS_IDLE_S", 0.5)
    result = run(fake.does("hangs-once"), "pass")
    assert (result.exit_code, result.problems, fake.calls("profile")) == (0, [], 2)


@pytest.mark.usefixtures("here")
def test_an_nsys_that_leaves_the_command_is_named_by_how_it_ended(
    fake: FakeNsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_process, "ORPHANED_AGENT_S", 0.3)
    code = f"""
import os, pathlib, time
folder = pathlib.Path({str(fake.folder)!r})
nsys = pathlib.Path("/proc", (folder / "pid").read_text())
(folder / "runs").touch()
while nsys.exists():  # until nsysx knows that it has ended
    time.sleep(0.01)
"""
    result = run(fake.does("leaves"), code)
    assert "nsys failed with exit code 1 while the command ran" in [problem.message for problem in result.problems]


@pytest.mark.parametrize("works", [True, False])
def test_a_witness_that_waits_for_a_processor_is_waited_for(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that went to the whole group must not reach the command twice because the machine is busy."""
    reads, writes = os.pipe()
    asked = itertools.count(1)

    def state(_pid: int) -> list[str]:
        if works and next(asked) == 3:  # the witness gets its processor only now
            os.write(writes, b"%d %d\n" % (signal.SIGTERM, time.monotonic_ns()))
        return ["R" if works else "S"]

    monkeypatch.setattr(inbox, "stat_of", state)
    box = Inbox()
    with os.fdopen(reads, "rb") as stream:
        monkeypatch.setattr(box, "_witness", SimpleNamespace(pid=1, stdout=stream))
        assert box._witnessed(signal.SIGTERM) == works
    os.close(writes)


def test_a_stand_in_is_heard_although_this_process_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    real, pauses = time.monotonic, itertools.count(1)
    stand_in = StandIn()
    with socket.socket(socket.AF_UNIX) as there:
        there.connect("\0" + stand_in.address)
        there.sendall(b"4\nA=1\0")
        monkeypatch.setattr(time, "monotonic", lambda: real() + 100.0 * next(pauses))
        assert stand_in.connected(1.0) and stand_in.environment == {b"A": b"1"}
        there.sendall(b"pid 12\nend 3\n")
        assert (stand_in.pid_of_command(), stand_in.command_status()) == (12, 3)
        stand_in.close()


def test_what_nsys_started_just_before_it_died_is_looked_for_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading /proc takes a while on a busy machine, and shows what was there when it began."""
    monkeypatch.setattr(nsys_process, "NSYS_LOOK_S", 0.0)
    with Inbox() as inbox:
        process = nsys_process.NsysProcess(["sleep", "600"], tmp_path / "log", inbox)

    def dies_meanwhile() -> list[int]:
        process.process.kill()
        process.process.wait()
        return []

    monkeypatch.setattr(process, "members", dies_meanwhile)
    assert [process.look(), process.look()] == [True, False]


def test_time_in_which_nobody_looked_is_no_idleness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine that is paused, a container that is frozen: nsys stood still because everything did."""
    pause_s = 0.0
    real = time.monotonic
    monkeypatch.setattr(nsys_process, "time", SimpleNamespace(monotonic=lambda: real() + pause_s, sleep=time.sleep))
    monkeypatch.setattr(nsys_process, "NSYS_IDLE_S", 3.0)

    def looked(seconds: float) -> bool:
        end = real() + seconds
        while real() < end:
            assert process.look()
            time.sleep(0.05)
        return process.hangs()

    with Inbox() as inbox:
        process = nsys_process.NsysProcess(["sleep", "60"], tmp_path / "log", inbox)
        try:
            assert not looked(0.5)
            pause_s = 100.0
            assert not looked(0.5)
            until = real() + 600
            while not looked(0.5):  # what is seen doing nothing hangs all the same
                assert real() < until
        finally:
            process.kill()


def test_an_agent_whose_nsys_was_killed_is_not_waited_for(
    here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_process, "NSYS_IDLE_S", 2.0)
    result = run(fake.does("killed"), "raise SystemExit(5)")
    assert result.exit_code == 5  # the command's own
    assert "did not come to an end" in result.problems[0].message


@pytest.mark.parametrize("mode", ["agent-stays", "dies-late", "stays-late"])
def test_what_stays_when_the_report_is_made_costs_nothing(
    here: Path, fake: FakeNsys, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_process, "NSYS_IDLE_S", 1.0)
    began = time.monotonic()
    result = run(fake.does(mode), "open('ran', 'w')")
    assert time.monotonic() - began < 500, "by itself it would have lasted for ten minutes"
    assert (result.exit_code, result.problems, (here / "r.sqlite").exists()) == (0, [], True)
    words = map(_bytes, Path("/proc").glob("[0-9]*/cmdline"))
    left = [each for each in words if os.fsencode(fake.folder) in each]  # those of other tests are not meant
    assert not [each for each in left if b"--session-name=profile-" in each]


def _bytes(place: Path) -> bytes:
    try:
        return place.read_bytes()
    except OSError:
        return b""


def test_an_nsys_that_never_ends_is_not_waited_for(here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_process, "NSYS_IDLE_S", 1.0)
    began = time.monotonic()
    result = run(fake.does("no-end"), "raise SystemExit(5)")
    assert time.monotonic() - began < 500, "by itself it would have lasted for ten minutes"
    assert result.exit_code == 5  # the command's own
    assert "did not come to an end" in result.problems[0].message
    assert any("ended with 5" in note for note in result.notes)
    assert json.loads((here / "r.run.json").read_text())["exit_code"] == 5


def test_an_nsys_that_waits_for_ever_is_told_to_make_its_report(
    here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen with nsys 2025.3 after a job of two ranks without steps: all that was recorded was lost."""
    monkeypatch.setattr(nsys_process, "NSYS_IDLE_S", 2.0)
    result = run(fake.does("ends-when-told"), "raise SystemExit(5)")
    assert (result.exit_code, result.problems, fake.calls("stop")) == (5, [], 1)
    assert (here / "r.sqlite").exists()


# --- clocks ---------------------------------------------------------------------------------------------------------------


class FakeNvml(types.ModuleType):
    """NVIDIA's bindings with two GPUs; the second does not tell its power, and no UUID is known."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, driver: bool = True) -> None:
        super().__init__("pynvml")
        self.asked, self.driver, self.open = 0, driver, 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index + 1

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"GPU {handle}"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        return 1000 + clock

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle != 1:
            raise self.NVMLError("Not Supported")
        return 99_000

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        self.asked += 1
        return self.asked


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def wait_for(condition: object, seconds: float = 120) -> None:

    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.005)


# --- ranks, and the run without profiler ---------------------------------------------------------------------------------


def test_a_rank_names_its_own_results(here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    result = capture.run(command("pass"), RunOptions(nsys=fake.path, output=Path("out.sqlite"), per_rank=True))
    assert result.exit_code == 0
    assert result.outputs.run.name == "out.rank3.run.json" and result.outputs.run.is_file()


LAUNCHER = """
import os, subprocess, sys
codes = [subprocess.call([os.environ["PYTHON_EXEC"], "-u", *sys.argv[1:]], env={**os.environ, "RANK": str(r)}) for r in (0, 1)]
open("job.rank0.cold.sqlite", "w")
sys.exit(max(codes))
"""


def test_a_launcher_starts_every_rank_under_nsysx(here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    monkeypatch.delenv("RANK", raising=False)
    (here / "torchrun.py").write_text(LAUNCHER)
    (here / "a train.py").write_text(
        "import os, sys; sys.exit(int(os.environ['RANK']) * 4 + (sys.argv[1:] != ['a b']))"
    )
    words = [sys.executable, "torchrun.py", "a train.py", "a b"]
    options = RunOptions(nsys=fake.path, output=Path("job"), per_rank=True, report=False, memory=True)
    result = capture.run(words, options)
    assert result.exit_code == 4, "the launcher's own"
    assert {p.name for p in here.glob("job.*.run.json")} == {"job.rank0.run.json", "job.rank1.run.json"}
    facts = json.loads((here / "job.rank1.run.json").read_text())
    assert facts["exit_code"] == 4 and facts["options"]["memory"] is True
    assert facts["launcher"] == words
    assert result.notes == ["one report for each of 2 ranks: nsysx report job.rank0.sqlite job.rank1.sqlite"], (
        "nor a first window's"
    )
    assert not list(here.glob(".nsysx-*")), "the wrapper is gone"
    with pytest.raises(NsysxError, match="exists"):
        capture.run(words, options)


def test_a_launcher_that_does_not_heed(here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    (here / "torchrun").write_text("#!/bin/sh\nexit 0\n")
    (here / "torchrun").chmod(0o755)
    result = capture.run(["./torchrun"], RunOptions(nsys=fake.path, output=Path("job"), per_rank=True))
    assert result.exit_code == 125
    assert result.problems[0].slug == "no-rank"


def test_per_rank_of_one_process_is_one_report(here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    result = capture.run(command("pass"), RunOptions(nsys=fake.path, output=Path("job"), per_rank=True))
    assert (result.exit_code, result.problems) == (0, [])
    assert (here / "job.sqlite").is_file()


@pytest.mark.parametrize("words", [["deepspeed", "train.py"], ["./train"], ["sleep", "1"]])
def test_per_rank_of_what_starts_no_ranks_is_refused_at_once(
    here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    for name in ("deepspeed", "train"):
        (here / name).write_text("#!/bin/sh\ntouch ran\n")
        (here / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    with pytest.raises(NsysxError, match="inside each rank") as caught:
        capture.run(words, RunOptions(nsys=fake.path, per_rank=True))
    assert caught.value.exit_code == 2
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    ("words", "text", "starts"),
    [
        (["torchrun", "x.py"], "", True),
        (["python", "-m", "torch.distributed.run", "x.py"], "", True),
        (["bash", "go.sh"], "torchrun --nproc-per-node 8 train.py", True),
        (["bash", "-c", "torchrun x.py"], "", True),
        (["./go.sh"], "torchrun --nproc-per-node 8 train.py", True),
        (["python", "go.sh.py"], "import torch", False),
        (["python", "-c", "import torchrun"], "", False),
    ],
)
def test_what_starts_ranks(here: Path, words: list[str], text: str, starts: bool) -> None:
    for name in ("go.sh", "go.sh.py"):
        (here / name).write_text(text)
        (here / name).chmod(0o755)
    assert per_rank.launches(words) is starts


def test_options_of_a_rank_are_those_that_were_given() -> None:
    options = RunOptions(
        steps="1:2", memory=True, depth=0, per_rank=True, report=False, probe=False, nsys_args=("--a=b",)
    )
    assert per_rank.option_words(options) == [
        *("--no-report", "--no-probe", "--steps", "1:2", "--xray", "all", "--memory", "--per-rank"),
        *("--nsys-arg", "--a=b", "--graphs", "node", "--depth", "0"),
    ]


@pytest.mark.parametrize(
    "options", [RunOptions(calibrate=True, per_rank=True), RunOptions(calibrate=True, probe=False)]
)
def test_what_calibrate_does_not_go_with(options: RunOptions) -> None:
    with pytest.raises(NsysxError, match="--calibrate") as caught:
        capture.run(command("pass"), options)
    assert caught.value.exit_code == 2


def test_calibration_runs_the_command_again_and_keeps_its_steps(
    here: Path, fake: FakeNsys, capfd: pytest.CaptureFixture[str]
) -> None:
    again = """
import json, os, pathlib
print("run")
if os.environ.get("NSYSX_TIMING"):
    facts = {"pid": 1, "timing": {"clock": "gpu", "steps_ns": {"0": 5, "1": 6}}, "steps": {"last_closed_by": "exit", "count": 2}}
    pathlib.Path(os.environ["NSYSX_PROBE_DIR"], "probe-1.json").write_text(json.dumps(facts))
"""
    capture.run(command(again), RunOptions(nsys=fake.path, output=Path("out"), calibrate=True))
    facts = json.loads((here / "out.run.json").read_text())
    # The last step, which only the exit ended, is not kept.
    assert facts["calibration"] == {"exit_code": 0, "error": None, "clock": "gpu", "steps_ns": {"0": 5}}
    assert capfd.readouterr().out == "run\n", "the second run is unheard"


def test_a_calibration_that_cannot_start_loses_nothing(
    here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def popen(*_: object, **__: object) -> None:
        raise OSError("no processes left")

    monkeypatch.setattr(capture, "subprocess", SimpleNamespace(DEVNULL=-3, Popen=popen))
    result = capture.run(command("pass"), RunOptions(nsys=fake.path, output=Path("out"), calibrate=True))
    assert (result.exit_code, result.problems) == (0, [])
    told = json.loads((here / "out.run.json").read_text())["calibration"]
    assert told == {"exit_code": None, "error": "it could not be started: no processes left"}


def test_clocks_of_every_gpu(nvml: FakeNvml) -> None:
    sampler = clock_sampler.Sampler(interval_s=0.001)
    sampler.start()
    wait_for(lambda: nvml.asked > 6)
    facts = sampler.stop()
    assert not nvml.open
    first, second = facts["devices"]
    assert (facts["error"], first["name"], second["name"], first["uuid"]) == (None, "GPU 1", "GPU 2", "")
    assert {len(first[key]) for key in ("utc_ns", "sm_mhz", "memory_mhz", "power_mw", "temperature_c")} == {
        len(first["utc_ns"])
    }
    assert (set(first["sm_mhz"]), set(first["memory_mhz"]), set(first["power_mw"])) == ({1001}, {1002}, {99_000})
    assert set(second["power_mw"]) == {None}  # not told is not zero
    assert first["utc_ns"] == sorted(first["utc_ns"])


def test_a_long_run_keeps_its_whole_length(nvml: FakeNvml) -> None:
    sampler = clock_sampler.Sampler(interval_s=0.0005, most=10)
    sampler.start()
    wait_for(lambda: nvml.asked > 80)
    facts = sampler.stop()
    assert all(len(device["utc_ns"]) <= 10 for device in facts["devices"])
    assert facts["interval_ns"] >= 1_000_000
    assert facts["devices"][0]["temperature_c"][0] == 1  # the first sample is still there


@pytest.mark.parametrize(
    ("bindings", "why"),
    [
        (None, "nvidia-ml-py is not installed: pip install 'nsysx[clocks]'"),
        (FakeNvml(driver=False), "NVML does not start: Driver Not Loaded"),
    ],
)
def test_without_clocks_a_run_goes_on_and_says_why(
    here: Path, fake: FakeNsys, monkeypatch: pytest.MonkeyPatch, bindings: FakeNvml | None, why: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", bindings)
    assert f"--clocks: no GPU clocks were sampled: {why}" in run(fake, clocks=True).notes
    assert json.loads((here / "r.run.json").read_text())["clocks"]["error"] == why
    assert machine_checks.clocks() == machine_checks.MachineCheck("GPU clocks (--clocks)", "warn", why)


def test_standard_library_only() -> None:
    names = sorted(f"nsysx.recording.{path.stem}" for path in Path(capture.__file__).parent.glob("*.py"))
    names = [name for name in names if not name.endswith(("__init__", "stand_in", "witness"))]
    code = f"import sys, {', '.join(names)}; print({{'typer', 'rich', 'polars'}} & set(sys.modules))"
    environment = os.environ | {"PYTHONPATH": str(Path(capture.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_a_window_that_no_process_opened_is_said() -> None:
    from nsysx.recording.run_record import window_missed

    worker = {"backend": "nvtx", "window_missed": "no step", "steps": {"count": 0}}
    trainer = {"backend": "nvtx", "window_missed": "5 steps", "steps": {"count": 5}}
    off = {"backend": "off", "reason": "torch was not imported", "lacks": "torch"}
    assert window_missed([worker, trainer, off]) == "5 steps"
    assert window_missed([worker, trainer | {"window_missed": None}]) is None
    assert window_missed([off]) is None
    launcher = {"backend": "nvtx", "window_missed": None, "steps": {"count": 0}}
    assert window_missed([launcher, trainer]) == "5 steps"
    assert window_missed([trainer, worker | {"ended": False}]) is None  # what it did after its start is not known


def test_the_version_of_the_driver(tmp_path: Path) -> None:
    told = tmp_path / "version"
    assert run_record.driver_version(told) is None
    for text, version in (
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x)\nGCC version: 12.3",
            "580.95.05",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12", "535.183.01"),
        ("nothing", None),
    ):
        told.write_text(text)
        assert run_record.driver_version(told) == version


@pytest.mark.parametrize(
    ("arguments", "gone", "kept"),
    [
        (("--cpuctxsw=system-wide",), "--cpuctxsw=none", "--sample=none"),
        (("--sample=system-wide",), "--sample=none", "--cpuctxsw=none"),
        (("-s", "cpu"), "--sample=none", "--cpuctxsw=none"),
        (("--trace=cuda,nvtx,mpi",), "--trace=cuda,nvtx", "--sample=none"),
    ],
)
def test_an_argument_for_nsys_replaces_our_own(arguments: tuple[str, ...], gone: str, kept: str) -> None:
    """An option that nsys gets twice makes it refuse to start."""
    words = commands.profile_command(NEW, RunOptions(nsys_args=arguments), Path("/w/report"), ["cmd"])
    assert gone not in words
    assert {kept, *arguments} <= set(words)
