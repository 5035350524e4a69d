"""Starts the process that holds the range of the capture windows, and ends it (``range_holder``)."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from nsysx.inject.nsysx_probe.capture_range import DOMAIN, TEXT
from nsysx.recording.inbox import Inbox
from nsysx.recording.recording_bounds import WINDOW_OPENS_S

HOLDER = Path(__file__).parent / "range_holder.py"


def holder_words(address: str, probe_dir: Path) -> list[str]:
    """Return the command of the process that holds the range; the command's own words may follow."""
    return [sys.executable, "-I", "-S", str(HOLDER), address, str(probe_dir), TEXT, DOMAIN]


class WindowsLink:
    """``address``: where processes of the program ask for windows, "" as long as none can be opened."""

    def __init__(self) -> None:
        self.address, self.pid = "", 0
        self._holder: subprocess.Popen[bytes] | None = None

    def open(self, environment: Mapping[bytes, bytes], probe_dir: Path, inbox: Inbox) -> bool:
        """Open the first window; ``environment`` is that of what nsys records. Return whether it is open."""
        address = f"nsysx-windows-{os.getpid()}-{secrets.token_hex(16)}"
        try:
            with inbox.starting():
                self._holder = subprocess.Popen(
                    holder_words(address, probe_dir),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=dict(environment),
                    start_new_session=True,
                )
        except OSError:
            return False
        until, answer = time.monotonic() + WINDOW_OPENS_S, b""
        assert self._holder.stdout is not None
        while b"\n" not in answer and select.select([self._holder.stdout], [], [], max(until - time.monotonic(), 0))[0]:
            data = os.read(self._holder.stdout.fileno(), 64)
            if not data:
                break
            answer += data
        if answer != b"open\n":
            self.close()
            return False
        self.address, self.pid = address, self._holder.pid
        return True

    def close(self) -> None:
        """End the process; nsys has done its work by now."""
        if self._holder is None:
            return
        for stream in (self._holder.stdin, self._holder.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._holder.kill()
        self._holder.wait()
        self._holder, self.address = None, ""
