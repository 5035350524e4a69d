"""JSON for programs that read little at a time: no more than 2.5 kB, one line for each key."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from nsysx.render.render_bounds import MOST_JSON_BYTES
from nsysx.render.safe_text import clean, harmless_json

Json = dict[str, Any]

#: Shares of their room that texts get, in turn, until all fits.
_ROOMS = (1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.22, 0.15, 0.0)


def text_of(content: Json) -> str:
    """Return values as JSON text that ends with a newline."""
    lines = [
        f"{json.dumps(key)}:{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
        for key, value in content.items()
    ]
    return harmless_json("{" + ",\n ".join(lines) + "}\n")


def size_of(text: str) -> int:
    """Return how long a text is (bytes)."""
    return len(text.encode("utf-8", "backslashreplace"))


def fitted(make: Callable[[float], Json], most: int = MOST_JSON_BYTES) -> str:
    """Return the JSON of ``make(room)`` with the most room, 1.0 to 0.0, in which it is no longer than ``most`` bytes."""
    text = ""
    for room in _ROOMS:
        text = text_of(make(room))
        if size_of(text) <= most:
            break
    return text


def cut(value: object, limit: int) -> str:
    """Return a text of at most about ``limit`` letters: whole sentences where one ends late enough, else whole words."""
    text = clean(str(value)[: 4 * limit + 400], 2000)
    if len(text) <= limit:
        return text
    head = text[:limit]
    end = max(head.rfind(". "), head.rfind("; "))
    if end >= limit // 2:
        return head[: end + 1].rstrip(";")
    words = head.rpartition(" ")[0]
    return f"{words if len(words) > limit // 2 else head}…"  # a long name is cut inside
