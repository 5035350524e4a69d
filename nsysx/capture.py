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
import json
import os
import re
import select
import shlex
import shutil
import signal
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
from nsysx.files import check_output, move_into_place

RUN_SCHEMA = "nsysx.run/1"
INJECT = Path(__file__).parent / "inject"
LAUNCH = Path(__file__).parent / "launch.py"

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
LOW_DISK_BYTES = 2 << 30


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


def _ask(command: Sequence[str | Path], timeout_s: float = 30) -> str:
    """Return what a helper command prints on both streams; "" when it fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""


def version_of(nsys: Path) -> str:
    """Return the version that ``nsys --version`` names, "" when that is no working nsys."""
    found = re.search(r"version (\d+(?:\.\d+)+)", _ask([nsys, "--version"]))
    return found.group(1) if found else ""


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def find_nsys(explicit: Path | None = None, places: Sequence[str] = NSYS_PLACES) -> Nsys:
    """Return the nsys to use: the named one, else that of PATH, else the newest that is installed. Raises NsysxError.

    CUDA puts a script named nsys into its bin folder even where Nsight Systems is not installed, so only one that tells
    its version counts.
    """
    if explicit is not None:
        path = Path(shutil.which(explicit) or explicit)
        version = version_of(path)
        if not version:
            what = "does not run as nsys" if path.exists() else "no such file"
            raise NsysxError(f"--nsys {explicit}: {what}", slug="nsys-broken", hint=GET_NSYS, exit_code=EXIT_RUN_FAILED)
        return _with_abilities(path, version)
    on_path = shutil.which("nsys")
    if on_path and (version := version_of(Path(on_path))):
        return _with_abilities(Path(on_path), version)
    found = {path: version_of(path) for pattern in places for path in Path("/").glob(pattern.lstrip("/"))}
    working = [path for path, version in found.items() if version]
    if not working:
        broken = on_path or next(iter(found), None)
        what = f"{broken} does not run" if broken else "nsys is neither on PATH nor in NVIDIA's folders"
        raise NsysxError(what, slug="nsys-missing", hint=GET_NSYS, exit_code=EXIT_RUN_FAILED)
    newest = max(working, key=lambda path: _version_key(found[path]))
    return _with_abilities(newest, found[newest])


def _with_abilities(path: Path, version: str) -> Nsys:
    return Nsys(
        path=path,
        version=version,
        profile_help=_ask([path, "profile", "--help"]),
        export_help=_ask([path, "export", "--help"]),
    )


def with_sampling(nsys: Nsys) -> Nsys:
    """Return ``nsys`` knowing whether the system lets it sample one process tree (perf_event, seccomp)."""
    return replace(nsys, process_sampling="(process-tree): OK" in _ask([nsys.path, "status", "-e"]))


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
    if re.fullmatch(r"python[\d.]*", Path(words[0]).name):
        script = next((word for word in words[1:] if word.endswith(".py")), None)
        if "-m" in words[1:-1]:
            script = words[words.index("-m") + 1]
        if script:
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
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._look():
            if self._nsys.returncode is not None:
                return
            time.sleep(0.02)
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
        """Send a signal to the command and all that it started; False when it is not running."""
        if self.pid is None or self.end_ns is not None:
            return False
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

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self.came.append(number)
        # A lost terminal asks the command to end the way that lets it end well: Python's exit code runs on that one.
        if self.watch is not None and self.watch.send(signal.SIGTERM if number == signal.SIGHUP else number):
            return
        process = self.process
        if process is None or process.returncode is not None:
            return
        started = self.watch is None or self.watch.pid is not None
        if started and not self._asked:
            self._asked = True
            say("finishing the report; once more drops it")
            return
        self.dropped = True
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _streams() -> Iterator[list[int]]:
    """Yield copies of stdin, stdout and stderr to hand down; one that is closed is /dev/null."""
    copies = []
    try:
        for fd in range(3):
            try:
                copies.append(os.dup(fd))
            except OSError:
                copies.append(os.open(os.devnull, os.O_RDWR))
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
    check_command(command)
    if options.steps is not None:
        check_steps(options.steps)
    if any(re.match(r"-o|--output\b", word) for word in options.nsys_args):
        raise NsysxError("--nsys-arg: use nsysx's own -o", slug="nsys-output", exit_code=EXIT_RUN_FAILED)
    nsys = find_nsys(options.nsys)
    if options.lines:
        nsys = with_sampling(nsys)
    if options.output is None:
        outputs = free_outputs(Path.cwd(), default_name(command))
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
    outputs = Outputs.named(options.output) if options.output else free_outputs(Path.cwd(), default_name(command))
    folder = outputs.report.parent.absolute() / ".nsysx-XXXXXXXX"
    environment = probe_environment(
        options, os.environ, folder / "probe", own_lines=options.lines and not native_lines(nsys)
    )
    launch = [*launch_words(folder / "started", "STREAMS"), *command]
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines.append(shlex.join(profile_command(nsys, options, folder / "report", launch)))
    lines.append(shlex.join(export_command(nsys, folder / "report.nsys-rep", folder / "report.sqlite")))
    return "\n".join(lines)


def _run_in(folder: Path, command: Sequence[str], options: Options, nsys: Nsys, result: Result) -> None:
    probe_dir, started, log = folder / "probe", folder / "started", folder / "nsys.log"
    probe_dir.mkdir()
    own_lines = options.lines and not native_lines(nsys)
    if own_lines:
        result.notes.append("this nsys cannot note Python lines here; the probe does it where torch lets it")
    environment = dict(os.environ) | probe_environment(options, os.environ, probe_dir, own_lines=own_lines)
    for place in {folder, Path(tempfile.gettempdir())}:
        free = shutil.disk_usage(place).free
        if free < LOW_DISK_BYTES:
            say(f"warning: only {free >> 20} MiB free for {place}; a report may need more")
    started_utc = datetime.now(timezone.utc)
    outputs = result.outputs
    with _Signals() as signals, _streams() as copies:
        words = [*launch_words(started, _describe(copies)), *command]
        profile = profile_command(nsys, options, folder / "report", words)
        sampler = None
        if options.clocks:
            from nsysx.clocks import Sampler

            sampler = Sampler()
            sampler.start()
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
                signals.process, signals.watch = process, watch
                code = process.wait()
            target_started = watch.finish()
            # nsys now and then fails to reach its own agent; that is safe to repeat only while nothing has run.
            if target_started or attempt or signals.came:
                break
        clocks = sampler.stop() if sampler else None
        said = log.read_text(errors="replace")
        made = sorted(folder.glob("report*.nsys-rep"))
        if signals.dropped:
            result.exit_code = 128 + signals.came[-1]
            result.problems.append(_failed("interrupted, the report was dropped", "interrupted", ""))
            return
        result.exit_code = code if target_started and code >= 0 else EXIT_RUN_FAILED
        if not target_started:
            result.problems.append(
                _failed("nsys did not start the command", "nsys-failed", _last_words(said) or "nsysx doctor tells more")
            )
            return
        if made:
            move_into_place(made[0], outputs.report, force=options.force)
            result.report = outputs.report
            result.sqlite = _export(nsys, folder, options, signals, result)
        else:
            hint = _last_words(said)
            if options.steps is not None:
                hint = f"The window --steps {options.steps} was never opened: fewer steps, or no CUDA. {hint}"
            result.problems.append(_failed("nsys wrote no report", "nsys-no-report", hint))
    if result.exit_code == 0 and result.problems:
        result.exit_code = EXIT_RUN_FAILED
    facts = {
        "schema": RUN_SCHEMA,
        "tool": {"version": __version__},
        "command": list(command),
        "exit_code": result.exit_code,
        "target_started": target_started,
        "wall_ns": (watch.end_ns or 0) - (watch.start_ns or 0),
        "started_utc": started_utc.isoformat(timespec="milliseconds"),
        "nsys": {"path": str(nsys.path), "version": nsys.version, "command": profile, "said": _warnings(said)},
        "options": {name: str(v) if isinstance(v, Path) else v for name, v in asdict(options).items()},
        "files": {
            "report": result.report.name if result.report else None,
            "sqlite": result.sqlite.name if result.sqlite else None,
            "html": None,
        },
        "probe": read_probe(probe_dir),
    }
    if clocks is not None:
        facts["clocks"] = clocks
    written = folder / "run.json"
    written.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    move_into_place(written, outputs.run, force=options.force)


def _failed(message: str, slug: str, hint: str) -> NsysxError:
    return NsysxError(message, slug=slug, hint=hint, exit_code=EXIT_RUN_FAILED)


def _lines(said: str) -> list[str]:
    """Return what nsys said without its progress bars."""
    lines = [part.strip() for line in said.splitlines() for part in line.split("\r")]
    return [line for line in lines if line and "%" not in line[:80] and not line.startswith(("Generat", "/"))]


def _last_words(said: str) -> str:
    """Return the last lines of nsys in one, for an error message."""
    lines = _lines(said)
    return "nsys said: " + " / ".join(lines[-4:]) if lines else ""


def _warnings(said: str) -> list[str]:
    return [line for line in _lines(said) if re.match(r"(?i)warning|error|fatal", line)][:20]


def _export(nsys: Nsys, folder: Path, options: Options, signals: _Signals, result: Result) -> Path | None:
    """Export the report that was moved into place; None, with a problem noted, when that failed."""
    made = folder / "report.sqlite"
    command = export_command(nsys, result.outputs.report.absolute(), made)
    with (folder / "export.log").open("w+b") as sink:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True)
        signals.process, signals.watch = process, None
        process.wait()
        sink.seek(0)
        said = sink.read().decode(errors="replace")
    if process.returncode != 0 or not made.is_file():
        again = shlex.join([str(nsys.path), "export", "--type=sqlite", str(result.outputs.report)])
        result.problems.append(
            _failed(f"{result.outputs.report}: export failed", "nsys-export", f"Try: {again}. {_last_words(said)}")
        )
        return None
    move_into_place(made, result.outputs.sqlite, force=options.force)
    return result.outputs.sqlite


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
