"""The contract `nsysx.summary/1` as a JSON Schema, made from the records and columns themselves so that they cannot drift apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from nsysx import advice, analyses, model
from nsysx.analyses.helpers import step_record
from nsysx.ranks import rank_tables
from nsysx.saving import FINDING_KEYS

_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_TYPES = {"Int64": "integer", "Float64": "number", "String": "string", "Boolean": "boolean"}


def _record(kind: Any, *, nullable: bool = False) -> dict[str, Any]:
    """Return the schema of a frozen record, whose fields are all required."""
    names = [f.name for f in fields(kind)]
    return {
        "type": ["object", "null"] if nullable else "object",
        "description": (kind.__doc__ or "").strip().split("\n")[0],
        "properties": {name: {} for name in names},
        "required": names,
    }


def typed(hint: Any) -> dict[str, Any]:
    """Return the schema of a value with this type, records with all that is in them."""
    outer, inner = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return {**_record(hint), "properties": {f.name: typed(hints[f.name]) for f in fields(hint)}}
    if outer is tuple:
        return {"type": "array", "items": typed(inner[0])}
    if outer is Literal:
        return {"enum": list(inner)}
    if outer is UnionType:
        return {"type": [_PLAIN[kind] for kind in inner]}
    return {"type": _PLAIN[hint]} if hint in _PLAIN else {"type": "object"}


def _table(columns: Sequence[model.Column]) -> dict[str, Any]:
    """Return the schema of a table: rows, or null where the capture lacks the data (`quality` says why)."""
    properties: dict[str, Any] = {}
    for c in columns:
        properties[c.name] = {"description": f"{c.meaning}{f' ({c.unit})' if c.unit else ''}"}
        if c.dtype in _TYPES:
            properties[c.name]["type"] = [_TYPES[c.dtype], "null"]
    row = {"type": "object", "properties": properties, "required": [c.name for c in columns]}
    return {"type": ["array", "null"], "items": row}


def schema() -> Mapping[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a Summary. Keys may be added within a major version, so others are allowed."""
    tables = {module.KEY: _table(module.COLUMNS) for module in analyses.load()}
    tables |= {room.KEY: _table(room.COLUMNS) for room in rank_tables.ROOMS}
    properties: dict[str, Any] = {
        "schema": {"const": model.SCHEMA},
        "tool": {"type": "object", "required": ["version"]},
        "capture": _record(model.Capture),
        "quality": {"type": "array", "items": _record(model.Check)},
        "totals": {"type": "object"},
        "steps": _record(model.Steps),
        "verdict": _record(model.Verdict),
        "answer": typed(advice.Answer),
        **tables,
        "replay": {"type": ["object", "null"]},
        "unprofiled": _record(model.Unprofiled, nullable=True),
        "tried": {"type": "array", "items": typed(advice.Tried)},
        "findings": {
            "type": ["array", "null"],
            "items": {  # its saving is flat
                **_record(model.Finding),
                "properties": {name: {} for name in FINDING_KEYS},
                "required": list(FINDING_KEYS),
            },
        },
        "scopes": {"type": "object"},
    }
    properties["steps"]["properties"]["rows"] = _table(step_record.STEPS)
    properties["quality"]["items"]["properties"]["status"] = {"enum": ["ok", "warn", "missing"]}
    properties["findings"]["items"]["properties"]["verdict"] = {"enum": ["found", "clear", "cannot_tell"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{model.SCHEMA}",
        "title": "Summary of an Nsight Systems capture, as nsysx report --json writes it",
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }
