"""What a command can see of how it was started: signals, environment and its end, each beside a run without nsysx."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nsysx.recording.environment import DIFFERENCES, is_declared, of_command
from nsysx.recording.inbox import PASSED_ON, STOPPING
from tests.recording.test_run_e2e import CAPTURED, ENVIRONMENT, nsys, results

__all__ = ["nsys"]  # the fixture
ENVIRONMENT = {
    name: value for name, value in ENVIRONMENT.items() if name != "_"
}  # what started the tests is no part of them


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """Give signals that whoever started the tests ignores (nohup, a job with "&") their default for a test."""
    ignored = [n for n in PASSED_ON - {signal.SIGPIPE, signal.SIGXFSZ} if signal.getsignal(n) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


#: The option lets nsys's stand-in start the command, as sampling needs it.
WAYS = [(), ("--nsys-arg=--cpuctxsw=none",)]


def under(nsys: str, command: Sequence[str], *options: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "nsysx",
        "run",
        "--nsys",
        nsys,
        "--no-report",
        "-f",
        "-o",
        "r",
        *options,
        "--",
        *command,
    ]


def output(words: Sequence[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(words, cwd=folder, env=ENVIRONMENT | environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- signals ----------------------------------------------------------------------------------------------------------

#: Starts a command with signals ignored and blocked; what Python itself ignores gets its default again.
LAUNCH = """
import os, signal, sys
ignored, blocked, command = eval(sys.argv[1]), eval(sys.argv[2]), sys.argv[3:]
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
for number in ignored:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
os.execvp(command[0], command)
"""


def signals(status: str) -> dict[str, set[int]]:
    """Return the signals of each line of /proc/PID/status; posix_spawn ignores two that belong to the C library (32 and 33)."""
    pairs = (line.split(":") for line in status.splitlines())
    return {name: {n for n in range(1, 65) if int(mask, 16) >> n - 1 & 1} - {32, 33} for name, mask in pairs}


MANY = (
    sorted(PASSED_ON - {signal.SIGPIPE, signal.SIGXFSZ} | {signal.SIGCHLD}),
    [signal.SIGUSR1, signal.SIGTERM, signal.SIGRTMIN],
)


@pytest.mark.parametrize(
    ("ignored", "blocked", "way"),
    [
        ([], [], WAYS[1]),
        ([signal.SIGINT, signal.SIGQUIT], [], WAYS[0]),  # a job that a shell without job control started with "&"
        (*MANY, WAYS[0]),
        (*MANY, WAYS[1]),
    ],
    ids=["none", "background", "all", "all by the stand-in"],
)
def test_ignored_and_blocked_signals(
    nsys: str, tmp_path: Path, ignored: list[int], blocked: list[int], way: tuple[str, ...]
) -> None:
    command = ["grep", "^Sig[BI]", "/proc/self/status"]
    launch = [sys.executable, "-c", LAUNCH, str([int(n) for n in ignored]), str([int(n) for n in blocked])]
    bare = signals(output([*launch, *command], tmp_path))
    assert bare == {"SigBlk": set(blocked), "SigIgn": set(ignored)}
    # Where the stand-in starts it, an ignored SIGCHLD would leave no exit code.
    expected = bare | {"SigIgn": bare["SigIgn"] - ({signal.SIGCHLD} if way else set())}
    assert signals(output([*launch, *under(nsys, command, *way)], tmp_path)) == expected
    assert results(tmp_path) == CAPTURED


#: Starts commands while SIGCHLD is ignored, slowly: whatever sets a signal in nsysx itself waits, so that the command ends first.
SLOW = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from nsysx.recording.inbox import Inbox
from nsysx.recording.target import DirectChild

me, set_signal = os.getpid(), signal.signal
def late(number, handler):
    time.sleep(0.3 if os.getpid() == me else 0)
    return set_signal(number, handler)

environment = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
with Inbox() as inbox:
    signal.signal = late
    for command in (["grep", "^SigIgn", "/proc/self/status"], ["sh", "-c", "exit 7"], ["sh", "-c", "kill -9 $$"], ["./plain"]):
        target = DirectChild(command, environment, inbox.inherited)
        while target.poll() is None:
            inbox.wait(0.05)
        print(target.status, target.lost, flush=True)
    try:
        DirectChild(["./missing"], environment, inbox.inherited)
    except OSError as error:
        print(type(error).__name__, flush=True)
    signal.signal = set_signal
"""


def test_the_end_of_a_command_that_ignores_its_children_is_known_however_soon_it_comes(tmp_path: Path) -> None:
    """A child that ends while this process ignores SIGCHLD leaves no status: `grep` ended within the moment of its start."""
    (tmp_path / "plain").write_text("exit 9")  # without "#!"
    (tmp_path / "plain").chmod(0o755)
    seen = output([sys.executable, "-c", SLOW], tmp_path).splitlines()
    assert signals(seen[0])["SigIgn"] == {signal.SIGCHLD}
    assert seen[1:] == ["0 False", "7 False", "-9 False", "9 False", "FileNotFoundError"]


COUNTS = """
import os, signal, sys, time
for number in map(int, sys.argv[1:]):
    signal.signal(number, lambda number, frame: os.write(1, b"%d\\n" % number))
print("up", flush=True)
while not os.path.exists("stop"):
    time.sleep(0.02)
"""


def test_every_signal_sent_to_nsysx_alone_reaches_the_command(nsys: str, tmp_path: Path) -> None:
    numbers = sorted(PASSED_ON - STOPPING)
    assert {signal.SIGXCPU, signal.SIGURG, signal.SIGWINCH, signal.SIGPIPE, signal.SIGXFSZ} <= set(numbers)
    (tmp_path / "counts.py").write_text(COUNTS)
    command = [sys.executable, "counts.py", *(str(int(number)) for number in numbers)]
    process = subprocess.Popen(
        under(nsys, command), cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    for number in numbers:
        process.send_signal(number)
        assert process.stdout.readline() == f"{int(number)}\n"
    (tmp_path / "stop").touch()
    assert process.communicate(timeout=600)[0] == "", "each arrived once"
    assert process.returncode == 0
    assert results(tmp_path) == CAPTURED


def test_an_interrupt_that_was_ignored_stays_ignored(nsys: str, tmp_path: Path) -> None:
    words = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    command = ["sh", "-c", "echo up; sleep 1; echo end"]
    process = subprocess.Popen(
        [*words, *under(nsys, command)],
        cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=600)[0] == "end\n"
    assert process.returncode == 0


def test_ctrl_c_ends_a_loop_of_the_shell(nsys: str, tmp_path: Path) -> None:
    """The shell goes on after any exit code, 130 too; only a command that died of SIGINT ends the loop."""
    (tmp_path / "one.py").write_text("import time; print('up', flush=True); time.sleep(60)")
    words = shlex.join(under(nsys, [sys.executable, "one.py"]))
    loop = f"for i in 1 2 3; do echo run $i; {words}; done; echo loop ended"
    shell = subprocess.Popen(
        ["bash", "-c", loop],
        cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert shell.stdout is not None
    assert [shell.stdout.readline() for _ in range(2)] == ["run 1\n", "up\n"]
    os.killpg(shell.pid, signal.SIGINT)
    out, said = shell.communicate(timeout=600)
    assert (shell.returncode, out) == (-signal.SIGINT, "")
    assert "wrote r.nsys-rep  r.sqlite" in said, "after its report"


def test_an_interrupt_before_the_command_started_ends_a_loop_too(nsys: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        under(nsys, ["true"]), cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    assert "records" in process.stderr.readline()
    process.send_signal(signal.SIGSTOP)  # so that it has no chance to start the command first
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    said = process.communicate(timeout=600)[1]
    assert process.returncode == -signal.SIGINT or "wrote r.nsys-rep" in said  # the command may have been quicker


@pytest.mark.parametrize(
    "place", ["nsysx.outputs.open_streams", "nsysx.reading.report_files.reports", "typer.Typer.callback"]
)
def test_ctrl_c_ends_every_command_as_the_shell_expects(place: str, tmp_path: Path) -> None:
    """At the start of the program, while it reads a report, and while it is still being imported."""
    module = place.rpartition(".")[0].removesuffix(".Typer")
    text = f"""
import os, sys, time, {module}
def interrupted(*_, **__):
    os.kill(os.getpid(), 2)
    time.sleep(60)
{place} = interrupted
sys.argv = ["nsysx", "report", "x.sqlite"]
from nsysx.__main__ import begin
begin()
"""
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "nsysx: interrupted\n")


def test_no_core_file_of_nsysx_beside_that_of_the_command(nsys: str, tmp_path: Path) -> None:
    abort = [sys.executable, "-c", "import os; os.abort()"]
    words = ["bash", "-c", 'ulimit -c unlimited; exec "$@"', "bash", *under(nsys, abort, "--no-probe")]
    done = subprocess.run(words, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert done.returncode == -signal.SIGABRT
    status = [path for path in tmp_path.iterdir() if path.name.startswith("core")]
    assert len(status) <= 1  # the command's, where cores are files


# --- environment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "way"),
    [
        ({}, WAYS[1]),
        ({"LD_LIBRARY_PATH": "/a::/b:", "LD_PRELOAD": ""}, WAYS[0]),
        ({"LD_LIBRARY_PATH": "/a::/b:", "LD_PRELOAD": ""}, WAYS[1]),
        ({"LD_LIBRARY_PATH": ""}, WAYS[0]),
    ],
    ids=["unset", "set", "set by the stand-in", "empty"],
)
def test_only_declared_variables_differ(nsys: str, tmp_path: Path, paths: dict[str, str], way: tuple[str, ...]) -> None:
    seen = [output(words, tmp_path, **paths) for words in (["env", "-0"], under(nsys, ["env", "-0"], *way))]
    bare, there = (dict(entry.split("=", 1) for entry in text.split("\0") if entry) for text in seen)
    different = {name for name in bare.keys() | there.keys() if bare.get(name) != there.get(name)}
    assert {name for name in different if not is_declared(name)} == set()
    assert there.get("LD_LIBRARY_PATH") == bare.get("LD_LIBRARY_PATH"), "nsys adds folders that it does not need"
    assert "NVTX_INJECTION64_PATH" in different, "what nsys needs is there"


def test_a_library_in_the_working_folder_is_not_loaded(nsys: str, tmp_path: Path) -> None:
    import _ctypes

    (tmp_path / "libzork.so").write_bytes(Path(_ctypes.__file__).read_bytes())
    text = "import ctypes\ntry:\n    ctypes.CDLL('libzork.so')\n    print('loaded')\nexcept OSError:\n    print('not found')\n"
    assert output(under(nsys, [sys.executable, "-c", text]), tmp_path) == "not found\n"


def test_bash_names_the_command_and_not_nsysx(nsys: str, tmp_path: Path) -> None:
    for words in (["env"], under(nsys, ["env"])):
        seen = output(["bash", "-c", shlex.join(words) + "; true"], tmp_path)
        assert re.search(r"^_=(.*)/env$", seen, re.MULTILINE), seen


def test_lists_keep_what_the_user_has_and_gain_only_folders_of_nsys() -> None:
    of_nsys = {
        b"LD_LIBRARY_PATH": b":/usr/local/cuda/lib:/n/target-linux-x64/extra:/n/target-linux-x64",
        b"LD_PRELOAD": b"/u/lib.so:/n/target-linux-x64/inject.so",
        b"NVTX_INJECTION64_PATH": b"/n/target-linux-x64/inject.so",
        b"THEIRS": b"nsys's",
        b"UNKNOWN": b"of a newer nsys",
    }
    made = of_command(["x"], {"LD_PRELOAD": "/u/lib.so", "THEIRS": "mine"}, of_nsys)
    assert made == {
        b"LD_LIBRARY_PATH": b"/n/target-linux-x64/extra:/n/target-linux-x64",
        b"LD_PRELOAD": b"/u/lib.so:/n/target-linux-x64/inject.so",
        b"NVTX_INJECTION64_PATH": b"/n/target-linux-x64/inject.so",
        b"THEIRS": b"mine",
        b"UNKNOWN": b"of a newer nsys",
    }
    theirs = of_command(["x"], {"LD_LIBRARY_PATH": "/a::/b:"}, of_nsys)[b"LD_LIBRARY_PATH"]
    assert theirs == b"/a::/b::/n/target-linux-x64/extra:/n/target-linux-x64"
    assert all(difference.why for difference in DIFFERENCES)
