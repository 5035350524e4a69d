"""Changes turned off and on while the program runs, in blocks of steps: off on, on off, off on, ...

Both sides share a process and a moment, so what differs from start to start and what drifts is in both. At a switch the device
finishes what the other side left in its queue: the host would make the next steps while that runs, and they would look shorter
than they are. A block's first steps are not counted: caches and queue fill in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .changes import Watch
from .probe_bounds import UNCOUNTED_EVERY


class Blocks:
    """``ran`` holds, for each block that began, whether the changes were made, its first counted step and the one after its last.

    ``wait`` returns when the device has nothing left to do. ``on``: whether the changes are made before the first block.
    """

    def __init__(
        self, watches: Mapping[str, Watch], first: int, size: int, pairs: int, wait: Callable[[], Any] = lambda: None,
        *, on: bool = True,
    ) -> None:  # fmt: skip
        self.wait = wait
        self.watches, self.first, self.size, self.count = watches, first, size, 2 * pairs
        self.on = on
        self.ran: list[tuple[bool, int, int]] = []

    def begin(self, index: int) -> None:
        """Turn the changes off or on if a block begins with step ``index``."""
        block, inside = divmod(index - self.first, self.size)
        if inside or block >= self.count:
            return
        on = block % 4 in (1, 2)
        if on is not self.on:
            self.wait()
            for watch in self.watches.values():
                watch.turn(on)
            self.on = on
        self.ran.append((on, index + max(1, self.size // UNCOUNTED_EVERY), index + self.size))

    def over(self, index: int) -> bool:
        """Return whether step ``index`` is the last one of the last block, or comes later."""
        return index + 1 >= self.first + self.size * self.count
