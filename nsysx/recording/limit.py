"""What ``--limit`` means: when a recording ends that nothing else ends."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from nsysx.inject.nsysx_probe.capture_range import MODE

#: Options of nsys that say when it records.
OF_CAPTURE = re.compile(r"-c|--capture-range|-d|--duration|-p|--nvtx-capture|-y|--delay|-x|--stop-on-exit")


class RecordingLimit(NamedTuple):
    """A recording ends after so much, whichever is first."""

    seconds: float = 120.0
    events: int = 5_000_000

    def __str__(self) -> str:
        return f"{self.seconds:g}:{self.events}"


#: The limit where none is given.
DEFAULT = RecordingLimit()


def parsed(text: str) -> RecordingLimit | None:
    """Return what ``S``, ``S:EVENTS`` or ``none`` means; None is no limit. Raises ValueError."""
    if text == "none":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?::(\d+))?", text)
    if not match or not 0 < float(match[1]) < math.inf or (match[2] and int(match[2]) <= 0):
        raise ValueError(text)
    return RecordingLimit(float(match[1]), int(match[2]) if match[2] else DEFAULT.events)


def limit_of_run(given: str | None, steps: str | None, nsys_args: Sequence[str]) -> RecordingLimit | None:
    """Return the limit of a run, None for one without. Without ``--limit`` only what nobody has asked for as a whole has one."""
    if given is not None:
        return parsed(given)
    asked = steps not in (None, MODE) or any(OF_CAPTURE.match(word) for word in nsys_args)
    return None if asked else DEFAULT
