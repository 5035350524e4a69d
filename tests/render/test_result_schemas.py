"""The JSON Schemas of compare, check, try and whatif hold for what they write, name each of its keys, and refuse other things."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import nsysx
from nsysx.comparing import budget, side_inputs
from nsysx.render import json_text, result_schemas
from nsysx.trying.result import Baseline, ChangeTrial, TryResult
from tests.test_cli import nsysx as command

jsonschema = pytest.importorskip("jsonschema")
SAMPLES = Path(__file__).resolve().parents[2] / "sample_reports"
REPORT = SAMPLES / "tiny_stack.sqlite.xz"


def written(name: str) -> dict[str, Any]:
    """Return what a command writes."""
    if name == "compare":
        pair = (SAMPLES / f"masked_{which}.sqlite.xz" for which in ("nonzero", "ignore_index"))
        values = nsysx.compare(*pair).to_json()
    elif name == "check":
        limits = {"counts": {"syncs": 0}, "times_ms": {"step": 50}}
        values = budget.check(side_inputs.measured(REPORT), limits).to_json()
    elif name == "try":
        trial = ChangeTrial("tf32", verdict="faster", ratio=0.5, step_ns=1e6, pairs=6, findings=["NSX116"])
        values = TryResult(["python", "a.py"], Baseline(step_ns=2e6, runs=3), [trial], ChangeTrial("both")).to_json()
    else:
        values = json.loads(command("whatif", SAMPLES / "ddp.sqlite.xz", "--json", "-").stdout)
    plain: dict[str, Any] = json.loads(json_text.text_of(values))
    return plain


@pytest.mark.parametrize("name", ["compare", "check", "try", "whatif"])
def test_what_is_written_is_what_the_schema_says(name: str) -> None:
    schema = result_schemas.schema_of(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    values = written(name)
    assert [e.message for e in validator.iter_errors(values)][:3] == []
    assert set(values) == set(schema["properties"])
    for key in schema["required"]:
        assert not validator.is_valid({k: v for k, v in values.items() if k != key}), key
    for key, value in values.items():
        if isinstance(value, str | list | int):
            assert not validator.is_valid({**values, key: {"no": 1}}), key


@pytest.mark.parametrize("name", ["compare", "check", "try", "whatif"])
def test_the_command_prints_it(name: str) -> None:
    printed = command(name, "--json-schema")
    assert printed.returncode == 0, printed.stderr
    assert json.loads(printed.stdout) == json.loads(json_text.text_of(result_schemas.schema_of(name)))
