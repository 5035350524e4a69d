"""A status line on stderr while work takes longer than a second, only on a terminal."""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType
from typing import Any

#: What is done before this time (s) shows no progress. Chosen: a line that comes and goes at once is noise.
_PATIENCE_S = 1.0


class Progress:
    """Called with the name of each stage; shows the current one after a second, and clears it at the end."""

    def __init__(self) -> None:
        self._stage = "working"
        self._status: Any = None
        self._lock = threading.Lock()
        self._ended = False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Progress:
        if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._timer = threading.Timer(_PATIENCE_S, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __call__(self, stage: str) -> None:
        """Say which stage begins."""
        with self._lock:
            self._stage = stage
            if self._status is not None:
                self._status.update(self._text())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._ended = True
            if self._timer is not None:
                self._timer.cancel()
            if self._status is not None:
                self._status.stop()

    def _text(self) -> Any:
        from rich.text import Text

        return Text(self._stage)

    def _show(self) -> None:
        from rich.console import Console

        with self._lock:
            if not self._ended:
                self._status = Console(stderr=True).status(self._text())
                self._status.start()
