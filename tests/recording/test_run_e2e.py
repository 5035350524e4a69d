"""``nsysx run`` with a real nsys, on the CPU. NSYSX_TEST_NSYS names it (scripts/install_nsys prints its path).

Without it these tests fail: a suite that quietly skips what matters most is no suite.
"""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsysx.inject.nsysx_probe import ranges
from nsysx.recording import window_plan
from tests.light_torch import WITHOUT_META

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)


@pytest.fixture(scope="session")
def nsys() -> str:
    path = os.environ.get("NSYSX_TEST_NSYS", "")
    assert path, "set NSYSX_TEST_NSYS to a real nsys; scripts/test does, scripts/install_nsys gets one"
    assert os.access(path, os.X_OK), f"NSYSX_TEST_NSYS={path} cannot be executed"
    return path


class Run:
    """One finished ``nsysx run -o r``."""

    def __init__(self, done: subprocess.CompletedProcess[str], folder: Path) -> None:
        self.code, self.out, self.folder = done.returncode, done.stdout, folder
        lines = done.stderr.splitlines(keepends=True)
        self.said = [line for line in lines if line.startswith("nsysx: ")]
        self.err = "".join(line for line in lines if not line.startswith("nsysx: "))

    @property
    def facts(self) -> dict[str, Any]:
        return json.loads((self.folder / "r.run.json").read_text())  # type: ignore[no-any-return]

    def ranges(self) -> list[str]:
        with closing(sqlite3.connect(self.folder / "r.sqlite")) as connection:
            query = (
                "SELECT coalesce(e.text, s.value) FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId"
                " WHERE e.eventType IN (34, 59, 60)"
            )
            return [text for (text,) in connection.execute(query)]


@pytest.fixture
def profile(nsys: str, tmp_path: Path) -> Any:
    """Return a function that profiles a command in a folder of its own."""

    def profile(
        *command: str, options: tuple[str, ...] = ("--no-report",), env: dict[str, str] | None = None, **more: Any
    ) -> Run:
        words = [sys.executable, "-m", "nsysx", "run", "--nsys", nsys, "-o", "r", *options, "--", *command]
        environment = ENVIRONMENT | (env or {})
        if env and "PYTHONPATH" in env:
            environment["PYTHONPATH"] += f":{ROOT}"
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, **more)
        print(done.stderr)  # what it said, where a test fails
        return Run(done, tmp_path)

    return profile


def results(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith((".", "r."))}


CAPTURED = {"r.nsys-rep", "r.sqlite", "r.run.json"}

MODEL = """
import sys, torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)
    def forward(self, x):
        return self.last(torch.relu(self.first(x)))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(20, 8), torch.randint(0, 2, (20,)))
for x, y in torch.utils.data.DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
    print("step done", file=sys.stderr)
print(sys.argv, sys.flags, sys.stdout.isatty(), sys.stdout.line_buffering)
"""


def test_a_torch_model_end_to_end(profile: Any, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    command = [sys.executable, "model.py", "-o", "x"]
    bare = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    run = profile(*command, options=())
    assert (run.code, run.out) == (bare.returncode, bare.stdout)
    assert run.err.startswith(bare.stderr) and "r.sqlite · no GPU recorded" in run.err, "the answer follows on stderr"
    assert bare.returncode == 0
    assert results(tmp_path) == {*CAPTURED, "r.html"}
    assert run.facts["files"] == {"report": "r.nsys-rep", "sqlite": "r.sqlite", "html": "r.html"}
    labels = [ranges.decode(text) for text in run.ranges()]
    modules = [(label.name, label.cls) for label in labels if label.kind == "module"]
    [probe] = run.facts["probe"]
    marked = len(probe["marked_steps"])
    assert 3 <= marked <= 5  # of 5 steps, a few that the others repeat
    assert modules.count(("first", "Linear")) == modules.count(("last", "Linear")) == marked
    assert modules.count(("", "Net")) == marked
    found = {
        kind: sum(label.kind == kind for label in labels) for kind in ("step", "phase", "module", "backward_module")
    }
    assert {kind: probe["ranges"][kind] for kind in found} == found
    assert "nsysx report r.sqlite" in "".join(run.said)


def test_a_script_with_its_own_ranges_profiler_and_child(profile: Any, tmp_path: Path) -> None:
    """NVTX and torch.profiler of the user's own, a second process that uses torch, and a PYTHONPATH with a space."""
    (tmp_path / "with space").mkdir()
    (tmp_path / "with space" / "helpers_of_mine.py").write_text("word = 'found'\n")
    (tmp_path / "both.py").write_text(
        "import subprocess, sys, helpers_of_mine, nvtx, torch\n"
        "net = torch.nn.Linear(4, 4)\n"
        "with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:\n"
        "    with nvtx.annotate('mine'):\n"
        "        net(torch.ones(1, 4)).sum().backward()\n"
        "print(helpers_of_mine.word, 'aten::linear' in {e.key for e in prof.key_averages()})\n"
        "child = 'import torch; torch.nn.ReLU()(torch.ones(1)); print(torch.ones(2).sum().item())'\n"
        "sys.stdout.flush()\n"
        "sys.exit(subprocess.run([sys.executable, '-c', child]).returncode)\n"
    )
    env = {"PYTHONPATH": str(tmp_path / "with space")}
    command = [sys.executable, "both.py"]
    bare = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT | env, capture_output=True, text=True)
    run = profile(*command, env=env)
    # torch.profiler writes the time of day and its process id to stderr.
    assert (run.code, run.out) == (0, bare.stdout)
    assert run.out == "found True\n2.0\n"
    modules = {label.cls for text in run.ranges() if (label := ranges.decode(text)).kind == "module"}
    assert {"Linear", "ReLU"} <= modules  # of both processes
    assert len([p for p in run.facts["probe"] if p["ranges_pushed"]]) == 2
    assert [p["own_profiler"] for p in run.facts["probe"] if p["own_profiler"]] == [{"times": 1, "cuda": False}]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(300)", 44),
        ("raise ValueError('text')", 1),
        ("import os; os.kill(os.getpid(), 11)", -11),
        ("import os; os.kill(os.getpid(), 9)", -9),
    ],
)
def test_exit_codes_and_output_are_the_commands(profile: Any, tmp_path: Path, code: str, status: int) -> None:
    command = [sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr, flush=True); " + code]
    bare = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    run = profile(*command)
    assert (run.code, run.out, run.err) == (status, bare.stdout, bare.stderr)
    assert results(tmp_path) == CAPTURED
    assert bare.returncode == status
    assert (run.facts["exit_code"], run.facts["target_started"]) == (status if status >= 0 else 128 - status, True)


def test_stdin_reaches_the_command(profile: Any) -> None:
    run = profile("cat", input="line\n" * 10_000)
    assert (run.code, run.out) == (0, "line\n" * 10_000)


def test_a_hundred_megabytes_of_output(profile: Any) -> None:
    run = profile("head", "-c", "100000000", "/dev/zero")
    assert (run.code, len(run.out)) == (0, 100_000_000)


def test_a_reader_that_goes_away(nsys: str, tmp_path: Path) -> None:
    # SIGPIPE ends the command as it would without us; the capture is kept.
    words = [sys.executable, "-m", "nsysx", "run", "--nsys", nsys, "--no-report", "-o", "r", "yes"]
    process = subprocess.Popen(words, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.read(2) == b"y\n"
    process.stdout.close()
    assert process.wait(600) == -signal.SIGPIPE
    assert results(tmp_path) == CAPTURED


def test_a_script_with_an_odd_name(profile: Any, tmp_path: Path) -> None:
    name = "a b/50%p/q{HOME}ü'\"$(x) y.py"
    script = tmp_path / name
    script.parent.mkdir(parents=True)
    script.write_text("import sys; print(sys.argv)")
    run = profile(sys.executable, name, "a b", "", "*", "--")
    assert (run.code, run.out) == (0, f"{[name, 'a b', '', '*', '--']}\n")


def test_a_bash_wrapper(profile: Any, tmp_path: Path) -> None:
    (tmp_path / "go.sh").write_text(f'#!/bin/bash\necho "$1"\n"{sys.executable}" -c "raise SystemExit(4)"\n')
    (tmp_path / "go.sh").chmod(0o755)
    run = profile("./go.sh", "an argument")
    assert (run.code, run.out) == (4, "an argument\n")


def test_a_script_without_a_first_line(profile: Any, tmp_path: Path) -> None:
    (tmp_path / "go").write_text("echo $1; exit 6\n")
    (tmp_path / "go").chmod(0o755)
    run = profile("./go", "x")
    assert (run.code, run.out) == (6, "x\n")


def test_the_environment_is_the_users(profile: Any, tmp_path: Path) -> None:
    # Shell functions travel as variables that no shell but bash keeps; clusters live on them.
    run = profile("/usr/bin/env", "-0", env={"BASH_FUNC_module%%": "() { :; }", "PYTHONUNBUFFERED": "0", "ODD": "a\nb"})
    seen = dict(line.partition("=")[::2] for line in run.out.split("\0") if line)
    for name, value in ENVIRONMENT.items():
        if name not in ("PYTHONPATH", "_", "LD_PRELOAD"):
            assert seen[name] == value
    assert (seen["BASH_FUNC_module%%"], seen["ODD"]) == ("() { :; }", "a\nb")
    assert seen["PYTHONPATH"] == f"{ROOT}/nsysx/inject:{ROOT}"


def test_no_probe_no_path(profile: Any) -> None:
    run = profile(
        sys.executable,
        "-c",
        "import os, sys; print(os.environ['PYTHONPATH'], 'nsysx_probe.probe' in sys.modules)",
        options=("--no-report", "--no-probe"),
    )
    assert run.out == f"{ROOT} False\n"
    assert run.facts["probe"] == []


def test_the_users_own_sitecustomize_still_runs(profile: Any, tmp_path: Path) -> None:
    own = tmp_path / "their own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.theirs = 'ran'")
    run = profile(sys.executable, "-c", "print(theirs)", env={"PYTHONPATH": str(own)})
    assert (run.code, run.out, run.err) == (0, "ran\n", "")


def test_isolated_python(profile: Any) -> None:
    run = profile(sys.executable, "-I", "-c", "print('alone')")
    assert (run.code, run.out, run.facts["probe"]) == (0, "alone\n", [])


def test_nothing_is_overwritten_and_nothing_runs(profile: Any, tmp_path: Path) -> None:
    (tmp_path / "r.sqlite").write_text("precious")
    run = profile("touch", "ran")
    assert (run.code, run.said) == (125, ["nsysx: error: r.sqlite: exists already. Use --force (-f) or another name\n"])
    assert {path.name for path in tmp_path.iterdir()} == {"r.sqlite"}
    assert profile("touch", "ran", options=("--no-report", "--force")).code == 0
    assert (tmp_path / "r.sqlite").read_bytes().startswith(b"SQLite format 3")


@pytest.mark.parametrize(
    ("words", "code"),
    [(["-o", "no/r"], 125), (["--nsys", "/no/nsys"], 125), (["no-such-command"], 127), (["/tmp"], 126)],
)
def test_what_cannot_run_is_said_in_one_line(nsys: str, tmp_path: Path, words: list[str], code: int) -> None:
    command = [sys.executable, "-m", "nsysx", "run", "--nsys", nsys, *words, "touch", "ran"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert done.stderr.startswith("nsysx: error: ")
    assert not list(tmp_path.iterdir())


def test_an_option_that_nsys_does_not_know(profile: Any, tmp_path: Path) -> None:
    run = profile("touch", "ran", options=("--no-report", "--nsys-arg=--no-such-option"))
    assert run.code == 125
    assert "no-such-option" in run.said[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(window_plan.cuda_starts(os.environ), reason="CUDA starts here, so that the window opens")
def test_where_cuda_does_not_start_everything_is_recorded_and_that_is_said(profile: Any) -> None:
    """The other options that need CUDA: test_window_plan."""
    steps = "2:4"
    train = f"{WITHOUT_META}import torch\nm = torch.nn.Linear(2, 2); o = torch.optim.SGD(m.parameters(), .1)\n"
    train += "for _ in range(20): o.zero_grad(); m(torch.ones(1, 2)).sum().backward(); o.step()\nraise SystemExit(7)"
    run = profile(sys.executable, "-c", train, options=("--no-report", "--steps", steps))
    assert (run.code, run.out, run.err) == (7, "", "")
    (said,) = (line for line in run.said if "CUDA" in line)
    assert f"(everything: --steps {steps} needs CUDA, which does not start here)" in said
    assert run.facts["probe"][0]["steps"]["count"] == 20 and run.facts["limit"]["seconds"] == 120
    assert len([text for text in run.ranges() if text.startswith("step")]) >= 20


# --- signals ----------------------------------------------------------------------------------------------------------


# Python itself now and then (1 of 3,000 here) notices a signal that comes just before a sleep only after it: short sleeps.
CATCHES = """
import sys, time
try:
    print("up", sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), flush=True)
    for _ in range(1200):
        time.sleep(0.05)
except KeyboardInterrupt:
    print("caught", flush=True)
    for _ in range(WAITS):
        time.sleep(0.05)
    print("saved", flush=True)
    raise
"""
HANDLES = """
import os, signal, sys, time
def handler(number, frame):
    time.sleep(0.5)
    os.write(1, b"saved")
    sys.exit(7)
signal.signal(signal.SIGTERM, handler)
signal.signal(signal.SIGHUP, handler)
print("up", flush=True)
for _ in range(1200):
    time.sleep(0.05)
"""


class Terminal:
    """A command in a terminal of its own, with somebody typing."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the tests themselves ignore it
            os.execve(words[0], words, ENVIRONMENT)
        self.seen = ""

    def read(self, until: str = "", seconds: float = 600) -> str:
        """Read up to ``until``, or to the end."""
        end = time.monotonic() + seconds
        while not until or until not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.terminal], [], [], 0.1)[0]:
                try:
                    part = os.read(self.terminal, 4096)
                except OSError:
                    break
                if not part:
                    break
                self.seen += part.decode()
        return self.seen

    def type(self, keys: bytes) -> None:
        os.write(self.terminal, keys)

    def end(self) -> int:
        self.read()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.terminal)
        return code


def in_terminal(nsys: str, folder: Path, code: str) -> Terminal:
    (folder / "target.py").write_text(code)
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
        "target.py",
    ]
    return Terminal(words, folder)


def left_over(folder: Path) -> list[str]:
    """Return the processes that still work in ``folder``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                found.append(os.fsdecode((process / "cmdline").read_bytes()))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_a_terminal(nsys: str, tmp_path: Path, times: int) -> None:
    terminal = in_terminal(nsys, tmp_path, CATCHES.replace("WAITS", "10" if times == 1 else "12000"))
    assert "up True True True" in terminal.read("up True True True")
    terminal.type(b"\x03")
    terminal.read("caught")
    if times == 2:
        terminal.type(b"\x03")
    assert terminal.end() == -signal.SIGINT
    assert ("saved" in terminal.seen) == (times == 1)
    assert "KeyboardInterrupt" in terminal.seen
    assert results(tmp_path) == CAPTURED
    assert not left_over(tmp_path)


def test_ctrl_c_before_the_command_started(nsys: str, tmp_path: Path) -> None:
    # Python begins with its default handling, so what comes while nsys is still starting ends the command at once.
    words = [sys.executable, "-m", "nsysx", "run", "--nsys", nsys, "--no-report", "-o", "r", "sleep", "60"]
    terminal = Terminal(words, tmp_path)
    while not list(tmp_path.glob(".nsysx-*/nsys.log")):
        time.sleep(0.005)
    terminal.type(b"\x03")
    assert terminal.end() == -signal.SIGINT, terminal.seen
    assert not left_over(tmp_path)


def test_closed_streams(nsys: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "nsysx", "run", "--nsys", nsys, "--no-report", "-o", "r"]
    code = "import os; open('seen', 'w').write(str([os.readlink(f'/proc/self/fd/{n}') for n in range(3)]))"
    shell = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words, sys.executable, "-c", code]
    assert subprocess.run(shell, cwd=tmp_path, env=ENVIRONMENT).returncode == 0
    assert (tmp_path / "seen").read_text() == str(["/dev/null"] * 3)
    assert results(tmp_path) == CAPTURED


def test_typing_reaches_the_command(nsys: str, tmp_path: Path) -> None:
    terminal = in_terminal(nsys, tmp_path, "print('got', input('name? '))")
    terminal.read("name? ")
    terminal.type(b"ada\n")
    assert terminal.end() == 0
    assert "got ada" in terminal.seen


def test_a_terminal_that_is_closed(nsys: str, tmp_path: Path) -> None:
    terminal = in_terminal(nsys, tmp_path, HANDLES)
    terminal.read("up")
    os.kill(terminal.pid, signal.SIGHUP)
    assert terminal.end() == 7, terminal.seen
    assert results(tmp_path) == CAPTURED
    assert not left_over(tmp_path)


@pytest.mark.parametrize(
    ("code", "status"), [(HANDLES, 7), ("print('up', flush=True); import time; time.sleep(60)", -signal.SIGTERM)]
)
def test_sigterm(nsys: str, tmp_path: Path, code: str, status: int) -> None:
    terminal = in_terminal(nsys, tmp_path, code)
    terminal.read("up")
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.end() == status, terminal.seen
    assert results(tmp_path) == CAPTURED
    assert json.loads((tmp_path / "r.run.json").read_text())["exit_code"] == (status if status > 0 else 128 - status)
    assert not left_over(tmp_path)


ONCE = """
import os, signal, sys, time
def handler(number, frame):
    os.write(1, b"got%d " % number)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, handler)
print("up", flush=True)
while not os.path.exists("stop"):
    time.sleep(0.05)
sys.exit(9)
"""


@pytest.mark.parametrize("to_all", [False, True])
def test_a_signal_comes_once_whoever_else_gets_it(nsys: str, tmp_path: Path, to_all: bool) -> None:
    # timeout, job control and schedulers signal every process of a job: a second SIGINT would cut short what the first began.
    terminal = in_terminal(nsys, tmp_path, ONCE)
    terminal.read("up")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        (os.killpg if to_all else os.kill)(terminal.pid, number)
        terminal.read(f"got{int(number)} ")
        time.sleep(0.3)  # for a second one, if there is any
    (tmp_path / "stop").touch()
    assert terminal.end() == 9, terminal.seen
    got = [word for word in terminal.seen.split() if word.startswith("got")]
    assert got == [f"got{int(n)}" for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    assert results(tmp_path) == CAPTURED


def test_an_ignored_signal_stays_ignored(nsys: str, tmp_path: Path) -> None:
    # What nohup does: the command must survive the terminal, and so must we.
    (tmp_path / "target.py").write_text("import time; print('up', flush=True); time.sleep(1.5); print('end')")
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
        "target.py",
    ]
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=600)[0] == "end\n"
    assert process.returncode == 0
    assert results(tmp_path) == CAPTURED


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_with_a_working_nsys(nsys: str, tmp_path: Path) -> None:
    environment = ENVIRONMENT | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = [sys.executable, "-m", "nsysx", "doctor", "--nsys", nsys]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    for line in ("ok    nsys: 20", "ok    nsys records:", "ok    nsys exports:", "ok    nvtx: the export contains"):
        assert line in done.stdout
    assert done.stdout.splitlines()[-1].removesuffix(", but there is no GPU to record") == "nsysx run will work here"
    assert not list(tmp_path.iterdir())


def test_doctor_without_nsys(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "nsysx", "doctor", "--nsys", "/no/nsys"]
    done = subprocess.run(words, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "fail  nsys: --nsys /no/nsys: no such file" in done.stdout
    assert "->" in done.stdout


def test_what_nsys_did_not_import_is_imported(nsys: str, tmp_path: Path) -> None:
    # An nsys whose importer fails the first time that it has something to import.
    target, host = Path(nsys).resolve().parent, next(Path(nsys).resolve().parent.parent.glob("host-linux-*"))
    places = tmp_path / "nsys"
    (places / host.name).mkdir(parents=True)
    (places / target.name).mkdir()
    for file in target.iterdir():
        (places / target.name / file.name).symlink_to(file)
    (places / target.name / "nsys").unlink()
    shutil.copy(target / "nsys", places / target.name)  # it looks for the importer from where it really lies
    wrapper = places / host.name / "QdstrmImporter"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || [ -e {places}/failed ] || {{ touch {places}/failed; exit 1; }}\n'
        f'exec {host}/QdstrmImporter "$@"\n'
    )
    wrapper.chmod(0o700)
    words = [
        sys.executable,
        "-m",
        "nsysx",
        "run",
        "--nsys",
        str(places / target.name / "nsys"),
        "--no-report",
        "-o",
        "r",
    ]
    done = subprocess.run([*words, "true"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert (done.returncode, (places / "failed").exists()) == (0, True), done.stderr
    assert results(tmp_path) == CAPTURED


HANDLER = """
import signal, sys, time
stop = []
signal.signal(signal.SIGINT, lambda *_: stop.append(1))
open("ready", "w").close()
for _ in range(600):
    if stop:
        print("graceful")
        sys.exit(7)
    time.sleep(0.05)
"""


def test_a_handler_in_a_background_job_gets_the_signal(nsys: str, tmp_path: Path) -> None:
    """A script starts its jobs with Ctrl-C ignored; one that installs a handler gets it, and one that does not goes on."""
    (tmp_path / "handler.py").write_text(HANDLER)
    (tmp_path / "none.py").write_text("import time; open('ready', 'w').close(); time.sleep(4); print('went on')")
    run = f"{sys.executable} -m nsysx run --no-report --nsys {nsys} -o r -f -- {sys.executable}"
    for program, out, code in (("handler.py", "graceful\n", 7), ("none.py", "went on\n", 0)):
        (tmp_path / "ready").unlink(missing_ok=True)
        script = f"{run} {program} & while ! test -e ready; do sleep 0.1; done; sleep 1; kill -INT $!; wait $!"
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=600
        )
        assert (done.stdout, done.returncode) == (out, code), done.stderr
        assert json.loads((tmp_path / "r.run.json").read_text())["nsys"]["trouble"] is None
