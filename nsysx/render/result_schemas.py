"""The JSON Schemas of what ``compare``, ``check``, ``try`` and ``whatif`` write, made from the records where there are some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from nsysx.comparing import budget, comparability, comparison, difference_answer, differences
from nsysx.render.summary_schema import typed
from nsysx.replay import whatif_json
from nsysx.trying import result, same

_TEXT, _FLAG, _INTEGER, _NUMBER = ({"type": kind} for kind in ("string", "boolean", "integer", "number"))
_NULL_NUMBER: Mapping[str, Any] = {"type": ["number", "null"]}
_NULL_TEXT: Mapping[str, Any] = {"type": ["string", "null"]}


def _object(properties: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(properties), **more}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _nullable(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema, "type": [schema["type"], "null"]}


def _record(kind: Any, *, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the properties of a record, by its types, without some."""
    hints = get_type_hints(kind)
    return {f.name: _value(hints[f.name]) for f in fields(kind) if f.name not in but}


def _value(hint: Any) -> Mapping[str, Any]:
    if get_origin(hint) is list:
        return {"type": "array", "items": typed(get_args(hint)[0])}
    return typed(hint)


def _compare() -> dict[str, Any]:
    row = _object({**_record(differences.PartDifference), "difference_ns": _NUMBER})
    plain = get_type_hints(difference_answer.Comparison)
    return {
        **{name: typed(plain[name]) for name in difference_answer.AS_THEY_ARE},
        "whole_captures": _FLAG,
        "parts": _list(_object(_record(difference_answer.DifferencePart))),
        "comparability": _list(_object(_record(comparability.ComparabilityCheck))),
        "gpu_work": row,
        "unprofiled": _nullable(_object(_record(difference_answer.Real))),
        "notes": _list(_TEXT),
        "before": _list(_TEXT),
        "after": _list(_TEXT),
        "steps": {"type": "object", "additionalProperties": _list(_list(_INTEGER))},
        **{table.key: _list(row) for table in comparison.TABLES},
    }


def _check() -> dict[str, Any]:
    return {"capture": _TEXT, "exit_code": _INTEGER, "results": _list(_object(_record(budget.BudgetLine)))}


def _try() -> dict[str, Any]:
    apart = {f"{f.name}_difference": _NULL_NUMBER for f in fields(same.RunDifference) if f.name != "early_steps"}
    verdict = typed(get_type_hints(result.ChangeTrial)["verdict"])
    trial = _object({**_record(result.ChangeTrial, but=("difference",)), "outcome": verdict, **apart})
    baseline = _record(result.Baseline, but=("difference",))
    return {
        "command": _list(_TEXT),
        "verdict": {"enum": [*verdict["enum"], None]},
        "baseline": _object({**baseline, "early_steps": {"type": ["integer", "null"]}, **apart}),
        "trials": _list(trial),
        "together": _nullable(trial),
        "stopped": _TEXT,
        "interrupted": _FLAG,
    }


def _whatif() -> dict[str, Any]:
    outcome = {"step_ns": _INTEGER, "saving_ns": _INTEGER, "error_ns": _INTEGER, "limit": _TEXT, "moves_to": _NULL_TEXT}
    way = _object({"change": _TEXT, **outcome})
    in_job = _object({"option": _TEXT, "step_ns": _INTEGER, "saving_ns": _INTEGER})
    ns = {"type": ["integer", "null"]}
    return {
        "changes": _list(_object({"option": _NULL_TEXT, "change": _TEXT, **outcome, "alternatives": _list(way)})),
        "together": _nullable(_object(outcome)),
        **dict.fromkeys(
            ("step_ns", "low_ns", "high_ns", "recorded_ns", "replayed_ns", "gpu_work_ns", "loading_ns"), ns
        ),
        "source": _TEXT,
        "error": _NUMBER,
        "trusted": _FLAG,
        "advised": {"type": ["object", "null"]},
        "job": _nullable(_object({"ranks": _INTEGER, "step_ns": _INTEGER, "error": _NUMBER, "changes": _list(in_job)})),
    }


#: The name of each contract, its properties, and those that are always there, if not all of them.
_OF = {
    "compare": (difference_answer.SCHEMA, _compare, None),
    "check": (budget.SCHEMA, _check, None),
    "try": (result.SCHEMA, _try, None),
    "whatif": (whatif_json.WHATIF_SCHEMA, _whatif, ["job"]),
}


def schema_of(command: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what a command writes with ``--json``. Keys may be added within a major version."""
    name, properties, required = _OF[command]
    whole = {"schema": {"const": name}, **properties()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{name}",
        "title": f"What nsysx {command} --json writes",
        "type": "object",
        "properties": whole,
        "required": list(whole) if required is None else ["schema", *required],
    }
