"""Why a run failed: the last line of its traceback, and the line of the program that it came from."""

from __future__ import annotations

import os
import re
import signal
from typing import NamedTuple

_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)')
_ERROR = re.compile(r"^(?:\[rank\d+\]:?\s*)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Iteration)\b(?::.*)?)$")
#: Files that are not the program's; the last two are code that inductor generated.
_LIBRARY = re.compile(
    r"(site|dist)-packages|/lib/python\d|^<|nsysx_probe|/nsysx/inject/|/torchinductor_[^/]*/|/c[a-z2-7]{51}\.py$"
)


class Failure(NamedTuple):
    """``reason`` is one line, ``where`` is file:line in the program, "" if there is none."""

    reason: str
    where: str


def of_log(text: str, status: int) -> Failure:
    """Return why a run ended with ``status`` (negative: by that signal), from what it printed."""
    where = reason = ""
    changes = os.environ.get("NSYSX_CHANGES") or os.devnull
    for line in text.splitlines():
        if line.startswith("Traceback (most recent call last)"):
            where = ""
        elif frame := _FRAME.match(line):
            if not _LIBRARY.search(frame[1]) and not frame[1].startswith(changes):
                where = f"{frame[1]}:{frame[2]}"
        elif error := _ERROR.match(line.rstrip()):
            reason = error[1]
    if reason.startswith("EOFError"):
        reason += " (the program asks on stdin, and here stdin is /dev/null)"
    if not reason:
        how = f"signal {-status} ended it" if status < 0 else f"it ended with exit code {status}"
        if -status == signal.SIGKILL:
            how += ", as the system does where memory runs out"
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
        reason = f"{how}; its last line: {last}" if last else how
    return Failure(reason[:400], where)
