"""The JSON Schemas of what ``compare``, ``check``, ``try`` and ``whatif`` write, made from the records where there are some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from nsysx.comparing import budget, comparability, comparison, difference_answer, differences
from nsysx.render.schema_parts import list_of, object_of
from nsysx.render.summary_schema import typed
from nsysx.replay import whatif_json
from nsysx.trying import result, same

_TEXT, _FLAG, _INTEGER, _NUMBER = ({"type": kind} for kind in ("string", "boolean", "integer", "number"))
_NULL_NUMBER: Mapping[str, Any] = {"type": ["number", "null"]}
_NULL_TEXT: Mapping[str, Any] = {"type": ["string", "null"]}


def _nullable(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema, "type": [schema["type"], "null"]}


def _record(kind: Any, *, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the properties of a record, by its types, without some."""
    hints = get_type_hints(kind)
    return {f.name: _value(hints[f.name]) for f in fields(kind) if f.name not in but}


def _value(hint: Any) -> Mapping[str, Any]:
    if get_origin(hint) is list:
        return list_of(typed(get_args(hint)[0]))
    return typed(hint)


def _compare() -> dict[str, Any]:
    row = object_of({**_record(differences.PartDifference), "difference_ns": _NUMBER})
    plain = get_type_hints(difference_answer.Comparison)
    return {
        **{name: typed(plain[name]) for name in difference_answer.AS_THEY_ARE},
        "whole_captures": _FLAG,
        "parts": list_of(object_of(_record(difference_answer.DifferencePart))),
        "comparability": list_of(object_of(_record(comparability.ComparabilityCheck))),
        "gpu_work": row,
        "unprofiled": _nullable(object_of(_record(difference_answer.Real))),
        "notes": list_of(_TEXT),
        "before": list_of(_TEXT),
        "after": list_of(_TEXT),
        "steps": {"type": "object", "additionalProperties": list_of(list_of(_INTEGER))},
        **{table.key: list_of(row) for table in comparison.TABLES},
    }


def _check() -> dict[str, Any]:
    return {"capture": _TEXT, "exit_code": _INTEGER, "results": list_of(object_of(_record(budget.BudgetLine)))}


def _try() -> dict[str, Any]:
    apart = {f"{f.name}_difference": _NULL_NUMBER for f in fields(same.RunDifference) if f.name != "early_steps"}
    verdict = typed(get_type_hints(result.ChangeTrial)["verdict"])
    trial = object_of({**_record(result.ChangeTrial, but=("difference",)), "outcome": verdict, **apart})
    baseline = _record(result.Baseline, but=("difference",))
    return {
        "command": list_of(_TEXT),
        "verdict": {"enum": [*verdict["enum"], None]},
        "baseline": object_of({**baseline, "early_steps": {"type": ["integer", "null"]}, **apart}),
        "trials": list_of(trial),
        "together": _nullable(trial),
        "stopped": _TEXT,
        "interrupted": _FLAG,
    }


def _whatif() -> dict[str, Any]:
    outcome = {"step_ns": _INTEGER, "saving_ns": _INTEGER, "error_ns": _INTEGER, "limit": _TEXT, "moves_to": _NULL_TEXT}
    way = object_of({"change": _TEXT, **outcome})
    in_job = object_of({"option": _TEXT, "step_ns": _INTEGER, "saving_ns": _INTEGER})
    ns = {"type": ["integer", "null"]}
    return {
        "changes": list_of(object_of({"option": _NULL_TEXT, "change": _TEXT, **outcome, "alternatives": list_of(way)})),
        "together": _nullable(object_of(outcome)),
        **dict.fromkeys(
            ("step_ns", "low_ns", "high_ns", "recorded_ns", "replayed_ns", "gpu_work_ns", "loading_ns"), ns
        ),
        "source": _TEXT,
        "error": _NUMBER,
        "trusted": _FLAG,
        "advised": {"type": ["object", "null"]},
        "job": _nullable(
            object_of({"ranks": _INTEGER, "step_ns": _INTEGER, "error": _NUMBER, "changes": list_of(in_job)})
        ),
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
