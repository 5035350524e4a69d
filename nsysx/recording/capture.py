"""``nsysx run``: profile a command with nsys, export the report, and leave the command itself undisturbed.

Standard library only, so that it works where the analysis cannot be installed. What is decided is decided in pure
functions (`profile_command`, `probe_environment`, `export_command`); `run` alone starts processes and moves files.

The rules that shape it, all measured:

* nsys exits with 0 when it could not write its report, and then leaves it elsewhere. So it works in a private folder
  beside the result, and only files that exist count.
* nsys gives the command pipes instead of the user's streams and writes its own messages among the output. `launch`
  puts the real streams back; what nsys says goes to a log that is shown only when something failed.
* nsys dies of SIGHUP without a report and leaves the command behind. So it runs in a session of its own, and signals
  are passed on in a form that it finishes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any

from nsysx import __version__
from nsysx.errors import (
    EXIT_NOT_EXECUTABLE,
    EXIT_NOT_FOUND,
    EXIT_RUN_FAILED,
    EXIT_USAGE,
    NsysxError,
)
from nsysx.outputs import check_output, move_into_place

RUN_SCHEMA = "nsysx.run/1"
INJECT = Path(__file__).parents[1] / "inject"
LAUNCH = Path(__file__).parent / "become_command.py"

#: Where NVIDIA's installers and the distributions put nsys.
NSYS_PLACES = (
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/target-linux-*/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/usr/local/cuda*/nsight-systems-*/bin/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
    "/opt/nvidia/hpc_sdk/Linux_*/*/profilers/Nsight_Systems/bin/nsys",
    "/usr/lib/nsight-systems/bin/nsys",
)
GET_NSYS = (
    "Install Nsight Systems (part of the CUDA toolkit; on Debian scripts/install_nsys needs no root rights) "
    "or name it with --nsys PATH"
)
#: Programs that start a script in several processes: results are named after the script.
_LAUNCHERS = frozenset(("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed"))

#: Where a process that was started as one of several finds its number.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")

LOW_DISK_BYTES = 2 << 30
_FULL_BYTES = 1 << 20

#: nsys's agent ends with it, a moment later at most.
_AGENT_PATIENCE_S = 10.0

#: An import of a long capture may take minutes; this is for one that never ends.
_IMPORT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Options:
    """What ``nsysx run`` was asked for; every default is what most people want."""

    output: Path | None = None
    force: bool = False
    report: bool = True
    probe: bool = True
    nsys: Path | None = None
    nsys_args: tuple[str, ...] = ()
    steps: str | None = None
    lines: bool = False
    memory: bool = False
    graphs: str = "node"
    osrt: bool = False
    depth: int | None = None
    only: str | None = None
    backward: str | None = None
    clocks: bool = False
    per_rank: bool = False
    calibrate: bool = False


@dataclass(frozen=True, slots=True)
class Nsys:
    """An nsys that answers: its path, version, and the help texts that say what this version can do."""

    path: Path
    version: str
    profile_help: str = ""
    export_help: str = ""
    process_sampling: bool = False

    def profile_has(self, option: str) -> bool:
        """Say whether ``nsys profile`` of this version knows ``option``, as ``--name``."""
        return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", self.profile_help) is not None

    def export_has(self, option: str) -> bool:
        """Say whether ``nsys export`` of this version knows ``option``, as ``--name``."""
        return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", self.export_help) is not None


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files of one run, all beside each other."""

    report: Path
    sqlite: Path
    html: Path
    run: Path

    @classmethod
    def named(cls, name: Path) -> Outputs:
        """Return the files for ``-o name``, with or without one of their endings."""
        stem = name.name
        for ending in (".nsys-rep", ".sqlite", ".html", ".run.json"):
            stem = stem.removesuffix(ending)
        if not stem:
            raise NsysxError(f"-o {name}: no file name", slug="output-name", exit_code=EXIT_RUN_FAILED)
        return cls(*(name.with_name(stem + ending) for ending in (".nsys-rep", ".sqlite", ".html", ".run.json")))

    def all(self) -> tuple[Path, ...]:
        """Return every file that a run may write."""
        return (self.report, self.sqlite, self.html, self.run)


@dataclass(slots=True)
class Result:
    """What a run left: the exit code to end with, the files that exist, and what people must hear, in order."""

    exit_code: int
    outputs: Outputs
    sqlite: Path | None = None
    report: Path | None = None
    problems: list[NsysxError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# --- finding nsys -----------------------------------------------------------------------------------------------------


def ask(command: Sequence[str | Path], timeout_s: float = 60) -> tuple[int, str]:
    """Return exit code and output of a helper command, its messages too when it failed; 127 when it does not start."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return EXIT_NOT_FOUND, str(error)
    said = done.stdout if done.returncode == 0 else done.stdout + done.stderr
    return done.returncode, said.strip()


def version_of(nsys: Path) -> str:
    """Return the version that ``nsys --version`` names, "" when that is no working nsys."""
    code, said = ask([nsys, "--version"])
    found = re.search(r"version (\d+(?:\.\d+)+)", said)
    return found.group(1) if found and code == 0 else ""


def _importer(nsys: Path) -> Path | None:
    """Return the importer that an nsys at this path finds."""
    return next(nsys.parent.parent.glob("host-linux-*/QdstrmImporter"), None)


def importer_fault(nsys: Path) -> str:
    """Return why the importer that belongs to ``nsys`` does not work, "" when it does or cannot be told.

    Without it a capture ends in a file that nothing reads, which must not be learnt after hours of training. Copies in
    Nsight Compute come without one that nsys finds; slim systems lack libraries of it.
    """
    for path in (nsys, nsys.resolve()):
        if path.parent.name.startswith("target-linux"):
            if importer := _importer(path):
                code, said = ask([importer, "--version"])
                return "" if code == 0 else f"its importer does not run ({said.splitlines()[-1] if said else code})"
            if path == nsys.resolve():
                hint = "; link both folders side by side as target-linux-x64 and host-linux-x64"
                aside = next(path.parent.parent.glob("linux-desktop-*/QdstrmImporter"), None)
                where = f"its importer lies in {aside.parent}, where it does not look{hint}" if aside else ""
                return where or f"no importer in {path.parent.parent}/host-linux-*"
    return ""


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def find_nsys(explicit: Path | None = None, places: Sequence[str] = NSYS_PLACES) -> Nsys:
    """Return the nsys to use: the named one, else that of PATH, else the newest that is installed. Raises NsysxError.

    Only one that works counts: CUDA puts a script named nsys into its bin folder even where Nsight Systems is not
    installed, and some copies lack their importer.
    """
    faults: list[str] = []

    def works(path: Path) -> str:
        version = version_of(path)
        fault = importer_fault(path) if version else "does not run as nsys" if path.exists() else "no such file"
        if fault:
            faults.append(f"{path}: {fault}")
        return "" if fault else version

    if explicit is not None:
        path = Path(shutil.which(explicit) or explicit)
        if version := works(path):
            return _with_abilities(path, version)
        raise NsysxError(f"--nsys {faults[0]}", slug="nsys-broken", hint=GET_NSYS, exit_code=EXIT_RUN_FAILED)
    on_path = shutil.which("nsys")
    if on_path and (version := works(Path(on_path))):
        return _with_abilities(Path(on_path), version)
    found = {path: works(path) for pattern in places for path in sorted(Path("/").glob(pattern.lstrip("/")))}
    usable = [path for path, version in found.items() if version]
    if not usable:
        what = faults[0] if faults else "nsys is neither on PATH nor in NVIDIA's folders"
        raise NsysxError(what, slug="nsys-missing", hint=GET_NSYS, exit_code=EXIT_RUN_FAILED)
    newest = max(usable, key=lambda path: _version_key(found[path]))
    return _with_abilities(newest, found[newest])


def _with_abilities(path: Path, version: str) -> Nsys:
    return Nsys(
        path=path,
        version=version,
        profile_help=ask([path, "profile", "--help"])[1],
        export_help=ask([path, "export", "--help"])[1],
    )


def with_sampling(nsys: Nsys) -> Nsys:
    """Return ``nsys`` knowing whether the system lets it sample one process tree (perf_event, seccomp)."""
    return replace(nsys, process_sampling="(process-tree): OK" in ask([nsys.path, "status", "-e"])[1])


# --- what to run: pure ------------------------------------------------------------------------------------------------


def check_steps(steps: str) -> str:
    """Return ``steps`` when it reads A:B with 0 <= A < B. Raises NsysxError."""
    found = re.fullmatch(r"(\d+):(\d+)", steps)
    if not found or int(found.group(1)) >= int(found.group(2)):
        raise NsysxError(
            f"--steps {steps}: expected A:B",
            slug="bad-steps",
            hint="For example --steps 10:15 for steps 10, 11, 12, 13 and 14",
            exit_code=EXIT_USAGE,
        )
    return steps


def native_lines(nsys: Nsys) -> bool:
    """Say whether this nsys can note the Python line of a CUDA call by itself, here."""
    return (
        nsys.process_sampling
        and nsys.profile_has("--python-backtrace")
        and nsys.profile_has("--cudabacktrace")
        and nsys.export_has("--include-json")
    )


def profile_command(nsys: Nsys, options: Options, report: Path, command: Sequence[str]) -> list[str]:
    """Return the whole ``nsys profile`` command that writes ``report`` (without its ending) while running ``command``."""
    lines = options.lines and native_lines(nsys)
    words = [
        str(nsys.path),
        "profile",
        "--trace=" + ",".join(["cuda", "nvtx", *(["osrt"] if options.osrt else [])]),
        f"--sample={'process-tree' if lines else 'none'}",
        "--cpuctxsw=none",
    ]
    if nsys.profile_has("--cuda-graph-trace"):
        words.append(f"--cuda-graph-trace={options.graphs}")
    if options.memory:
        words.append("--cuda-memory-usage=true")
    if lines:
        words += ["--python-backtrace=cuda", "--cudabacktrace=sync:0,memory:0"]
    if options.steps is not None:
        words += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    # nsys expands %p, %h and more in this name; %% is how it spells a percent sign.
    words += ["--force-overwrite=true", "--output=" + str(report).replace("%", "%%")]
    # No "--" in between: nsys 2023.4 takes it for an ambiguous option. `launch` comes first, so no word is misread.
    return [*words, *options.nsys_args, *command]


def export_command(nsys: Nsys, report: Path, sqlite: Path) -> list[str]:
    """Return the ``nsys export`` command that makes ``sqlite`` from ``report``."""
    words = [str(nsys.path), "export", "--type=sqlite", "--force-overwrite=true", f"--output={sqlite}"]
    if nsys.export_has("--include-json"):
        words.append("--include-json=true")
    if nsys.export_has("--quiet"):
        words.append("--quiet=true")
    return [*words, str(report)]


def probe_environment(
    options: Options, environ: Mapping[str, str], probe_dir: Path, *, own_lines: bool, inject: Path = INJECT
) -> dict[str, str]:
    """Return the variables to add to the command's environment so that the probe starts with its Python."""
    if not options.probe:
        return {"NSYSX_PROBE": "0"}
    if os.pathsep in str(inject):
        raise NsysxError(
            f"{inject}: a path with ':' cannot stand in PYTHONPATH",
            slug="probe-path",
            hint="Install nsysx elsewhere or use --no-probe",
            exit_code=EXIT_RUN_FAILED,
        )
    before = environ.get("PYTHONPATH")
    added = {
        "PYTHONPATH": f"{inject}{os.pathsep}{before}" if before else str(inject),
        "NSYSX_PROBE_DIR": str(probe_dir),
    }
    wanted = {
        "NSYSX_DEPTH": None if options.depth is None else str(options.depth),
        "NSYSX_ONLY": options.only,
        "NSYSX_BACKWARD": options.backward,
        "NSYSX_STEPS": options.steps,
        "NSYSX_LINES": "1" if own_lines else None,
    }
    return added | {name: value for name, value in wanted.items() if value is not None}


def default_name(command: Sequence[str]) -> str:
    """Return the name for the results when ``-o`` gives none: that of the script, else of the program."""
    words = list(command)
    program = Path(words[0]).name
    if re.fullmatch(r"python[\d.]*", program):
        script = next((word for word in words[1:] if word.endswith(".py")), None)
        if "-m" in words[1:-1]:
            program = words[words.index("-m") + 1]
            script = script if program in _LAUNCHERS else program
        if script:
            return Path(script).name.removesuffix(".py")
    elif program in _LAUNCHERS and (script := next((word for word in words[1:] if word.endswith(".py")), None)):
        return Path(script).name.removesuffix(".py")
    return Path(words[0]).name.removesuffix(".sh").removesuffix(".py") or "command"


def free_outputs(folder: Path, name: str) -> Outputs:
    """Return the first of name, name-2, name-3 ... in ``folder`` of which no file exists yet."""
    number = 1
    while True:
        outputs = Outputs.named(folder / (name if number == 1 else f"{name}-{number}"))
        if not any(os.path.lexists(path) for path in outputs.all()):
            return outputs
        number += 1


def check_command(command: Sequence[str]) -> None:
    """Raise NsysxError with 127 or 126 when ``command`` cannot be found or executed, as a shell would."""
    name = command[0]
    if shutil.which(name):
        return
    path = Path(name)
    if os.sep not in name or not path.exists():
        hint = f"Did you mean ./{name}?" if path.is_file() else "Check the name and PATH"
        if name.endswith(".py") and path.is_file():
            hint = f"Did you mean: nsysx run -- python {shlex.join(command)}"
        raise NsysxError(f"{name}: command not found", slug="command-missing", hint=hint, exit_code=EXIT_NOT_FOUND)
    what, hint = "is not executable", f"chmod +x {shlex.quote(name)}"
    if path.is_dir():
        what, hint = "is a folder, not a command", ""
    elif name.endswith(".py"):
        hint = f"Did you mean: nsysx run -- python {shlex.join(command)}"
    raise NsysxError(f"{name}: {what}", slug="command-not-executable", hint=hint, exit_code=EXIT_NOT_EXECUTABLE)


# --- running ----------------------------------------------------------------------------------------------------------


def say(line: str) -> None:
    """Print one line of talk on stderr, also when the terminal is gone."""
    with contextlib.suppress(OSError, ValueError):
        print(f"nsysx: {line}", file=sys.stderr, flush=True)  # noqa: T201 - talk belongs on stderr


class _Watch:
    """Follows the command from the file that `launch` leaves until the process is gone."""

    def __init__(self, started: Path, nsys: subprocess.Popen[bytes]) -> None:
        self._started, self._nsys = started, nsys
        self.pid: int | None = None
        self.start_ns: int | None = None
        self.end_ns: int | None = None
        self.waiting: list[int] = []
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._look():
            if self._nsys.returncode is not None:
                return
            time.sleep(0.02)
        for number in self.waiting:  # came while nsys was still starting
            self.send(number)
        try:
            process = os.pidfd_open(self.pid or 0)
        except (OSError, AttributeError):  # an old kernel, or gone already: the end of nsys has to do
            return
        select.select([process], [], [])
        self.end_ns = time.time_ns()
        os.close(process)

    def _look(self) -> bool:
        """Say whether the command was started, noting its process id and time (ns since 1970)."""
        with contextlib.suppress(OSError, ValueError):
            self.pid = int(self._started.read_text())
            self.start_ns = self._started.stat().st_mtime_ns
        return self.pid is not None

    def finish(self) -> bool:
        """Wait for the thread after nsys has ended; say whether the command was ever started."""
        self._thread.join(timeout=1)
        if self.end_ns is None:
            self.end_ns = time.time_ns()
        return self._look()

    def send(self, number: int) -> bool:
        """Send a signal to the command and all that it started; False when it has ended."""
        if self.end_ns is not None:
            return False
        if self.pid is None:
            self.waiting.append(number)
            return True
        try:
            group = os.getpgid(self.pid)  # nsys gives the command a group of its own, as a terminal would
            if group == os.getpgid(self._nsys.pid):
                os.kill(self.pid, number)
            else:
                os.killpg(group, number)
        except OSError:
            return False
        return True


class _Signals:
    """Passes signals on to the command and lets nsys finish the report.

    They go to the command itself and not through nsys: on SIGINT and SIGTERM that one stops waiting for the command and
    returns 0, and on SIGHUP it leaves no report at all.
    """

    NAMES = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.watch: _Watch | None = None
        self.came: list[int] = []
        self.dropped = False
        self._asked = False
        self._calibration: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for number in self.NAMES:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:  # nohup: what was ignored stays ignored, here and in the command
                self._before[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def attend(self, process: subprocess.Popen[bytes], watch: _Watch | None) -> None:
        """From now on signals are meant for this process of nsys, or for the command that it runs."""
        self.process, self.watch = process, watch
        if watch is not None:
            watch.waiting += self.came

    def attend_calibration(self, process: subprocess.Popen[bytes]) -> None:
        """From now on a signal ends the run without profiler; what was profiled is kept."""
        self._calibration = process

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if self._calibration is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._calibration.pid, signal.SIGKILL)
            return
        # A lost terminal asks the command to end the way that lets it end well: Python's exit code runs on that one.
        number = signal.SIGTERM if number == signal.SIGHUP else number
        self.came.append(number)
        if self.process is None or self.process.returncode is not None:
            return
        never_started = self.watch is not None and self.watch.pid is None and self.came.count(number) > 2
        if self.watch is not None and not never_started and self.watch.send(number):
            return
        if not self._asked and not never_started:
            self._asked = True
            say("finishing the report; once more drops it")
            return
        self.dropped = True
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)


#: The copies must not take the place of a stream that the user closed.
_ABOVE_STREAMS = 10


@contextlib.contextmanager
def _streams() -> Iterator[list[int]]:
    """Yield copies of stdin, stdout and stderr to hand down; one that is closed is /dev/null."""
    copies = []
    try:
        for fd in range(3):
            try:
                copies.append(fcntl.fcntl(fd, fcntl.F_DUPFD, _ABOVE_STREAMS))
            except OSError:
                with Path(os.devnull).open("r+b", buffering=0) as nothing:
                    copies.append(fcntl.fcntl(nothing, fcntl.F_DUPFD, _ABOVE_STREAMS))
        yield copies
    finally:
        for copy in copies:
            os.close(copy)


def _describe(copies: Sequence[int]) -> str:
    stats = [os.fstat(copy) for copy in copies]
    return ",".join(f"{copy}:{stat.st_dev}:{stat.st_ino}" for copy, stat in zip(copies, stats, strict=True))


def launch_words(started: Path, streams: str) -> list[str]:
    """Return the words that stand between nsys and the command."""
    return [sys.executable, "-I", "-S", str(LAUNCH), str(started), streams]


def run(command: Sequence[str], options: Options) -> Result:
    """Profile ``command``, export the report and write NAME.run.json.

    Raises NsysxError before the command starts; afterwards every failure is in the result, so that nothing is lost.
    """
    if options.steps is not None:
        check_steps(options.steps)
    check_command(command)
    if any(re.match(r"-o|--output\b", word) for word in options.nsys_args):
        raise NsysxError("--nsys-arg: use nsysx's own -o", slug="nsys-output", exit_code=EXIT_RUN_FAILED)
    if options.calibrate and (options.per_rank or not options.probe):
        other = "--per-rank" if options.per_rank else "--no-probe"
        what = f"--calibrate does not go with {other}"
        hint = "It runs the whole command once more and needs the probe's step borders"
        raise NsysxError(what, slug="calibrate", hint=hint, exit_code=EXIT_USAGE)
    nsys = find_nsys(options.nsys)
    if options.per_rank:
        rank = rank_of(os.environ)
        if rank is None:
            return _run_ranks(command, options)
        base = Outputs.named(options.output or Path(default_name(command))).report
        options = replace(options, output=base.with_name(f"{base.name.removesuffix('.nsys-rep')}.rank{rank}"))
    if options.lines:
        nsys = with_sampling(nsys)
    if options.output is None:
        outputs = free_outputs(Path(), default_name(command))
    else:
        outputs = Outputs.named(options.output)
    for path in outputs.all():
        check_output(path, force=options.force, exit_code=EXIT_RUN_FAILED)
    result = Result(EXIT_RUN_FAILED, outputs)
    with tempfile.TemporaryDirectory(prefix=".nsysx-", dir=outputs.report.parent, ignore_cleanup_errors=True) as name:
        _run_in(Path(name).absolute(), command, options, nsys, result)
    return result


def dry_run(command: Sequence[str], options: Options) -> str:
    """Return the exact commands and environment that `run` would use, as shell lines."""
    nsys = find_nsys(options.nsys)
    if options.lines:
        nsys = with_sampling(nsys)
    outputs = Outputs.named(options.output) if options.output else free_outputs(Path(), default_name(command))
    folder = outputs.report.parent.absolute() / ".nsysx-XXXXXXXX"
    environment = probe_environment(
        options, os.environ, folder / "probe", own_lines=options.lines and not native_lines(nsys)
    )
    launch = [*launch_words(folder / "started", "STREAMS"), *command]
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines.append(shlex.join(profile_command(nsys, options, folder / "report", launch)))
    lines.append(shlex.join(export_command(nsys, folder / "report.nsys-rep", folder / "report.sqlite")))
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Recording:
    """How the profiled command went. ``code`` is what nsys passed on from it; times are ns since 1970."""

    nsys_command: list[str]
    code: int
    started: bool
    start_ns: int
    end_ns: int
    said: str
    clocks: dict[str, Any] | None


# --- one report per rank ----------------------------------------------------------------------------------------------


def rank_of(environ: Mapping[str, str]) -> str | None:
    """Return the number of this process among those that a launcher started, None when it is no such process."""
    return next((environ[name] for name in _RANKS if environ.get(name, "").isdigit()), None)


def option_words(options: Options) -> list[str]:
    """Return the words of the command line that give these options again, but for the output's name."""
    words: list[str] = []
    for name, value in asdict(options).items():
        option = "--" + name.replace("_", "-")
        if name in ("output", "report", "probe", "nsys_args") or value is None or value is False:
            continue
        words += [option] if value is True else [option, str(value)]
    words += [] if options.report else ["--no-report"]
    words += [] if options.probe else ["--no-probe"]
    return [*words, *(word for argument in options.nsys_args for word in ("--nsys-arg", argument))]


def _run_ranks(command: Sequence[str], options: Options) -> Result:
    """Run a launcher whose ranks run under an nsys each.

    torchrun and what is built on it start each rank with the Python that PYTHON_EXEC names: that is `nsysx run` here.
    """
    name = options.output or Path(default_name(command))
    outputs = Outputs.named(name)
    check_output(outputs.report, force=True, exit_code=EXIT_RUN_FAILED)  # the folder, before anything starts
    stem = outputs.report.name.removesuffix(".nsys-rep")
    before = sorted(outputs.report.parent.glob(f"{_literal(stem)}.rank*.nsys-rep"))
    if before and not options.force:
        what = f"{before[0]} exists"
        raise NsysxError(what, slug="output-exists", hint="Use --force or another -o", exit_code=EXIT_RUN_FAILED)
    for stale in before:  # a job of fewer ranks must not leave those of a larger one among its own
        for path in Outputs.named(stale).all():
            path.unlink(missing_ok=True)
    result = Result(EXIT_RUN_FAILED, outputs)
    with tempfile.TemporaryDirectory(prefix=".nsysx-", dir=outputs.report.parent, ignore_cleanup_errors=True) as place:
        python = Path(place).absolute() / "python"
        inner = [
            sys.executable,
            "-m",
            "nsysx",
            "run",
            *option_words(options),
            "-o",
            str(outputs.report.absolute()),
            "--",
        ]
        target = os.environ.get("PYTHON_EXEC") or _launchers_python(command)
        python.write_text(f'#!/bin/sh\nexec {shlex.join([*inner, target])} "$@"\n', encoding="utf-8")
        python.chmod(0o700)
        before_signals = {n: signal.getsignal(n) for n in _Signals.NAMES}
        process = subprocess.Popen(command, env=dict(os.environ) | {"PYTHON_EXEC": str(python)})

        def pass_on(number: int, _: FrameType | None) -> None:
            if number != signal.SIGINT:  # the terminal gives that one to everybody
                process.send_signal(number)

        for number in _Signals.NAMES:
            if before_signals[number] is not signal.SIG_IGN:
                signal.signal(number, pass_on)
        try:
            code = process.wait()
        finally:
            for number, handler in before_signals.items():
                signal.signal(number, handler)
    made = sorted(outputs.report.parent.glob(f"{_literal(stem)}.rank*.sqlite"))
    result.exit_code = code if code >= 0 else 128 - code
    if made:
        result.notes.append(f"one report for each of {len(made)} ranks: nsysx report {shlex.join(map(str, made))}")
    else:
        hint = "Start it inside each rank: LAUNCHER ... nsysx run --per-rank -o NAME -- python SCRIPT"
        result.problems.append(
            _failed("no rank ran under nsysx: this launcher does not heed PYTHON_EXEC", "no-rank", hint)
        )
        result.exit_code = result.exit_code or EXIT_RUN_FAILED
    return result


def _literal(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


def _launchers_python(command: Sequence[str]) -> str:
    """Return the Python that a launcher would start its ranks with: the one it runs in itself."""
    found = Path(shutil.which(command[0]) or command[0])
    if re.fullmatch(r"python[\d.]*", found.name):
        return str(found)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        with found.open("rb") as file:
            first = file.readline(1024).decode()
        interpreter = shlex.split(first[2:])[0] if first.startswith("#!") else ""
        if re.fullmatch(r"python[\d.]*", Path(interpreter).name) and Path(interpreter).is_file():
            return interpreter
    return shutil.which("python") or shutil.which("python3") or sys.executable


# --- one run under nsys -----------------------------------------------------------------------------------------------


def _run_in(folder: Path, command: Sequence[str], options: Options, nsys: Nsys, result: Result) -> None:
    probe_dir = folder / "probe"
    probe_dir.mkdir()
    own_lines = options.lines and not native_lines(nsys)
    if own_lines:
        result.notes.append("this nsys cannot note Python lines here; the probe does it where torch lets it")
    environment = dict(os.environ) | probe_environment(options, os.environ, probe_dir, own_lines=own_lines)
    for place in {folder, Path(tempfile.gettempdir())}:
        free = shutil.disk_usage(place).free
        if free < LOW_DISK_BYTES:
            say(f"warning: only {free >> 20} MiB free for {place}; a report may need more")
    with _Signals() as signals:
        recording = _record(folder, command, options, nsys, environment, signals)
        if signals.dropped:
            result.exit_code = 128 + signals.came[-1]
            result.problems.append(_failed("interrupted, the report was dropped", "interrupted", ""))
            return
        if not recording.started:
            hint = _last_words(recording.said) or "nsysx doctor tells more"
            result.problems.append(_failed("nsys did not start the command", "nsys-failed", hint))
            return
        # The command has run: from here on nothing may lose what is there.
        try:
            _keep(folder, recording, options, nsys, signals, result)
            facts = _facts(command, options, nsys, recording, result) | {"probe": read_probe(probe_dir)}
            if options.calibrate and result.sqlite and recording.code == 0:
                facts["calibration"] = _calibrate(folder, command, options, signals)
            written = folder / "run.json"
            written.write_text(json.dumps(facts, indent=1), encoding="utf-8")
            move_into_place(written, result.outputs.run, force=options.force)
        except (OSError, NsysxError) as error:
            result.problems.append(_failed(f"results are not complete: {error}", "results-incomplete", ""))
    own_failure = recording.code < 0 or (recording.code == 0 and result.problems)
    result.exit_code = EXIT_RUN_FAILED if own_failure else recording.code


def _calibrate(folder: Path, command: Sequence[str], options: Options, signals: _Signals) -> dict[str, Any]:
    """Run the command once more without nsys and return how long its steps took, by their number."""
    place = folder / "timing"
    place.mkdir()
    environment = dict(os.environ) | probe_environment(options, os.environ, place, own_lines=False)
    environment |= {"NSYSX_TIMING": "1", "NSYSX_FORCE": "1"}
    say("--calibrate: the command runs once more, without profiler and unheard")
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=nothing, stdout=nothing, stderr=nothing, env=environment, start_new_session=True
    )
    signals.attend_calibration(process)
    code = process.wait()
    timed = [p for p in read_probe(place) if isinstance(p.get("timing"), dict) and p["timing"].get("steps_ns")]
    # Of several ranks one is enough: a step ends for all of them when it ends for one.
    best = min(timed, key=lambda p: (str(p.get("rank") or "0") != "0", -len(p["timing"]["steps_ns"])), default=None)
    if code != 0 or best is None:
        why = f"it ended with {code}" if code else "no step was seen"
        return {"exit_code": code, "error": why}
    steps = dict(best["timing"]["steps_ns"])
    told = best.get("steps", {})
    if told.get("last_closed_by") == "exit":  # it holds the end of the program, too
        steps.pop(str(told.get("count", 0) - 1), None)
    return {"exit_code": code, "error": None, "clock": best["timing"].get("clock"), "steps_ns": steps}


def _record(
    folder: Path,
    command: Sequence[str],
    options: Options,
    nsys: Nsys,
    environment: Mapping[str, str],
    signals: _Signals,
) -> _Recording:
    """Run nsys around the command until both are done."""
    started, log = folder / "started", folder / "nsys.log"
    sampler = None
    if options.clocks:
        from nsysx.recording.clock_sampler import Sampler

        sampler = Sampler()
        sampler.start()
    with _streams() as copies:
        words = [*launch_words(started, _describe(copies)), *command]
        profile = profile_command(nsys, options, folder / "report", words)
        for attempt in range(2):
            with log.open("wb") as sink:
                process = subprocess.Popen(
                    profile,
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                    env=environment,
                    start_new_session=True,
                    pass_fds=copies,
                )
                watch = _Watch(started, process)
                signals.attend(process, watch)
                code = process.wait()
                _end_agent(process.pid)
            was_started = watch.finish()
            # nsys now and then fails to reach its own agent; that is safe to repeat only while nothing has run.
            if was_started or attempt or signals.came:
                break
    return _Recording(
        nsys_command=profile,
        code=code,
        started=was_started,
        start_ns=watch.start_ns or 0,
        end_ns=watch.end_ns or 0,
        said=log.read_text(errors="replace"),
        clocks=sampler.stop() if sampler else None,
    )


def _end_agent(nsys_pid: int, patience_s: float = _AGENT_PATIENCE_S) -> None:
    """Wait for the agent that an nsys has started, and end it when it stays.

    Seen with 2023.4, once in thousands of runs: nsys is done, its agent hangs, and with it whoever reads the command's output
    through a pipe, because the agent holds the other end.
    """
    name = f"--session-name=profile-{nsys_pid}".encode()
    until = time.monotonic() + patience_s
    while agents := [pid for pid in _running() if name in _words_of(pid)]:
        if time.monotonic() > until:
            for pid in agents:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.02)


def _running() -> list[int]:
    """Return the processes that there are; none where the system does not list them."""
    return [int(p.name) for p in Path("/proc").glob("[0-9]*")]


def _words_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _keep(folder: Path, recording: _Recording, options: Options, nsys: Nsys, signals: _Signals, result: Result) -> None:
    """Move the report into place and export it, noting what went wrong."""
    if not options.force and any(os.path.lexists(path) for path in result.outputs.all()):
        taken = result.outputs.report
        result.outputs = free_outputs(taken.parent, taken.name.removesuffix(".nsys-rep"))
        result.notes.append(f"{taken.name} or its like appeared meanwhile, so the results have another name")
    made = sorted(folder.glob("report*.nsys-rep")) or _import_again(folder, recording.said, nsys)
    if made:
        for stale in result.outputs.all():  # with --force: no page of another run may stay beside this capture
            stale.unlink(missing_ok=True)
        move_into_place(made[0], result.outputs.report, force=options.force)
        result.report = result.outputs.report
        result.sqlite = _export(nsys, folder, options, signals, result)
    else:
        result.problems.append(_no_report(folder, recording.said, options, result.outputs))


def _facts(
    command: Sequence[str], options: Options, nsys: Nsys, recording: _Recording, result: Result
) -> dict[str, Any]:
    """Return what NAME.run.json holds, but for the probe's part."""
    started = datetime.fromtimestamp(recording.start_ns / 1e9, timezone.utc)
    said = [line for line in _lines(recording.said) if re.match(r"(?i)warning|error|fatal", line)]
    facts: dict[str, Any] = {
        "schema": RUN_SCHEMA,
        "tool": {"version": __version__},
        "command": list(command),
        "exit_code": recording.code,
        "target_started": recording.started,
        "wall_ns": recording.end_ns - recording.start_ns,
        "started_utc": started.isoformat(timespec="milliseconds"),
        "nsys": {
            "path": str(nsys.path),
            "version": nsys.version,
            "command": recording.nsys_command,
            "said": said[:20],
        },
        "options": {name: str(v) if isinstance(v, Path) else v for name, v in asdict(options).items()},
        "files": {
            "report": result.report.name if result.report else None,
            "sqlite": result.sqlite.name if result.sqlite else None,
            "html": None,
        },
    }
    return facts if recording.clocks is None else facts | {"clocks": recording.clocks}


def _failed(message: str, slug: str, hint: str) -> NsysxError:
    return NsysxError(message, slug=slug, hint=hint, exit_code=EXIT_RUN_FAILED)


def _collected(folder: Path, said: str) -> Path | None:
    """Return what nsys collected and did not make a report of, or the report that it could not write where it should."""
    # A .nsys-rep that it could not write here lies in the system's temporary folder, under another name.
    named = re.findall(r"[^\s'\"]+\.(?:nsys-rep|qdstrm)", said)
    return next((path for path in [*folder.glob("*.qdstrm"), *map(Path, named)] if path.is_file()), None)


def _import_again(folder: Path, said: str, nsys: Nsys) -> list[Path]:
    """Return the report made of what nsys collected, [] when there is none. Its own import fails once in thousands of times."""
    raw, importer = _collected(folder, said), _importer(nsys.path) or _importer(nsys.path.resolve())
    if raw is None or raw.suffix != ".qdstrm" or importer is None:
        return []
    made = folder / "report.nsys-rep"
    code, _ = ask([importer, "-i", raw, "-o", made], timeout_s=_IMPORT_S)
    if code != 0 or not made.is_file():
        made.unlink(missing_ok=True)
        return []
    raw.unlink(missing_ok=True)
    return [made]


def _no_report(folder: Path, said: str, options: Options, outputs: Outputs) -> NsysxError:
    """Return what to say when nsys left no report; what it collected and could not import is kept."""
    if raw := _collected(folder, said):
        kept = outputs.report.with_name(outputs.report.name.removesuffix(".nsys-rep") + raw.suffix)
        try:
            shutil.move(raw, kept)
        except OSError:  # no room there: it stays where nsys left it
            kept.unlink(missing_ok=True)
            kept = raw
        hint = f"Kept what it collected in {kept}: nsys-ui of the same version opens it. {_last_words(said)}"
        return _failed("nsys could not finish its report" + _if_full(folder), "nsys-import", hint)
    hint = _last_words(said)
    if options.steps is not None and "Capture range started" not in said:
        hint = f"The window --steps {options.steps} never opened: fewer steps, no CUDA, or no probe. {hint}"
    return _failed("nsys wrote no report" + _if_full(folder), "nsys-no-report", hint)


def _if_full(folder: Path) -> str:
    return ", the disk is full" if shutil.disk_usage(folder).free < _FULL_BYTES else ""


def _lines(said: str) -> list[str]:
    """Return what nsys said without its progress bars."""
    lines = [part.strip() for line in said.splitlines() for part in line.split("\r")]
    return [line for line in lines if line and "%" not in line[:80] and not line.startswith(("Generat", "/"))]


def _last_words(said: str) -> str:
    """Return the last lines of nsys in one, for an error message."""
    lines = _lines(said)
    return "nsys said: " + " / ".join(lines[-4:]) if lines else ""


def _export(nsys: Nsys, folder: Path, options: Options, signals: _Signals, result: Result) -> Path | None:
    """Export the report that was moved into place; None, with a problem noted, when that failed."""
    made = folder / "report.sqlite"
    command = export_command(nsys, result.outputs.report.absolute(), made)
    # nsys fails at this now and then, once in thousands of times; nothing is lost by asking again.
    for _ in range(2):
        with (folder / "export.log").open("w+b") as sink:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
            )
            signals.attend(process, None)
            process.wait()
            sink.seek(0)
            said = sink.read().decode(errors="replace")
        exported = process.returncode == 0 and _whole(made)
        if exported or signals.came:
            break
    if not exported:
        again = shlex.join([str(nsys.path), "export", "--type=sqlite", str(result.outputs.report)])
        what = f"{result.outputs.report}: export failed{_if_full(folder)}"
        result.problems.append(_failed(what, "nsys-export", f"Try: {again}. {_last_words(said)}"))
        return None
    move_into_place(made, result.outputs.sqlite, force=options.force)
    return result.outputs.sqlite


def _whole(sqlite: Path) -> bool:
    """Say whether an export is complete: nsys exits with 0 on a full disk too."""
    try:
        with contextlib.closing(sqlite3.connect(f"{sqlite.as_uri()}?mode=ro", uri=True)) as connection:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            (size,) = connection.execute("PRAGMA page_size").fetchone()
    except sqlite3.Error:
        return False
    return bool(tables) and pages * size == sqlite.stat().st_size


def read_probe(probe_dir: Path) -> list[dict[str, Any]]:
    """Return what the probe of each process wrote about itself, in order of process id; damaged files are left out."""
    found = []
    for path in probe_dir.glob("probe-*.json"):
        with contextlib.suppress(OSError, ValueError):
            facts = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(facts, dict):
                found.append(facts)
    return sorted(found, key=lambda facts: str(facts.get("pid", "")))


def note_html(outputs: Outputs) -> None:
    """Enter the page into NAME.run.json once it exists."""
    facts = json.loads(outputs.run.read_text(encoding="utf-8"))
    facts["files"]["html"] = outputs.html.name
    temporary = outputs.run.with_name(f".{outputs.run.name}.new")
    temporary.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    temporary.replace(outputs.run)
