"""The command that ``nsysx run`` is given: whether it can be started, and what in it keeps the probe out."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nsysx import redaction
from nsysx.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, NsysxError
from nsysx.recording.meant import meant


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
