"""The JSON Schemas of what programs read a little at a time: ``nsysx.brief/2``, ``nsysx.insight/1`` and ``nsysx.table/1``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from nsysx.render.brief import BRIEF_SCHEMA
from nsysx.render.insight import INSIGHT_SCHEMA
from nsysx.render.schema_parts import list_of, object_of
from nsysx.render.table_json import TABLE_SCHEMA

_NS: Mapping[str, Any] = {"type": ["integer", "null"], "description": "ns of one step; null where it is not known"}
_TEXT: Mapping[str, Any] = {"type": "string"}
_NULLABLE: Mapping[str, Any] = {"type": ["string", "null"]}
_TEXTS: Mapping[str, Any] = {"type": "array", "items": _TEXT}
_FLAG: Mapping[str, Any] = {"type": "boolean"}
_COUNT: Mapping[str, Any] = {"type": "integer", "minimum": 0}
_STATES = ("holds", "violated", "unknown")


_object = partial(object_of, closed=True)

_WHERE = _object(
    {},
    {
        **dict.fromkeys(("module", "phase", "near", "file"), _TEXT),
        "line": {"type": "integer", "minimum": 1},
        "text": {**_TEXT, "description": "what stands in the line"},
    },
)
_SAVING = {
    **_object({"likely_ns": _NS, "bound": _FLAG}, {"low_ns": _NS, "high_ns": _NS}),
    "type": ["object", "null"],
    "description": "what the change saves of a step, between low_ns and high_ns; bound: likely_ns is the most that it can",
}
_COMMANDS = {
    "type": "object",
    "additionalProperties": _TEXT,
    "description": "commands by what they do; they run in any folder",
}
_CAUSE = _object(
    {
        "id": {**_NULLABLE, "description": "nsysx report --insight ID; null for advice about the capture itself"},
        "what": _TEXT,
        "where": _WHERE,
        "saving": _SAVING,
        "do": _TEXT,
        "paste": {**_NULLABLE, "description": "code that makes the change, whole"},
        "conditions": {
            "type": "object",
            "additionalProperties": {"enum": list(_STATES)},
            "description": "what the change needs and does not have for certain",
        },
        "conditions_hold": {**_COUNT, "description": "how many others hold"},
    },
    {"saving_unknown": {**_TEXT, "description": "why saving is null"}, "paste_is": _TEXT},
)


def _brief() -> dict[str, Any]:
    return _object({
        "schema": {"const": BRIEF_SCHEMA},
        "report": _TEXT,
        "limit": _object({"code": _TEXT, "sentence": _TEXT}),
        "step": _object(
            {
                "now_ns": _NS, "low_ns": _NS, "high_ns": _NS,
                "source": {"enum": ["in_process", "second_run", "modelled", "assumed", "recorded"]},
                "recorded_ns": _NS, "steady_steps": _COUNT,
            },
            {"reason": {**_TEXT, "description": "why now_ns is null"}},
        ),
        "causes": list_of(_CAUSE, 3),
        "after": _object({
            "step_ns": _NS, "low_ns": _NS, "high_ns": _NS, "at_best_ns": _NS, "bound": _FLAG,
            "sure": {"enum": ["certain", "likely", "unknown"]}, "reason": _TEXT,
        }, {"loop_now_ns": _NS, "loop_ns": {**_NS, "description": "the loop per step, with what runs between steps"}}),
        "care": _TEXTS,
        "not_recorded": list_of(_object({"what": _TEXT, "record_with": _TEXT})),
        "commands": _COMMANDS,
    })  # fmt: skip


def _insight() -> dict[str, Any]:
    condition = _object({"name": _TEXT, "state": {"enum": list(_STATES)}, "detail": _TEXT})
    return _object({
        "schema": {"const": INSIGHT_SCHEMA},
        "id": _TEXT,
        "verdict": {"enum": ["found", "clear", "cannot_tell"]},
        "what": _TEXT, "detail": _TEXT, "where": _WHERE, "over": _TEXT,
        "cost_ns_per_step": _NS, "cost_as_recorded": _FLAG,
        "saving": _SAVING, "saving_reason": _TEXT, "moves_to": _NULLABLE,
        "do": _TEXT, "paste": _NULLABLE, "only_if": _TEXT,
        "conditions": list_of(condition),
        "remedies": list_of(_object({"name": _TEXT, "refuted": _FLAG})),
        "tried": _TEXTS, "overlaps": _TEXTS,
        "evidence": list_of({"type": "object"}), "evidence_rows": _COUNT,
        "stop_if": _TEXT,
        "commands": _COMMANDS,
    })  # fmt: skip


def _rows() -> dict[str, Any]:
    return _object(
        {
            "schema": {"const": TABLE_SCHEMA},
            "table": _TEXT,
            "over": _TEXT,
            "rows": {"type": ["array", "null"], "items": {"type": "object"}},
        },
        {"reason": _TEXT, "rows_in_all": _COUNT, "left_out": _COUNT, "narrow": _TEXT, "other_columns": _TEXT},
    )


def schema() -> Mapping[str, Any]:
    """Return the JSON Schema (draft 2020-12) of these answers."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:nsysx.brief",
        "title": "What nsysx report --brief, --insight and --table write",
        "oneOf": [_brief(), _insight(), _rows()],
    }
