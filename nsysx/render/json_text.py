"""The Summary as JSON text, ``nsysx.summary/1``: for programs, so every number is exact and every time is in ns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from nsysx.model import Summary


def _plain(value: Any) -> Any:
    """Return ``value`` as what JSON can say: no NaN, no infinity, no lone surrogate, no tuple."""
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


def render(summary: Summary) -> str:
    """Return the whole Summary as UTF-8 JSON text that ends with a newline. Keys keep the order of the contract."""
    return json.dumps(_plain(summary.to_json()), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
