"""The parts that JSON Schemas are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]


def object_of(required: Schema, optional: Schema | None = None, *, closed: bool = False) -> dict[str, Any]:
    """Return the schema of an object with these properties; ``closed``: and no others."""
    whole = {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}
    return {**whole, "additionalProperties": False} if closed else whole


def list_of(items: Schema, most: int | None = None) -> dict[str, Any]:
    """Return the schema of a list of such items, at most ``most``."""
    return {"type": "array", "items": items, **({} if most is None else {"maxItems": most})}
