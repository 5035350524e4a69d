"""The Summary as JSON text, ``nsysx.summary/1``: for programs, so every number is exact and every time is in ns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from nsysx.model import Summary
from nsysx.render import safe_text


def _plain(value: Any) -> Any:
    """Return ``value`` as something JSON can express: no NaN, no infinity, no lone surrogate, no tuple."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_plain(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if hasattr(value, "item"):  # a numpy scalar
        return _plain(value.item())
    return str(value)


def _lines(value: Any, indent: int, encode: Callable[[Any], str]) -> str:
    """Return JSON text with one line for each key of the first two levels and for each row of a table."""
    if isinstance(value, dict) and value and indent < 2:
        items = [f"{encode(str(k))}: {_lines(v, indent + 1, encode)}" for k, v in value.items()]
        opened, closed = "{", "}"
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
        items, opened, closed = [encode(v) for v in value], "[", "]"
    else:
        return encode(value)
    inner = ",\n".join(" " * (indent + 1) + item for item in items)
    return f"{opened}\n{inner}\n{' ' * indent}{closed}"


def render(summary: Summary) -> str:
    """Return the whole Summary as UTF-8 JSON text that ends with a newline. Keys keep the order of the contract."""
    return text_of(summary.to_json())


def text_of(data: dict[str, Any]) -> str:
    """Return plain values as UTF-8 JSON text that ends with a newline, one line for each row of a table."""
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    try:
        text = _lines(data, 0, encode)
        text.encode()
    except (TypeError, ValueError):
        # Something that JSON cannot express: rare, and looking for it first would take longer than all the rest.
        text = _lines(_plain(data), 0, encode)
    return safe_text.harmless_json(text) + "\n"
