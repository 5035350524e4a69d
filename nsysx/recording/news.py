"""What becomes of the two windows while the command runs: a line for each on stderr, only where it is a terminal."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from nsysx.recording.run_messages import on_terminal, say

#: What to say once so many windows have closed.
_SAID = {
    1: "the cold start is recorded; steps are timed without the profiler now, and then 24 are recorded",
    2: "24 steps are recorded; the command goes on without the profiler",
}


class News:
    """Is asked again and again by who waits for the command. ``probe_dir``: where the probe of each process leaves its file."""

    def __init__(self, probe_dir: Path, *, shown: bool | None = None) -> None:
        self._folder, self._shown = probe_dir, on_terminal() if shown is None else shown
        self._read: dict[Path, int] = {}  # file -> when it was written (ns)
        self._closed = 0

    def look(self) -> None:
        """Say what has happened since the last time."""
        if not self._shown or self._closed == max(_SAID):
            return
        with contextlib.suppress(OSError):
            for path in self._folder.glob("probe-*.json"):
                if (written := path.stat().st_mtime_ns) != self._read.get(path):
                    self._read[path] = written
                    self._tell(path)

    def _tell(self, path: Path) -> None:
        try:
            record: Any = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return
        pauses = record.get("window_pauses_ns") if isinstance(record, dict) else None
        closed = len(pauses) if isinstance(pauses, list) else 0
        if closed > self._closed and closed in _SAID:
            self._closed = closed
            say(_SAID[closed])
