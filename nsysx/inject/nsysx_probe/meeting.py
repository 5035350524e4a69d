"""Where the ranks of a job stop together: at a step's end, so that nsys can open or close a window for all of them.

When a window ends, nsys takes CUPTI out of every process, and waits in each until its device has nothing to do. A rank that went on
would have collectives in its queue that wait for the rank that closes the window, which waits for nsys: nsys gives up after 30 s,
events of that rank are lost, and CUPTI stays in its calls (two H100s, nsys 2025.3). So each rank waits here until the others of its
node have come and, before a window ends, until its own device has done what was launched.

Ranks tell each other by empty files beside the probe's own. Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from . import draining

#: How often a rank looks whether the others have come (s).
_LOOK_S = 0.002
#: A rank waits for the others this long (s), and for this many of its own longest steps. Ranks that never come do not hold it for good.
_WAIT_S, _WAIT_STEPS = 10.0, 2


class Meeting:
    """The ranks of one node. ``environ`` is that of torchrun's worker; ``number`` counts the meetings from 0 on."""

    def __init__(self, environ: Any) -> None:
        # Without a folder no file can be made.
        self._folder, self._rank = environ.get("NSYSX_PROBE_DIR") or os.devnull, environ.get("LOCAL_RANK", "0")
        # torchrun may start all ranks anew: the files of those that have ended are not theirs.
        self._start = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        size = environ.get("LOCAL_WORLD_SIZE", "1")
        self._others = [str(rank) for rank in range(int(size) if size.isdecimal() else 1) if str(rank) != self._rank]
        self.number = 0

    def hold(self, leads: bool, act: Callable[[], Any], longest_ns: int, *, drained: bool = False) -> bool:
        """Stop until all ranks are here, let the one that ``leads`` call ``act``, and go on together; return whether all came.

        ``longest_ns`` is the longest step so far. With ``drained`` the devices have done their work before this rank counts as here.
        """
        until = time.monotonic() + _WAIT_S + _WAIT_STEPS * longest_ns / 1e9
        number, self.number = self.number, self.number + 1
        if drained:
            until += draining.longest_wait_s(longest_ns, several=True)
            draining.drain(longest_ns, several=True)
        self._sign(f"here-{self._start}-{number}-{self._rank}")
        if not leads:
            return self._wait([f"done-{self._start}-{number}"], until + _WAIT_S)
        try:
            came = self._wait([f"here-{self._start}-{number}-{rank}" for rank in self._others], until)
            act()
        finally:  # also where a signal ends the wait: nobody else waits for this rank then
            self._sign(f"done-{self._start}-{number}")
        return came

    def announce(self, step: int) -> None:
        """Say, long enough before, with which step all hold the next meeting."""
        path = f"{self._folder}/step-{self._start}-{self.number}"
        try:
            with open(f"{path}-{self._rank}", "w") as file:  # noqa: PTH123 - importing pathlib takes milliseconds
                file.write(str(step))
            os.replace(f"{path}-{self._rank}", path)  # noqa: PTH105
        except OSError:
            pass

    def announced(self) -> int | None:
        """Return the step of the next meeting if one was announced."""
        try:
            with open(f"{self._folder}/step-{self._start}-{self.number}") as file:  # noqa: PTH123
                return int(file.read())
        except (OSError, ValueError):
            return None

    def _sign(self, name: str) -> None:
        try:
            os.close(os.open(f"{self._folder}/{name}", os.O_CREAT | os.O_WRONLY))
        except OSError:  # a full disk: the others wait for as long as they do for one that never comes
            pass

    def _wait(self, names: list[str], until: float) -> bool:
        """Wait for these files; return whether all are there."""
        while names:
            names = [name for name in names if not os.path.exists(f"{self._folder}/{name}")]  # noqa: PTH110
            if names and time.monotonic() > until:
                return False
            if names:
                time.sleep(_LOOK_S)
        return True
