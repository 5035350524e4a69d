"""The options of ``nsysx run``, checked before anything starts, and the names of its output files."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

from nsysx import redaction
from nsysx.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_RUN_FAILED, EXIT_USAGE, NsysxError
from nsysx.option import Option, declared
from nsysx.recording import limit
from nsysx.recording.meant import meant

ENDINGS = (".nsys-rep", ".sqlite", ".html", ".run.json")

#: Programs that start a script in several processes; the results are named after the script.
LAUNCHERS = frozenset(("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed"))

_DEFAULT = "on by default now, in the X-ray steps (--xray)"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of ``nsysx run``, each declared here alone; each default is what most people want."""

    output: Annotated[
        Path | None,
        Option(
            "Name of the results, or a folder for them. Default: CMD's script, here.",
            "NAME",
            ("-o", "--output"),
            typed_only=True,
        ),
    ] = None
    force: Annotated[bool, Option("Overwrite results of the same name.", names=("--force", "-f"), typed_only=True)] = (
        False
    )
    report: Annotated[bool, Option("Only capture and export; works without polars.", names=("--no-report",))] = True
    probe: Annotated[
        bool,
        Option(
            "Add no ranges: only the steps, phases and modules that CMD marks itself.",
            names=("--no-probe",),
            hidden=True,
        ),
    ] = True
    steps: Annotated[
        str | None,
        Option(
            "Capture only steps A to B-1, or (auto) 24 steps once they repeat, or (manual) what the program itself puts in "
            "`with nsysx.capture():`, or (all) the whole run. Default (windows): the cold start and, after up to 3 s of steps that "
            "are timed without the profiler, 24 steady ones; all where that is not possible.",
            "A:B|auto|manual|windows|all",
            variable="NSYSX_STEPS",
        ),
    ] = None
    limit: Annotated[
        str | None,
        Option(
            "Record at most S seconds or about EVENTS events of what has no steps, or (none) without a limit. CMD goes on. "
            "Default: 120:5000000, with --steps all none.",
            "S[:EVENTS]",
        ),
    ] = None
    then: Annotated[
        str | None,
        Option(
            "End CMD once the last window of steps is recorded, as Ctrl-C does: for a training of hours.",
            "stop",
            words=("stop",),
            variable="NSYSX_THEN",
        ),
    ] = None
    xray: Annotated[
        str,
        Option(
            "What the window's last three steps carry: modules, operators with shapes and the program's lines (all), no operators "
            "(lines), or none of these (none). The other steps inherit it.",
            "none|lines|all",
            words=("none", "lines", "all"),
            variable="NSYSX_XRAY",
        ),
    ] = "all"
    source: Annotated[
        tuple[str, ...],
        Option(
            "Record the lines of this package or path, too, or with ! before it leave them out (repeatable). "
            "Default: all but torch and Python's own.",
            "[!]PREFIX",
            variable="NSYSX_SOURCE",
        ),
    ] = ()
    texts: Annotated[
        bool,
        Option(
            "Keep no text of the program's lines in NAME.run.json.", names=("--no-source",), variable="NSYSX_NO_SOURCE"
        ),
    ] = True
    tries: Annotated[
        bool, Option("Then try the first three remedies: CMD runs again and again.", names=("--try",), typed_only=True)
    ] = False
    memory: Annotated[bool, Option("Record device memory allocations.")] = False
    gil: Annotated[
        bool,
        Option("Record who holds Python's lock, and who waits for it. Its cost was too small to measure.", hidden=True),
    ] = False
    gpu_metrics: Annotated[
        bool,
        Option(
            "Sample the GPU's counters: SMs, tensor cores, memory bandwidth. If refused, the run goes on without them."
        ),
    ] = False
    per_rank: Annotated[bool, Option("Under torchrun and launchers built on it: one report per rank.")] = False
    nsys: Annotated[
        Path | None,
        Option("The nsys to use. Default: the one on PATH, else the newest found.", "PATH", typed_only=True),
    ] = None
    nsys_args: Annotated[
        tuple[str, ...],
        Option("Pass ARG on to nsys profile (repeatable).", "ARG", names=("--nsys-arg",), hidden=True, typed_only=True),
    ] = ()
    graphs: Annotated[
        str,
        Option(
            "Trace each node of a CUDA graph, or only each graph launch.",
            "node|graph",
            words=("node", "graph"),
            hidden=True,
        ),
    ] = "node"
    osrt: Annotated[bool, Option("Also record operating system calls; slows the host.", hidden=True)] = False
    clocks: Annotated[bool, Option("Sample GPU clocks, power and temperature; needs nsysx[clocks].", hidden=True)] = (
        False
    )
    depth: Annotated[
        int | None,
        Option("Mark modules down to this depth. Default: all.", least=0, variable="NSYSX_DEPTH", hidden=True),
    ] = None
    only: Annotated[
        str | None,
        Option("Mark only modules whose path matches. Default: all.", "REGEX", variable="NSYSX_ONLY", hidden=True),
    ] = None
    calibrate: Annotated[
        bool,
        Option("Run CMD once more without the profiler, to measure what profiling costs.", hidden=True),
    ] = False
    lines: Annotated[bool, Option("As --xray lines.", gone=_DEFAULT)] = False
    ops: Annotated[bool, Option("As --xray all.", gone=_DEFAULT)] = False
    python: Annotated[bool, Option("As --xray lines.", gone=_DEFAULT)] = False
    marks: Annotated[str | None, Option("As --xray.", gone=_DEFAULT)] = None
    backward: Annotated[str | None, Option("As --xray.", gone=_DEFAULT)] = None


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files of one run, all in one folder."""

    report: Path
    sqlite: Path
    html: Path
    run: Path

    @classmethod
    def named(cls, name: Path) -> Outputs:
        """Return the files for ``-o name``, with or without one of their endings. Raises NsysxError."""
        stem = name.name
        for ending in ENDINGS:
            stem = stem.removesuffix(ending)
        if not stem or stem == "..":
            raise NsysxError(f"-o {name}: no file name", slug="output-name", exit_code=EXIT_RUN_FAILED)
        return cls(*(name.with_name(stem + ending) for ending in ENDINGS))

    @property
    def stem(self) -> Path:
        """Return the path that all files share, without their endings."""
        return self.report.with_name(self.report.name.removesuffix(ENDINGS[0]))

    @property
    def cold(self) -> tuple[Path, Path]:
        """Return the report and the export of the first of two windows; the others are those of the second, or of the only one."""
        name = self.stem.name
        return self.report.with_name(f"{name}.cold.nsys-rep"), self.report.with_name(f"{name}.cold.sqlite")

    def all(self) -> tuple[Path, ...]:
        """Return every file that a run may write."""
        return (self.report, self.sqlite, self.html, self.run, *self.cold)

    def taken(self) -> bool:
        """Return whether any of the files exists."""
        return any(os.path.lexists(path) for path in self.all())


@dataclass(slots=True)
class RunResult:
    """The result of a run: the exit code to end with, the files that it wrote, and the messages for the user, in order.

    ``ended_by``: the signal to end with in place of the exit code, 0 for none. A shell's loop ends only if its command died of
    Ctrl-C. ``launcher``: the command that started this rank, where it is one of a job.
    """

    exit_code: int
    outputs: Outputs
    sqlite: Path | None = None
    report: Path | None = None
    cold: Path | None = None  # the export of the first of two windows
    written: list[Path] = field(default_factory=list)
    problems: list[NsysxError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ended_by: int = 0
    launcher: tuple[str, ...] = ()

    def ends_as(self, status: int) -> None:
        """End as a command did: with its exit code, or if ``status`` is negative by that signal."""
        self.exit_code, self.ended_by = status if status >= 0 else 128 - status, max(-status, 0)


def failed(message: str, slug: str, hint: str = "") -> NsysxError:
    """Return an error with the exit code of a failed run."""
    return NsysxError(message, slug=slug, hint=hint, exit_code=EXIT_RUN_FAILED)


def default_name(command: Sequence[str]) -> str:
    """Return the name of the results if ``-o`` gives none: the script's name, else the program's."""
    words = list(command)
    program = Path(words[0]).name
    if re.fullmatch(r"python[\d.]*", program):
        script = next((word for word in words[1:] if word.endswith(".py")), None)
        if "-m" in words[1:-1]:
            program = words[words.index("-m") + 1]
            script = script if program in LAUNCHERS else program
        if script:
            return Path(script).name.removesuffix(".py")
    elif program in LAUNCHERS and (script := next((word for word in words[1:] if word.endswith(".py")), None)):
        return Path(script).name.removesuffix(".py")
    return Path(words[0]).name.removesuffix(".sh").removesuffix(".py") or "command"


def free_outputs(folder: Path, name: str) -> Outputs:
    """Return the files of the first of name, name-2, name-3 ... in ``folder`` that is not taken."""
    number = 1
    while True:
        outputs = Outputs.named(folder / (name if number == 1 else f"{name}-{number}"))
        if not outputs.taken():
            return outputs
        number += 1


def wanted_outputs(command: Sequence[str], options: RunOptions) -> Outputs:
    """Return the files to write: ``-o NAME``, or free names after the command in ``-o FOLDER`` or here. Raises NsysxError."""
    output = options.output
    if output is not None and output.exists() and not (output.is_dir() or output.is_file()):
        raise failed(
            f"-o {output}: is a device or a pipe, not a name for files", "output-name", "Name the results: -o NAME"
        )
    if output is None or output.is_dir():
        return free_outputs(output or Path(), default_name(command))
    return Outputs.named(output)


# --- checks -----------------------------------------------------------------------------------------------------------


def check_steps(steps: str) -> str:
    """Return ``steps`` if it is A:B with 0 <= A < B or one of the known words, else raise NsysxError."""
    if steps in ("auto", "manual", "windows", "all"):
        return steps
    match = re.fullmatch(r"(\d+):(\d+)", steps)
    if not match or int(match.group(1)) >= int(match.group(2)):
        raise NsysxError(
            f"--steps {steps}: expected A:B, auto, manual, windows or all",
            slug="bad-steps",
            hint="For example --steps 10:15 for steps 10, 11, 12, 13 and 14",
            exit_code=EXIT_USAGE,
        )
    return steps


def check_limit(options: RunOptions) -> None:
    """Raise NsysxError if ``--limit`` cannot be read, or another option says when the recording ends."""
    try:
        limit.parsed(options.limit or "")
    except ValueError:
        what, hint = f"--limit {options.limit}: expected S, S:EVENTS or none", "For example --limit 60"
        raise NsysxError(what, slug="bad-limit", hint=hint, exit_code=EXIT_USAGE) from None
    if options.steps not in (None, "windows", "all"):
        what = f"--limit does not go with --steps {options.steps}"
        raise NsysxError(what, slug="limit-steps", hint="That window ends by itself", exit_code=EXIT_USAGE)


def check_options(options: RunOptions) -> None:
    """Raise NsysxError if an option is invalid or two options exclude each other."""
    for option in declared(RunOptions):
        value = getattr(options, option.field)
        if option.option.words and value is not None and value not in option.option.words:
            what, choices = f"{option.names[-1]} {value}", ", ".join(option.option.words)
            raise NsysxError(f"{what}: expected {choices}", slug="bad-option", exit_code=EXIT_USAGE)
    if options.steps is not None:
        check_steps(options.steps)
    if options.limit is not None:
        check_limit(options)
    if options.then is not None and (options.steps in ("all", "manual") or options.per_rank or not options.probe):
        other = "--no-probe" if not options.probe else "--per-rank" if options.per_rank else f"--steps {options.steps}"
        hint = "The probe of one job tells when the last window of steps has closed"
        raise NsysxError(f"--then does not go with {other}", slug="then-steps", hint=hint, exit_code=EXIT_USAGE)
    if options.only is not None:
        try:
            re.compile(options.only)
        except re.error as error:
            what = f"--only {options.only}: not a regular expression, {error}"
            hint = f"To look for the text itself: --only {shlex.quote(re.escape(options.only))}"
            raise NsysxError(what, slug="bad-only", hint=hint, exit_code=EXIT_USAGE) from None
    if any(re.match(r"-o|--output\b", word) for word in options.nsys_args):
        raise failed("--nsys-arg: use nsysx's own -o", "nsys-output")
    if any(os.pathsep in prefix for prefix in options.source):
        raise NsysxError("--source: one package or path each time", slug="bad-source", exit_code=EXIT_USAGE)
    if options.calibrate and (options.per_rank or not options.probe):
        other = "--per-rank" if options.per_rank else "--no-probe"
        hint = "It runs the whole command once more and needs the probe's step borders"
        what = f"--calibrate does not go with {other}"
        raise NsysxError(what, slug="calibrate", hint=hint, exit_code=EXIT_USAGE)


def gone(options: RunOptions) -> list[str]:
    """Return what to say of each option given that has no effect any more."""
    given = [o for o in declared(RunOptions) if o.option.gone and getattr(options, o.field) != o.default]
    return [f"{option.names[-1]}: {option.option.gone}" for option in given]


def check_command(command: Sequence[str]) -> None:
    """Raise NsysxError if ``command`` cannot be found (exit code 127) or executed (126), as a shell would."""
    name = command[0]
    if shutil.which(name):
        return
    path, told = Path(name), redaction.redacted([name])[0]
    if hint := meant(command):
        raise NsysxError(f"{told}: command not found", slug="command-missing", hint=hint, exit_code=EXIT_NOT_FOUND)
    if os.sep not in name or not path.exists():
        hint = f"Did you mean ./{name}?" if path.is_file() else "Check the name and PATH"
        if name.endswith(".py") and path.is_file():
            hint = f"Did you mean: nsysx run -- python {redaction.shell(command)}"
        raise NsysxError(f"{told}: command not found", slug="command-missing", hint=hint, exit_code=EXIT_NOT_FOUND)
    what, hint = "is not executable", f"chmod +x {shlex.quote(name)}"
    if path.is_dir():
        what, hint = "is a folder, not a command", ""
    elif name.endswith(".py"):
        hint = f"Did you mean: nsysx run -- python {redaction.shell(command)}"
    raise NsysxError(f"{told}: {what}", slug="command-not-executable", hint=hint, exit_code=EXIT_NOT_EXECUTABLE)


# --- what keeps the probe out -----------------------------------------------------------------------------------------

#: Python options that take the next word as their value.
_WITH_WORD = ("-W", "-X", "--check-hash-based-pycs")


def _python_options(words: Sequence[str]) -> Iterator[str]:
    """Yield the letters of Python's options before -c, -m or the script."""
    remaining = iter(words)
    for word in remaining:
        if not word.startswith("-") or word in ("-", "--"):
            return
        if word in _WITH_WORD:
            next(remaining, None)
        elif not word.startswith(("--", "-W", "-X")):
            letters = word[1:]
            stop = min((letters.index(letter) for letter in "cm" if letter in letters), default=len(letters))
            yield from letters[:stop]
            if stop < len(letters):
                return


class Barrier(NamedTuple):
    """A program and the option of it that keeps the probe out."""

    program: str
    option: str

    def __str__(self) -> str:
        return f"{self.program} {self.option}"


def keeps_probe_out(command: Sequence[str]) -> Barrier | None:
    """Return what in ``command`` keeps PYTHONPATH or sitecustomize from Python, or None if nothing visible does."""
    words = list(command)
    if Path(words[0]).name == "env":
        for index, word in enumerate(words[1:], 1):
            if word in ("-i", "-", "--ignore-environment"):
                return Barrier("env", word)
            if not word.startswith("-") and "=" not in word:
                return keeps_probe_out(words[index:])
        return None
    if not re.fullmatch(r"python[\d.]*", Path(words[0]).name):
        return None
    return next((Barrier("python", f"-{letter}") for letter in _python_options(words[1:]) if letter in "IES"), None)
