"""What ``nsysx run`` says while it works: lines on stderr, and on a terminal one that passes."""

from __future__ import annotations

import contextlib
import os
import sys


def say(line: str) -> None:
    """Print one line of talk on stderr, also when the terminal is gone."""
    with contextlib.suppress(OSError, ValueError):
        print(f"nsysx: {line}", file=sys.stderr, flush=True)  # noqa: T201 - talk belongs on stderr


def on_terminal() -> bool:
    """Say whether somebody watches stderr."""
    try:
        return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:
        return False


class Passing:
    """A line that is overwritten by the next one and taken away in the end; nothing where nobody watches."""

    def __init__(self) -> None:
        self._watched = on_terminal()
        self._shown = ""

    def __enter__(self) -> Passing:
        return self

    def __exit__(self, *_: object) -> None:
        self.show("")

    def show(self, line: str) -> None:
        """Show ``line`` in place of the one before."""
        if self._watched and line != self._shown:
            self._shown = line
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"\r\x1b[K{'nsysx: ' if line else ''}{line}")
                sys.stderr.flush()
