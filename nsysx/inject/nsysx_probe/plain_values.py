"""What functions are given, one value after the other, and which of it says itself what it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: What says itself what it is.
PLAIN = (bool, int, float, str, type(None))


def flat(values: Any) -> Iterator[Any]:
    """Yield what is in lists, tuples and mappings; anything else as it is."""
    for value in values:
        if type(value) in (list, tuple):
            yield from flat(value)
        elif type(value) is dict:
            yield from flat(value.values())
        else:
            yield value
