"""The output of commands: results on stdout or in files, everything else on stderr."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nsysx.cli.cli_bounds import NARROWEST_TERMINAL, USUAL_TERMINAL
from nsysx.redaction import redacted_text

if TYPE_CHECKING:
    from rich.console import Console


def talk(line: str) -> None:
    """Print a line to stderr: stdout is the result."""
    print(redacted_text(line), file=sys.stderr)  # noqa: T201


_quiet: list[bool] = []


def be_quiet() -> None:
    """Say nothing more of what was written."""
    _quiet.append(True)


def wrote(path: Path, what: str = "") -> None:
    """Say that a file or a folder was written, on a terminal with a link to it, and ``what`` is in it."""
    if _quiet:
        return
    name = str(path)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        name = f"\x1b]8;;{path.resolve().as_uri()}\x1b\\{path}\x1b]8;;\x1b\\"
    talk(f"nsysx: wrote {name}{what}")


def harmless(line: str) -> str:
    """Return a line made safe: names from a report cannot move the cursor or hide anything."""
    from nsysx.render.safe_text import clean

    return clean(line, 2000)


@contextmanager
def answering() -> Iterator[None]:
    """Write the result to stdout inside; if its reader goes away (``| head``), the process ends quietly, as cat does.

    Only inside: code that later writes to a pipe of its own (a pool with a dead worker) needs an error, not the end.
    """
    from nsysx.outputs import to_stdout

    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        with to_stdout():
            yield
    finally:
        signal.signal(signal.SIGPIPE, before or signal.SIG_DFL)


def emit(text: str) -> None:
    """Write a text to stdout as the result."""
    with answering():
        sys.stdout.write(text if text.endswith("\n") else text + "\n")


def deliver(target: str, text: str, *, force: bool) -> None:
    """Write a text to a file, or to stdout for "-"."""
    from nsysx.outputs import write_text

    if target == "-":
        emit(text)
    else:
        write_text(Path(target), text, force=force)


def console(*, stderr: bool = False) -> Console:
    """Return the terminal, at the usual width if its size is unknown (``COLUMNS=0``)."""
    from rich.console import Console

    terminal = Console(stderr=stderr)
    if terminal.width < NARROWEST_TERMINAL:
        terminal.width = USUAL_TERMINAL
    return terminal
