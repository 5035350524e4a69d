"""The messages of ``nsysx run`` while it works: lines on stderr, and on a terminal a status line that is overwritten."""

from __future__ import annotations

import contextlib
import os
import sys

from nsysx.redaction import redacted_text


def say(line: str) -> None:
    """Print one line on stderr; do nothing if the terminal is gone."""
    with contextlib.suppress(OSError, ValueError):
        print(f"nsysx: {redacted_text(line)}", file=sys.stderr, flush=True)  # noqa: T201 - messages belong on stderr


def on_terminal() -> bool:
    """Return whether stderr is a terminal that can overwrite a line."""
    try:
        return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:
        return False


class StatusLine:
    """A line that the next one overwrites, and that is erased at the end; nothing is shown without a terminal."""

    def __init__(self) -> None:
        self._watched = on_terminal()
        self._shown = ""

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.show("")

    def show(self, line: str) -> None:
        """Show ``line`` in place of the previous one."""
        if self._watched and line != self._shown:
            self._shown = line
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"\r\x1b[K{'nsysx: ' if line else ''}{line}")
                sys.stderr.flush()
