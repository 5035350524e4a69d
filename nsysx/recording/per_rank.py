"""``--per-rank``: runs a launcher whose ranks each run under their own nsys."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from nsysx.errors import EXIT_RUN_FAILED, EXIT_USAGE, NsysxError
from nsysx.option import declared
from nsysx.outputs import check_output
from nsysx.recording.environment import users_environment
from nsysx.recording.follow import run_alone
from nsysx.recording.inbox import Inbox
from nsysx.recording.recording_bounds import LAUNCHER_SCRIPT_BYTES
from nsysx.recording.run_options import RunOptions, failed
from nsysx.recording.run_outputs import ENDINGS, LAUNCHERS, Outputs, RunResult, default_name

#: Environment variables in which launchers tell a process its rank.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")

#: What the text of a script contains if it calls a launcher that heeds PYTHON_EXEC.
_LAUNCHES = re.compile(r"torchrun|torch\.distributed\.(run|launch)\b|accelerate[\s\"',]+launch|elastic_launch")
#: How a rank is told what started it: the words of that command, as JSON.
_LAUNCHER = "NSYSX_LAUNCHER"
_INSIDE = "Start it inside each rank: LAUNCHER ... nsysx run --per-rank -o NAME -- python SCRIPT"


def rank_of(environ: Mapping[str, str]) -> str | None:
    """Return the rank of this process, or None if no launcher started it."""
    return next((environ[name] for name in _RANKS if environ.get(name, "").isdigit()), None)


def launcher() -> tuple[str, ...]:
    """Return the command of ``nsysx run --per-rank`` that started this rank, and take it out of the environment; () without one."""
    with contextlib.suppress(ValueError):
        words = json.loads(os.environ.pop(_LAUNCHER, "[]"))
        return tuple(map(str, words)) if isinstance(words, list) else ()
    return ()


def launches(command: Sequence[str]) -> bool:
    """Return whether ``command`` starts ranks with the Python that PYTHON_EXEC names; False for a single process.

    Raises NsysxError for a launcher that ignores PYTHON_EXEC and for an unknown one: after hours of training it is too late.
    """
    words = list(command)
    program = Path(words[0]).name
    is_python = re.fullmatch(r"python[\d.]*", program) is not None
    if is_python:
        module = words[words.index("-m") + 1] if "-m" in words[1:-1] else ""
        script = next((word for word in words[1:] if word.endswith(".py")), "")
        program, texts = module or Path(script).stem, [_script_text(script)]
    else:
        texts = [" ".join(words), *(_script_text(shutil.which(word) or word) for word in words[:4])]
    if program.startswith("deepspeed"):
        what = "--per-rank: deepspeed starts its ranks with a Python of its own choice"
        raise NsysxError(what, slug="no-rank", hint=_INSIDE, exit_code=EXIT_USAGE)
    if program in LAUNCHERS or any(_LAUNCHES.search(text) for text in texts):
        return True
    if is_python:
        return False
    what = f"--per-rank: {words[0]} is not a launcher that is known to start ranks"
    hint = f"Known: torchrun, accelerate launch, and scripts that call them. {_INSIDE}"
    raise NsysxError(what, slug="no-rank", hint=hint, exit_code=EXIT_USAGE)


def _script_text(script: str) -> str:
    """Return the first MiB of a script's text, "" if it is a binary or cannot be read."""
    with contextlib.suppress(OSError, ValueError), Path(script).open("rb") as file:
        text = file.read(LAUNCHER_SCRIPT_BYTES).decode(errors="replace")
        return "" if "\0" in text else text
    return ""


def option_words(options: RunOptions) -> list[str]:
    """Return the command-line words for these options, without ``-o``."""
    return [
        word
        for option in declared(RunOptions)
        if option.field != "output"
        for word in option.typed(getattr(options, option.field))
    ]


def rank_outputs(command: Sequence[str], options: RunOptions, rank: str | None = None) -> Outputs:
    """Return the files of one rank, or without a rank those whose names the ranks' files start with."""
    output = options.output
    if output is None or output.is_dir():
        output = (output or Path()) / default_name(command)
    base = Outputs.named(output).stem
    return Outputs.named(base if rank is None else base.with_name(f"{base.name}.rank{rank}"))


def _of_ranks(outputs: Outputs, ending: str) -> list[Path]:
    """Return the file of each rank that has this ending; those of a first window belong to it."""
    stem = outputs.stem
    files = stem.parent.glob(f"{glob.escape(stem.name)}.rank*{ending}")
    return sorted(file for file in files if not file.name.endswith(f".cold{ending}"))


def run_ranks(command: Sequence[str], options: RunOptions) -> RunResult:
    """Run a launcher whose ranks each run under their own nsys.

    torchrun, and launchers built on it, start each rank with the Python that PYTHON_EXEC names. Here that is `nsysx run`.
    Raises NsysxError only before the launcher starts; OSError if the launcher cannot be started.
    """
    outputs = rank_outputs(command, options)
    check_output(outputs.report, force=True, exit_code=EXIT_RUN_FAILED)  # checks the folder before anything starts
    before = _of_ranks(outputs, ENDINGS[0])
    if before and not options.force:
        raise failed(f"{before[0]} exists", "output-exists", "Use --force or another -o")
    for stale in before:  # reports of an earlier job with more ranks must not mix with those of this one
        for path in Outputs.named(stale).all():
            path.unlink(missing_ok=True)
    result = RunResult(EXIT_RUN_FAILED, outputs)
    with tempfile.TemporaryDirectory(prefix=".nsysx-", dir=outputs.report.parent, ignore_cleanup_errors=True) as folder:
        python = _python_of_ranks(Path(folder).absolute(), command, options, outputs)
        environment = users_environment() | {"PYTHON_EXEC": str(python), _LAUNCHER: json.dumps(list(command))}
        with Inbox() as inbox:
            target = run_alone(command, environment, inbox)
    result.ends_as(target.status or 0)
    if made := _of_ranks(outputs, ".sqlite"):
        result.notes.append(f"one report for each of {len(made)} ranks: nsysx report {shlex.join(map(str, made))}")
    else:
        what = "no rank ran under nsysx: this launcher does not heed PYTHON_EXEC"
        result.problems.append(failed(what, "no-rank", _INSIDE))
        result.exit_code = result.exit_code or EXIT_RUN_FAILED
    return result


def _python_of_ranks(folder: Path, command: Sequence[str], options: RunOptions, outputs: Outputs) -> Path:
    """Write the script that the launcher runs in place of Python, and return its path."""
    stem = str(outputs.stem.absolute())
    inner = [sys.executable, "-m", "nsysx", "run", *option_words(options), "-o", stem, "--"]
    target = os.environ.get("PYTHON_EXEC") or _launchers_python(command)
    python = folder / "python"
    python.write_bytes(os.fsencode(f'#!/bin/sh\nexec {shlex.join([*inner, target])} "$@"\n'))
    python.chmod(0o700)
    return python


def _launchers_python(command: Sequence[str]) -> str:
    """Return the Python with which a launcher would start its ranks: the one that runs the launcher."""
    program = Path(shutil.which(command[0]) or command[0])
    if re.fullmatch(r"python[\d.]*", program.name):
        return str(program)
    with contextlib.suppress(OSError, UnicodeDecodeError, IndexError):
        with program.open("rb") as file:
            first = file.readline(1024).decode()
        interpreter = shlex.split(first[2:])[0] if first.startswith("#!") else ""
        if re.fullmatch(r"python[\d.]*", Path(interpreter).name) and Path(interpreter).is_file():
            return interpreter
    return shutil.which("python") or shutil.which("python3") or sys.executable
